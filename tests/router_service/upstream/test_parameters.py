"""Request parameters that a deployment adds to the bodies that it sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router_service.upstream.bodies import MAX_KEYS
from router_service.upstream.parameters import add_parameters
from tests import apis

CHAT, RESPONSES, MESSAGES = apis.CHAT.path, apis.RESPONSES.path, apis.MESSAGES.path

EFFORT = {"reasoning_effort": "low"}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize(
    ("path", "parameters", "body", "expected"),
    [
        (CHAT, EFFORT, b'{"model":"m"}', b'{"reasoning_effort":"low","model":"m"}'),
        (RESPONSES, EFFORT, b'{"model":"m"}', b'{"reasoning":{"effort":"low"},"model":"m"}'),
        (RESPONSES, {"top_k": 5, "stop": ["a"]}, b" { }", b' {"top_k":5 }'),
        (CHAT, {"thinking": THINKING}, b"{}", b'{"thinking":%b}'),
        (RESPONSES, {"thinking": THINKING}, b"{}", b'{"thinking":%b}'),
        (CHAT, {"max_tokens": 9}, b"{}", b'{"max_tokens":9}'),
        (RESPONSES, {"max_tokens": 9}, b"{}", b'{"max_output_tokens":9}'),
        (RESPONSES, {"verbosity": "low"}, b"{}", b'{"text":{"verbosity":"low"}}'),
        (MESSAGES, EFFORT, b"{}", b'{"output_config":{"effort":"low"}}'),
        (MESSAGES, {"stop": "a", "top_k": 5}, b"{}", b'{"stop_sequences":["a"],"top_k":5}'),
        (MESSAGES, {"thinking": THINKING}, b"{}", b'{"thinking":%b}'),
        (CHAT, {"\u00e9": 1}, b"{}", '{"\u00e9":1}'.encode()),
    ],
)
def test_missing_parameters_are_added(
    path: str, parameters: dict[str, Any], body: bytes, expected: bytes
) -> None:
    """They have the API's own names; what only Chat Completions has stays away from Responses."""
    thinking = json.dumps(THINKING, separators=(",", ":")).encode()
    assert add_parameters(body, parameters, path, "m") == expected.replace(b"%b", thinking)


@pytest.mark.parametrize(
    ("path", "parameters", "body"),
    [
        (CHAT, EFFORT, b'{"reasoning_effort":"high"}'),
        (CHAT, EFFORT, b'{"a":1, "reasoning_effort" : null}'),
        (CHAT, EFFORT, b'{"reasoning":{"effort":"high"}}'),
        (CHAT, {"max_tokens": 9}, b'{"max_completion_tokens":5}'),
        (CHAT, {"max_completion_tokens": 9}, b'{"max_tokens":5}'),
        (CHAT, {"temperature": 1}, b'{"temp\\u0065rature":0}'),
        (CHAT, {"\u00e9\U0001f600": 1}, b'{"\\u00E9\\ud83d\\uDE00":0}'),
        (RESPONSES, EFFORT, b'{"reasoning":{"summary":"auto", "effort":"high"}}'),
        (RESPONSES, EFFORT, b'{"reasoning":{"effort":null}}'),
        (RESPONSES, EFFORT, b'{"reasoning":null}'),
        (RESPONSES, {"max_tokens": 9}, b'{"max_output_tokens":5}'),
        (MESSAGES, EFFORT, b'{"output_config":{"effort":"high"}}'),
        (MESSAGES, {"seed": 9, "verbosity": "low"}, b'{"model":"m"}'),
        ("/embeddings", EFFORT, b'{"model":"m"}'),
    ],
)
def test_parameters_of_the_client_win(path: str, parameters: dict[str, Any], body: bytes) -> None:
    """The body is the client's, byte for byte, whatever way it writes the parameter."""
    assert add_parameters(body, parameters, path, "m") == body


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{ "reasoning" : { "summary" : "auto" } , "model":"m" }',
            b'{ "reasoning" : {"effort":"low", "summary" : "auto" } , "model":"m" }',
        ),
        (b'{"reasoning":{}}', b'{"reasoning":{"effort":"low"}}'),
        (
            b'{"reasoning":{"extra":{"effort":"high"}}}',
            b'{"reasoning":{"effort":"low","extra":{"effort":"high"}}}',
        ),
    ],
)
def test_effort_joins_the_clients_reasoning_options(body: bytes, expected: bytes) -> None:
    """A client of the Responses API that asks for summaries still gets the arm's effort."""
    assert add_parameters(body, EFFORT, RESPONSES, "m") == expected


def test_a_name_that_is_too_frequent_to_search_is_not_added() -> None:
    """The request is sent as it is, instead of failing."""
    body = b'{"a":[' + b",".join([b'{"seed":1}'] * (MAX_KEYS + 1)) + b"]}"
    assert add_parameters(body, {"seed": 2}, CHAT, "m") == body
