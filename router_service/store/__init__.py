"""Stores for records and for the state that replicas share: in memory or in Redis."""
