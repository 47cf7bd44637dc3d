"""Reading, translating and packing take time that grows with the size of a body, and no faster."""

from __future__ import annotations

import gc
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from router_service.apis.answer_errors import ForeignAnswerError
from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.api import Target
from router_service.apis.conversation import as_list
from router_service.apis.parts import Request
from router_service.apis.registry import parse_answer
from router_service.apis.request_translation import obstacles, read_request
from router_service.artifact import SHIPPED, TOKENIZER
from router_service.checker.tool_checks import latest_tool_results, parameters_by_tool
from router_service.core.errors import InvalidRequestError
from router_service.core.strict_json import loads_exactly
from router_service.predictor.features import FEATURES
from router_service.predictor.packing import Packer, PackingSpec
from router_service.requests.parsing import ParsedRequest
from router_service.verifier.answer_features import Question
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.attacks import IS_LONG
from tests.endpoints import CHAT, MESSAGES, RESPONSES
from tests.fuzz.events import read_stream
from tests.hostile.repeats import ANSWERS, EVENTS, REQUESTS, SAMPLES

Json = Any

GROWTH = 16
"""How many times as often things are repeated at the second size."""
SIZES = (1_000, 16_000) if IS_LONG else (75, 1_200)
"""How often things are repeated."""
LARGE_SIZES = (2_000, 32_000)
"""Sizes from which it shows that all earlier items are copied for each further one."""
JOINED = (
    (apis.CHAT, "messages[0]"),
    (apis.CHAT, "messages[7]"),
    (apis.RESPONSES, "input[6]"),
    (apis.RESPONSES, "input in groups"),
    (apis.MESSAGES, "messages[1]"),
    (apis.MESSAGES, "messages[5]"),
)
"""Neighbours that become parts of one message in another API."""
JOINED_EVENTS = (
    (apis.CHAT, "[1] content"),
    (apis.CHAT, "in groups"),
)
"""Events that add to a part, or to a list, that is looked at with each of them."""
MAX_RATIO = 2.5 ** math.log2(GROWTH)
"""Highest ratio of the times for the two sizes: twice the size takes at most 2.5 times as long. The
ratio is 39. It is 16 if the time grows with the size, and 256 if it grows with the square."""
MIN_S = 0.001
"""Shorter times are too inexact to be compared."""
TRIES = 10
"""The least of several times counts, because other processes only make them longer."""
ATTEMPTS = 6
"""Measurements, with pauses of up to 5 s, of which one must be linear. Other processes use the
processor's caches, which slows down the larger size more, but no measurement hides a square."""

PACKER = Packer(
    PackingSpec(features=tuple(FEATURES)), Tokenizer.from_file(str(SHIPPED / TOKENIZER))
)
ENDPOINTS = {apis.CHAT: CHAT, apis.RESPONSES: RESPONSES, apis.MESSAGES: MESSAGES}
TARGETS = (
    Target(apis.CHAT, "m", "openai", supports_reasoning=True),
    Target(apis.CHAT, "m", "vllm", supports_reasoning=True),
    Target(apis.CHAT, "m", "mistral"),
    Target(apis.RESPONSES, "m", "openai", supports_reasoning=True),
    Target(apis.MESSAGES, "claude-opus-4-5", "anthropic", supports_reasoning=True),
    Target(apis.CONVERSE, "us.meta.llama4-scout-17b-instruct-v1:0", "bedrock"),
)

_NONCES = itertools.count()

Step = tuple[str, Callable[[], object]]


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _times(steps: Iterator[Step]) -> dict[str, float]:
    """Return the processor time of each step; a step may refuse its input."""
    times_s: dict[str, float] = {}
    for name, step in steps:
        began_s = time.thread_time()
        with suppress(InvalidRequestError, ForeignAnswerError):
            step()
        times_s[name] = time.thread_time() - began_s
    return times_s


def assert_linear(make_steps: Callable[[int], Iterator[Step]], sizes: tuple[int, int]) -> None:
    """Assert that each step's time grows with the size, and no faster."""
    slow: dict[str, tuple[float, float]] = {}
    for attempt in range(ATTEMPTS):
        # A limit between the two sizes makes one step longer, but no larger size.
        factor = 4 if attempt % 2 else 1
        slow = _slow_steps(make_steps, (factor * sizes[0], factor * sizes[1]))
        if not slow:
            return
        time.sleep(attempt)
    raise AssertionError(f"seconds for two sizes: {slow}")


def _slow_steps(
    make_steps: Callable[[int], Iterator[Step]], sizes: tuple[int, int]
) -> dict[str, tuple[float, float]]:
    """Return the times of the steps whose time grows faster than the size."""
    small, large = sizes
    best: dict[int, dict[str, float]] = {small: {}, large: {}}
    slow: dict[str, tuple[float, float]] = {}
    with _no_collections():
        for _ in range(TRIES):
            for size in sizes:
                for name, took_s in _times(make_steps(size)).items():
                    best[size][name] = min(took_s, best[size].get(name, took_s))
            slow = {
                name: (best[small][name], took_s)
                for name, took_s in best[large].items()
                if took_s > MIN_S and took_s > MAX_RATIO * max(best[small][name], MIN_S / 10)
            }
            if not slow:
                break
    return slow


def request_steps(dialect: Api, body: dict[str, Json]) -> Iterator[Step]:
    """Yield everything that is done with a client's body."""
    # Texts that no cache knows.
    nonce = next(_NONCES)
    text = (
        json.dumps(body)
        .replace("Does it.", f"Does it {nonce}.")
        .replace("Oslo", f"Oslo {nonce}")
        .encode()
    )
    endpoint, body = ENDPOINTS[dialect], loads_exactly(text)
    yield "parse", lambda: ParsedRequest(endpoint, text).read_content()
    with suppress(InvalidRequestError):  # too many messages or tools to decide
        parsed = ParsedRequest(endpoint, text)
        parsed.read_content()
        conversation = parsed.conversation
        yield "pack", lambda: PACKER.pack(conversation)
        tools = as_list(parsed.decoded().get("tools"))
        yield "question", lambda: Question(conversation, tools)
        yield "names of tools", lambda: parameters_by_tool(parsed.decoded())
        yield "results", lambda: latest_tool_results(parsed.decoded())
    yield "drop reasoning", lambda: dialect.without_foreign_thinking(body, lambda _: True)
    yield "read", lambda: read_request(body, dialect)
    if dialect is apis.CHAT:
        yield "ids", lambda: dialect.with_fitting_call_ids(text, TARGETS[2])
    try:
        request = read_request(body, dialect)
    except InvalidRequestError:
        return
    for target in TARGETS:
        if target.api is not dialect:
            yield f"obstacles to {target.api}", partial(obstacles, request, dialect, target.api)
            if target.api is apis.CONVERSE and obstacles(request, dialect, target.api):
                continue  # audio, for example, has no place there
            yield f"write for {target.provider}", partial(target.api.write_request, request, target)


def test_every_api_can_express_the_samples() -> None:
    """Otherwise, reading would end at the first odd part, and nothing behind it be measured."""
    for dialect, sample in SAMPLES.items():
        request = read_request(sample, dialect)
        for target in TARGETS:
            if target.api is not dialect:
                target.api.write_request(request, target)


def _whole(source: UpstreamApi, target: Api, answer: Json) -> object:
    return _translator(source, target).whole(answer)


def _translator(source: UpstreamApi, target: Api) -> AnswerTranslator:
    request = Request("m", (), stop=tuple(map(str, range(SIZES[0]))))
    return AnswerTranslator(source, target, request, model="m", created_s=1)


def _record(dialect: Api, events: Sequence[Json]) -> None:
    record = dialect.record()
    for event in events:
        record.feed(event)
        record.is_text  # noqa: B018 - asked for after every part of a candidate answer
    record.answer()


def answer_steps(dialect: UpstreamApi, answer: Json, events: Sequence[Json]) -> Iterator[Step]:
    """Yield everything that is done with an upstream's whole answer, or with its stream."""
    targets = [target for target in APIS if target is not dialect]
    if answer is not None:
        yield "parse", lambda: parse_answer(answer)
        for target in targets:
            yield f"to {target}", partial(_whole, dialect, target, answer)
        return
    if isinstance(dialect, Api):
        yield "parse", partial(_record, dialect, events)
    for target in targets:

        def translate(target: Api = target) -> None:
            translator = _translator(dialect, target)
            for event in events:
                translator.feed(event)
            translator.end()

        yield f"to {target}", translate
    if len(events) > 4 * SIZES[1]:
        return
    data = b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events)
    if isinstance(dialect, Api):
        yield "relay", lambda: read_stream(data, dialect)
    for target in targets:
        translator = _translator(dialect, target)
        yield f"relay to {target}", partial(read_stream, data, dialect, translator)


MAKE_STEPS: Mapping[str, Callable[[Any, Json], Iterator[Step]]] = {
    "request": request_steps,
    "answer": lambda dialect, answer: answer_steps(dialect, answer, ()),
    "stream": lambda dialect, events: answer_steps(dialect, None, events),
}
MADE: Mapping[str, Any] = {"request": REQUESTS, "answer": ANSWERS, "stream": EVENTS}


@pytest.mark.parametrize(
    ("kind", "dialect", "name", "sizes"),
    [
        *(
            (kind, dialect, name, SIZES)
            for kind, made in MADE.items()
            for dialect in made
            for name in made[dialect]
        ),
        *(("request", dialect, name, LARGE_SIZES) for dialect, name in JOINED),
        *(("stream", dialect, name, LARGE_SIZES) for dialect, name in JOINED_EVENTS),
    ],
)
def test_time_grows_with_the_size_and_no_faster(
    kind: str, dialect: UpstreamApi, name: str, sizes: tuple[int, int]
) -> None:
    """Twice as many of anything take at most 2.5 times as long, in every step.

    55,000 items of the assistant, which become one message, once took 16 s.
    """
    make, make_steps = MADE[kind][dialect][name], MAKE_STEPS[kind]
    assert_linear(lambda size: make_steps(dialect, make(size)), sizes)
