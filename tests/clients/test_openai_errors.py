"""Failures in the `openai` client for Python: typed errors, timeouts, retries, cancellation."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.bodies import ASK, TOOLS
from tests.serving import Sandbox, wait_for

ROUTED: dict[str, Any] = {"model": "switchcraft", "messages": ASK, "tools": TOOLS}


def failing(how: str) -> dict[str, Any]:
    """Return a request whose upstream fails in a given way."""
    return ROUTED | {"extra_headers": {"x-sandbox": how}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("status=400", openai.BadRequestError),
        ("status=429", openai.RateLimitError),
        ("status=503", openai.InternalServerError),
        ("cut_after=0", openai.InternalServerError),
    ],
)
def test_upstream_failure_raises_the_error_of_its_status(
    client: openai.OpenAI, how: str, kind: type[openai.APIStatusError], stream: bool
) -> None:
    """Before the first event, a failure raises the client's typed error with a useful message."""
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**failing(how), stream=stream)
    assert raised.value.type
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"]
    assert raised.value.request_id


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "unknown"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
    ],
)
def test_invalid_request_raises_an_error_that_names_the_field(
    client: openai.OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str,
) -> None:
    """A refused request raises the client's typed error, which names the field."""
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**ROUTED | fields)
    assert raised.value.type == "invalid_request_error"
    assert str(raised.value.param).startswith(param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_timed_out_client_cancels_the_upstream(
    client: openai.OpenAI, sandbox: Sandbox, stream: bool
) -> None:
    """A client timeout also ends the upstream's work."""
    before = sandbox.stats()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).chat.completions.create(**failing("hang"), stream=stream)
    wait_for(
        lambda: (
            sandbox.stats()["cancelled"] > before["cancelled"]
            and sandbox.stats()["in_flight"] == before["in_flight"]
        ),
        "the upstream's work is cancelled",
    )
