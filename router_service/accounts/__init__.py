"""API keys and what they allow."""
