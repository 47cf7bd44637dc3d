"""The interface of an API: what its folder knows about it, and what everything else asks it.

CONTRIBUTING.md explains how to add one ("Add an API").
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, Protocol

from pydantic import BaseModel

from router_service.apis import schemas
from router_service.apis.answer_errors import (
    AnswerError,
    error_fields,
    is_error,
    is_openai_error,
    read_error,
    write_openai_error,
)
from router_service.apis.answers import AnswerRecord, ParsedAnswer
from router_service.apis.conversation import (
    ChatRequest,
    Json,
    Reference,
    as_list,
    parse_chat_request,
)
from router_service.apis.openapi import ErrorBody, RequestSchema
from router_service.apis.parts import Answer, Event, Request
from router_service.apis.reading import AnswerReader
from router_service.apis.usage import Usage
from router_service.core.values import request_value

HEADER_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-")
"""Beginnings of all headers about rate limits, whichever API they belong to."""

RawHeader = tuple[bytes, bytes]


class RateState(NamedTuple):
    """A rate limit, and what is left of it."""

    unit: bytes
    """What is limited: `requests` or `tokens`."""
    limit: int
    """The most in a minute."""
    remaining: int
    """What may be used at once."""
    reset_s: float
    """Time until all of it may be used at once."""


def openai_headers(rate: RateState) -> Sequence[RawHeader]:
    """Return the headers about one rate (OpenAI: "Rate limits in headers")."""
    limit, remaining, reset = _names(rate.unit)
    return (
        (limit, b"%d" % rate.limit),
        (remaining, b"%d" % rate.remaining),
        (reset, write_duration(rate.reset_s)),
    )


@cache
def _names(unit: bytes) -> Sequence[bytes]:
    return [b"x-ratelimit-%b-%b" % (name, unit) for name in (b"limit", b"remaining", b"reset")]


def write_duration(seconds: float) -> bytes:
    """Return a duration as OpenAI writes it: `12ms`, `1.5s`, `6m0s` or `1h0m3s`."""
    milliseconds = max(0, round(seconds * 1000))
    if milliseconds < 60_000:
        is_short = 0 < milliseconds < 1000
        return b"%dms" % milliseconds if is_short else b"%gs" % (milliseconds / 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    end = b"%dm%gs" % (minutes, milliseconds / 1000)
    return b"%dh" % hours + end if hours else end


IsForeign = Callable[[str], bool]
"""Whether a proof of reasoning is known to be of another provider than the target."""


class AnswerWriter(Protocol):
    """Writer of one answer in the format of one API."""

    def whole(self, answer: Answer) -> dict[str, Json]:
        """Return a whole answer."""

    def write(self, event: Event) -> bytes:
        """Return the server-sent events for one event."""

    def error(self, error: AnswerError) -> bytes:
        """Return the server-sent events that report an error."""


class KeepAlive:
    """Beginning of a stream that keeps the client waiting until its answer is known."""

    def __init__(self, ping: bytes) -> None:
        """Send `ping` each time: a comment, or an event that may precede an answer."""
        self._ping = ping

    def ping(self) -> bytes:
        """Return what is sent next while the client waits."""
        return self._ping

    def join(self, events: bytes, *, is_last: bool) -> bytes:
        """Return the next events of the answer as the continuation of what was sent before.

        `is_last` says that the stream ends with them.
        """
        return events


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of an API's fields in errors; empty for what its requests do not have."""

    messages: str
    stop: str = ""
    output_format: str = ""


class UpstreamApi(ABC):
    """An API in which deployments are asked. There is one value of each.

    Clients may speak it only if it is an `Api`.
    """

    name: ClassVar[str]
    """Name in the configuration, in sealed proofs of reasoning and in the page's addresses."""
    title: ClassVar[str]
    """Name in error messages, such as `the Messages API`."""
    path: ClassVar[str]
    """The endpoint's path below `/v1`, or below the address of the model."""

    max_call_id_characters: ClassVar[int] = 64
    """Longest id of a call: longer ones are rejected."""
    call_id_pattern: ClassVar[re.Pattern[str] | None] = None
    """Form of a call's id; None if any text is accepted."""
    answer_id_prefix: ClassVar[str] = ""
    """Beginning of the ids of answers."""
    continues_answers: ClassVar[bool] = False
    """Whether a last message of the assistant is continued instead of answered."""
    ping_type: ClassVar[str] = ""
    """Type of keep-alive events; an empty string if the API has no such events."""

    has_proofs: ClassVar[bool] = False
    """Whether reasoning in answers has proofs, which only the account that made them accepts."""
    proofs_belong_to_key: ClassVar[bool] = False
    """Whether a proof is valid only for the key's account, instead of for the whole provider."""

    forwarded_headers: ClassVar[frozenset[str]] = frozenset()
    """Headers of requests that are forwarded to upstreams with this API."""
    default_headers: ClassVar[Mapping[str, str]] = {}
    """Headers that the API requires, for requests without them."""

    call_reason: ClassVar[re.Pattern[bytes] | None] = None
    """In an answer or event, the reason which says that it calls tools, after a group with its
    key. What a model writes cannot match, because its quotes are escaped."""
    text_reason: ClassVar[bytes] = b""
    """The reason of an answer that ends its turn without calls."""
    call_mark: ClassVar[re.Pattern[bytes] | None] = None
    """The beginning of a call in a whole answer."""

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def __repr__(self) -> str:
        """Return the title."""
        return f"<{self.title}>"

    # Requests

    @abstractmethod
    def write_request(
        self, request: Request, target: Target, is_foreign: IsForeign | None = None
    ) -> dict[str, Json]:
        """Return the body of a request without obstacles for a target with this API.

        `is_foreign` tells proofs of reasoning that another provider of this API made. Such
        reasoning is not sent, because the target would reject it.
        """

    def inexpressible(self, request: Request, client: Api) -> Iterator[str]:
        """Yield the fields of a client's request that this API cannot express."""
        yield from ()

    def fit_call_id(self, call_id: str, provider: str = "") -> str:
        """Return a call's id if this API accepts it, and otherwise a hash of it.

        A call and its result get the same id, because it depends on nothing else.
        """
        if len(call_id) <= self.max_call_id_characters and (
            self.call_id_pattern is None or self.call_id_pattern.fullmatch(call_id)
        ):
            return call_id
        digest = hashlib.sha256(call_id.encode(errors="replace")).hexdigest()
        return f"call_{digest[:32]}"

    def parameter(self, name: str, value: Json, model: str) -> tuple[str, Json] | None:
        """Return the field for a parameter of Chat Completions; None if this API lacks it.

        A dot separates the names of an object and of its field. `model` is the model's name at the
        provider.
        """
        return name, value

    def excludes_parameter(self, name: str) -> str:
        """Return the field that conflicts with the field `name`, or an empty string."""
        return ""

    # Answers

    def has_calls(self, body: bytes) -> bool:
        """Return whether a whole answer has calls."""
        return self.call_mark is not None and self.call_mark.search(body) is not None

    def without_call_reason(self, body: bytes) -> bytes:
        """Return an answer or event without calls, which does not say that it calls tools.

        Clients would wait for calls. It is the same object if nothing is to be changed.
        """
        if self.call_reason is None or self.call_reason.search(body) is None:
            return body
        return self.call_reason.sub(rb"\g<1>" + self.text_reason, body)

    @abstractmethod
    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether an answer or an event has the marks of this API."""

    @abstractmethod
    def is_beginning(self, event: Mapping[str, Json]) -> bool:
        """Return whether an event contains nothing of the answer.

        After such events, another deployment may still answer.
        """

    @abstractmethod
    def parse_answer(self, value: Mapping[str, Json]) -> ParsedAnswer | None:
        """Return the calls and the text of a whole answer, or None if they are not kept."""

    @abstractmethod
    def read_usage(self, value: Mapping[str, Json], before: Usage | None = None) -> Usage | None:
        """Return the usage of an answer or of an event, given what earlier events reported."""

    @abstractmethod
    def answer_reader(self, request: Request) -> AnswerReader:
        """Return a reader of the answer to a request."""

    def find_proofs(self, value: Mapping[str, Json]) -> Iterable[str]:
        """Return the proofs of reasoning in a whole answer."""
        return ()

    # Errors

    def is_error(self, value: Mapping[str, Json]) -> bool:
        """Return whether a body or event is an error, even if the status was a success."""
        return is_error(value)

    @abstractmethod
    def is_error_body(self, value: Json) -> bool:
        """Return whether a decoded body is an error in this format, so that clients can read it."""

    def error_fields(self, value: Json) -> Json:
        """Return the part of an error body or event that has its message and its code."""
        return error_fields(value)

    def read_error(self, value: Json, status: int) -> AnswerError:
        """Return what an error body or event says, in this format or in a similar one.

        A status below 400 is replaced by the one that fits the error.
        """
        return read_error(value, status)


class Api(UpstreamApi):
    """An API in which clients ask, and deployments too."""

    counting_path: ClassVar[str] = ""
    """Path below `/v1` at which a request's tokens are counted; empty if the API cannot do that."""
    compacting_path: ClassVar[str] = ""
    """Path below `/v1` at which a conversation is summarized for the client; empty if there is
    none."""
    operation: ClassVar[str]
    """Name of the endpoint's operation in the OpenAPI description."""
    summary: ClassVar[str]
    """The endpoint in a few words."""
    description: ClassVar[str] = "Answer with the pool's model that the router chooses."
    fields: ClassVar[FieldNames]

    takes_objects: ClassVar[bool] = False
    """Whether arguments of calls are objects instead of text, and all tools are functions."""
    omits_unasked_thinking: ClassVar[bool] = False
    """Whether clients that have not asked for reasoning do not expect any."""
    stores_answers: ClassVar[bool] = False
    """True if providers store answers by default, and a request can turn that off."""

    proof_marks: ClassVar[tuple[bytes, ...]] = ()
    """Every request with reasoning that may be foreign contains one of these; empty for any."""
    proof_pattern: ClassVar[re.Pattern[bytes] | None] = None
    """A proof of reasoning in a request's body. Other values may match too, such as images. If its
    group is empty, the empty text stands for all reasoning in the body."""

    ping: ClassVar[bytes] = b": ping\n\n"
    """What keeps the client of a translated stream waiting: a comment, or an event if clients of
    the API know one."""

    error_body: ClassVar[type[BaseModel]] = ErrorBody
    """Model of an error's body, for the OpenAPI description."""

    # Routing

    def to_chat(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the chat request that asks a model the same as a decoded body.

        The router, the verifier and logs read it. It is never sent. Raises InvalidRequestError.
        """
        return body

    def parse(self, chat_body: Mapping[str, Json]) -> ChatRequest:
        """Return what the router needs of a body that `to_chat` returned.

        Raises InvalidRequestError.
        """
        return parse_chat_request(chat_body)

    def continued(self, body: Mapping[str, Json]) -> Reference | None:
        """Return the stored response or conversation that a decoded body continues, if any.

        Raises InvalidRequestError.
        """
        return None

    def chat_messages(self, chat_body: Mapping[str, Json]) -> list[Json]:
        """Return the chat messages of a body that `to_chat` returned, for logs."""
        return list(as_list(chat_body.get("messages")))

    @abstractmethod
    def request_schema(self, *, is_counted: bool = False) -> RequestSchema:
        """Return the schema of a request; of one whose tokens are counted, if `is_counted`."""

    # Clients' requests

    @abstractmethod
    def read_request(self, body: Mapping[str, Json]) -> Request:
        """Read a request that has to be translated. Raises InvalidRequestError."""

    def compacting(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the request for an answer that asks the same as a body at `compacting_path`."""
        return body

    def place_of_call(self, item: Mapping[str, Json], call_id: str, *, is_result: bool) -> str:
        """Return where a message of a body has a call, or its result; empty if it has not."""
        return ""

    def with_fitting_call_ids(self, body: bytes, target: Target) -> bytes:
        """Return a body of this API whose ids of calls a target of the same API accepts."""
        return body

    def without_foreign_thinking(
        self, body: Mapping[str, Json], is_foreign: IsForeign
    ) -> dict[str, Json] | None:
        """Return a body without reasoning that its upstream would reject, or None if it has none.

        The upstream speaks this API too. `is_foreign` is asked for every proof, and for an empty
        text if reasoning has no proof. Proofs with our seal are always foreign.
        """
        return None

    # Answers for clients

    @abstractmethod
    def record(self) -> AnswerRecord:
        """Return a record for an answer that is not translated."""

    def parse_answer(self, value: Mapping[str, Json]) -> ParsedAnswer | None:
        """Return the calls and the text of a whole answer, or None if it is too long."""
        record = self.record()
        record.feed(value)
        return record.answer()

    def keep_alive(self, model: str) -> KeepAlive:
        """Return what begins a stream before its answer is known; `model` is what was asked for."""
        return KeepAlive(b": keep-alive\n\n")

    @abstractmethod
    def answer_writer(self, request: Request, *, model: str, created_s: int) -> AnswerWriter:
        """Return a writer of the answer to a request.

        `model` is the model's name for the client, and `created_s` the answer's Unix time.
        """

    def rate_headers(self, rate: RateState, now_s: float) -> Sequence[RawHeader]:
        """Return the headers of an answer about one rate limit; `now_s` is the Unix time."""
        return openai_headers(rate)

    @abstractmethod
    def write_error(self, error: AnswerError, *, request_id: str | None = None) -> dict[str, Json]:
        """Return the body of an error. Types are named by the status."""

    def write_fault(
        self, status: int, fault: Mapping[str, str | None], *, request_id: str | None = None
    ) -> dict[str, Json]:
        """Return the body of an error of the gateway, given OpenAI's fields of it."""
        error = AnswerError(status, fault["message"] or "", fault["type"], fault["code"])
        return self.write_error(error, request_id=request_id)

    def error_event(self, body: bytes, number: int) -> bytes:
        """Return the event that ends a broken stream, from the body of an error.

        `number` is the event's sequence number, if events have one.
        """
        return b"event: error\ndata: " + body + b"\n\n"


class OpenAIApi(Api):
    """An API of OpenAI, whose errors have the format that the gateway's own faults have, too."""

    is_error_body = staticmethod(is_openai_error)

    def write_error(self, error: AnswerError, *, request_id: str | None = None) -> dict[str, Json]:
        """Return the body of an error."""
        return write_openai_error(error)

    def write_fault(
        self, status: int, fault: Mapping[str, str | None], *, request_id: str | None = None
    ) -> dict[str, Json]:
        """Return the body of an error of the gateway, whose fields are OpenAI's."""
        return {"error": dict(fault)}


_OPENAI = frozenset({"openai", "azure"})
_LIMITS_CALL_IDS = _OPENAI | {"mistral"}
_READS_REASONING = frozenset(
    "deepseek moonshot openrouter hosted_vllm vllm zai minimax dashscope".split()
)


@request_value(frozen=True, slots=True)
class Target:
    """The deployment that a request is written for."""

    api: UpstreamApi
    model: str
    """The model's name at the provider."""
    provider: str = ""
    """LiteLLM's name of the provider, such as `openai` or `mistral`; empty for an unknown server
    that is compatible with OpenAI's, such as vLLM."""
    max_output_tokens: int | None = None
    """Longest answer of the model, if it is known."""
    supports_reasoning: bool = False

    @property
    def is_openai(self) -> bool:
        """Whether the newest fields of OpenAI's APIs are known there."""
        return self.provider in _OPENAI

    @property
    def reads_reasoning(self) -> bool:
        """Whether the provider accepts `reasoning_content` in messages; others reject it."""
        return self.provider in _READS_REASONING

    @property
    def limits_call_ids(self) -> bool:
        """Whether the provider rejects ids of calls that other servers of the same API make."""
        return self.provider in _LIMITS_CALL_IDS

    def call_id(self, call_id: str) -> str:
        """Return a call's id, or a hash of it if the target would reject the id."""
        return self.api.fit_call_id(call_id, self.provider)

    def max_tokens(self, request: Request) -> int | None:
        """Return the longest answer to ask for: the request's limit, or less if the model's is."""
        limits = [limit for limit in (request.max_tokens, self.max_output_tokens) if limit]
        return min(limits) if request.max_tokens else None

    def effort(self, request: Request) -> str | None:
        """Return the reasoning effort in OpenAI's words, or None if it must not be sent."""
        if not self.supports_reasoning or request.effort is None:
            return None
        if self.is_openai:
            return request.effort
        # Other providers know three levels.
        levels = {"minimal": "low", "xhigh": "high", "max": "high", "none": None}
        return levels.get(request.effort, request.effort)

    def fit_schema(self, schema: Json, is_strict: bool | None) -> tuple[Json, bool | None]:
        """Return a schema that OpenAI accepts, and whether arguments or answers match it exactly.

        OpenAI wants an object on top. It accepts strict schemas only without optional properties,
        Anthropic others too. The nearest that OpenAI offers for those is an answer that mostly
        matches. Nothing is known about other targets, so they get the schema as it is.
        """
        if not self.is_openai:
            return schema, is_strict
        fitting = schemas.object_schema(schema)
        if not is_strict:
            return fitting, is_strict
        if not _is_closed(fitting):
            return fitting, False
        return schemas.structured(fitting, schemas.OPENAIS), True

    def temperature(self, request: Request) -> float | None:
        """Return the temperature; 1 is the default at OpenAI, whose reasoning models reject it."""
        is_default = request.temperature == 1 and self.is_openai
        return None if is_default else request.temperature


def _is_closed(schema: Json) -> bool:
    """Return whether every object in a schema has exactly its listed properties."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, dict):
        required = schema.get("required")
        names = {name for name in as_list(required) if isinstance(name, str)}
        is_complete = names.issuperset(properties if isinstance(properties, dict) else ())
        if schema.get("additionalProperties") is not False or not is_complete:
            return False
    return all(map(_is_closed, schema.values()))
