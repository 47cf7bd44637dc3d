"""Learns to route one's own requests from what the dearest model did."""
