"""What a provider reads of a request, and what it rejects.

The rules are those of OpenAI's, Anthropic's and AWS's APIs that a translation could break: unknown
fields, ids of calls, results without calls, empty texts, and reasoning that another provider has
signed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from anthropic.types.beta import message_create_params as messages_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

from tests import apis
from tests.apis import UpstreamApi
from tests.bedrock import problems_of_request

KNOWN_FIELDS: dict[UpstreamApi, set[str]] = {
    apis.CHAT: set(get_type_hints(chat_params.CompletionCreateParamsStreaming)),
    apis.RESPONSES: {
        "client_metadata",  # Codex sends it
        *get_type_hints(responses_params.ResponseCreateParamsStreaming),
    },
    apis.MESSAGES: set(get_type_hints(messages_params.MessageCreateParamsStreaming)) - {"betas"},
}
ITEM_IDS = {
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "reasoning": "rs_",
}
"""Beginnings of the ids of a response's items."""


class RejectedError(Exception):
    """A request that the provider answers with status 400; the argument is the message."""


def reject_if(is_wrong: object, message: str) -> None:
    """Raise RejectedError if something is wrong."""
    if is_wrong:
        raise RejectedError(message)


@dataclass
class ProviderRequest:
    """A request as the provider understood it."""

    dialect: UpstreamApi
    headers: Mapping[str, str]
    body: dict[str, Any]
    system: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """What users said."""
    images: list[str] = field(default_factory=list)
    """SHA-256 of the content of each image."""
    calls: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Name and arguments of each earlier call, by its id."""
    results: dict[str, str] = field(default_factory=dict)
    """Text of each tool's result, by the call's id."""
    thinking: list[str] = field(default_factory=list)
    """Text of earlier reasoning."""
    ends_with_results: bool = False
    """Whether the model continues after the results of its calls."""

    @property
    def is_streamed(self) -> bool:
        """Whether the client wants events."""
        return bool(self.body.get("stream"))

    @property
    def tools(self) -> dict[str, Any]:
        """Schemas of the tools' parameters, by their names."""
        tools: list[dict[str, Any]] = self.body.get("tools") or []
        if self.dialect is apis.CONVERSE:
            listed = self.body.get("toolConfig", {}).get("tools", [])
            specs = [tool["toolSpec"] for tool in listed if "toolSpec" in tool]
            return {spec["name"]: spec["inputSchema"]["json"] for spec in specs}
        if self.dialect is apis.CHAT:
            tools = [tool[tool["type"]] for tool in tools]
        key = "input_schema" if self.dialect is apis.MESSAGES else "parameters"
        return {tool["name"]: tool.get(key) for tool in tools if "name" in tool}

    def add_call(self, call_id: str, name: str, arguments: Any) -> None:  # noqa: ANN401 - any JSON
        """Add an earlier call; its id must be new."""
        reject_if(call_id in self.calls, f"Duplicate id of a call: {call_id}")
        self.calls[call_id] = name, arguments

    def add_result(self, call_id: str, text: str) -> None:
        """Add a result; its call must precede it."""
        reject_if(
            call_id not in self.calls or call_id in self.results,
            f"No tool call found for the output with call_id {call_id}.",
        )
        self.results[call_id] = text
        self.ends_with_results = True

    def add_text(self, text: str) -> None:
        """Add what a user said."""
        self.texts.append(text)
        self.ends_with_results = False

    def check_answered(self) -> None:
        """Check that every call has a result."""
        missing = self.calls.keys() - self.results.keys()
        reject_if(missing, f"No tool output found for {sorted(missing)}.")

    def add_image(self, url: str) -> None:
        """Add an image that the body contains as a data URL."""
        reject_if(not url.startswith("data:image/png;base64,"), f"Invalid image: {url[:40]}")
        content = base64.b64decode(url.partition(",")[2], validate=True)
        self.images.append(hashlib.sha256(content).hexdigest())


IsProof = Callable[[str, str], bool]
"""Whether this provider has made a proof for a text of reasoning."""


def read(
    dialect: UpstreamApi,
    headers: Mapping[str, str],
    body: dict[str, Any],
    is_proof: IsProof,
    is_lenient: bool,
) -> ProviderRequest:
    """Read a request; raise RejectedError."""
    asked = ProviderRequest(dialect, headers, body)
    if dialect is apis.CONVERSE:
        _read_converse(asked, is_proof)
        asked.check_answered()
        return asked
    unknown = body.keys() - KNOWN_FIELDS[dialect]
    reject_if(unknown, f"Unknown parameter: {sorted(unknown)}")
    if dialect is apis.CHAT:
        _read_chat(asked, is_lenient)
    elif dialect is apis.RESPONSES:
        _read_responses(asked, is_proof)
    else:
        _read_messages(asked, is_proof)
    asked.check_answered()
    return asked


def _read_chat(asked: ProviderRequest, is_lenient: bool) -> None:
    for message in asked.body["messages"]:
        content = message.get("content")
        parts: list[dict[str, Any]]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        match message["role"]:
            case "tool":
                asked.add_result(message["tool_call_id"], _text_of(parts))
                continue
            case "assistant":
                asked.check_answered()
                calls = message.get("tool_calls", [])
                reject_if(
                    not parts and not calls, "An assistant message needs content or tool_calls."
                )
                if reasoning := message.get("reasoning_content"):
                    reject_if(not is_lenient, "property 'reasoning_content' is unsupported")
                    asked.thinking.append(reasoning)
                for call in calls:
                    is_long = len(call["id"]) > 40
                    reject_if(is_long and not is_lenient, "Invalid tool_calls[].id: too long")
                    function = call["function"]
                    arguments = json.loads(function["arguments"])
                    asked.add_call(call["id"], function["name"], arguments)
            case "user":
                asked.check_answered()
                asked.add_text(_text_of(parts))
                for part in parts:
                    if part["type"] == "image_url":
                        asked.add_image(part["image_url"]["url"])
            case "system" | "developer":
                asked.system.append(_text_of(parts))
            case role:
                raise RejectedError(f"Invalid role: {role}")


def _read_responses(asked: ProviderRequest, is_proof: IsProof) -> None:
    if instructions := asked.body.get("instructions"):
        asked.system.append(instructions)
    items = asked.body["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        prefix = ITEM_IDS.get(kind)
        reject_if(
            item.get("id") and prefix and not item["id"].startswith(prefix),
            f"Invalid 'input[{number}].id': expected one with {prefix}.",
        )
        match kind:
            case "message":
                _read_response_message(asked, item)
            case "function_call":
                reject_if(len(item["call_id"]) > 64, "Invalid call_id: longer than 64 characters")
                asked.add_call(item["call_id"], item["name"], json.loads(item["arguments"]))
            case "custom_tool_call":
                asked.add_call(item["call_id"], item["name"], item["input"])
            case "function_call_output" | "custom_tool_call_output":
                output = item["output"]
                text = output if isinstance(output, str) else _text_of(output)
                asked.add_result(item["call_id"], text)
            case "reasoning":
                text = "".join(part["text"] for part in item["summary"])
                reject_if(
                    not item.get("encrypted_content"), f"Item with id '{item.get('id')}' not found."
                )
                reject_if(
                    not is_proof(text, item["encrypted_content"]),
                    "The encrypted content could not be verified.",
                )
                reject_if(
                    number + 1 == len(items),
                    "A 'reasoning' item lacks its required following item.",
                )
                asked.thinking.append(text)
            case _:
                raise RejectedError(f"Invalid value: '{kind}'")


def _read_response_message(asked: ProviderRequest, item: Mapping[str, Any]) -> None:
    content, role = item["content"], item["role"]
    text_type = "output_text" if role == "assistant" else "input_text"
    if isinstance(content, str):
        content = [{"type": text_type, "text": content}]
    for part in content:
        if part["type"] == "input_image" and role == "user":
            asked.add_image(part["image_url"])
        elif part["type"] != text_type:
            raise RejectedError(f"Invalid type of content of the role {role}: {part['type']}")
    if role in ("system", "developer"):
        asked.system.append(_text_of(content))
    elif role == "user":
        asked.add_text(_text_of(content))


def _read_messages(asked: ProviderRequest, is_proof: IsProof) -> None:
    body = asked.body
    reject_if("anthropic-version" not in asked.headers, "anthropic-version: header is required")
    reject_if(type(body.get("max_tokens")) is not int, "max_tokens: Field required")
    if (body.get("thinking") or {}).get("type") == "enabled":
        _check_thinking(body)
    system = body.get("system") or []
    asked.system += [system] if isinstance(system, str) else [block["text"] for block in system]
    for place, block in _blocks(body):
        kind = block["type"]
        match kind:
            case "text":
                reject_if(not block["text"], f"{place}: text content blocks must be non-empty")
                if block["role"] == "user":
                    asked.add_text(block["text"])
            case "image":
                source = block["source"]
                reject_if(source["type"] != "base64", f"{place}.source: {source['type']}")
                asked.add_image(f"data:{source['media_type']};base64,{source['data']}")
            case "tool_use":
                reject_if(
                    not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["id"]),
                    f"{place}.id: String should match pattern",
                )
                asked.add_call(block["id"], block["name"], block["input"])
            case "tool_result":
                content = block.get("content") or []
                text = content if isinstance(content, str) else _text_of(content)
                asked.add_result(block["tool_use_id"], text)
            case "thinking" | "redacted_thinking":
                text = block.get("thinking", "")
                reject_if(
                    not is_proof(text, block["signature" if kind == "thinking" else "data"]),
                    f"{place}: Invalid `signature` in `{kind}` block",
                )
                asked.thinking.append(text)
            case _:
                raise RejectedError(f"{place}: Input tag '{kind}' found")


def _read_converse(asked: ProviderRequest, is_proof: IsProof) -> None:
    body = asked.body
    problems = problems_of_request(body)
    reject_if(problems, f"Malformed input request: {problems}")
    asked.system += [block["text"] for block in body.get("system", []) if "text" in block]
    expected = "user"
    for number, message in enumerate(body["messages"]):
        reject_if(message["role"] != expected, f"messages.{number}: roles must alternate")
        expected = "assistant" if expected == "user" else "user"
        kinds = [next(iter(block)) for block in message["content"]]
        results = kinds.count("toolResult")
        reject_if(
            kinds[:results].count("toolResult") < results, f"messages.{number}: results come first"
        )
        if expected == "user":
            asked.check_answered()
        for block in message["content"]:
            match block:
                case {"text": text}:
                    reject_if(not text.strip(), "The text field in the ContentBlock is blank.")
                    if message["role"] == "user":
                        asked.add_text(text)
                case {"image": image}:
                    kind = f"data:image/{image['format']};base64,"
                    asked.add_image(kind + image["source"]["bytes"])
                case {"toolUse": call}:
                    reject_if("toolConfig" not in body, "The toolConfig field must be defined.")
                    asked.add_call(call["toolUseId"], call["name"], call["input"])
                case {"toolResult": result}:
                    asked.add_result(result["toolUseId"], _text_of(result["content"]))
                case {"reasoningContent": {"reasoningText": {"text": text, "signature": proof}}}:
                    reject_if(not is_proof(text, proof), "Invalid `signature` in `thinking` block")
                    asked.thinking.append(text)
                case {"reasoningContent": {"redactedContent": proof}}:
                    reject_if(not is_proof("", proof), "Invalid `data` in `redacted_thinking`")
                    asked.thinking.append("")


def _check_thinking(body: Mapping[str, Any]) -> None:
    """Check the rules of thinking with a budget."""
    reject_if(
        body["thinking"]["budget_tokens"] >= body["max_tokens"],
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
    )
    reject_if(
        body.get("temperature", 1) != 1,
        "`temperature` may only be set to 1 when thinking is enabled.",
    )
    reject_if(
        body.get("tool_choice", {}).get("type") in ("any", "tool"),
        "Thinking may not be enabled when tool_choice forces tool use.",
    )
    *earlier, last = body["messages"]
    asks = [message for message in earlier if message["role"] == "assistant"][-1:]
    is_loop = any(block["type"] == "tool_result" for block in _content(last))
    reject_if(
        is_loop and asks and "thinking" not in _content(asks[0])[0]["type"],
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    )


def _content(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _blocks(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each block with its place and its message's role; check that results follow calls."""
    open_calls: set[str] = set()
    for number, message in enumerate(body["messages"]):
        content = _content(message)
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        reject_if(
            [block["type"] for block in content[: len(results)]].count("tool_result")
            < len(results),
            f"messages.{number}: `tool_result` blocks must come first",
        )
        reject_if(
            message["role"] == "user" and open_calls - set(results),
            f"messages.{number}: `tool_use` ids without `tool_result` blocks",
        )
        reject_if(
            message["role"] == "assistant" and open_calls,
            f"messages.{number}: `tool_use` ids without `tool_result` blocks",
        )
        open_calls = {block["id"] for block in content if block["type"] == "tool_use"}
        for index, block in enumerate(content):
            yield f"messages.{number}.content.{index}", {**block, "role": message["role"]}


def _text_of(parts: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts)
