"""A fourth API, which tests add to the registry: a conversation is a list of lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from router_service.apis import writing
from router_service.apis.answer_errors import AnswerError
from router_service.apis.answers import AnswerIdentity, AnswerRecord
from router_service.apis.api import Api, FieldNames, IsForeign, Target
from router_service.apis.conversation import Json, as_list, read_model, read_stream
from router_service.apis.fields import Field
from router_service.apis.openapi import RequestSchema
from router_service.apis.parts import (
    Answer,
    AnswerPart,
    Event,
    Finished,
    Message,
    OfferedTool,
    PartGrew,
    PartStarted,
    Request,
    Result,
    Role,
    Started,
    Stop,
    Text,
    ToolUse,
)
from router_service.apis.reading import AnswerReader, OpenPart
from router_service.apis.usage import Usage, read_count

ROLES: Mapping[str, Role] = {"guide": "system", "person": "user", "model": "assistant"}
CARRIED = frozenset({"model", "lines", "tools", "stream", "limit"})
WHYS = {Stop.CALLS: "calls", Stop.LENGTH: "limit"}
STOPS = {why: stop for stop, why in WHYS.items()}


class LinesApi(Api):
    """The API of lines. A line is a text, a call of a tool, or the result of one."""

    name = "lines"
    title = "the Lines API"
    path = "/lines"
    operation = "create_lines"
    summary = "Lines"
    fields = FieldNames("lines")
    answer_id_prefix = "lines-"

    def to_chat(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the chat request with the same lines, which the router reads."""
        by = {"guide": "system", "person": "user", "model": "assistant", "tool": "tool"}
        messages = [
            {"role": by[line["by"]], "content": line.get("text")}
            | ({"tool_calls": [{"function": line["call"]}]} if "call" in line else {})
            for line in as_list(body.get("lines"))
        ]
        tools = [
            {"function": {"name": tool["name"], "description": tool["about"]}}
            for tool in as_list(body.get("tools"))
        ]
        return {**body, "messages": messages, "tools": tools}

    def request_schema(self, *, is_counted: bool = False) -> RequestSchema:
        """Return the schema of a request."""
        return RequestSchema({"type": "object", "required": ["model", "lines"]})

    def read_request(self, body: Mapping[str, Json]) -> Request:
        """Read a request that has to be translated."""
        messages: list[Message] = []
        fields = Field.of_body(body, CARRIED, {})
        for line in fields.array("lines"):
            text = Text(line.get("text") or "")
            if "call" in line:
                call = line["call"]
                use = ToolUse(call["id"], call["name"], call["arguments"])
                messages.append(Message("assistant", (use,)))
            elif line["by"] == "tool":
                messages.append(Message("user", (Result(line["of"], (text,)),)))
            else:
                messages.append(Message(ROLES[line["by"]], (text,)))
        return Request(
            read_model(body),
            tuple(messages),
            lost=tuple(fields.lost),
            stream=read_stream(body),
            tools=tuple(
                OfferedTool(tool["name"], tool["about"], tool.get("takes"))
                for tool in fields.array("tools")
            ),
            max_tokens=fields.optional_count("limit"),
        )

    def write_request(
        self, request: Request, target: Target, is_foreign: IsForeign | None = None
    ) -> dict[str, Json]:
        """Return the body for a target."""
        by = {role: name for name, role in ROLES.items()}
        lines: list[Json] = []
        for message in request.messages:
            for part in message.parts:
                match part:
                    case Text(text):
                        lines.append({"by": by.get(message.role, "guide"), "text": text})
                    case ToolUse(call_id, name, arguments):
                        call = {"id": call_id, "name": name, "arguments": arguments}
                        lines.append({"by": "model", "call": call})
                    case Result(call_id):
                        text = writing.join_texts(writing.texts_of(part.content))
                        lines.append({"by": "tool", "of": call_id, "text": text})
        tools = [
            {"name": tool.name, "about": tool.description, "takes": tool.parameters}
            for tool in request.tools
        ]
        limits = {"limit": request.max_tokens} if request.max_tokens else {}
        return {
            "model": target.model,
            "lines": lines,
            "tools": tools,
            "stream": request.stream,
            **limits,
        }

    def recognizes(self, value: Mapping[str, Json]) -> bool:
        """Return whether a value says of what kind it is."""
        return isinstance(value.get("kind"), str)

    def is_beginning(self, event: Mapping[str, Json]) -> bool:
        """Return whether an event contains nothing of the answer."""
        return event.get("kind") == "begin"

    def record(self) -> AnswerRecord:
        """Return a record for an answer that is not translated."""
        return LinesRecord()

    def read_usage(self, value: Mapping[str, Json], before: Usage | None = None) -> Usage | None:
        """Return the usage of an answer or of an event."""
        prompt, written = (read_count(value.get("tokens"), name) for name in ("read", "written"))
        return None if prompt is None or written is None else Usage(prompt, written)

    def answer_reader(self, request: Request) -> LinesReader:
        """Return a reader of the answer to a request."""
        return LinesReader()

    def answer_writer(self, request: Request, *, model: str, created_s: int) -> LinesWriter:
        """Return a writer of the answer to a request."""
        return LinesWriter(model)

    def write_error(self, error: AnswerError, *, request_id: str | None = None) -> dict[str, Json]:
        """Return the body of an error."""
        return {"kind": "problem", "number": error.status, "text": error.message}

    def is_error(self, value: Mapping[str, Json]) -> bool:
        """Return whether a body or event is a problem."""
        return value.get("kind") == "problem"

    def is_error_body(self, value: Json) -> bool:
        """Return whether a decoded body is a problem."""
        return isinstance(value, dict) and self.is_error(value)

    def read_error(self, value: Json, status: int) -> AnswerError:
        """Return what a problem says."""
        return AnswerError(value["number"], value["text"])


LINES = LinesApi()


class LinesRecord(AnswerRecord):
    """Record of one answer."""

    last_types = ("end",)

    def read(self, value: Mapping[str, Json]) -> None:
        """Read a whole answer or one event."""
        kind = value.get("kind")
        self.has_output = self.has_output or not LINES.is_beginning(value)
        self.usage = LINES.read_usage(value) or self.usage
        self.has_stopped = self.is_done = kind in ("lines", "end")
        if kind in ("lines", "begin"):
            self.identity = AnswerIdentity.of(value)
        for line in self.objects(value.get("lines") if kind == "lines" else [value]):
            if "call" in line:
                call = self.add_call(len(self.calls))
                call.id, call.name = line["call"]["id"], line["call"]["name"]
                call.arguments.write(line["call"].get("arguments", ""))
            elif kind == "arguments":
                [*self.calls.values()][-1].arguments.write(self.count(value.get("add")))
            else:
                self.add_text(line.get("text"))


class LinesReader(AnswerReader):
    """Reader of one answer."""

    api = "lines"

    def __init__(self) -> None:
        super().__init__()
        self._open: OpenPart | None = None

    def read_whole(self, value: Json) -> None:
        """Read a whole answer."""
        if not isinstance(value, dict) or value.get("kind") != "lines":
            raise self.foreign("has no lines")
        self.begin(value)
        for line in value["lines"]:
            call = line.get("call")
            self._start(_called(call) if call else Text(""))
            self._grow(call["arguments"] if call else line["text"])
        self._read_end(value)

    def read(self, event: Json) -> None:
        """Read one event."""
        kind = event.get("kind") if isinstance(event, dict) else None
        match kind:
            case "begin":
                self.begin(event)
            case "text":
                if self._open is None or not isinstance(self._open.part, Text):
                    self._start(Text(""))
                self._grow(event["text"])
            case "call":
                self._start(_called(event["call"]))
            case "arguments":
                self._grow(event["add"])
            case "end":
                self._read_end(event)
                self.finish()
            case _:
                raise self.foreign(f"has an event of the kind {kind!r:.50}")

    def end_parts(self) -> None:
        """End the last line."""
        if self._open is not None:
            self.close(self._open)

    def _start(self, part: AnswerPart) -> None:
        self.end_parts()
        self._open = self.start(part)

    def _grow(self, text: str) -> None:
        assert self._open is not None
        self.grow(self._open, text)

    def _read_end(self, value: Json) -> None:
        self._stop = STOPS.get(value["why"], Stop.END)
        self.usage = LINES.read_usage(value)


def _called(call: Json) -> ToolUse:
    return ToolUse(call["id"], call["name"], "")


class LinesWriter:
    """Writer of one answer."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._kinds: dict[int, str] = {}

    def whole(self, answer: Answer) -> dict[str, Json]:
        """Return a whole answer."""
        lines: list[Json] = []
        for part in answer.parts:
            if isinstance(part, ToolUse):
                call = {"id": part.id, "name": part.name, "arguments": part.arguments}
                lines.append({"call": call})
            else:
                lines.append({"text": part.text})
        head = {"kind": "lines", "id": answer.id, "model": self._model}
        return {**head, "lines": lines, **_ending(answer.stop, answer.usage)}

    def write(self, event: Event) -> bytes:
        """Return the server-sent events for one event."""
        match event:
            case Started(answer_id):
                return _data(kind="begin", id=answer_id, model=self._model)
            case PartStarted(index, ToolUse(call_id, name)):
                self._kinds[index] = "arguments"
                return _data(kind="call", call={"id": call_id, "name": name})
            case PartGrew(index, text):
                if index in self._kinds:
                    return _data(kind="arguments", add=text)
                return _data(kind="text", text=text)
            case Finished(stop, _, usage):
                return _data(kind="end", **_ending(stop, usage))
        return b""

    def error(self, error: AnswerError) -> bytes:
        """Return the event that reports a problem."""
        return _data(**LINES.write_error(error))


def _ending(stop: Stop, usage: Usage | None) -> dict[str, Json]:
    counts = usage or Usage(0, 0)
    tokens = {"read": counts.prompt_tokens, "written": counts.completion_tokens}
    return {"why": WHYS.get(stop, "done"), "tokens": tokens}


def _data(**fields: Any) -> bytes:  # noqa: ANN401 - JSON
    return b"data: " + orjson.dumps(fields) + b"\n\n"
