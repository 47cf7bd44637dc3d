"""What the sandbox says that a request and its answer used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from router_service.core.messages import Json
from router_service.sandbox.answers import Answer

_CHARACTERS_PER_TOKEN = 4

_REASONING_TOKENS: Final[Mapping[str, int]] = {
    "none": 0,
    "minimal": 16,
    "low": 64,
    "medium": 256,
    "high": 1024,
}
_MOST_REASONING_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request and its answer, approximate: a token for every 4 bytes of JSON or text.

    The prompt counts the messages, the tools and the response format as JSON, and the answer its
    text, or the names and the arguments of its calls; both are at least 1. Where a request asks
    for a reasoning effort, the answer's tokens hold a fixed number of reasoning tokens for it.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0

    def to_json(self) -> dict[str, Json]:
        """Return it as the Chat Completions API writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
            },
        }

    def to_responses_json(self) -> dict[str, Json]:
        """Return it as the Responses API writes it."""
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def count_usage(prompt: bytes, answer: Answer, *, copies: int = 1, effort: Json = None) -> Usage:
    """Count the tokens of an encoded prompt and of its answers, as `Usage` says."""
    written = len((answer.text or "").encode())
    written += sum(len((call.name + call.payload).encode()) for call in answer.calls)
    reasoning_tokens = _reasoning_tokens(effort)
    total_tokens = count_tokens(written) + reasoning_tokens
    return Usage(count_tokens(len(prompt)), copies * total_tokens, copies * reasoning_tokens)


def count_tokens(count_bytes: int) -> int:
    """Return how many tokens so many bytes are, at least one."""
    return max(1, -(-count_bytes // _CHARACTERS_PER_TOKEN))


def _reasoning_tokens(effort: Json) -> int:
    if not isinstance(effort, str):
        return 0
    return _REASONING_TOKENS.get(effort, _MOST_REASONING_TOKENS)
