"""OpenAI's Responses API."""

NAME = "responses"
"""The API's name in the registry and in sealed proofs of reasoning."""

TRIGGER = "compaction_trigger"
"""Type of the last item of a request for a summary of the conversation, which replaces it."""
COMPACTIONS = ("compaction", "compaction_summary", "context_compaction")
"""Types of items with such a summary. Codex has used all of them."""
