"""What each pane of the review shows, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from switchcraft_training.datasets.corrections import (
    CorrectionKind,
    last_utterance,
    truth_of,
    with_truth,
)
from switchcraft_training.records import Expected, Json, Judged
from switchcraft_training.review.decisions import Action
from switchcraft_training.review.diff import ADDED, side_by_side
from switchcraft_training.review.session import Entry, Outcome, Session
from switchcraft_training.review.truths import to_yaml, truth_to_text

_ROLE_STYLES: Final = {"user": "bold #80cbc4", "assistant": "bold #90caf9", "tool": "bold #ce93d8"}
_PARAMETER: Final = "bold #ffe082"
_FAINT: Final = "dim"
DONE: Final = {
    Action.ACCEPT: "accepted",
    Action.DECLINE: "declined",
    Action.SKIP: "skipped",
    Action.EDIT: "edited",
}
_BAR_WIDTH: Final = 12
_NO_CALL: Final = "no call: no tool fits"
_ANY_CALL: Final = "any call of an offered tool"


def conversation(judged: Judged) -> Text:
    """Return the messages, oldest first."""
    return Text("\n\n").join(_message(message) for message in judged.example.request["messages"])


def _message(message: Mapping[str, Json]) -> Text:
    role = str(message.get("role"))
    title = f"{role} {message.get('name') or ''}".strip()
    lines = [Text(title, style=_ROLE_STYLES.get(role, "bold"))]
    content = message.get("content")
    if content:
        lines.append(Text(content if isinstance(content, str) else to_yaml(content)))
    lines.extend(map(_call, message.get("tool_calls") or ()))
    return Text("\n").join(lines)


def _call(call: Mapping[str, Json]) -> Text:
    function = call["function"]
    return Text.assemble("→ ", (function["name"], "bold"), f" {function['arguments']}")


def tools(session: Session) -> Text:
    """Return the tools that the truth or its correction calls, then the names of the others."""
    offered = session.current.judged.example.request["tools"]
    names = _called(session)
    relevant = [tool["function"] for tool in offered if tool["function"]["name"] in names]
    others = [tool["function"]["name"] for tool in offered if tool["function"] not in relevant]
    blocks = [_tool(function) for function in relevant]
    if others:
        blocks.append(Text(f"Also offered: {', '.join(others)}", style=_FAINT))
    return Text("\n\n").join(blocks)


def _called(session: Session) -> set[str]:
    judged = session.current.judged
    outcome = session.outcome(CorrectionKind.TRUTH)
    wanted = (outcome.change.expected or ()) if outcome else ()
    return {call.name for call in judged.expected.calls} | {call.name for call in wanted}


def _tool(function: Mapping[str, Json]) -> Text:
    parameters = function.get("parameters") or {}
    required = parameters.get("required") or ()
    lines = [Text(function["name"], style="bold")]
    if function.get("description"):
        lines.append(Text(function["description"]))
    for name, schema in (parameters.get("properties") or {}).items():
        lines.extend(_parameter(name, schema, is_required=name in required))
    return Text("\n").join(lines)


def _parameter(name: str, schema: Json, *, is_required: bool) -> Iterator[Text]:
    """Yield a parameter's name and type, its description, and what else its schema says."""
    if not isinstance(schema, dict):
        yield Text(f"{name}: {schema}")
        return
    mark = "*" if is_required else ""
    yield Text.assemble((f"{name}{mark}", _PARAMETER), f" {_type(schema)}")
    if schema.get("description"):
        yield Text(f"  {schema['description']}", style=_FAINT)
    rest = {key: value for key, value in schema.items() if key not in {"type", "description"}}
    if rest:
        lines = to_yaml(rest).strip("{}").splitlines()
        yield Text("\n").join(Text(f"  {line}") for line in lines)


def _type(schema: Mapping[str, Json]) -> str:
    kinds = schema.get("type", "")
    return " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)


def changes(session: Session) -> RenderableType:
    """Return the truth, and the input where it changes, beside what it becomes."""
    parts: list[RenderableType] = [_truth_change(session)]
    if session.current.kind is CorrectionKind.INPUT or session.outcome(CorrectionKind.INPUT):
        parts = [_input_change(session), Text(), *parts]
    return Group(*parts)


def _truth_change(session: Session) -> RenderableType:
    judged, outcome = session.current.judged, session.outcome(CorrectionKind.TRUTH)
    wanted = outcome.change.expected if outcome else None
    revised = judged if wanted is None else with_truth(judged, wanted)
    titles = ("Truth as it stands", _title(session, outcome))
    return side_by_side(_truth_text(judged), _truth_text(revised), titles)


def _input_change(session: Session) -> RenderableType:
    outcome = session.outcome(CorrectionKind.INPUT)
    before = last_utterance(session.current.judged.example) or ""
    after = outcome.change.utterance or "" if outcome else before
    return side_by_side(before, after, ("Input as it stands", _title(session, outcome)))


def _title(session: Session, outcome: Outcome | None) -> str:
    """Say what stands in the right column."""
    if outcome is None:
        return "No change"
    if outcome.action is not None:
        return DONE[outcome.action].capitalize()
    step = session.decision(session.index)
    return f"Suggested, {DONE[step.action]}" if step else "Suggested"


def _truth_text(judged: Judged) -> str:
    expected: Expected = judged.expected
    if expected.any_call:
        return _ANY_CALL
    return truth_to_text(truth_of(judged)) if expected.calls else _NO_CALL


def opinion(entry: Entry) -> Text:
    """Return the verifier's explanation, and why its suggestion cannot be used."""
    found = entry.opinion
    if found is None:
        advice = (
            "The verifier was not asked about the entry as it stands: `review verify --round 2`."
        )
        return Text(advice, style=_FAINT)
    lines = [Text(found.explanation)] if found.explanation else []
    if found.problem:
        lines.append(Text(f"No correction: {found.problem}.", style=_PARAMETER))
    if not found.is_flagged:
        lines.append(Text("Nothing is wrong with it as it stands: d keeps it.", style=ADDED))
    return Text("\n").join(lines)


def place(session: Session) -> Text:
    """Return where the reviewer is: round, entry, and what was decided on it."""
    step = session.decision(session.index)
    state = (f"● {DONE[step.action]}", ADDED) if step else ("○ open", _PARAMETER)
    return Text.assemble(
        (f" Round {session.round} ", "bold reverse"),
        f"  {session.index + 1} of {len(session.entries)}  ",
        state,
        "  ",
        (session.current.id, "bold"),
    )


def progress(session: Session) -> Text:
    """Return how many entries of the round are decided, in figures and as a bar."""
    count = len(session.entries)
    decided = sum(not session.is_open(index) for index in range(count))
    full = decided * _BAR_WIDTH // count
    bar = ("━" * full, ADDED), ("━" * (_BAR_WIDTH - full), _FAINT)
    return Text.assemble(f"{decided}/{count} decided ", *bar, " ")
