"""Requests of the load: a small one, and the leaderboard's, repeated or each sent once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from benchmarks.load.client import PATH
from benchmarks.load.upstream import DELAYED, PACED
from router_service.apis.conversation import Json
from switchcraft_training.datasets.bfcl import PACKAGE, read_source

MODEL = "gpt-4o-mini"
"""Model of the requests that are not routed."""
ROUTED = "switchcraft"
TURNS = 8
"""Requests of each agent."""
RESULT = "A line of a file that the agent has read.\n" * 24
"""Result of each tool call, 1 KB."""
_SEED = 7


def small() -> Mapping[str, Json]:
    """Return a request of about 100 bytes without tools."""
    return {"messages": [{"role": "user", "content": "Say hello to everyone in the room."}]}


def delayed() -> Mapping[str, Json]:
    """Return a small request that the upstream answers after 20 ms."""
    return {"messages": [{"role": "user", "content": f"Say hello {DELAYED.decode()}."}]}


def small_stream(*, paced: bool) -> Mapping[str, Json]:
    """Return a small request for a stream, whose events come at once or paced."""
    content = PACED.decode() if paced else "Say hello to everyone in the room."
    return {"messages": [{"role": "user", "content": content}], "stream": True}


def agents(requests: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the requests of agents: tools, a growing history, and an answer that is streamed.

    Each agent begins with one of the given requests, if that has tools and ends with a user's text.
    Each agent calls a tool `TURNS` times, so its last request has `TURNS` calls and their results.
    The answers' events are paced.
    """
    fresh = [it for it in requests if it.get("tools") and it["messages"][-1]["role"] == "user"]
    for number, request in enumerate(itertools.cycle(fresh)):
        ask = {"role": "user", "content": f"Task {number}, {PACED.decode()}."}
        messages = [*request["messages"], ask]
        name = request["tools"][0]["function"]["name"]
        for turn in range(TURNS):
            yield {**request, "messages": messages, "stream": True}
            call = {"name": name, "arguments": f'{{"page": {turn}}}'}
            id_ = f"call_{number}_{turn}"
            calls = [{"id": id_, "type": "function", "function": call}]
            messages = [
                *messages,
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": id_, "content": RESULT},
            ]


@cache
def real() -> Sequence[Mapping[str, Any]]:
    """Return every distinct request of the leaderboard, of all categories, in a fixed order."""
    requests = (judged.example.request for judged in read_source(Path(PACKAGE)))
    distinct = {orjson.dumps(request): request for request in requests}
    return random.Random(_SEED).sample(list(distinct.values()), len(distinct))  # noqa: S311


@cache
def answered() -> Sequence[Mapping[str, Any]]:
    """Return the leaderboard's requests that need calls, each with the right ones.

    The upstream takes its answer from the field `upstream_answer`, so that a gateway that verifies
    answers accepts most of them.
    """
    found: list[Mapping[str, Any]] = []
    for judged in read_source(Path(PACKAGE)):
        calls = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": orjson.dumps(
                        {
                            name: values[0]
                            for name, values in call.arguments.items()
                            if values and name not in call.optional
                        }
                    ).decode(),
                },
            }
            for number, call in enumerate(judged.expected.calls)
        ]
        if calls:
            answer = {"role": "assistant", "content": None, "tool_calls": calls}
            found.append({**judged.example.request, "upstream_answer": answer})
    return random.Random(_SEED).sample(found, len(found))  # noqa: S311


def loops() -> Iterator[Mapping[str, Any]]:
    """Yield two requests of each agent: its task, and the same with the calls and their results.

    The upstream answers with the right calls, and then with a text.
    """
    for task in once(answered()):
        calls = task["upstream_answer"]["tool_calls"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls
        ]
        yield task
        yield {
            **task,
            "messages": [*task["messages"], task["upstream_answer"], *results],
            "upstream_answer": {"role": "assistant", "content": "That is done."},
        }


def once(requests: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield each request, then all again with a number appended to the last user message."""
    yield from requests
    for number in itertools.count(2):
        for request in requests:
            messages = list(request["messages"])
            last = max(i for i, message in enumerate(messages) if message["role"] == "user")
            text = f"{messages[last]['content']} ({number})"
            messages[last] = {**messages[last], "content": text}
            yield {**request, "messages": messages}


def framed(
    requests: Iterator[Mapping[str, Json]], model: str, headers: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield HTTP requests as bytes, with a model and headers."""
    lines = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    start = f"POST {PATH} HTTP/1.1\r\n{head}content-length: ".encode()
    for request in requests:
        body = orjson.dumps({"model": model, **request})
        yield b"%b%d\r\n\r\n%b" % (start, len(body), body)


def again(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the requests repeatedly, without end."""
    return itertools.cycle(list(requests))
