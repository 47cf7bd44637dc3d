"""Runs the gateway: the app and its server."""
