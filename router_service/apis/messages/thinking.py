"""Requests of Messages without reasoning that another provider has signed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router_service.apis.api import IsForeign
from router_service.apis.conversation import Json
from router_service.apis.foreign import SEAL

_TYPES = ("thinking", "redacted_thinking")


def without_foreign_thinking(
    body: Mapping[str, Json], is_foreign: IsForeign
) -> dict[str, Json] | None:
    """Return a body without reasoning that its upstream would reject, or None if it has none."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None

    def is_rejected(block: Json) -> bool:
        if not isinstance(block, dict) or block.get("type") not in _TYPES:
            return False
        proof = block.get("signature", block.get("data"))
        return isinstance(proof, str) and (proof.startswith(SEAL) or is_foreign(proof))

    kept: list[Any] = []
    last_lost: int | None = None
    for index, message in enumerate(messages):
        new = message
        if isinstance(message, dict) and message.get("role") == "assistant":
            content = message.get("content")
            blocks = (
                [block for block in content if not is_rejected(block)]
                if isinstance(content, list)
                else []
            )
            if isinstance(content, list) and len(blocks) < len(content):
                last_lost = index
                if not blocks:
                    continue
                new = {**message, "content": blocks}
        kept.append(new)
    if last_lost is None:
        return None
    changed = {**body, "messages": kept}
    # With thinking on, Anthropic requires the thinking blocks of the current tool loop.
    is_in_loop = all(map(_is_result, messages[last_lost + 1 :]))
    return _without_thinking_mode(changed) if is_in_loop else changed


def _is_result(message: Json) -> bool:
    """Return whether a message of Messages belongs to the exchange of calls and results."""
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") in ("tool_use", "tool_result")
        for block in content
    )


def _without_thinking_mode(body: dict[str, Json]) -> dict[str, Json]:
    """Return a body of Messages that does not demand thinking by budget.

    With a budget, Claude refuses to continue a tool loop whose thinking is missing.
    """
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return body
    changed = {name: value for name, value in body.items() if name != "thinking"}
    management = body.get("context_management")
    if isinstance(management, dict) and isinstance(management.get("edits"), list):
        edits = [
            edit
            for edit in management["edits"]
            if not str(edit.get("type") if isinstance(edit, dict) else "").startswith(
                "clear_thinking"
            )
        ]
        changed["context_management"] = {**management, "edits": edits}
    return changed
