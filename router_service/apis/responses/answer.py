"""Answers of OpenAI's Responses API: reader and writer, whole and in events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from router_service.apis.answer_errors import (
    AnswerError,
    ForeignAnswerError,
    write_openai_error,
)
from router_service.apis.building import AnswerBuilder
from router_service.apis.conversation import Json, as_text
from router_service.apis.encoding import encode
from router_service.apis.foreign import read_text, seal, to_input
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
    Stop,
    Text,
    Thinking,
    ToolUse,
)
from router_service.apis.responses.record import read_usage
from router_service.apis.responses.request import NAME, write_format, write_tool
from router_service.apis.usage import Usage

# Tuples instead of sets, because an upstream may send a type that cannot be hashed, such as a list.
_CALL_TYPES = ("function_call", "custom_tool_call")
_BETWEEN_SUMMARIES = "\n\n"
_LAST = ("response.completed", "response.incomplete")
_FAILURES = ("error", "response.failed", "response.cancelled")
_PARTS: dict[str, Text | Thinking | ToolUse] = {
    "response.output_text": Text(""),
    "response.refusal": Text("", is_refusal=True),
    "response.function_call_arguments": ToolUse("", "", ""),
    "response.custom_tool_call_input": ToolUse("", "", "", is_custom=True),
    "response.reasoning_summary_text": Thinking("", origin=NAME),
    "response.reasoning_text": Thinking("", origin=NAME),
}
"""Events that add to a part, without `.delta`, and an empty part of that kind. The `.done` events
of these parts are not read, because the last event of the item repeats them."""


@dataclass(slots=True)
class _Open:
    """A part that has begun. Only the last event of a part is sure to have all of its text."""

    index: int
    part: Text | Thinking | ToolUse
    characters: int = 0
    source: tuple[str, Json] | None = None
    """The kind of the reasoning's text, and the place of the summary that is being read."""


class ResponsesReader:
    """Reader of one answer. Servers leave out deltas, or all events of an item but its last one."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """The usage that the answer has reported so far."""
        self._events: list[Event] = []
        self._next = 0
        """The place of the next part."""
        self._open: dict[int, dict[int, _Open]] = {}
        """The parts that have not ended, by the places of their item and in its content."""
        self._items: set[int] = set()
        """The places of the items that are complete."""
        self._has_started = False
        self._has_finished = False
        self._has_calls = False
        self._has_refused = False

    def whole(self, value: Json) -> Answer:
        """Read a whole answer; raise ForeignAnswerError."""
        if not isinstance(value, dict) or value.get("object") != "response":
            raise _foreign("is not a response")
        output = value.get("output")
        if not isinstance(output, list):
            raise _foreign("has no list of output items")
        parts = [part for item in output for part in _read_item(item) if part != Text("")]
        self._has_calls = any(isinstance(part, ToolUse) for part in parts)
        self._has_refused = any(isinstance(part, Text) and part.is_refusal for part in parts)
        head = read_text(value.get("id")), read_text(value.get("model"))
        status = value.get("status", "completed")
        if status not in ("completed", "incomplete"):
            raise _foreign(f"has the status {status!r:.50}")
        stop = self._read_stop(value, is_cut=status == "incomplete")
        return Answer(*head, tuple(parts), stop, usage=read_usage(value))

    def feed(self, event: Json) -> Sequence[Event]:
        """Read one event; raise ForeignAnswerError."""
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(kind, str):
            raise _foreign("has an event without a type")
        base, _, verb = kind.rpartition(".")
        response = event.get("response")
        self._events = []
        if self._has_finished or kind == "keepalive":
            return ()
        if verb == "delta" and base in _PARTS:
            self._grow(base, event, event.get("delta"))
        elif kind == "response.output_item.added":
            self._start_item(event)
        elif kind == "response.output_item.done":
            self._end_item(event.get("item"), event.get("output_index"))
        elif kind in _FAILURES:
            raise _foreign("reports an error")
        elif isinstance(response, dict):
            if not self._has_started:
                self._has_started = True
                head = read_text(response.get("id")), read_text(response.get("model"))
                self._events.append(Started(*head))
            if kind in _LAST:
                self._finish(response)
        elif not self._has_started:
            raise _foreign(f"begins with an event of the type {kind!r:.50}")
        return self._events

    def end(self) -> Sequence[Event]:
        """Raise ForeignAnswerError if the answer is not complete."""
        if not self._has_finished:
            raise _foreign("ended before it was complete")
        return ()

    def _finish(self, response: dict[str, Json]) -> None:
        output = response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else ()):
            if index not in self._items:
                self._end_item(item, index)
        for place in list(self._open):
            self._end_parts(place)
        self._has_finished = True
        is_cut = response.get("status") == "incomplete"
        stop = self._read_stop(response, is_cut=is_cut)
        self.usage = read_usage(response)
        self._events.append(Finished(stop, usage=self.usage))

    def _start_item(self, event: dict[str, Json]) -> None:
        item, place = event.get("item"), event.get("output_index")
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind in _CALL_TYPES and type(place) is int:
            is_custom = kind == "custom_tool_call"
            self._start_part(place, 0, _read_call(item, is_custom=is_custom, arguments=""))
        elif kind not in ("message", "reasoning"):
            raise _unknown_item(kind)

    def _start_part(self, item: int, content: int, part: Text | Thinking | ToolUse) -> _Open:
        if not self._has_started:
            raise _foreign("has output before its start")
        opened = self._open.setdefault(item, {})
        if content in opened or item in self._items:
            raise _foreign("starts two parts at the same place")
        self._has_calls = self._has_calls or isinstance(part, ToolUse)
        is_refusal = isinstance(part, Text) and part.is_refusal
        self._has_refused = self._has_refused or is_refusal
        opened[content] = _Open(self._next, part)
        self._events.append(PartStarted(self._next, part))
        self._next += 1
        return opened[content]

    def _find(self, base: str, event: dict[str, Json]) -> _Open:
        """Return the part to which an event adds; start it if no event has started it."""
        item, content = event.get("output_index"), event.get("content_index", 0)
        empty = _PARTS[base]
        if type(item) is not int or type(content) is not int:
            raise _foreign("has an event without a place")
        if not isinstance(empty, Text):
            content = 0  # the parts of a summary are one part here
        if item in self._items:
            raise _foreign("continues an item that was complete")
        part = self._open.get(item, {}).get(content)
        if part is None:
            if isinstance(empty, ToolUse):
                raise _foreign("continues a call that has not started")
            part = self._start_part(item, content, empty)
        if type(part.part) is not type(empty):
            raise _foreign("continues an item of another type")
        return part

    def _grow(self, base: str, event: dict[str, Json], text: Json) -> None:
        if not isinstance(text, str):
            raise _foreign("has a delta that is not a text")
        if not text:
            return
        part = self._find(base, event)
        if isinstance(part.part, Thinking):
            source = base, event.get("summary_index")
            if part.source is not None and part.source[0] != base:
                return  # the summary of what has been read, or the reverse
            if part.source is not None and part.source != source:
                self._events.append(PartGrew(part.index, _BETWEEN_SUMMARIES))
            part.source = source
        part.characters += len(text)
        self._events.append(PartGrew(part.index, text))

    def _end_item(self, item: Json, place: Json) -> None:
        """End the parts of an item, and add what the deltas have left out."""
        if type(place) is not int or place in self._items:
            raise _foreign("ends an item at an invalid place")
        parts = self._open.get(place, {})
        for content, part in enumerate(_read_item(item)):
            if isinstance(part, ToolUse):
                text = part.arguments
                start: Text | Thinking | ToolUse = replace(part, arguments="")
            else:
                text, start = part.text, replace(part, text="")
            if part == Text("") and content not in parts:
                continue  # Anthropic rejects messages with empty texts
            opened = parts.get(content) or self._start_part(place, content, start)
            if type(opened.part) is not type(part):
                raise _foreign("ends an item with another type")
            is_read = isinstance(part, Thinking) and opened.characters > 0
            if len(text) > opened.characters and not is_read:
                self._events.append(PartGrew(opened.index, text[opened.characters :]))
                opened.characters = len(text)
            if isinstance(part, Thinking) and part.proof:
                self._events.append(PartProved(opened.index, part.proof))
        self._end_parts(place)

    def _end_parts(self, place: int) -> None:
        for part in self._open.pop(place, {}).values():
            if isinstance(part.part, ToolUse) and not (part.part.is_custom or part.characters):
                self._events.append(PartGrew(part.index, "{}"))
            self._events.append(PartEnded(part.index))
        self._items.add(place)

    def _read_stop(self, response: dict[str, Json], *, is_cut: bool) -> Stop:
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if is_cut:
            return Stop.FILTER if reason == "content_filter" else Stop.LENGTH
        if self._has_calls:
            return Stop.CALLS
        return Stop.REFUSAL if self._has_refused else Stop.END


def _read_item(item: Json) -> list[Text | Thinking | ToolUse]:
    """Return the parts of an output item."""
    fields = item if isinstance(item, dict) else {}
    match fields.get("type"):
        case "message":
            content = fields.get("content")
            return [_read_content(part) for part in (content if isinstance(content, list) else ())]
        case "function_call":
            arguments = fields.get("arguments")
            text = arguments if isinstance(arguments, str) and arguments else "{}"
            return [_read_call(fields, is_custom=False, arguments=text)]
        case "custom_tool_call":
            written = fields.get("input")
            text = written if isinstance(written, str) else ""
            return [_read_call(fields, is_custom=True, arguments=text)]
        case "reasoning":
            text = _join(fields.get("summary"), _BETWEEN_SUMMARIES) or _join(
                fields.get("content"), ""
            )
            proof = read_text(fields.get("encrypted_content"))
            if not (text or proof):
                return []
            return [Thinking(text, proof, is_hidden=not text, origin=NAME)]
        case kind:
            raise _unknown_item(kind)


def _read_content(part: Json) -> Text:
    match part:
        case {"type": "output_text", "text": str(text)}:
            return Text(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text, is_refusal=True)
        case _:
            raise _foreign("has content that cannot be translated")


def _read_call(item: dict[str, Json], *, is_custom: bool, arguments: str) -> ToolUse:
    call_id, name = as_text(item.get("call_id")), as_text(item.get("name"))
    return ToolUse(call_id, name, arguments, is_custom=is_custom)


def _join(parts: Json, separator: str) -> str:
    texts = [
        part.get("text")
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict)
    ]
    return separator.join(text for text in texts if isinstance(text, str))


class ResponsesWriter:
    """Writer of one answer. Each part is a separate output item."""

    def __init__(self, model: str, created_s: int, request: Request) -> None:
        self._repeated = {"created_at": created_s, "model": model, **_repeat(request)}
        self._tools = {tool.name: tool for tool in request.tools}
        self._builder = AnswerBuilder()
        self._number = 0
        """The sequence number of the next event."""
        self._places: dict[int, tuple[int, str]] = {}
        """The place of each part's item in the output, and the item's id."""
        self._summaries: set[int] = set()
        """The parts of reasoning whose summary has begun."""
        self._has_started = False

    def whole(self, answer: Answer) -> dict[str, Json]:
        """Return a whole answer."""
        # Anthropic's refusals cut off the text; OpenAI's are a text of their own.
        has_refused = any(isinstance(part, Text) and part.is_refusal for part in answer.parts)
        is_filtered = answer.stop is Stop.FILTER
        is_filtered = is_filtered or (answer.stop is Stop.REFUSAL and not has_refused)
        is_cut = is_filtered or answer.stop is Stop.LENGTH
        last = len(answer.parts) - 1
        output = [
            self._item(part, _item_id(part, answer.id, index), is_cut=is_cut and index == last)
            for index, part in enumerate(answer.parts)
        ]
        status, reason = "completed", None
        if is_cut:
            status = "incomplete"
            reason = "content_filter" if is_filtered else "max_output_tokens"
        return self._response(answer.id, status, output, reason=reason, usage=answer.usage)

    def write(self, event: Event) -> bytes:
        """Return the server-sent events for one event."""
        self._builder.add(event)
        match event:
            case PartGrew(index, text):
                return self._grow(index, text)
            case PartStarted(index, part):
                return self._start_item(index, part)
            case PartEnded(index):
                return self._end_item(index)
            case PartProved():
                return b""  # the item's last event has the proof
            case Started(id):
                self._has_started = True
                response = self._response(id, "in_progress", [])
                first = self._event("response.created", response=response)
                return first + self._event("response.in_progress", response=response)
            case Finished():
                response = self.whole(self._builder.answer())
                return self._event(f"response.{response['status']}", response=response)

    def error(self, error: AnswerError) -> bytes:
        """Return the events that report an error."""
        fields = write_openai_error(error)["error"]
        # Some clients read the fields at the top level, others below `error`.
        shown = {name: fields[name] for name in ("code", "message", "param")}
        written = self._event("error", **shown, error=fields)
        if not self._has_started:
            return written
        answer = self._builder.answer()
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failed = self.whole(answer) | {
            "status": "failed",
            "incomplete_details": None,
            "error": {"code": code, "message": error.message},
        }
        return written + self._event("response.failed", response=failed)

    def _grow(self, index: int, text: str) -> bytes:
        place, item_id = self._places[index]
        fields: dict[str, Json] = {"item_id": item_id, "output_index": place}
        match self._builder.parts[index].start:
            case ToolUse(_, name, _, is_custom):
                if name in self._tools and self._tools[name].is_search:
                    return b""  # its item has an object at the end
                kind = "custom_tool_call_input" if is_custom else "function_call_arguments"
                return self._event(f"response.{kind}.delta", **fields, delta=text)
            case Text(is_refusal=True):
                return self._event("response.refusal.delta", **fields, content_index=0, delta=text)
            case Text():
                fields |= {"content_index": 0, "delta": text, "logprobs": []}
                return self._event("response.output_text.delta", **fields)
            case Thinking():
                written = b""
                if index not in self._summaries:
                    self._summaries.add(index)
                    part = {"type": "summary_text", "text": ""}
                    added = {**fields, "summary_index": 0, "part": part}
                    written = self._event("response.reasoning_summary_part.added", **added)
                fields |= {"summary_index": 0, "delta": text}
                return written + self._event("response.reasoning_summary_text.delta", **fields)

    def _start_item(self, index: int, part: Text | Thinking | ToolUse) -> bytes:
        place, item_id = len(self._places), _item_id(part, self._builder.id, len(self._places))
        self._places[index] = place, item_id
        item = self._item(part, item_id) | {"status": "in_progress"}
        if not isinstance(part, Text):
            return self._event("response.output_item.added", output_index=place, item=item)
        [content] = item["content"]
        item["content"] = []
        written = self._event("response.output_item.added", output_index=place, item=item)
        fields = {"item_id": item_id, "output_index": place, "content_index": 0}
        return written + self._event("response.content_part.added", **fields, part=content)

    def _end_item(self, index: int) -> bytes:
        place, item_id = self._places[index]
        part = self._builder.parts[index].part()
        item = self._item(part, item_id)
        fields: dict[str, Json] = {"item_id": item_id, "output_index": place}
        match part:
            case ToolUse() if item["type"] == "tool_search_call":
                written = b""
            case ToolUse(_, _, text, is_custom):
                kind, name = "function_call_arguments", "arguments"
                if is_custom:
                    kind, name = "custom_tool_call_input", "input"
                written = self._event(f"response.{kind}.done", **fields, **{name: text})
            case Text(text, is_refusal):
                fields["content_index"] = 0
                done: dict[str, Json] = {"text": text, "logprobs": []}
                kind = "output_text"
                if is_refusal:
                    done, kind = {"refusal": text}, "refusal"
                written = self._event(f"response.{kind}.done", **fields, **done)
                content = item["content"][0]
                written += self._event("response.content_part.done", **fields, part=content)
            case Thinking(text):
                written = b""
                if text:
                    fields["summary_index"] = 0
                    summary = item["summary"][0]
                    written = self._event(
                        "response.reasoning_summary_text.done", **fields, text=text
                    ) + self._event("response.reasoning_summary_part.done", **fields, part=summary)
        return written + self._event("response.output_item.done", output_index=place, item=item)

    def _item(
        self, part: Text | Thinking | ToolUse, item_id: str, *, is_cut: bool = False
    ) -> dict[str, Json]:
        """Return a part as an output item."""
        item: dict[str, Json] = {"id": item_id, "status": "incomplete" if is_cut else "completed"}
        match part:
            case ToolUse():
                return item | self._call(part)
            case Thinking(text):
                summary = [{"type": "summary_text", "text": text}] if text else []
                # Also without a proof, because OpenAI rejects reasoning that it does not know.
                proof = seal(part, NAME)
                item |= {"type": "reasoning", "summary": summary, "encrypted_content": proof}
            case Text(text, is_refusal):
                content: dict[str, Json] = {"type": "refusal", "refusal": text}
                if not is_refusal:
                    content = {"type": "output_text", "text": text}
                    content |= {"annotations": [], "logprobs": []}
                item |= {"type": "message", "role": "assistant", "content": [content]}
        return item

    def _call(self, call: ToolUse) -> dict[str, Json]:
        """Return the fields of a call's item, which depend on the tool."""
        tool = self._tools.get(call.name)
        fields: dict[str, Json] = {"call_id": call.id, "name": call.name}
        if tool is not None and tool.is_search:
            search = {"type": "tool_search_call", "call_id": call.id, "execution": "client"}
            return {**search, "arguments": to_input(call.arguments)}
        if tool is not None and tool.namespace:
            fields["name"] = call.name.removeprefix(f"{tool.namespace}__")
            fields["namespace"] = tool.namespace
        if call.is_custom:
            return fields | {"type": "custom_tool_call", "input": call.arguments}
        return fields | {"type": "function_call", "arguments": call.arguments}

    def _event(self, type: str, **fields: Json) -> bytes:  # noqa: A002
        data = encode({"type": type, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (type.encode(), data)

    def _response(
        self,
        id: str,  # noqa: A002
        status: str,
        output: list[Json],
        *,
        reason: str | None = None,
        usage: Usage | None = None,
    ) -> dict[str, Json]:
        return {
            "id": id,
            "object": "response",
            **self._repeated,
            "status": status,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": output,
            "usage": None if usage is None else _write_usage(usage),
        }


def _repeat(request: Request) -> dict[str, Json]:
    """Return the fields of a request that its response repeats."""
    tools = [write_tool(tool) for tool in request.tools]
    choice, form = request.tool_choice, request.output_format
    text = {"format": {"type": "text"} if form is None else write_format(form)}
    if request.verbosity is not None:
        text["verbosity"] = request.verbosity
    return {
        "background": False,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "metadata": {},
        "parallel_tool_calls": request.is_parallel is not False,
        "previous_response_id": None,
        "reasoning": {"effort": request.effort, "summary": None},
        "store": False,
        "temperature": request.temperature,
        "text": _written(text),
        "tool_choice": "auto" if choice is None else choice.mode,
        "tools": _written(tools),
        "top_p": request.top_p,
        "truncation": "disabled",
    }


def _written(value: Json) -> orjson.Fragment:
    """Return a part of all responses of an answer as JSON, because it is long and never changes."""
    return orjson.Fragment(encode(value))


def _item_id(part: Text | Thinking | ToolUse, answer_id: str, place: int) -> str:
    """Return an id with the prefix that OpenAI demands when the item is sent back."""
    match part:
        case Text():
            prefix = "msg"
        case Thinking():
            prefix = "rs"
        case ToolUse(is_custom=is_custom):
            prefix = "ctc" if is_custom else "fc"
    return f"{prefix}_{answer_id.removeprefix('resp_')}_{place}"


def _write_usage(usage: Usage) -> dict[str, Json]:
    prompt = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": prompt,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _unknown_item(kind: Json) -> ForeignAnswerError:
    return _foreign(f"has an item of the type {kind!r:.50}, which cannot be translated")


def _foreign(problem: str) -> ForeignAnswerError:
    return ForeignAnswerError(NAME, problem)
