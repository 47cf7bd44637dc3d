"""Answers of the sandbox in the formats of the APIs, whole or as the events of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import orjson

from router_service.apis.api import Api
from router_service.apis.parts import (
    Answer,
    Event,
    Finished,
    PartEnded,
    PartGrew,
    PartProved,
    PartStarted,
    Request,
    Started,
    Text,
    Thinking,
    ToolUse,
)
from router_service.sandbox.replies import fragments
from router_service.sandbox.sending import Reply, event


def write_answer(
    api: Api, answer: Answer, *, stream: bool, request: Request | None = None
) -> Reply:
    """Return an answer in the format of an API, in whose streams an event may follow the first."""
    request = request or Request(answer.model, ())
    writer = api.answer_writer(request, model=answer.model, created_s=int(time.time()))
    if not stream:
        return Reply(body=orjson.dumps(writer.whole(answer)), api=api)
    events: list[bytes] = []
    for each in _events(answer):
        events += [part + b"\n\n" for part in writer.write(each).split(b"\n\n") if part]
        if api.ping_type and isinstance(each, Started):
            events.append(event({"type": api.ping_type}, api.ping_type))
    return Reply(events=events, api=api)


def _events(answer: Answer) -> Iterator[Event]:
    """Yield the events that an answer consists of."""
    usage = answer.usage
    yield Started(answer.id, answer.model, usage and replace(usage, completion_tokens=1))
    for index, part in enumerate(answer.parts):
        match part:
            case ToolUse(arguments=text):
                yield PartStarted(index, replace(part, arguments=""))
            case Thinking(text):
                yield PartStarted(index, replace(part, text="", proof=""))
            case Text(text):
                yield PartStarted(index, replace(part, text=""))
        for fragment in fragments(text):
            yield PartGrew(index, fragment)
        if isinstance(part, Thinking) and part.proof:
            yield PartProved(index, part.proof)
        yield PartEnded(index)
    yield Finished(answer.stop, answer.stop_text, usage)
