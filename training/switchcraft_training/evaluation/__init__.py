"""Evaluation of a router: metrics with their errors, and the report."""
