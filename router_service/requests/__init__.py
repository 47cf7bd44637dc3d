"""The life of one request: parse, plan, exchange, record."""
