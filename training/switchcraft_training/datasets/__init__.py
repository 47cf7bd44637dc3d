"""Readers of benchmarks: one module a source, one schema of rows out."""
