"""API keys: who sends a request, what the key allows, and what happens before and after it."""
