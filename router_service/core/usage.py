"""What an answer used, from whichever form of `usage` its provider writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from router_service.core.messages import Json

MAX_TOKENS = 1_000_000_000
"""A larger count is not believed: sums would exceed 64 bits, and one such answer would outweigh all
others in the metrics."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request and of its answer, as OpenAI counts them.

    `cached_tokens` and `cache_write_tokens` are parts of `prompt_tokens`, `reasoning_tokens` of
    `completion_tokens` (API reference: "The chat completion object", usage): none is added to them.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """Whether the gateway counted it, where the provider did not."""

    def __post_init__(self) -> None:
        """Cut parts to what they are parts of: providers have reported more cached than read."""
        cached = min(self.cached_tokens, self.prompt_tokens)
        written = min(self.cache_write_tokens, self.prompt_tokens - cached)
        object.__setattr__(self, "cached_tokens", cached)
        object.__setattr__(self, "cache_write_tokens", written)
        reasoning = min(self.reasoning_tokens, self.completion_tokens)
        object.__setattr__(self, "reasoning_tokens", reasoning)

    @property
    def uncached_tokens(self) -> int:
        """Tokens of the prompt that no cache had or took."""
        return self.prompt_tokens - self.cached_tokens - self.cache_write_tokens


NOTHING_USED = Usage(prompt_tokens=0, completion_tokens=0)


def usage_of(answer: Json) -> Usage | None:
    """Return what a decoded answer or event says that it used; None where it does not.

    Read are Chat Completions, Completions, Embeddings and Responses, whole or streamed: the
    last event of a streamed response carries the response, and so its usage, inside.
    """
    if not isinstance(answer, dict):  # what is decoded is one, and `Mapping` is slow to be asked
        return None
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        inner = answer.get("response", answer.get("x_groq"))
        usage = inner.get("usage") if isinstance(inner, dict) else None
    return _read(usage) if isinstance(usage, dict) else None


def _read(usage: Mapping[str, Json]) -> Usage | None:
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    completion = _completion(usage, prompt or 0)
    if prompt is None or completion is None:
        return None
    cached, written = _cached(usage), _written(usage)
    if _is_anthropic(usage):
        prompt += cached + written
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=_first(_completion_details(usage), "reasoning_tokens") or 0,
    )


def _completion(usage: Mapping[str, Json], prompt: int) -> int | None:
    """Return the answer's tokens; embeddings have none, which their total shows."""
    completion = _first(usage, "completion_tokens", "output_tokens")
    if completion is None and _count(usage.get("total_tokens")) == prompt:
        return 0
    return completion


def _cached(usage: Mapping[str, Json]) -> int:
    """Return the tokens read from a cache, under any of the names that providers give them.

    `prompt_cache_hit_tokens` is DeepSeek's, `cached_tokens` at the top Moonshot's and
    `cache_read_input_tokens` Anthropic's; all name the same tokens, so one is taken.
    """
    inner = _first(_prompt_details(usage), "cached_tokens")
    outer = _first(usage, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    return inner or outer or 0


def _written(usage: Mapping[str, Json]) -> int:
    inner = _first(_prompt_details(usage), "cache_write_tokens", "cache_creation_tokens")
    return inner or _first(usage, "cache_creation_input_tokens") or 0


def _is_anthropic(usage: Mapping[str, Json]) -> bool:
    """Whether cached tokens stand beside the others, as in the Messages API (prompt caching)."""
    return (
        "prompt_tokens" not in usage
        and "input_tokens_details" not in usage
        and ("cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage)
    )


def _prompt_details(usage: Mapping[str, Json]) -> Mapping[str, Json]:
    return _part(usage, "prompt_tokens_details", "input_tokens_details")


def _completion_details(usage: Mapping[str, Json]) -> Mapping[str, Json]:
    return _part(usage, "completion_tokens_details", "output_tokens_details")


def _part(usage: Mapping[str, Json], *names: str) -> Mapping[str, Json]:
    for name in names:
        part = usage.get(name)
        if isinstance(part, dict):
            return part
    return {}


def _first(values: Mapping[str, Json], *names: str) -> int | None:
    """Return the first of these that is a count."""
    for name in names:
        count = _count(values.get(name))
        if count is not None:
            return count
    return None


def _count(value: Json) -> int | None:
    """Return a number of tokens; None for what cannot be one, such as -1, true or 2**63."""
    # `type` and not `isinstance`, because true and false are ints to the latter.
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
