"""What a request asks of a model, and what a model is known to lack.

What nobody said of a model excludes nothing: judging that is the upstream's task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field

from router_service.core.messages import Conversation, Json

BYTES_PER_TOKEN = 5
"""UTF-8 bytes of text and of the tools' JSON that are taken for one token of input.

Meant to be too few tokens rather than too many, for what is estimated too long is not sent. Of the
948 recorded requests over 4 kB, counted by gpt-oss, the estimate is 7% below the count in the
median, 18% below to 2% above from the 5th to the 95th percentile; of 1,384 shorter ones, counted
by gpt-4o, 4% below, 19% below to 21% above. Text in other scripts has more tokens than that.
"""


class Feature(StrEnum):
    """Something that not every model can do, in the words of an error."""

    CHAT = "the Chat Completions API"
    RESPONSES = "the Responses API"
    TOOLS = "tools"
    TOOL_CHOICE = "a tool_choice that demands a call"
    PARALLEL_TOOL_CALLS = "parallel_tool_calls"
    IMAGES = "images"
    AUDIO = "audio"
    FILES = "files"
    JSON_OBJECT = "answers in JSON"
    JSON_SCHEMA = "answers by a JSON schema"
    SEVERAL_CHOICES = "n > 1"
    LOGPROBS = "logprobs"


_ENDPOINTS = {"/chat/completions": Feature.CHAT, "/responses": Feature.RESPONSES}
_PARTS = {
    "image_url": Feature.IMAGES,
    "input_image": Feature.IMAGES,
    "input_audio": Feature.AUDIO,
    "file": Feature.FILES,
    "input_file": Feature.FILES,
}
_FORMATS = {"json_object": Feature.JSON_OBJECT, "json_schema": Feature.JSON_SCHEMA}


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a model must be able to do to serve a request.

    `input_tokens` is an estimate, in which images, audio and files count as nothing;
    `output_tokens` is the longest answer that the request allows, 0 where it does not say.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    tools: int = 0
    features: frozenset[Feature] = frozenset()


class Capabilities(BaseModel):
    """What is known of a model; None is unknown, and what is not in `unsupported` may work."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    context_window_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest input."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tools: Annotated[int, Field(ge=0)] | None = None
    unsupported: frozenset[Feature] = frozenset()

    def lacks(self, wanted: Requirements) -> tuple[str, ...]:
        """Return in words what is wanted beyond these capabilities; empty where nothing is."""
        return (*self._exceeded(wanted), *sorted(wanted.features & self.unsupported))

    def is_too_short(self, wanted: Requirements) -> bool:
        """Whether the length of the input is all that is wanted beyond these capabilities."""
        return bool(self.lacks(wanted)) and not self.lacks(replace(wanted, input_tokens=0))

    def _exceeded(self, wanted: Requirements) -> Iterator[str]:
        limits = (
            ("about {} tokens of input", wanted.input_tokens, self.context_window_tokens),
            ("{} tokens of output", wanted.output_tokens, self.max_output_tokens),
            ("{} tools", wanted.tools, self.max_tools),
        )
        for words, number, limit in limits:
            if limit is not None and number > limit:
                yield f"{words.format(number)} (it takes {limit})"


def read_requirements(
    body: Mapping[str, Json], conversation: Conversation, path: str
) -> Requirements:
    """Read what a decoded request asks for; `path` is its endpoint's, below `/v1`."""
    return Requirements(
        input_tokens=_input_bytes(body, conversation) // BYTES_PER_TOKEN,
        output_tokens=_output_tokens(body),
        tools=len(conversation.tools),
        features=frozenset((*_wanted(body), *_parts(body), *_endpoint(path))),
    )


def _input_bytes(body: Mapping[str, Json], conversation: Conversation) -> int:
    said = sum(_utf8_bytes(turn.text) for turn in conversation.turns)
    calls = (call for turn in conversation.turns for call in turn.tool_calls)
    called = sum(len(call.name) + len(call.arguments) for call in calls)
    return said + called + _json_bytes(body.get("tools")) + _json_bytes(body.get("functions"))


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _json_bytes(value: Json) -> int:
    if not value:
        return 0
    try:
        return len(orjson.dumps(value))
    except orjson.JSONEncodeError:
        return 0  # orjson reads 1024 levels and writes 254; nobody's tools have so many


def _output_tokens(body: Mapping[str, Json]) -> int:
    """Return the longest answer allowed, under the names of both APIs, chat's older one last."""
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        limit = body.get(name)
        if isinstance(limit, int):
            return limit
    return 0


def _endpoint(path: str) -> Iterator[Feature]:
    if path in _ENDPOINTS:
        yield _ENDPOINTS[path]


def _wanted(body: Mapping[str, Json]) -> Iterator[Feature]:
    if body.get("tools") or body.get("functions"):
        yield Feature.TOOLS
        if _demands_call(body.get("tool_choice", body.get("function_call"))):
            yield Feature.TOOL_CHOICE
        if body.get("parallel_tool_calls") is True:
            yield Feature.PARALLEL_TOOL_CALLS
    kind = _answer_format(body).get("type")
    if isinstance(kind, str) and kind in _FORMATS:
        yield _FORMATS[kind]
    choices = body.get("n")
    if isinstance(choices, int) and choices > 1:
        yield Feature.SEVERAL_CHOICES
    if body.get("logprobs") is True:
        yield Feature.LOGPROBS
    if isinstance(body.get("audio"), Mapping):
        yield Feature.AUDIO


def _demands_call(choice: Json) -> bool:
    """Whether a `tool_choice` leaves no way to answer in words (API reference: tool_choice).

    `any` is Mistral's word for `required`.
    """
    if isinstance(choice, Mapping):
        allowed = choice.get("allowed_tools", choice)
        mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
        return mode != "auto"
    return choice in ("required", "any")


def _answer_format(body: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return `response_format`, which the Responses API has in `text.format`."""
    text = body.get("text")
    inner = text.get("format") if isinstance(text, Mapping) else None
    found = body.get("response_format", inner)
    return found if isinstance(found, Mapping) else {}


def _parts(body: Mapping[str, Json]) -> Iterator[Feature]:
    for items in (body.get("messages"), body.get("input")):
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Mapping):
                yield from _parts_of(item.get("content"))
                yield from _parts_of(item.get("output"))


def _parts_of(content: Json) -> Iterator[Feature]:
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in _PARTS:
            yield _PARTS[kind]
