"""Routers to hold ours against, all fitted and measured under one protocol."""
