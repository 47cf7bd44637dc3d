"""Fuzz target: reading, packing and features of requests of every API, and their time."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence

import orjson
from tokenizers import Tokenizer

from router_service.apis.capabilities import read_requirements
from router_service.apis.conversation import (
    Conversation,
    Json,
    Role,
    Turn,
    decode_object,
)
from router_service.artifact import SHIPPED, TOKENIZER
from router_service.core.errors import InvalidRequestError
from router_service.predictor.features import FEATURES, MAX_QUERY_CHARS, extract
from router_service.predictor.packing import Packer, PackingSpec
from tests.apis import APIS, Api
from tests.fuzz.mutation import of_json
from tests.fuzz.target import Target, expect, randomness

MAX_CPU_S = 2.0
"""Limit for one decision. The fuzzer's instrumentation makes Python about 3 times slower."""

LARGE_BYTES = 1024 * 1024
MAX_LEVELS = 60
"""Size and depth of the enlarged bodies that check whether the work stays bounded."""

_MARK = "\ue000"

SPEC = PackingSpec(features=tuple(FEATURES))

_packers: list[Packer] = []


def packer() -> Packer:
    """Return this process's packer; the first call loads the shipped tokenizer."""
    if not _packers:
        _packers.append(Packer(SPEC, Tokenizer.from_file(str(SHIPPED / TOKENIZER))))
    return _packers[0]


def check(data: bytes) -> None:
    """Check a body in every API, and sometimes an enlarged copy of it."""
    try:
        body = decode_object(data)
    except InvalidRequestError:
        return
    began_s = time.thread_time()
    for api in APIS:
        check_request(body, api)
    rng = randomness(data)
    if rng.randrange(256) == 0:
        check_large(body, rng)
    spent_s = time.thread_time() - began_s
    expect(spent_s <= MAX_CPU_S, f"it takes {spent_s:.1f} s to decide")


def check_request(sent: Mapping[str, Json], api: Api) -> None:
    """Check the reading of one request."""
    try:
        body = api.to_chat(sent)
        request = api.parse(body)
    except InvalidRequestError as exc:
        expect(exc.message and exc.code, f"an error without words: {exc!r}")
        return
    expect(
        api.parse(api.to_chat(sent)) == request, "the same body is read differently the second time"
    )
    wanted = read_requirements(body, request.conversation, api.title)
    expect(wanted.input_tokens >= 0, f"{wanted.input_tokens} tokens of input")
    check_packing(request.conversation)


def check_packing(conversation: Conversation) -> None:
    """Check the encoder's input."""
    packed = packer().pack(conversation)
    expect(len(packed.token_ids) <= SPEC.budget_tokens, f"{len(packed.token_ids)} tokens")
    expect(len(packed.features) == len(SPEC.features), f"{len(packed.features)} features")
    for name, value in zip(SPEC.features, packed.features, strict=True):
        expect(math.isfinite(value), f"{name} is {value}")
    end = 0
    for part in packed.parts:
        expect(end <= part.start <= part.stop, f"the parts overlap: {packed.parts}")
        mark = part.marker
        is_inside = part.start <= mark.start <= mark.stop <= part.stop
        expect(is_inside or not mark, f"a mark outside its part: {part}")
        end = part.stop
    expect(end <= len(packed.token_ids), f"the parts end at {end}")
    expect(packer().pack(conversation) == packed, "the second packing differs")
    conversation.opening  # noqa: B018 - identifies a conversation for replicas and trials


def check_large(body: Mapping[str, Json], rng: random.Random) -> None:
    """Check an enlarged body: a part nested in itself, and a list or an object repeated."""
    tree = orjson.loads(orjson.dumps(body))  # a copy
    if rng.random() < 0.5:
        _nest(tree, rng)
    _widen(tree, rng)
    for api in APIS:
        check_request(tree, api)


def _nest(tree: Json, rng: random.Random) -> None:
    """Put a copy of a part of the tree into the part itself, several times."""
    outer, outer_key = rng.choice(list(_places(tree)))
    places = list(_places(outer[outer_key]))
    if not places:
        return
    inner, inner_key = rng.choice(places)
    nested = json.dumps(inner[inner_key])
    inner[inner_key] = _MARK
    text = json.dumps(outer[outer_key])
    for _ in range(rng.randrange(MAX_LEVELS)):
        nested = text.replace(f'"{_MARK}"', nested)
    outer[outer_key] = json.loads(nested)


def _widen(tree: Json, rng: random.Random) -> None:
    """Repeat the members of a list or an object, with different names."""
    places = [
        (parent, key) for parent, key in _places(tree) if isinstance(parent[key], (dict, list))
    ]
    if not places:
        return
    parent, key = rng.choice(places)
    value = parent[key]
    times = LARGE_BYTES // len(json.dumps(value))
    if isinstance(value, dict):
        parent[key] = {f"{name}{n}": inner for n in range(times) for name, inner in value.items()}
    else:
        parent[key] = [_numbered(item, n) for n in range(times) for item in value]


def _places(value: Json) -> Iterator[tuple[Json, Json]]:
    """Yield every container of a tree with each of its keys or indices."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(inner)


def _numbered(value: Json, number: int) -> Json:
    """Return a value with unique names, which no cache contains."""
    if isinstance(value, dict):
        return {key: _numbered(inner, number) for key, inner in value.items()}
    is_name = isinstance(value, str) and value.isidentifier() and value not in _FIXED
    return f"{value}{number}" if is_name else value


_FIXED = frozenset(
    "function custom object string integer array user system assistant tool developer message "
    "function_call function_call_output input_text text".split()
)


def check_query(data: bytes) -> None:
    """Check that the features of a text, mostly regular expressions, take bounded time."""
    text = data.decode("utf-8", "replace")
    if not text:
        return
    repeated = (text * (MAX_QUERY_CHARS // len(text) + 1))[:MAX_QUERY_CHARS]
    for written in (text, repeated):
        began_s = time.thread_time()
        conversation = Conversation((Turn(Role.USER, written),))
        counts = extract(conversation, tuple(FEATURES))
        spent_s = time.thread_time() - began_s
        expect(spent_s <= MAX_CPU_S, f"it takes {spent_s:.1f} s to count {len(written)} letters")
        expect(all(map(math.isfinite, counts)), f"the counts are {counts}")


TOKENS: Sequence[bytes] = (
    b'"model"',
    b'"messages"',
    b'"input"',
    b'"tools"',
    b'"functions"',
    b'"function"',
    b'"custom"',
    b'"name"',
    b'"description"',
    b'"parameters"',
    b'"properties"',
    b'"required"',
    b'"items"',
    b'"enum"',
    b'"anyOf"',
    b'"oneOf"',
    b'"allOf"',
    b'"$ref"',
    b'"type"',
    b'"default"',
    b'"role"',
    b'"user"',
    b'"system"',
    b'"assistant"',
    b'"tool"',
    b'"content"',
    b'"text"',
    b'"tool_calls"',
    b'"function_call"',
    b'"arguments"',
    b'"instructions"',
    b'"previous_response_id"',
    b'"conversation"',
    b'"id"',
    b'"prompt"',
    b'"output"',
    b'"function_call_output"',
    b'"web_search"',
    b'"stream"',
    b'"n"',
    b'"tool_choice"',
    b'"response_format"',
    b'"max_completion_tokens"',
    b'"image_url"',
    b"null",
    b"true",
    b"{}",
    b"[]",
)

TARGET = Target(
    name="requests",
    check=check,
    mutate=of_json(TOKENS),
    tokens=TOKENS,
    measured=(
        "router_service/apis/conversation.py",
        "router_service/apis/responses/chat_form.py",
        "router_service/apis/capabilities.py",
        "router_service/predictor/packing.py",
        "router_service/predictor/features.py",
    ),
    runs=2_000,
)
