"""Whether a client can use an answer. That is a fact about the answer, and no estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.apis.conversation import (
    CLIENT_TOOLS,
    Conversation,
    Json,
    Role,
    as_list,
    unwrap_tool,
)
from router_service.apis.parts import Stop
from router_service.apis.writing import portable_name
from router_service.checker.toolbox import api_name
from router_service.core.values import request_value

_MAY_BE_EMPTY = frozenset({Stop.FILTER, Stop.REFUSAL, Stop.SEQUENCE})
"""A refusal counts as text, and a stop text may come at once."""


@request_value(frozen=True, slots=True)
class AnswerTerms:
    """What a request lets its answer contain."""

    callable_names: tuple[str, ...] | None
    """The tools that may be called; None if the provider has tools of its own, or if not all tools
    could be read."""
    custom_names: tuple[str, ...]
    """The tools whose input is free text."""
    has_tools: bool
    may_be_empty: bool
    """Whether an answer may end at once: the request has stop texts, or begins the answer."""
    follows_result: bool
    """Whether the request ends with a tool's result. Some models then end their turn silently
    (Anthropic: "Handling stop reasons", empty responses)."""
    may_refuse: bool = True
    """Whether a refusal is an answer, and no failure of its model."""

    @classmethod
    def of(cls, body: Mapping[str, Json], conversation: Conversation) -> AnswerTerms:
        """Read a decoded body, which `Api.to_chat` has converted, and its conversation."""
        tools = [tool for tool in as_list(body.get("tools")) if isinstance(tool, dict)]
        names = tuple([tool.name for tool in conversation.tools])
        choice = body.get("tool_choice")
        allowed = choice.get("allowed_tools", choice) if isinstance(choice, dict) else None
        chosen = allowed.get("tools") if isinstance(allowed, dict) else None
        if isinstance(chosen, list):  # of the tools, only these may be called
            tools += [tool for tool in chosen if isinstance(tool, dict)]
            names = _names_of(chosen)
        if choice == "none":
            names = ()
        is_known = not (conversation.unread or body.get("mcp_servers")) and all(
            tool.get("type", "function") in CLIENT_TOOLS for tool in tools
        )
        last = conversation.turns[-1].role if conversation.turns else None
        return cls(
            callable_names=names if is_known else None,
            custom_names=_names_of(tool for tool in tools if tool.get("type") == "custom"),
            has_tools=conversation.has_tools,
            may_be_empty=bool(body.get("stop") or body.get("stop_sequences"))
            or last is Role.ASSISTANT,
            follows_result=last in {Role.TOOL, Role.FUNCTION},
        )


def why_unusable(answer: ParsedAnswer | None, terms: AnswerTerms) -> str | None:
    """Return why a client cannot use an answer, as a verb phrase, or None if it can.

    These are its reasons: it calls a function that was not offered, or with arguments that are not
    one JSON object; it has neither text nor calls; or it is a refusal that the terms do not allow.
    An answer that the gateway cannot read, because it exceeds a limit, is not judged.
    """
    if answer is None:
        return None
    if answer.calls:
        return _problem_of_calls(answer.calls, terms)
    if answer.is_refusal and not terms.may_refuse:
        return "refused to answer"
    if answer.text.strip() or answer.has_other_output or terms.may_be_empty:
        return None
    is_limited = answer.stop is Stop.LENGTH and not terms.has_tools
    is_fine = is_limited or answer.stop in _MAY_BE_EMPTY
    return None if is_fine else "answered with neither text nor calls"


def _problem_of_calls(calls: Iterable[WrittenCall], terms: AnswerTerms) -> str | None:
    offered = None if terms.callable_names is None else _forms_of(terms.callable_names)
    custom = _forms_of(terms.custom_names)
    for call in calls:
        if not (offered is None or call.name in offered or api_name(call.name) in offered):
            return f"called {call.name[:80]!r}, which the request does not offer"
        is_free = call.name in custom or (call.is_custom and offered is None)
        if not (is_free or call.has_object):
            return f"called {call.name[:80]!r} with arguments that are not one JSON object"
    return None


def is_better_than_error(answer: ParsedAnswer | None, terms: AnswerTerms) -> bool:
    """Return whether a useless answer is delivered if no model gives one that can be used.

    Either the request's own limit has cut it off, or it says nothing where the turn may be over.
    """
    if answer is None or answer.stop is Stop.LENGTH or answer.is_refusal:
        return True
    return not answer.calls and (terms.follows_result or not terms.has_tools)


def _names_of(tools: Iterable[Json]) -> tuple[str, ...]:
    return tuple([tool["name"] for tool in map(unwrap_tool, tools) if tool is not None])


def _forms_of(names: Iterable[str]) -> frozenset[str]:
    """Return names as the client wrote them, and as an upstream may write them."""
    return frozenset(
        [form for name in names for form in (name, portable_name(name), api_name(name))]
    )
