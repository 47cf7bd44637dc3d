"""Token counts of a request and its answer.

Each API knows where its answers have their counts. The names of the counts are read here for all,
because servers that are compatible with OpenAI mix them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from router_service.apis.conversation import Json
from router_service.core.values import request_value

MAX_TOKENS = 1_000_000_000
"""Larger token counts are ignored. Their sums would exceed 64 bits, and one answer with such a
count would outweigh all other answers in the metrics."""


CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English. It is used for answers whose provider reports no token
counts, and for requests whose answers have not ended."""


@request_value(frozen=True, slots=True)
class Usage:
    """Token counts of a request and its answer, as OpenAI defines them.

    `cached_tokens` and `cache_write_tokens` are included in `prompt_tokens`, and `reasoning_tokens`
    in `completion_tokens` (API reference: "The chat completion object", usage).
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """Whether the gateway estimated the counts, because the provider did not report them."""
    uncached_tokens: int = field(init=False, repr=False, compare=False)
    """Tokens of the prompt that were neither read from a cache nor written to it."""

    def __post_init__(self) -> None:
        """Limit parts to their totals: providers have reported more cached than prompt tokens."""
        cached = min(self.cached_tokens, self.prompt_tokens)
        written = min(self.cache_write_tokens, self.prompt_tokens - cached)
        object.__setattr__(self, "cached_tokens", cached)
        object.__setattr__(self, "cache_write_tokens", written)
        object.__setattr__(self, "uncached_tokens", self.prompt_tokens - cached - written)
        reasoning = min(self.reasoning_tokens, self.completion_tokens)
        object.__setattr__(self, "reasoning_tokens", reasoning)


NO_USAGE = Usage(prompt_tokens=0, completion_tokens=0)


def read_counts(usage: Json) -> Usage | None:
    """Return the counts of a `usage` object, under the names of any provider; None without them."""
    if not isinstance(usage, dict):
        return None
    prompt = read_count(usage, "prompt_tokens", "input_tokens")
    completion = read_count(usage, "completion_tokens", "output_tokens")
    if completion is None and read_count(usage, "total_tokens") == prompt:
        completion = 0  # embeddings have no completion
    if prompt is None or completion is None:
        return None
    prompt_details = usage.get("prompt_tokens_details")
    if not isinstance(prompt_details, dict):
        prompt_details = usage.get("input_tokens_details")
    completion_details = usage.get("completion_tokens_details")
    if not isinstance(completion_details, dict):
        completion_details = usage.get("output_tokens_details")
    if len(usage) == 3 and "total_tokens" in usage:  # nothing else is reported
        return Usage(prompt, completion)
    # `prompt_cache_hit_tokens` is DeepSeek's name, `cached_tokens` at the top level Moonshot's and
    # `cache_read_input_tokens` Anthropic's. All mean the same tokens, so only one is taken.
    cached = read_count(prompt_details, "cached_tokens") or read_count(
        usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens"
    )
    written = read_count(
        prompt_details, "cache_write_tokens", "cache_creation_tokens"
    ) or read_count(usage, "cache_creation_input_tokens")
    # In Anthropic's Messages API, `input_tokens` excludes cached tokens (prompt caching).
    is_anthropic = "prompt_tokens" not in usage and "input_tokens_details" not in usage
    if is_anthropic and (
        "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage
    ):
        prompt += (cached or 0) + (written or 0)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached or 0,
        cache_write_tokens=written or 0,
        reasoning_tokens=read_count(completion_details, "reasoning_tokens", "thinking_tokens") or 0,
    )


def read_count(values: Json | Mapping[str, Json], *names: str) -> int | None:
    """Return the first of the named members that is a valid count; -1, true and 2**63 are not."""
    if isinstance(values, dict):
        for name in names:
            count = values.get(name)
            # `type` instead of `isinstance`, because true and false are ints to the latter.
            if type(count) is int and 0 <= count <= MAX_TOKENS:
                return count
    return None
