"""Runs the gateway: the app, the server, and worker processes."""
