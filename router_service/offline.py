"""Decisions without a gateway: request bodies in, one decision per line out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.selection import Policy
from router_service.router import Router

_FIELDS = ("arm", "probabilities", "cost_usd", "policy", "reason", "packed_tokens")
"""The fields of an output line; they are a contract with users of `switchcraft route`."""


def decide_lines(router: Router, policy: Policy, lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield one JSON object for each line, in order; for a line that is invalid, an `error`."""
    for line in lines:
        result: dict[str, object]
        try:
            decision = router.decide(line, policy)
        except InvalidRequestError as exc:
            result = {"error": exc.body()}
        else:
            result = {name: getattr(decision, name) for name in _FIELDS}
        yield orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE)
