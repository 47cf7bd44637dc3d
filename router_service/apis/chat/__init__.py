"""OpenAI's Chat Completions API."""

NAME = "chat"
"""The API's name in the registry and in sealed proofs of reasoning."""
