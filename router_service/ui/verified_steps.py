"""The steps of a verified answer, for the user of the page who asked for it.

The steps contain calls, so they are not stored. They are in a header of the answer itself, and only
the page's own requests get it.
"""

from __future__ import annotations

import asyncio
import json

from starlette.types import Message, Receive, Scope, Send

from router_service.apis.conversation import as_list
from router_service.core.decision_record import CandidateRecord
from router_service.http.inference import RoutedAnswer
from router_service.http.transfer import call_of
from router_service.requests.call import Call
from router_service.requests.candidates import Candidate
from router_service.requests.recording import answer_result
from router_service.verifier.answer_features import Question, decode_calls, read_answer, relate

STEPS_HEADER = "x-switchcraft-steps"

MAX_HEADER = 3_000
"""Longest header, in bytes. Proxies refuse longer headers: nginx reads 4 KB of them by default."""

LENGTHS = (240, 80, 0)
"""Characters of each candidate's calls and text that are shown, if the header has room for them."""

MAX_CALLS = 4
"""Calls of one candidate that are shown."""


class CandidateView(CandidateRecord):
    """A candidate of the user's own request: its record, and the beginning of its answer."""

    written: tuple[str, ...] = ()
    """The calls as the model wrote them, shortened."""
    text: str | None = None
    """The text, shortened; only if there are no calls."""
    same_as: str | None = None
    """The first arm whose calls are the same, as the verifier compares them."""


class PlaygroundAnswer(RoutedAnswer):
    """Answer to a request of the page; its headers have the steps if it was verified."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request as usual, and add the header."""

        async def send_with_steps(message: Message) -> None:
            call = call_of(self._request)
            if message["type"] == "http.response.start" and has_steps(call):
                value = await asyncio.to_thread(steps_header, call)
                if value is not None:
                    header = (STEPS_HEADER.encode(), value)
                    message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        await super().__call__(scope, receive, send_with_steps)


def has_steps(call: Call) -> bool:
    """Return whether there are candidates, and what they answered is known.

    It is not known if the stream began with comments, or with text that is not verified.
    """
    accepted = call.accepted
    return bool(call.asked) and (
        accepted.is_complete or (accepted.arm is None and accepted.was_asked)
    )


def steps_header(call: Call) -> bytes | None:
    """Return the candidates as JSON in ASCII, or None if they are too many for a header."""
    same_as = find_agreement(call)
    for length in LENGTHS:
        views = (
            view(
                answer_result(candidate, is_accepted=candidate is call.accepted).candidate(),
                candidate,
                same_as.get(arm),
                length,
            )
            for arm, candidate in call.asked.items()
        )
        text = json.dumps([each.model_dump(exclude_none=True) for each in views])
        value = text.replace("\x7f", "\\u007f").encode()
        if len(value) <= MAX_HEADER:
            return value
    return None


def find_agreement(call: Call) -> dict[str, str]:
    """Return the first arm with the same calls, for each arm that agrees with an earlier one."""
    request = call.plan.request
    tools = as_list(request.decoded().get("tools"))
    question = Question(request.conversation, tools)
    read = {
        arm: read_answer(question, decode_calls(candidate.answer))
        for arm, candidate in call.asked.items()
        if candidate.is_complete
    }
    found: dict[str, str] = {}
    for place, arm in enumerate(read):
        for earlier in list(read)[:place]:
            if relate(question, read[earlier], read[arm]).is_same:
                found[arm] = earlier
                break
    return found


def view(
    record: CandidateRecord, candidate: Candidate, same_as: str | None, length: int
) -> CandidateView:
    """Return a candidate with its calls and text shortened to this length."""
    answer = candidate.answer
    calls = answer.calls[:MAX_CALLS] if answer else ()
    each = length // max(1, len(calls))
    written = tuple(_shorten(f"{call.name}({call.arguments})", each) for call in calls)
    return CandidateView(
        **record.model_dump(),
        written=written if length else (),
        text=_shorten(answer.text, length) if answer and length and not calls else None,
        same_as=same_as,
    )


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
