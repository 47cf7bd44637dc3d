"""Time that translation adds to an answer, for each API of the client and of the upstream.

    python benchmarks/translation.py --rounds 500

An upstream with all three APIs answers immediately with prepared bytes. Upstream, gateway and
client are three processes with one connection each. In every round, each API of the client is sent
to each API of the upstream once, through the gateway, and once to the upstream itself, in changing
order.

`added` is the median of the waiting time through the gateway minus the median of the waiting time
for the upstream itself. `translation` is that minus what passing through in the client's own API
adds in the same run.

- `small`: two tools and one question.
- `agent`: twelve tools and ten calls with their results, 45 KB in all, as coding agents send them.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from router_service.apis.api import Target
from router_service.apis.parts import Text, Thinking, ToolUse
from router_service.apis.request_translation import read_request
from router_service.serving.app import create_app
from tests import apis
from tests.answering import MODELS, settings_of
from tests.apis import APIS, Api
from tests.fakes import FakeRouter
from tests.providers.answers import Reply, Written
from tests.serving import served

WARM_ROUNDS = 50
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
MEASURES = ("whole", "first byte", "stream")
"""A whole answer; the first byte of a stream; and its end. The stream has about 85 events. The
first piece of its output comes 5 ms before the others, which come at once."""

PARTS: list[Written] = [
    Thinking("The user wants a forecast, so I call the tool with the city's name.", "EpProof"),
    Text("I look up the weather for the three cities. " * 6),
    ToolUse("call_0001", "get_weather", '{"city": "Oslo"}'),
    ToolUse("call_0002", "get_weather", '{"city": "Bergen"}'),
]
PAUSE_S = 0.005
"""Between the first piece of a streamed answer and the others."""


class Prepared:
    """An upstream whose answers are bytes, by the path of the API and whether they are streamed."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bool], tuple[bytes, bytes]] = {}
        for each in APIS:
            reply = Reply(each, "scripted", PARTS)
            path, events, begun = f"/v1{each.path}", reply.events(), reply.output_at + 2
            self._answers[path, False] = orjson.dumps(reply.whole()), b""
            self._answers[path, True] = b"".join(events[:begun]), b"".join(events[begun:])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        stream = b'"stream":true' in body
        first, rest = self._answers[scope["path"], stream]
        kind = b"text/event-stream" if stream else b"application/json"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(first + rest))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": bool(rest)})
        if rest:
            await asyncio.sleep(PAUSE_S)
            await send({"type": "http.response.body", "body": rest})


def serve_upstream(pipe: Connection) -> None:
    """Serve the upstream until the pipe is closed."""
    with served(Prepared()) as url:
        pipe.send(url)
        pipe.poll(None)


def serve_gateway(pipe: Connection, upstream: str) -> None:
    """Serve a gateway in front of the upstream until the pipe is closed."""
    settings = settings_of(f"{upstream}/v1", {name: api for api, name in MODELS.items()})
    with served(create_app(settings, FakeRouter())) as url:
        pipe.send(url)
        pipe.poll(None)


@contextmanager
def process(target: Any, *arguments: str) -> Iterator[str]:  # noqa: ANN401 - one of the functions above
    """Run a server in a separate process; yield its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    running = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    running.start()
    try:
        yield ours.recv()
    finally:
        running.terminate()
        running.join()


def bodies(kind: str) -> dict[Api, dict[str, Any]]:
    """Return the same request in every API."""
    size = 12 if kind == "agent" else 2
    tools = [
        {
            "name": f"tool_{n}",
            "description": "What it does. " * size * 12,
            "input_schema": PARAMETERS,
        }
        for n in range(size)
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for n in range(10 if kind == "agent" else 0):
        call = {"type": "tool_use", "id": f"toolu_{n}", "name": "tool_1", "input": {"city": "Oslo"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": "cold " * 400}
        messages.append({"role": "assistant", "content": [call]})
        messages.append({"role": "user", "content": [result]})
    body = {"model": "-", "max_tokens": 1000, "messages": messages, "tools": tools}
    request = read_request(body, apis.MESSAGES)
    return {each: each.write_request(request, Target(each, "-", "openai")) for each in APIS}


def main() -> None:
    """Print a table for each kind of request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=500)
    rounds: int = parser.parse_args().rounds
    with ExitStack() as stack:
        upstream = stack.enter_context(process(serve_upstream))
        address = stack.enter_context(process(serve_gateway, upstream))
        direct = http.client.HTTPConnection(upstream.removeprefix("http://"))
        through = http.client.HTTPConnection(address.removeprefix("http://"))
        for kind in ("small", "agent"):
            for measure in MEASURES:
                table(kind, measure, rounds, direct, through)


def table(
    kind: str,
    measure: str,
    rounds: int,
    direct: http.client.HTTPConnection,
    through: http.client.HTTPConnection,
) -> None:
    """Measure one kind of request, and print the medians."""
    requests, stream, until_first = bodies(kind), measure != "whole", measure == "first byte"
    taken: dict[tuple[Api, Api | None], list[float]] = defaultdict(list)
    trials = [*product(APIS, (*APIS, None))]
    for number in range(rounds + WARM_ROUNDS):
        random.shuffle(trials)
        for client, target in trials:
            model = "scripted" if target is None else MODELS[target]
            body = orjson.dumps({**requests[client], "model": model, "stream": stream})
            connection = direct if target is None else through
            started = time.perf_counter()
            connection.request("POST", f"/v1{client.path}", body, HEADERS)
            answer = connection.getresponse()
            first_s = time.perf_counter()  # a gateway's head leaves with the first event
            answer.read()
            ended_s = first_s if until_first else time.perf_counter()
            if number >= WARM_ROUNDS:
                taken[client, target].append(1000 * (ended_s - started))
            if answer.status != 200:
                raise SystemExit(f"{client} to {target}: status {answer.status}")
    middle = {trial: median(values) for trial, values in taken.items()}
    size = len(orjson.dumps(requests[apis.MESSAGES]))
    print(f"{kind}, {size:,} bytes, {measure}: P50 in ms")
    print(f"{'client':10} {'upstream':10} {'through':>8} {'added':>8} {'translation':>12}")
    for client, target in product(APIS, APIS):
        added = middle[client, target] - middle[target, None]
        own = middle[client, client] - middle[client, None]
        row = f"{client!s:10} {target!s:10} {middle[client, target]:8.2f} {added:8.2f}"
        print(row if client is target else f"{row} {added - own:12.2f}")
    print(flush=True)


HEADERS = {"content-type": "application/json", "authorization": "Bearer client-key"}


if __name__ == "__main__":
    main()
