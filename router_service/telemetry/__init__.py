"""Every Prometheus series of the service, defined once."""
