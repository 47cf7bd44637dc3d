"""A request that has ended -> its line of the decision log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from router_service.core.answers import ParsedAnswer, Usage
from router_service.core.decision_log import Content, LoggedCall, LoggedDecision
from router_service.core.messages import Json, as_list, to_chat_messages, unwrap_tool
from router_service.core.schema_check import CallValidity
from router_service.requests.parsing import RESPONSES, Endpoint
from router_service.requests.recorder import Ended
from router_service.router import Decision


def decision_line(
    ended: Ended, decision: Decision, fits: Sequence[CallValidity], content: Content | None
) -> LoggedDecision:
    """Return the line of a routed request; `fits` is of the answer's calls, where it was read."""
    record, plan, said = ended.record, ended.plan, ended.outcome.said
    usage: Usage | None = ended.outcome.usage
    return LoggedDecision(
        # The record has `fallback` as the reason if another model answered; the log has a flag.
        **{**dict(record), "reason": decision.reason},
        conversation=plan.request.conversation_id,
        request_sha256=plan.request.sha256,
        artifact=plan.artifact.manifest.name,
        artifact_sha256=plan.artifact.sha256,
        features=decision.features,
        is_fallback=ended.outcome.model is not plan.model,
        cached_tokens=usage.cached_tokens if usage else None,
        answer_sha256=said.sha256() if said else None,
        calls_fit=all_fit(fits),
        content=content,
    )


def all_fit(fits: Sequence[CallValidity]) -> bool | None:
    """Say whether all calls fit; None where there are none, or where one could not be checked."""
    if any(fit in {CallValidity.INVALID, CallValidity.UNKNOWN_TOOL} for fit in fits):
        return False
    return True if fits and CallValidity.UNCHECKED not in fits else None


def content_of(endpoint: Endpoint, body: Mapping[str, Json], said: ParsedAnswer | None) -> Content:
    """Return what was said, in the form of Chat Completions."""
    request = {"messages": list(_messages(endpoint, body)), "tools": list(_tools(body))}
    return Content(request=request, calls=_calls(said), text=said.text if said else None)


def _messages(endpoint: Endpoint, body: Mapping[str, Json]) -> Iterator[Json]:
    if endpoint == RESPONSES:
        for _, message in to_chat_messages(body):
            yield {name: value for name, value in message.items() if value != []}
    else:
        yield from as_list(body.get("messages"))


def _tools(body: Mapping[str, Json]) -> Iterator[Json]:
    """Yield the tools as functions; built-in ones of a provider are none."""
    functions = ({"function": entry} for entry in as_list(body.get("functions")))
    for entry in (*as_list(body.get("tools")), *functions):
        tool = unwrap_tool(entry)
        if tool is not None:
            function = {name: value for name, value in tool.items() if name != "type"}
            yield {"type": "function", "function": function}


def _calls(said: ParsedAnswer | None) -> tuple[LoggedCall, ...] | None:
    """Return the calls with their arguments decoded, or None where one of them cannot be."""
    if said is None:
        return None
    decoded = [(call.name, call.decoded()) for call in said.calls]
    if any(arguments is None for _, arguments in decoded):
        return None
    return tuple(LoggedCall(name=name, arguments=arguments or {}) for name, arguments in decoded)
