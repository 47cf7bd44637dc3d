"""Puts an artifact where gateways find it, and moves the pointer that says which one serves."""
