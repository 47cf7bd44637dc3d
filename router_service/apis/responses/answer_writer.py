"""Writer of answers of Responses, whole and in events, and of what precedes an answer."""

from __future__ import annotations

import time
from uuid import uuid4

import orjson

from router_service.apis.answer_errors import (
    AnswerError,
    write_openai_error,
)
from router_service.apis.api import KeepAlive
from router_service.apis.conversation import Json
from router_service.apis.encoding import UnwritableError, encode
from router_service.apis.foreign import seal, seal_summary, to_input
from router_service.apis.frames import BLANK_LINE, data_of, with_data
from router_service.apis.parts import (
    Answer,
    AnswerBuilder,
    AnswerPart,
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
    summary_of,
)
from router_service.apis.responses import NAME
from router_service.apis.responses.request_writer import write_format, write_tool
from router_service.apis.usage import NO_USAGE, Usage
from router_service.core.strict_json import loads_exactly

_CREATED = "response.created"


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

    def _grow(self, index: int, text: str) -> bytes:  # pyrefly: ignore[bad-return]  # the cases are all kinds
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

    def _start_item(self, index: int, part: AnswerPart) -> bytes:
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

    def _item(self, part: AnswerPart, item_id: str, *, is_cut: bool = False) -> dict[str, Json]:
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


class SummaryWriter(ResponsesWriter):
    """Writer of an answer that replaces the conversation; its text is the only item, sealed."""

    def __init__(self, model: str, created_s: int, request: Request) -> None:
        super().__init__(model, created_s, request)
        self._is_turn = request.compacts == "turn"
        self._created_s = created_s

    def whole(self, answer: Answer) -> dict[str, Json]:
        """Return a whole answer, also if the summary was cut off."""
        item: dict[str, Json] = {"id": _summary_id(answer.id), "type": "compaction"}
        item["encrypted_content"] = seal_summary(summary_of(answer.parts))
        if self._is_turn:
            return self._response(answer.id, "completed", [item], usage=answer.usage)
        return {
            "id": answer.id,
            "object": "response.compaction",
            "created_at": self._created_s,
            "output": [item],
            "usage": _write_usage(answer.usage or NO_USAGE),
        }

    def write(self, event: Event) -> bytes:
        """Return the server-sent events for one event. The item is complete when it appears."""
        if isinstance(event, Started):
            return super().write(event)
        self._builder.add(event)
        if isinstance(event, PartGrew):
            fields = {"item_id": _summary_id(self._builder.id), "output_index": 0}
            return self._event("response.compaction.compacting", **fields)
        if not isinstance(event, Finished):
            return b""
        response = self.whole(self._builder.answer())
        [item] = response["output"]
        empty = {**item, "encrypted_content": ""}
        added = self._event("response.output_item.added", output_index=0, item=empty)
        done = self._event("response.output_item.done", output_index=0, item=item)
        return added + done + self._event("response.completed", response=response)


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


def _item_id(part: AnswerPart, answer_id: str, place: int) -> str:
    """Return an id with the prefix that OpenAI demands when the item is sent back."""
    match part:
        case Text():
            prefix = "msg"
        case Thinking():
            prefix = "rs"
        case ToolUse(is_custom=is_custom):
            prefix = "ctc" if is_custom else "fc"
    return f"{prefix}_{answer_id.removeprefix('resp_')}_{place}"


def _summary_id(answer_id: str) -> str:
    return f"cmp_{answer_id.removeprefix('resp_')}"


def _write_usage(usage: Usage) -> dict[str, Json]:
    prompt = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": prompt,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponsesKeepAlive(KeepAlive):
    """Events that create a response, and then say that it is in progress.

    Clients do not see comments. The answer's events get the id of this response and the next
    numbers, and its own `response.created` is left out.
    """

    def __init__(self, model: str) -> None:
        """Name the model that the client asked for; the last event names the one that answered."""
        self._response: dict[str, Json] = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "output": [],
            "parallel_tool_calls": True,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }
        self._number = 0
        """The sequence number of the next event."""
        self._rest = b""
        """The beginning of an event of the answer that is not complete."""

    def ping(self) -> bytes:
        """Return `response.created`, and later `response.in_progress`."""
        kind = "response.in_progress" if self._number else _CREATED
        data = {"type": kind, "sequence_number": self._number, "response": self._response}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(data))

    def join(self, events: bytes, *, is_last: bool) -> bytes:
        """Return the next events of the answer, with this response's id and their numbers."""
        events, end = self._rest + events, 0
        joined = []
        for blank in BLANK_LINE.finditer(events):
            joined.append(self._continue(events[end : blank.end()]))
            end = blank.end()
        self._rest = b"" if is_last else events[end:]
        if is_last and end < len(events):
            joined.append(self._continue(events[end:]))
        return b"".join(joined)

    def _continue(self, event: bytes) -> bytes:
        try:
            value = loads_exactly(data_of(event))
        except ValueError:
            return event  # a comment, or what clients must be able to read without the gateway
        if not isinstance(value, dict):
            return event
        if value.get("type") == _CREATED:
            return b""
        response = value.get("response")
        if isinstance(response, dict):
            value["response"] = {**response, "id": self._response["id"]}
        if "sequence_number" in value:
            value["sequence_number"] = self._number
            self._number += 1
        try:
            return with_data(event, encode(value))
        except UnwritableError:
            return event
