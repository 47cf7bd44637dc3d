"""What the writers of requests share: names, ids, tools and texts that a target accepts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from router_service.apis.api import IsForeign, Target
from router_service.apis.foreign import CUSTOM_INPUT
from router_service.apis.parts import (
    Media,
    Message,
    OfferedTool,
    Part,
    Request,
    Result,
    Text,
    Thinking,
    ToolChoice,
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def portable_name(name: str) -> str:
    """Return a tool's name, or a shorter one if not every API accepts it.

    All APIs accept 64 letters, digits, underscores and hyphens. MCP servers use longer names.
    """
    if _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{re.sub('[^a-zA-Z0-9_-]', '_', name)[:55]}_{digest}"


def written_tools(request: Request) -> Mapping[str, OfferedTool]:
    """Return a request's tools by the names that an upstream sees."""
    return {portable_name(tool.name): tool for tool in request.tools}


def offered_tools(request: Request) -> tuple[Sequence[OfferedTool], ToolChoice | None]:
    """Return the tools to offer, and the choice among them.

    The choice names at most one tool, which must be called. If only some of several tools may be
    called, the others are left out, because only OpenAI accepts a list of the allowed ones. A
    choice without tools is invalid everywhere.
    """
    tools, choice = request.tools, request.tool_choice
    if choice is not None and choice.names and (choice.mode == "auto" or len(choice.names) > 1):
        names = frozenset(choice.names)
        tools = tuple(tool for tool in tools if tool.name in names)
        choice = replace(choice, names=())
    return tools, choice if tools else None


def as_function(tool: OfferedTool) -> OfferedTool:
    """Return the function that represents a custom tool in an API that has only functions."""
    if not tool.is_custom:
        return tool
    description, expected = tool.description, "The tool's input as free text."
    if isinstance(tool.grammar, dict):
        syntax, definition = tool.grammar.get("syntax"), tool.grammar.get("definition")
        grammar = f"The input must match this grammar ({syntax}):\n\n{definition}"
        description = f"{description}\n\n{grammar}" if description else grammar
        expected = "The tool's input, which must match the grammar."
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string", "description": expected}},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    return OfferedTool(tool.name, description, parameters)


def split_system(messages: Sequence[Message]) -> tuple[list[str], Sequence[Message]]:
    """Return the texts of the system messages at the beginning, and the other messages."""
    texts: list[str] = []
    for index, message in enumerate(messages):
        if message.role not in {"system", "developer"}:
            return texts, messages[index:]
        texts += texts_of(message.parts)
    return texts, ()


def texts_of(parts: Iterable[Part]) -> list[str]:
    """Return the texts that are not empty."""
    return [part.text for part in parts if isinstance(part, Text) and part.text]


def result_parts(result: Result) -> list[Text | Media]:
    """Return a result's content for an API that does not mark results as errors.

    Plain-text documents are texts.
    """
    parts = [
        Text(text_document(part)) if isinstance(part, Media) and is_text_document(part) else part
        for part in result.content
    ]
    parts = [part for part in parts if isinstance(part, Media) or part.text]
    if result.is_error and not any("error" in text[:200].lower() for text in texts_of(parts)):
        parts.insert(0, Text("Error:"))
    return parts


def join_texts(texts: Iterable[str]) -> str:
    """Return texts as one, for providers that accept only one."""
    return "\n\n".join(texts)


def as_reminder(text: str) -> str:
    """Return a system text for a user's message, where no system message is accepted."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def text_document(document: Media) -> str:
    """Return a plain-text document as text, which every model reads."""
    title = f' title="{document.name}"' if document.name else ""
    return f"<document{title}>\n{document.data}\n</document>"


def is_text_document(part: Media) -> bool:
    """Return whether a document's text is known."""
    return part.kind == "document" and part.media_type == "text/plain" and part.data is not None


def is_usable(thinking: Thinking, target: Target, is_foreign: IsForeign | None) -> bool:
    """Return whether the target's provider accepts the proof of this reasoning."""
    if thinking.origin != target.api.name or not thinking.proof:
        return False
    return is_foreign is None or not is_foreign(thinking.proof)
