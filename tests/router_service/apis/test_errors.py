"""Errors of servers that are only similar to one of the APIs."""

from __future__ import annotations

import pytest

from tests import apis

READ = {
    "Mistral": ({"object": "error", "message": "No.", "type": "invalid_args"}, 422, 422, "No."),
    "Google": ([{"error": {"code": 429, "message": "Quota."}}], 429, 429, "Quota."),
    "OpenRouter within an answer": (
        {"error": {"code": 429, "message": "Slow."}},
        200,
        429,
        "Slow.",
    ),
    "a failed response": (
        {
            "type": "response.failed",
            "response": {"error": {"code": "server_error", "message": "x"}},
        },
        200,
        500,
        "x",
    ),
    "nothing": (None, 503, 503, "The upstream answered with status 503 and without a message."),
}


@pytest.mark.parametrize("name", READ)
def test_errors_of_other_servers(name: str) -> None:
    """Errors in similar formats are read, and errors within answers get a status."""
    value, status, expected, message = READ[name]
    error = apis.CHAT.read_error(value, status)
    assert (error.status, error.message) == (expected, message)
