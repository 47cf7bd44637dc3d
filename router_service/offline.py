"""Decisions without a gateway: request bodies in, a decision a line out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import decode_object, parse_conversation
from router_service.core.selection import Policy
from router_service.router import Router

_FIELDS = ("arm", "probabilities", "cost_usd", "policy", "reason", "packed_tokens")


def decide_lines(router: Router, policy: Policy, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield one JSON object for each line, in order; a line that cannot be read is an `error`."""
    for line in lines:
        yield orjson.dumps(_decide(router, policy, line), option=orjson.OPT_APPEND_NEWLINE)


def _decide(router: Router, policy: Policy, line: bytes) -> dict[str, object]:
    try:
        conversation = parse_conversation(decode_object(line))
    except InvalidRequestError as exc:
        return {"error": exc.body()}
    decision = asdict(router.decide(conversation, policy))
    # Offline nothing fails and nothing is explored; the line's fields are a contract.
    return {name: decision[name] for name in _FIELDS}
