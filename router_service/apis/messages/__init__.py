"""Anthropic's Messages API."""

NAME = "messages"
"""The API's name in the registry and in sealed proofs of reasoning."""
