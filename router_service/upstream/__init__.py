"""Client for upstreams: connections, retries, circuit breakers, event streams and redaction."""
