"""Writer of requests for deployments that speak Converse.

Amazon Bedrock has one format for all models, but refuses fields that a model does not know. So what
is written depends on the model's vendor, which its name says, such as `us.anthropic.claude-...`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from router_service.apis import claude, schemas, writing
from router_service.apis.api import Api, IsForeign, Target
from router_service.apis.conversation import Json
from router_service.apis.encoding import encode
from router_service.apis.foreign import to_input, wrap_custom
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    OutputFormat,
    Part,
    Request,
    Result,
    Text,
    Thinking,
    ToolChoice,
    ToolUse,
    media_of,
)

CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
"""Form of a call's id that all models accept. Some accept `.` and `:` too."""

_CLAUDE = re.compile("claude")
_NOVA = re.compile("amazon.nova")
_REASONS_BY_LEVEL = re.compile("amazon.nova-2")
_TAKES_FLAT_EFFORT = re.compile("gpt-oss|kimi")
_TAKES_EFFORT = re.compile(r"openai\.")
"""Other models of OpenAI, which have the field of the Responses API."""

_CACHES = re.compile("claude-(?!3-(?!5-haiku|7)|instant|v2)|amazon.nova")
"""Models with cache points ("Prompt caching for faster model inference", supported models)."""

_IS_STRICT = re.compile("claude-(opus|sonnet|haiku)-(4-[5-9](?!\\d)|[5-9])")
"""Models that write arguments exactly as a schema demands ("Structured outputs")."""

_MARKS_ERRORS = re.compile("claude|amazon.nova")
"""Models that know the status of a tool's result (API reference: "ToolResultBlock")."""

_READS_REASONING = re.compile("gpt-oss")
"""Models that accept reasoning without a signature. Claude refuses it, and DeepSeek too: "User
messages cannot contain reasoning content"."""

_SEPARATES_CALLS = re.compile(r"meta\.|mistral\.|cohere\.|ai21\.")
"""Models that refuse calls or results beside other content: "Conversation blocks and tool result
blocks cannot be provided in the same turn"."""

_LEVELS = {"minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts in the words of models that know three."""

_IMAGE_FORMATS = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}
_DOCUMENT_FORMATS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}

_UNNAMED = re.compile("[^a-zA-Z0-9()-]+")
"""What the names of documents cannot contain, or only once in a row (API reference:
"DocumentBlock"). Brackets, which they may contain, are only written around a number."""

_MAX_NAME_CHARACTERS = 190

_EMPTY_RESULT = "(The tool returned no content.)"
"""Text for an empty result, because texts must not be blank."""

_SERVICE_TIERS = ("flex", "priority")

_CACHE_POINT: Mapping[str, Json] = {"cachePoint": {"type": "default"}}


def inexpressible(request: Request, client: Api) -> Iterator[str]:
    """Return the fields of a client's request that Converse cannot express."""
    kinds = {_obstacle(part) for part in media_of(request)}
    return claude.inexpressible(request, client, sorted(filter(None, kinds)))


def _obstacle(part: Media) -> str:
    """Return what keeps a part from being sent; empty if nothing does."""
    if part.kind == "audio":
        return "audio"
    if part.url is not None:
        return f"{part.kind} by URL"
    if part.kind == "image":
        is_known = part.media_type is None or part.media_type in _IMAGE_FORMATS
        return "" if is_known else "image that is neither PNG, JPEG, GIF nor WebP"
    is_known = part.media_type is None or part.media_type in _DOCUMENT_FORMATS
    is_known = is_known or writing.is_text_document(part)
    return "" if is_known else "document of an unknown type"


def write_request(
    request: Request, target: Target, is_foreign: IsForeign | None = None
) -> dict[str, Json]:
    """Return the body for a target that speaks Converse."""
    model = target.model
    tools, choice = writing.offered_tools(request)
    if choice is not None and choice.mode == "none":  # Converse cannot forbid calls
        tools = ()
    system, messages = _write_messages(request, target, is_foreign, has_tools=bool(tools))
    body: dict[str, Json] = {"model": model, "messages": messages}
    if request.stream:
        body["stream"] = True
    if system:
        body["system"] = [{"text": writing.join_texts(system)}]
    if tools:
        body["toolConfig"] = _write_tools(tools, choice, model)

    effort = request.effort if target.supports_reasoning else None
    if effort not in {None, "none"} and _CLAUDE.search(model):
        # A model that must call a tool cannot think before. While tools are used, an older model
        # continues its own thinking, which must be there.
        must_call = "toolChoice" in body.get("toolConfig", {})
        if must_call or (claude.thinks_by_budget(model) and _lacks_thinking(messages)):
            effort = None
    max_tokens = target.max_tokens(request)
    additional = {} if effort is None else _effort_fields(effort, model, request, max_tokens)
    if additional:
        body["additionalModelRequestFields"] = additional
    config = _write_sampling(request, model, max_tokens, additional)
    if request.stop:
        config["stopSequences"] = list(request.stop)
        body["additionalModelResponseFieldPaths"] = ["/stop_sequence"]  # which one was written
    if config:
        body["inferenceConfig"] = config

    if request.output_format is not None:
        body["outputConfig"] = {"textFormat": _write_format(request.output_format)}
    if request.service_tier in _SERVICE_TIERS:
        body["serviceTier"] = {"type": request.service_tier}
    if tools and _CACHES.search(model):
        _add_cache_points(body, model)
    return body


def _write_format(form: OutputFormat) -> dict[str, Json]:
    accepted = schemas.structured(form.schema, schemas.CLAUDES)
    schema = {"schema": encode(accepted).decode(), "name": form.name}
    if form.description:
        schema["description"] = form.description
    return {"type": "json_schema", "structure": {"jsonSchema": schema}}


def _write_sampling(
    request: Request, model: str, max_tokens: int | None, additional: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the longest answer and the sampling, as far as the model accepts them.

    `additional` are the fields for its reasoning.
    """
    sampling: dict[str, Json] = {"temperature": request.temperature, "topP": request.top_p}
    if _CLAUDE.search(model):
        # While it thinks, Claude samples in one way only. Some models take only one of the two.
        is_thinking = additional.get("thinking", {"type": "disabled"})["type"] != "disabled"
        sampling = {name: value for name, value in sampling.items() if value not in {None, 1}}
        if is_thinking or not claude.takes_sampling(model):
            sampling = {}
        elif "temperature" in sampling:
            sampling.pop("topP", None)
    elif additional.get("reasoningConfig", {}).get("maxReasoningEffort") == "high":
        return {}  # Nova refuses all three with it
    sampling["maxTokens"] = max_tokens
    return {name: value for name, value in sampling.items() if value is not None}


def _write_tools(
    tools: Sequence[OfferedTool], choice: ToolChoice | None, model: str
) -> dict[str, Json]:
    """Return the tools and the choice among them."""
    config: dict[str, Json] = {"tools": [_write_tool(tool, model) for tool in tools]}
    if choice is not None and choice.names:
        config["toolChoice"] = {"tool": {"name": writing.portable_name(choice.names[0])}}
    elif choice is not None and choice.mode == "required":
        config["toolChoice"] = {"any": {}}
    return config


def _write_tool(tool: OfferedTool, model: str) -> dict[str, Json]:
    tool = writing.as_function(tool)
    is_strict = tool.is_strict and _IS_STRICT.search(model) is not None
    schema = schemas.object_schema(tool.parameters)
    if is_strict:
        schema = schemas.structured(schema, schemas.CLAUDES)
    spec: dict[str, Json] = {
        "name": writing.portable_name(tool.name),
        "inputSchema": {"json": schema},
    }
    if tool.description:
        spec["description"] = tool.description
    if is_strict:
        spec["strict"] = True
    return {"toolSpec": spec}


def _add_cache_points(body: dict[str, Json], model: str) -> None:
    """Mark what the next request of the conversation repeats: the beginning, and all of it."""
    if "system" in body:
        body["system"].append(_CACHE_POINT)
    elif _CLAUDE.search(model):  # Nova refuses it among the tools
        body["toolConfig"]["tools"].append(_CACHE_POINT)
    last = body["messages"][-1]["content"]
    if "text" in last[-1] or "toolResult" in last[-1]:
        last.append(_CACHE_POINT)


def _effort_fields(
    effort: str, model: str, request: Request | None = None, max_tokens: int | None = None
) -> dict[str, Json]:
    """Return the fields that ask a model for a reasoning effort, which is in OpenAI's words.

    Models without reasoning efforts get no fields. For Claude, the request determines whether the
    reasoning is shown, and how many tokens it may take.
    """
    if _CLAUDE.search(model):
        return _claudes_effort(effort, model, request, max_tokens)
    level = _LEVELS.get(effort, effort)
    if _REASONS_BY_LEVEL.search(model):
        enabled = {"type": "enabled", "maxReasoningEffort": level}
        return {"reasoningConfig": {"type": "disabled"} if effort == "none" else enabled}
    if _TAKES_FLAT_EFFORT.search(model):
        return {} if effort == "none" else {"reasoning_effort": level}
    if _TAKES_EFFORT.search(model):
        return {"reasoning": {"effort": _at_least_low(effort)}}
    return {}


def _claudes_effort(
    effort: str, model: str, request: Request | None, max_tokens: int | None
) -> dict[str, Json]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if claude.thinks_by_budget(model):
        tokens = None if request is None else request.thinking_tokens
        budget = claude.thinking_budget(effort, tokens, max_tokens)
        return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget else {}
    is_shown = request is None or request.shows_thinking
    thinking = {"type": "adaptive", "display": "summarized" if is_shown else "omitted"}
    return {"thinking": thinking, "output_config": {"effort": _at_least_low(effort)}}


def _at_least_low(effort: str) -> str:
    """Return an effort for models that do not know `minimal`."""
    return "low" if effort == "minimal" else effort


def _lacks_thinking(messages: Sequence[Mapping[str, Json]]) -> bool:
    """Return whether the last message has results of calls without the thinking before them."""
    if len(messages) < 2 or "toolResult" not in messages[-1]["content"][0]:
        return False
    return "reasoningContent" not in messages[-2]["content"][0]


def _write_messages(
    request: Request, target: Target, is_foreign: IsForeign | None, *, has_tools: bool
) -> tuple[list[str], list[dict[str, Json]]]:
    """Return the system texts and the messages, whose roles alternate and begin with the user's."""
    system, messages = writing.split_system(request.messages)
    if not has_tools:
        messages = [*_without_calls(messages)]
    written: list[dict[str, Json]] = []

    def add(role: str, blocks: list[Json]) -> None:
        if written and written[-1]["role"] == role:
            written[-1]["content"] += blocks
        elif blocks:
            written.append({"role": role, "content": blocks})

    names: dict[str, int] = {}
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks: list[Json] = []
        for part in message.parts:
            blocks += _write_part(part, message.role, target, is_foreign, names)
        add(role, blocks)
    if not written:
        add("user", [{"text": writing.join_texts(system)}])
        system = []
    elif written[0]["role"] == "assistant":
        note = {"text": "(The assistant begins the conversation.)"}
        written.insert(0, {"role": "user", "content": [note]})
    for entry in written:
        content = entry["content"]
        if entry["role"] == "user":
            content.sort(key=lambda block: "toolResult" not in block)  # results come first
        if any("document" in block for block in content) and not any("text" in b for b in content):
            content.append({"text": "(See the document.)"})  # documents need a text beside them
    if _SEPARATES_CALLS.search(target.model):
        written = [*_with_separate_calls(written)]
    return system, written


def _with_separate_calls(messages: Sequence[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """Yield messages in which calls and results are not beside other content.

    They are in messages of their own, between which the other side says something.
    """
    for message in messages:
        role, content = message["role"], message["content"]
        tools = [block for block in content if "toolUse" in block or "toolResult" in block]
        others = [
            block for block in content if "toolUse" not in block and "toolResult" not in block
        ]
        if not (tools and others):
            yield message
        elif role == "assistant":
            yield {"role": role, "content": others}
            yield {"role": "user", "content": [{"text": "(Go on.)"}]}
            yield {"role": role, "content": tools}
        else:
            yield {"role": role, "content": tools}
            yield {"role": "assistant", "content": [{"text": "(I have read the results.)"}]}
            yield {"role": role, "content": others}


def _without_calls(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages with calls and results as texts.

    Converse accepts calls only if tools are offered, and a model may call every tool that is. So a
    request without tools, or one that must not call any, has a conversation without calls.
    """
    names: dict[str, str] = {}
    for message in messages:
        parts: list[Part] = []
        for part in message.parts:
            match part:
                case ToolUse(call_id, name, arguments):
                    names[call_id] = name
                    parts.append(Text(f'<tool_call name="{name}">\n{arguments}\n</tool_call>'))
                case Result(call_id):
                    name = names.get(call_id, "")
                    parts.append(Text(f'<tool_result name="{name}">'))
                    parts += writing.result_parts(part)
                    parts.append(Text("</tool_result>"))
                case _:
                    parts.append(part)
        yield Message(message.role, tuple(parts))


def _write_part(
    part: Part, role: str, target: Target, is_foreign: IsForeign | None, names: dict[str, int]
) -> list[Json]:
    """Return the content blocks of a part; none for what must not be sent.

    `names` counts the documents so far by their names.
    """
    match part:
        case Text(text):
            is_system = role in {"system", "developer"}
            if text and not text.isspace():
                return [{"text": writing.as_reminder(text) if is_system else text}]
        case Media():
            return [_write_media(part, names)]
        case Result():
            return [{"toolResult": _write_result(part, target, names)}]
        case ToolUse(call_id, name, arguments, is_custom):
            call = {
                "toolUseId": target.call_id(call_id),
                "name": writing.portable_name(name),
                "input": to_input(wrap_custom(arguments) if is_custom else arguments),
            }
            return [{"toolUse": call}]
        case Thinking():
            return _write_thinking(part, target, is_foreign)
    return []


def _write_thinking(thinking: Thinking, target: Target, is_foreign: IsForeign | None) -> list[Json]:
    """Return the block of reasoning, or nothing if the model would refuse it."""
    if writing.is_usable(thinking, target, is_foreign):
        if thinking.is_hidden:
            return [{"reasoningContent": {"redactedContent": thinking.proof}}]
        text = {"text": thinking.text, "signature": thinking.proof}
        return [{"reasoningContent": {"reasoningText": text}}]
    if thinking.text.strip() and _READS_REASONING.search(target.model):
        return [{"reasoningContent": {"reasoningText": {"text": thinking.text}}}]
    return []


def _write_result(result: Result, target: Target, names: dict[str, int]) -> dict[str, Json]:
    marks_errors = _MARKS_ERRORS.search(target.model) is not None
    content: list[Json] = []
    for part in result.content if marks_errors else writing.result_parts(result):
        if isinstance(part, Media):
            content.append(_write_media(part, names))
        elif part.text and not part.text.isspace():
            content.append({"text": part.text})
    written: dict[str, Json] = {
        "toolUseId": target.call_id(result.call_id),
        "content": content or [{"text": _EMPTY_RESULT}],
    }
    if result.is_error and marks_errors:
        written["status"] = "error"
    return written


def _write_media(part: Media, names: dict[str, int]) -> dict[str, Json]:
    if part.kind == "image":
        kind = _IMAGE_FORMATS[part.media_type or "image/png"]
        return {"image": {"format": kind, "source": {"bytes": part.data}}}
    if writing.is_text_document(part):
        return {"text": writing.text_document(part)}
    kind = _DOCUMENT_FORMATS[part.media_type or "application/pdf"]
    name = _UNNAMED.sub(" ", part.name or "").strip()[:_MAX_NAME_CHARACTERS] or "document"
    names[name] = number = names.get(name, 0) + 1
    if number > 1:  # no two documents may have the same name
        name = f"{name} [{number}]"
    return {"document": {"format": kind, "name": name, "source": {"bytes": part.data}}}


_PLACES = {
    "max_completion_tokens": "inferenceConfig.maxTokens",
    "max_tokens": "inferenceConfig.maxTokens",
    "temperature": "inferenceConfig.temperature",
    "top_p": "inferenceConfig.topP",
    "stop": "inferenceConfig.stopSequences",
}
"""Parameters that have a field of their own."""

_ADDITIONAL = "additionalModelRequestFields"

_OWN_FIELDS = frozenset(
    "additionalModelRequestFields additionalModelResponseFieldPaths guardrailConfig inferenceConfig"
    " outputConfig performanceConfig promptVariables requestMetadata serviceTier".split()
)

_LACKING = frozenset(
    "metadata modalities parallel_tool_calls prediction prompt_cache_key prompt_cache_retention "
    "response_format safety_identifier tool_choice user verbosity".split()
)
"""Parameters that have another form here, or none."""


def parameter(name: str, value: Json, model: str) -> tuple[str, Json] | None:
    """Return the field for a parameter of Chat Completions; None if Converse lacks it.

    Fields of Converse itself stay as they are. Parameters of a vendor are additional fields.
    """
    if name in _LACKING or (name == "service_tier" and value not in _SERVICE_TIERS):
        return None
    if name == "reasoning_effort":
        fields = _effort_fields(value, model) if isinstance(value, str) else {}
        return (_ADDITIONAL, fields) if fields else None
    place, written = f"{_ADDITIONAL}.{name}", value
    if name in _OWN_FIELDS:
        place = name
    elif name in _PLACES:
        place = _PLACES[name]
        written = [value] if name == "stop" and isinstance(value, str) else value
    elif name == "service_tier":
        place, written = "serviceTier", {"type": value}
    elif name == "top_k" and _NOVA.search(model):
        place, written = _ADDITIONAL, {"inferenceConfig": {"topK": value}}
    return place, written
