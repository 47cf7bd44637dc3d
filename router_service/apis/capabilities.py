"""Capabilities of models, and what requests require of them.

An unknown capability excludes no request: the upstream then decides whether it serves the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

import orjson
from pydantic import Field

from router_service.apis.conversation import Conversation, Json
from router_service.core.values import Strict

BYTES_PER_TOKEN = 5
"""UTF-8 bytes of text and of the tools' JSON that count as one token of input.

The estimate is meant to be too low rather than too high, because a request that seems too long is
not sent. For the 948 recorded requests over 4 kB, the median estimate is 7% below the count of
gpt-oss; the 5th percentile is 18% below and the 95th 2% above. For 1,384 shorter requests, the
median is 4% below the count of gpt-4o; the 5th percentile is 19% below and the 95th 21% above. Text
in non-Latin scripts has more tokens than estimated.
"""


class Feature(StrEnum):
    """Feature that not every model supports; the value is its name in error messages."""

    TOOLS = "tools"
    TOOL_CHOICE = "a tool_choice that requires a call"
    PARALLEL_TOOL_CALLS = "parallel_tool_calls"
    IMAGES = "images"
    AUDIO = "audio"
    FILES = "files"
    JSON_OBJECT = "answers in JSON"
    JSON_SCHEMA = "answers by a JSON schema"
    SEVERAL_CHOICES = "n > 1"
    LOGPROBS = "logprobs"


_PARTS = {
    "image": Feature.IMAGES,  # the Messages API
    "image_url": Feature.IMAGES,
    "input_image": Feature.IMAGES,
    "input_audio": Feature.AUDIO,
    "document": Feature.FILES,  # the Messages API
    "file": Feature.FILES,
    "input_file": Feature.FILES,
}
_FORMATS = {"json_object": Feature.JSON_OBJECT, "json_schema": Feature.JSON_SCHEMA}


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a model must support to serve a request.

    `input_tokens` is an estimate that does not count images, audio and files. `output_tokens` is
    the longest answer that the request allows, or 0 if it sets no limit.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    tools: int = 0
    features: frozenset[str] = frozenset()
    """What the request needs: values of `Feature`, and the title of its API."""


class Capabilities(Strict):
    """Known limits of a model. None means unknown. Features not in `unsupported` may work."""

    context_window_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest input."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tools: Annotated[int, Field(ge=0)] | None = None
    unsupported: frozenset[str] = frozenset()

    @classmethod
    def shared_by(cls, known: Sequence[Capabilities]) -> Capabilities:
        """Return the capabilities that all deployments of a model share."""

        def least(name: str) -> int | None:
            limits = (getattr(capabilities, name) for capabilities in known)
            return min((limit for limit in limits if limit is not None), default=None)

        return cls(
            context_window_tokens=least("context_window_tokens"),
            max_output_tokens=least("max_output_tokens"),
            max_tools=least("max_tools"),
            unsupported=frozenset().union(*(capabilities.unsupported for capabilities in known)),
        )

    def lacks(self, required: Requirements) -> tuple[str, ...]:
        """Return descriptions of the requirements that are not met."""
        window_tokens, output_tokens = self.context_window_tokens, self.max_output_tokens
        if (
            (window_tokens is None or required.input_tokens <= window_tokens)
            and (output_tokens is None or required.output_tokens <= output_tokens)
            and (self.max_tools is None or required.tools <= self.max_tools)
            and self.unsupported.isdisjoint(required.features)
        ):
            return ()
        limits = (
            ("about {} tokens of input", required.input_tokens, self.context_window_tokens),
            ("{} tokens of output", required.output_tokens, self.max_output_tokens),
            ("{} tools", required.tools, self.max_tools),
        )
        exceeded = [
            f"{words.format(number)} (limit: {limit})"
            for words, number, limit in limits
            if limit is not None and number > limit
        ]
        return (*exceeded, *sorted(required.features & self.unsupported))

    def excess_tokens(self, required: Requirements) -> int | None:
        """Return by how many tokens the input is too long, if only its length is at fault."""
        window_tokens = self.context_window_tokens
        if window_tokens is None or self.lacks(replace(required, input_tokens=0)):
            return None
        return max(0, required.input_tokens - window_tokens) or None


def read_requirements(
    body: Mapping[str, Json], conversation: Conversation, api: str | None = None
) -> Requirements:
    """Return the requirements of a decoded request, which `Api.to_chat` has converted.

    `api` is the title of its API, or None if it is of another endpoint.
    """
    size_bytes = 0
    for turn in conversation.turns:
        text = turn.text
        size_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        for call in turn.tool_calls:
            size_bytes += len(call.name) + len(call.arguments)
    for tools in (body.get("tools"), body.get("functions")):
        if tools:
            # orjson decodes 1024 levels but encodes only 254. Deeper tools, which do not occur in
            # practice, are not counted.
            with suppress(orjson.JSONEncodeError):
                size_bytes += len(orjson.dumps(tools))
    # The names in Chat Completions and in Responses, then the older name in Chat Completions.
    limits = map(body.get, ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    output_tokens = next((limit for limit in limits if isinstance(limit, int)), 0)
    features: set[str] = set(_body_features(body))
    for items in (body.get("messages"), body.get("input")):
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, Mapping):
                continue
            for content in (item.get("content"), item.get("output")):
                for part in content if isinstance(content, list) else ():
                    kind = part.get("type") if isinstance(part, Mapping) else None
                    if isinstance(kind, str) and kind in _PARTS:
                        features.add(_PARTS[kind])
    if api is not None:
        features.add(api)
    return Requirements(
        input_tokens=size_bytes // BYTES_PER_TOKEN,
        output_tokens=output_tokens,
        tools=len(conversation.tools),
        features=frozenset(features),
    )


def _body_features(body: Mapping[str, Json]) -> Iterator[Feature]:
    """Yield the features that top-level fields of a request require."""
    if body.get("tools") or body.get("functions"):
        yield Feature.TOOLS
        # Whether `tool_choice` forbids an answer without a call (API reference: tool_choice). `any`
        # is Mistral's word for `required`.
        choice = body.get("tool_choice", body.get("function_call"))
        if isinstance(choice, Mapping):
            allowed = choice.get("allowed_tools", choice)
            requires_call = not isinstance(allowed, Mapping) or allowed.get("mode") != "auto"
        else:
            requires_call = choice in ("required", "any")
        if requires_call:
            yield Feature.TOOL_CHOICE
        if body.get("parallel_tool_calls") is True:
            yield Feature.PARALLEL_TOOL_CALLS
    text = body.get("text")  # the Responses API has the format in `text.format`
    text_format = text.get("format") if isinstance(text, Mapping) else None
    answer_format = body.get("response_format", text_format)
    kind = answer_format.get("type") if isinstance(answer_format, Mapping) else None
    if isinstance(kind, str) and kind in _FORMATS:
        yield _FORMATS[kind]
    choices = body.get("n")
    if isinstance(choices, int) and choices > 1:
        yield Feature.SEVERAL_CHOICES
    if body.get("logprobs") is True:
        yield Feature.LOGPROBS
    if isinstance(body.get("audio"), Mapping):
        yield Feature.AUDIO
