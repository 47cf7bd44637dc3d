"""Usage: what an answer says that it used, in every form that providers write."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_service.core.answers import MAX_TOKENS, Usage, read_usage

FORMS: dict[str, tuple[dict[str, Any], Usage]] = {
    "chat": (
        {
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 12},
            }
        },
        Usage(100, 20, cached_tokens=64, reasoning_tokens=12),
    ),
    "responses": (
        {
            "usage": {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 64},
                "output_tokens": 20,
                "output_tokens_details": {"reasoning_tokens": 12},
            }
        },
        Usage(100, 20, cached_tokens=64, reasoning_tokens=12),
    ),
    "the last event of a streamed response": (
        {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 7, "output_tokens": 3}},
        },
        Usage(7, 3),
    ),
    "embeddings": ({"usage": {"prompt_tokens": 8, "total_tokens": 8}}, Usage(8, 0)),
    "DeepSeek": (
        {
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 60,
                "prompt_cache_miss_tokens": 40,
                "prompt_tokens_details": {"cached_tokens": 60},
            }
        },
        Usage(100, 5, cached_tokens=60),
    ),
    "Moonshot": (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 90}},
        Usage(100, 5, cached_tokens=90),
    ),
    "Anthropic behind an OpenAI form": (
        {
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "cache_read_input_tokens": 50,
                "cache_creation_input_tokens": 30,
            }
        },
        Usage(100, 5, cached_tokens=50, cache_write_tokens=30),
    ),
    "Anthropic's own, where cached tokens are beside the others": (
        {
            "usage": {
                "input_tokens": 20,
                "output_tokens": 5,
                "cache_read_input_tokens": 50,
                "cache_creation_input_tokens": 30,
            }
        },
        Usage(100, 5, cached_tokens=50, cache_write_tokens=30),
    ),
    "Groq's stream": (
        {"x_groq": {"id": "r", "usage": {"prompt_tokens": 9, "completion_tokens": 1}}},
        Usage(9, 1),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    """The same facts come out of each provider's form, each token once."""
    answer, wanted = FORMS[form]
    assert read_usage(answer) == wanted


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"usage": None},
        {"usage": {"prompt_tokens": -1, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": True, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": 1e308, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": 2**64 - 1, "completion_tokens": 1}},
        {"usage": {"prompt_tokens": 1, "completion_tokens": MAX_TOKENS + 1}},
        {"usage": {"prompt_tokens": [1], "completion_tokens": {}}},
        {"usage": {"prompt_tokens": 1}},
        {"usage": {"prompt_tokens": 1, "total_tokens": 5}},
        {"response": "x"},
        {"response": {"response": {"usage": {"prompt_tokens": 1}}}},
    ],
)
def test_what_is_no_usage_is_none(answer: object) -> None:
    """A missing or senseless usage is unknown, and never 0."""
    assert read_usage(answer) is None


def test_sums_of_incredible_counts_fit_into_64_bits() -> None:
    """Cache counts beside the prompt are added to it, and the sum can still be written as JSON."""
    largest = dict.fromkeys(
        ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        2**64 - 1,
    )
    assert read_usage({"usage": largest}) is None
    usage = read_usage({"usage": dict.fromkeys(largest, MAX_TOKENS)})
    assert usage is not None
    assert orjson.loads(orjson.dumps(usage))["prompt_tokens"] == 3 * MAX_TOKENS


def test_deep_nesting_is_not_followed() -> None:
    """Responses within responses, as deep as the JSON reader allows, are read without recursion."""
    depth = 1000
    nested = orjson.loads(b'{"usage":1,"response":' * depth + b"{}" + b"}" * depth)
    assert read_usage(nested) is None


counts = st.integers(0, MAX_TOKENS)


@given(counts, counts, counts, counts, counts)
def test_parts_never_exceed_the_whole(
    prompt: int, completion: int, cached: int, written: int, reasoning: int
) -> None:
    """Whatever a provider claims, cached and written tokens fit in the prompt."""
    usage = Usage(prompt, completion, cached, written, reasoning)
    assert usage.uncached_tokens >= 0
    assert usage.cached_tokens + usage.cache_write_tokens + usage.uncached_tokens == prompt
    assert usage.reasoning_tokens <= completion
