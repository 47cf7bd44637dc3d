"""Stores for records and shared state: in memory, in the workers' parent, or in Redis."""
