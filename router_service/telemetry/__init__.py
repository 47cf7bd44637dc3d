"""Metrics, logs, traces and the decision log."""
