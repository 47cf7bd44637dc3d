"""Stores for records and shared state: one interface, one place per file, a factory by URL."""
