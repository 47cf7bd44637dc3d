"""Log probabilities of the sandbox's texts: made up, but of the right shape and sign.

A token is a fragment, as it is streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json

MAX_ALTERNATIVES = 20
LOGPROB = -0.125
"""Of every token that was chosen; each alternative has one less than the one before it."""


def read_alternatives(body: Mapping[str, Json], *, asked: bool) -> int | None:
    """Return how many alternatives of each token to tell, None for no log probabilities at all.

    Raises InvalidRequestError.
    """
    count = body.get("top_logprobs")
    if count is None or not asked:
        return 0 if asked else None
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_ALTERNATIVES:
        raise InvalidRequestError(
            f"Invalid value for 'top_logprobs': expected a whole number to {MAX_ALTERNATIVES}.",
            param="top_logprobs",
            code="invalid_value",
        )
    return count


def logprobs_of(tokens: Iterable[str], alternatives: int) -> list[Json]:
    """Return an entry for each token, as both APIs of OpenAI's that stream texts write it."""
    return [
        {
            **_entry(token, LOGPROB),
            "top_logprobs": [
                _entry(token if rank == 0 else f"{token}{rank}", LOGPROB - rank)
                for rank in range(alternatives)
            ],
        }
        for token in tokens
    ]


def _entry(token: str, logprob: float) -> dict[str, Json]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
