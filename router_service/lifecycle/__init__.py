"""Gateway, engine, reload, replica synchronization and shutdown; independent of HTTP."""
