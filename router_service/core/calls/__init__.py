"""Comparison of tool calls by their structure, under the schemas of the tools."""
