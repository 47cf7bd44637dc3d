"""Readers of published datasets: one module a dataset, and one format of rows for all."""
