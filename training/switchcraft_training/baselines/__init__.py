"""Baselines: other routers, fitted and measured in the same way as ours."""
