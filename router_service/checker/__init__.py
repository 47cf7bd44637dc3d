"""Comparison of tool calls by structure."""
