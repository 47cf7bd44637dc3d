"""The file of decisions: the rows that the critic doubts, for a person to edit and decide on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from router_service.apis.conversation import Json
from router_service.core.errors import DataError
from switchcraft_training.datasets.corrections import (
    Change,
    Correction,
    CorrectionKind,
    ErrorCategory,
    Truth,
    apply_change,
    first_problem,
    last_utterance,
    row_sha256,
    truth_of,
)
from switchcraft_training.records import Judged
from switchcraft_training.review.truths import find_problem
from switchcraft_training.review.verify import VerifierOpinion

HEADER: Final = """\
# The rows that the critic doubts. Set `decision` to `accept` to correct a row, or to `decline` to
# keep it. An accepted row gets `expected` (the expected calls) or `utterance` (the last user
# message), which you can edit, or replace by the other. `row` is only for you to read.
"""


class FlaggedRow(BaseModel):
    """A row that the critic doubts, with its suggestion, which a person edits and decides on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    row_sha256: str
    decision: Literal["accept", "decline"] | None = None
    category: ErrorCategory
    explanation: str
    problem: str | None = None
    expected: Truth | None = None
    utterance: str | None = None
    row: Json = None

    @classmethod
    def of(cls, judged: Judged, opinion: VerifierOpinion) -> FlaggedRow:
        """Return a row to decide on; without a usable suggestion, it has what the row has now."""
        present = truth_of(judged)
        if opinion.change is not None:
            suggested = opinion.change.expected, opinion.change.utterance
        elif opinion.kind is CorrectionKind.TRUTH:
            suggested = present, None
        else:
            suggested = None, last_utterance(judged.example) or ""
        return cls(
            id=judged.example.id,
            row_sha256=row_sha256(judged),
            category=opinion.category,
            explanation=opinion.explanation,
            problem=opinion.problem,
            expected=suggested[0],
            utterance=suggested[1],
            row={
                "expected": [call.model_dump(exclude_defaults=True) for call in present],
                "messages": judged.example.request["messages"],
                "tools": judged.example.request["tools"],
            },
        )

    def change(self, judged: Judged) -> Change:
        """Return the change of an accepted row; raises ValueError if the row cannot have it."""
        kind = CorrectionKind.TRUTH if self.utterance is None else CorrectionKind.INPUT
        new = {"expected": self.expected, "utterance": self.utterance}
        try:
            change = Change(kind=kind, category=self.category, **new)
        except ValidationError as exc:
            raise ValueError(first_problem(exc)) from exc
        if self.expected is not None and (problem := find_problem(judged, self.expected)):
            raise ValueError(problem)
        return change


def append_flagged(path: Path, flagged: Sequence[FlaggedRow]) -> None:
    """Append rows to a file of decisions; what it has already stays as it is."""
    is_new = not path.exists() or not path.stat().st_size
    with path.open("a", encoding="utf-8") as file:
        if is_new:
            file.write(HEADER)
        for row in flagged:
            data = row.model_dump(mode="json", exclude_defaults=True)
            head = {"id": row.id, "row_sha256": row.row_sha256, "decision": None}
            file.write("---\n" + _to_yaml({**head, **data}))


def read_decisions(path: Path) -> list[FlaggedRow]:
    """Read a file of decisions; raises DataError with the row or the line that is invalid."""
    rows = []
    try:
        for number, document in enumerate(
            yaml.load_all(path.read_text("utf-8"), Loader=_Loader), 1
        ):
            try:
                rows.append(FlaggedRow.model_validate(document))
            except ValidationError as exc:
                problem = f"{_name(document, number)}: {first_problem(exc)}"
                raise DataError(path, None, problem) from exc
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        raise DataError(path, line, str(exc.problem)) from exc
    except yaml.YAMLError as exc:
        raise DataError(path, None, str(exc)) from exc
    return rows


def _name(document: object, number: int) -> str:
    identifier = document.get("id") if isinstance(document, dict) else None
    return str(identifier or f"row {number} of the file")


def corrections_of(
    rows: Iterable[Judged], flagged: Sequence[FlaggedRow], path: Path, reviewer: str
) -> Iterator[Correction]:
    """Yield the corrections of the accepted rows, in the order of the rows.

    Raises DataError if an accepted row cannot have its change, has changed or is missing.
    """
    accepted = {(row.id, row.row_sha256): row for row in flagged if row.decision == "accept"}
    for judged in rows:
        row = accepted.pop((judged.example.id, row_sha256(judged)), None)
        if row is None:
            continue
        try:
            change = row.change(judged)
            is_change = apply_change(judged, change) != judged
        except ValueError as exc:
            raise DataError(path, None, f"{row.id}: {exc}") from exc
        if is_change:
            yield Correction(
                **change.model_dump(),
                id=row.id,
                dataset=judged.example.dataset,
                row_sha256=row.row_sha256,
                explanation=row.explanation,
                reviewer=reviewer,
            )
    if accepted:
        name, _ = min(accepted)
        problem = f"{len(accepted)} accepted rows are not in the file of rows, or have changed"
        raise DataError(path, None, f"{problem}, such as {name}; use the file that was reviewed")


class _Loader(yaml.SafeLoader):
    """Reads plain scalars as JSON does: no dates, no `yes`, no octal numbers."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as in PyYAML


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the strings that `_Loader` would read as another type."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as in PyYAML

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - overrides
        """Write repeated values in full."""
        return True

    def represent_text(self, data: str) -> yaml.Node:
        """Escape line breaks and invisible characters, which an editor would change."""
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null", "n"),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first)
        )


def _to_yaml(value: Json) -> str:
    """Return a JSON value as YAML, with the innermost collections on one line."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=None,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
    )
