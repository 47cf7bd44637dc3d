"""Stores for records and shared state: one interface, one backend per file, a factory by URL."""
