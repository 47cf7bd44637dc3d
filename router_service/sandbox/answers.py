"""The sandbox's answers: calls of the tools that match the query, or a text, and the usage.

Tests may rely on these rules. If there are tools, one is called, unless the request forbids it or
the last message is a tool's result (this ends an agent's loop). It is the tool that shares most
words with the latest text of the user, or the first of several equal ones. Unless the request
forbids parallel calls, it is followed by calls of all other tools whose whole name occurs in the
text. The model `SMALL_MODEL` is worse than the others: it reads only the first `SMALL_CHARACTERS`
of the text and makes one call. If a request asks to see the model's reasoning, the answer begins
with some. Like providers, the sandbox refuses reasoning whose proof is not its own.
"""

from __future__ import annotations

import re
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import orjson

from router_service.apis.api import Api
from router_service.apis.conversation import Json, as_dict
from router_service.apis.parts import (
    Answer,
    AnswerPart,
    Event,
    Finished,
    OfferedTool,
    PartEnded,
    PartGrew,
    PartProved,
    PartStarted,
    Request,
    Result,
    Started,
    Stop,
    Text,
    Thinking,
    ToolUse,
)
from router_service.apis.usage import CHARACTERS_PER_TOKEN, Usage
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.filling import READ_CHARACTERS, fill

SIGNATURE = "sandbox-signature-"
"""Beginning of the proofs of the sandbox's reasoning."""

NAME_WEIGHT = 3
"""Weight of a word in a tool's name, compared to a word in its description."""

MAX_CALLS = 8
SMALL_MODEL, SMALL_CHARACTERS = "sandbox-small", 60
REASONING_TOKENS = 64
FRAGMENT_CHARACTERS = 16
"""Length of the text in one event; OpenAI sends about one token, 4 characters."""

ECHO_CHARACTERS = 80
_THOUGHT = "This is the sandbox: nobody thinks."
_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STOP_WORDS = frozenset(
    "a an and are as at be by can do does for from get give how i if in is it list make me my of "
    "on or our please set show tell that the them this to use we what when where which who will "
    "with you your".split()
)


def make_answer(api: Api, request: Request) -> Answer:
    """Return the answer to a request of an API.

    Raises InvalidRequestError if the request chooses a tool that it does not offer, or has foreign
    reasoning, or is nested too deeply.
    """
    _check_proofs(request)
    prompt = encode_prompt(request)
    query = find_query(request)
    if request.model == SMALL_MODEL:
        query, request = query[:SMALL_CHARACTERS], replace(request, is_parallel=False)
    # Ids must differ between the turns of a conversation, and be the same for the same request.
    seed = zlib.crc32(prompt)
    calls = [
        ToolUse(
            f"call_sandbox_{seed + index:08x}",
            tool.name,
            # Arguments are an object, whatever the schema is.
            query if tool.is_custom else _encode(as_dict(fill(tool.parameters, query))).decode(),
            is_custom=tool.is_custom,
        )
        for index, tool in enumerate(_choose_tools(request, query))
    ]
    text = "" if calls else _text(request, query)
    written = text + "".join(call.name + call.arguments for call in calls)
    parts: list[AnswerPart] = [*calls] or [Text(text)]
    has_effort = request.effort not in (None, "none")
    reasoning_tokens = REASONING_TOKENS if has_effort or request.shows_thinking else 0
    if request.shows_thinking or (has_effort and api.stores_answers):
        thought = _THOUGHT if request.shows_thinking else ""
        proof = f"{SIGNATURE}{secrets.token_hex(12)}"
        parts.insert(0, Thinking(thought, proof, origin=api.name))
    return Answer(
        id=f"{api.answer_id_prefix}sandbox{secrets.token_hex(12)}",
        model=request.model,
        parts=tuple(parts),
        stop=Stop.CALLS if calls else Stop.END,
        usage=Usage(
            count_tokens(prompt),
            count_tokens(written.encode()) + reasoning_tokens,
            reasoning_tokens=reasoning_tokens,
        ),
    )


def write_answer(api: Api, request: Request, answer: Answer) -> dict[str, Json]:
    """Return a whole answer in the format of an API."""
    writer = api.answer_writer(request, model=answer.model, created_s=int(time.time()))
    return writer.whole(answer)


def write_events(api: Api, request: Request, answer: Answer) -> list[bytes]:
    """Return the events of a streamed answer in the format of an API."""
    writer = api.answer_writer(request, model=answer.model, created_s=int(time.time()))
    events: list[bytes] = []
    for each in _events(answer):
        events += [event + b"\n\n" for event in writer.write(each).split(b"\n\n") if event]
        if api.ping_type and isinstance(each, Started):
            events.append(api.ping)
    return events


def encode_prompt(request: Request) -> bytes:
    """Return what a model would read of a request; raises InvalidRequestError."""
    return _encode([request.messages, request.tools, request.output_format])


def find_query(request: Request) -> str:
    """Return the latest text of the user."""
    for message in reversed(request.messages):
        text = " ".join(part.text for part in message.parts if isinstance(part, Text))
        if message.role == "user" and text:
            return text[:READ_CHARACTERS]
    return ""


def count_tokens(text: bytes) -> int:
    """Return the approximate number of tokens of a text, at least one."""
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))


@lru_cache(maxsize=8192)
def words(text: str) -> frozenset[str]:
    """Return a text's words in lower case and singular, without stop words.

    `getStockPrices` and `get_stock_price` have the same words.
    """
    found = (word for word in _WORD.findall(_CAMEL_CASE.sub(" ", text).lower()))
    return frozenset(
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in found
        if word not in _STOP_WORDS
    )


def _check_proofs(request: Request) -> None:
    for index, message in enumerate(request.messages):
        for part in message.parts:
            if isinstance(part, Thinking) and part.proof and not part.proof.startswith(SIGNATURE):
                raise InvalidRequestError(
                    f"messages.{index}: Invalid `signature` in `thinking` block",
                    param=f"messages.{index}",
                )


def _choose_tools(request: Request, query: str) -> Sequence[OfferedTool]:
    """Return the tools to call."""
    tools, choice = request.tools, request.tool_choice
    is_forced = choice is not None and choice.mode == "required"
    if choice is not None and choice.names:
        tools = tuple(tool for tool in tools if tool.name in choice.names)
    if is_forced and not tools:
        known = ", ".join(tool.name for tool in request.tools) or "none"
        raise InvalidRequestError(
            f"'tool_choice' names no tool of this request. Tools here: {known}.",
            param="tool_choice",
            code="invalid_value",
        )
    last = request.messages[-1].parts if request.messages else ()
    has_result = any(isinstance(part, Result) for part in last)
    is_forbidden = choice is not None and choice.mode == "none"
    if not tools or is_forbidden or (has_result and not is_forced):
        return ()
    query_words = words(query)

    def overlap(tool: OfferedTool) -> int:
        properties = as_dict(as_dict(tool.parameters).get("properties"))
        described = words(f"{tool.description[:READ_CHARACTERS]} {' '.join(properties)}")
        return NAME_WEIGHT * len(query_words & words(tool.name)) + len(query_words & described)

    best = max(tools, key=overlap)
    if request.is_parallel is False:
        return (best,)
    others = [tool for tool in tools if tool is not best and words(tool.name)]
    return [best, *(tool for tool in others if words(tool.name) <= query_words)][:MAX_CALLS]


def _text(request: Request, query: str) -> str:
    """Return a short text, or JSON if the request asks for it."""
    form = request.output_format
    if form is None:
        beginning = " ".join(query.split())[:ECHO_CHARACTERS]
        return f"This is the sandbox: no model was asked. The last user turn begins: {beginning!r}."
    if form.schema is None:
        return '{"answer":"sandbox"}'
    return _encode(fill(form.schema, query)).decode()


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
        for start in range(0, len(text), FRAGMENT_CHARACTERS):
            yield PartGrew(index, text[start : start + FRAGMENT_CHARACTERS])
        if isinstance(part, Thinking):
            yield PartProved(index, part.proof)
        yield PartEnded(index)
    yield Finished(answer.stop, answer.stop_text, usage)


def _encode(value: Json) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        # Parsed JSON fails for one reason only: orjson reads 1024 levels and writes 254.
        raise InvalidRequestError(
            "The request is nested too deeply. Flatten it.", code="nested_too_deeply"
        ) from exc
