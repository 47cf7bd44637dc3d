"""The life of one request: parse, plan, answer, record."""
