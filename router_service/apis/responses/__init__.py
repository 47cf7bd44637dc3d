"""OpenAI's Responses API."""

NAME = "responses"
"""The API's name in the registry and in sealed proofs of reasoning."""
