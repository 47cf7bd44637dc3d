"""The contents of the panes of the review, as text for the terminal."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from switchcraft_training.datasets.corrections import (
    CorrectionKind,
    last_utterance,
    truth_of,
    with_truth,
)
from switchcraft_training.records import Judged
from switchcraft_training.review.journal import Action
from switchcraft_training.review.session import ProposedChange, ReviewEntry, Session
from switchcraft_training.review.truths import to_yaml, truth_to_text

_ROLE_STYLES: Final = {"user": "bold #80cbc4", "assistant": "bold #90caf9", "tool": "bold #ce93d8"}
_REMOVED: Final = "#ff8a80"
_ADDED: Final = "#a5d6a7"
_PARAMETER: Final = "bold #ffe082"
_FAINT: Final = "dim"
DECISION_WORDS: Final = {
    Action.ACCEPT: "accepted",
    Action.DECLINE: "declined",
    Action.SKIP: "skipped",
    Action.EDIT: "edited",
}
_BAR_WIDTH: Final = 12
_NO_CALL: Final = "no call, because no tool fits"
_ANY_CALL: Final = "any call of an offered tool"


def conversation_text(judged: Judged) -> Text:
    """Return the messages, oldest first."""
    blocks = []
    for message in judged.example.request["messages"]:
        role = str(message.get("role"))
        title = f"{role} {message.get('name') or ''}".strip()
        lines = [Text(title, style=_ROLE_STYLES.get(role, "bold"))]
        content = message.get("content")
        if content:
            lines.append(Text(content if isinstance(content, str) else to_yaml(content)))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            name = (function["name"], "bold")
            lines.append(Text.assemble("→ ", name, f" {function['arguments']}"))
        blocks.append(Text("\n").join(lines))
    return Text("\n\n").join(blocks)


def tools_text(session: Session) -> Text:
    """Return the tools that the expected calls or their correction use, and other tools' names."""
    judged = session.current.judged
    proposed = session.proposed_change(CorrectionKind.TRUTH)
    changed = (proposed.change.expected or ()) if proposed else ()
    called = {call.name for call in judged.expected.calls} | {call.name for call in changed}
    functions = [tool["function"] for tool in judged.example.request["tools"]]
    blocks = []
    for function in functions:
        if function["name"] not in called:
            continue
        parameters = function.get("parameters") or {}
        required = parameters.get("required") or ()
        lines = [Text(function["name"], style="bold")]
        if function.get("description"):
            lines.append(Text(function["description"]))
        for name, schema in (parameters.get("properties") or {}).items():
            if not isinstance(schema, dict):
                lines.append(Text(f"{name}: {schema}"))
                continue
            mark = "*" if name in required else ""
            kinds = schema.get("type", "")
            kind = " or ".join(map(str, kinds)) if isinstance(kinds, list) else str(kinds)
            lines.append(Text.assemble((f"{name}{mark}", _PARAMETER), f" {kind}"))
            if schema.get("description"):
                lines.append(Text(f"  {schema['description']}", style=_FAINT))
            rest = {k: value for k, value in schema.items() if k not in {"type", "description"}}
            if rest:
                rest_lines = to_yaml(rest).strip("{}").splitlines()
                lines.append(Text("\n").join(Text(f"  {line}") for line in rest_lines))
        blocks.append(Text("\n").join(lines))
    others = [function["name"] for function in functions if function["name"] not in called]
    if others:
        blocks.append(Text(f"Also offered: {', '.join(others)}", style=_FAINT))
    return Text("\n\n").join(blocks)


def changes_table(session: Session) -> RenderableType:
    """Return the expected calls before and after the change, and the input if it changes."""
    judged = session.current.judged
    proposed = session.proposed_change(CorrectionKind.TRUTH)
    truth = proposed.change.expected if proposed else None
    revised = judged if truth is None else with_truth(judged, truth)
    titles = ("Expected calls now", _change_title(session, proposed))
    parts: list[RenderableType] = [side_by_side(_truth_text(judged), _truth_text(revised), titles)]
    proposed = session.proposed_change(CorrectionKind.INPUT)
    if session.current.kind is CorrectionKind.INPUT or proposed:
        before = last_utterance(judged.example) or ""
        after = proposed.change.utterance or "" if proposed else before
        titles = ("Input now", _change_title(session, proposed))
        parts = [side_by_side(before, after, titles), Text(), *parts]
    return Group(*parts)


def _change_title(session: Session, proposed: ProposedChange | None) -> str:
    """Return the title of the right column."""
    if proposed is None:
        return "No change"
    if proposed.action is not None:
        return DECISION_WORDS[proposed.action].capitalize()
    step = session.decision(session.index)
    return f"Suggested, {DECISION_WORDS[step.action]}" if step else "Suggested"


def _truth_text(judged: Judged) -> str:
    if judged.expected.any_call:
        return _ANY_CALL
    return truth_to_text(truth_of(judged)) if judged.expected.calls else _NO_CALL


def opinion_text(entry: ReviewEntry) -> Text:
    """Return the critic's explanation, and why its suggestion cannot be used."""
    opinion = entry.opinion
    if opinion is None:
        advice = "The critic has not seen the row as it is now: run `review verify --round 2`."
        return Text(advice, style=_FAINT)
    lines = [Text(opinion.explanation)] if opinion.explanation else []
    if opinion.problem:
        lines.append(Text(f"No correction: {opinion.problem}.", style=_PARAMETER))
    if not opinion.is_flagged:
        lines.append(Text("The row is correct as it is: press d to keep it.", style=_ADDED))
    return Text("\n").join(lines)


def position_text(session: Session) -> Text:
    """Return the round, the number and id of the entry, and the decision on it."""
    step = session.decision(session.index)
    state = (f"● {DECISION_WORDS[step.action]}", _ADDED) if step else ("○ open", _PARAMETER)
    return Text.assemble(
        (f" Round {session.round} ", "bold reverse"),
        f"  {session.index + 1} of {len(session.entries)}  ",
        state,
        "  ",
        (session.current.id, "bold"),
    )


def progress_text(session: Session) -> Text:
    """Return the number of decided entries in the round, as text and as a bar."""
    count = len(session.entries)
    decided = sum(not session.is_open(index) for index in range(count))
    full = decided * _BAR_WIDTH // count
    bar = ("━" * full, _ADDED), ("━" * (_BAR_WIDTH - full), _FAINT)
    return Text.assemble(f"{decided}/{count} decided ", *bar, " ")


def side_by_side(before: str, after: str, titles: tuple[str, str]) -> Table:
    """Return two texts as a table of aligned lines, with the differences marked.

    Besides colors, `-` and `+` mark the differences, for terminals and readers without colors.
    """
    table = Table(box=box.MINIMAL, show_edge=False, expand=True, padding=(0, 1), pad_edge=False)
    for title in titles:
        table.add_column(title, ratio=1, overflow="fold")
    lines = before.splitlines(), after.splitlines()
    matcher = SequenceMatcher(None, *lines, autojunk=False)
    for _, i, i_end, j, j_end in matcher.get_opcodes():
        for left, right in zip_longest(lines[0][i:i_end], lines[1][j:j_end]):
            if left == right:
                same = Text(f"  {left}")
                table.add_row(same, same)
            else:
                spans = _differing_spans(left or "", right or "")
                table.add_row(
                    _marked_line("- ", left, _REMOVED, spans[0]),
                    _marked_line("+ ", right, _ADDED, spans[1]),
                )
    return table


def _marked_line(sign: str, line: str | None, color: str, spans: list[tuple[int, int]]) -> Text:
    if line is None:
        return Text()
    text = Text(sign + line, style=color)
    for start, end in spans:
        text.stylize("bold underline", start + len(sign), end + len(sign))
    return text


def _differing_spans(left: str, right: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the spans of characters that only one of two lines has; none if a line is empty."""
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = [], []
    if not left or not right:
        return spans
    words = [[m.span() for m in re.finditer(r"\w+|\W", line)] for line in (left, right)]
    texts = [left[a:b] for a, b in words[0]], [right[a:b] for a, b in words[1]]
    for tag, i, i_end, j, j_end in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if tag != "equal":
            spans[0].extend(words[0][i:i_end])
            spans[1].extend(words[1][j:j_end])
    return spans
