"""The gateway and its engines: composition, reload, replica synchronization."""
