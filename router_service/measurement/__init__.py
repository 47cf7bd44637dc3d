"""Accuracy and cost of rules on held-out queries, with intervals."""
