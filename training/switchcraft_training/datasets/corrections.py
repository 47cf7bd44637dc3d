"""Corrections of a benchmark: a patch file of reviewed changes, applied when rows are read.

The error categories are those of the paper's appendix on ConFETTI, plus two for ambiguous input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from router_service.apis.conversation import Json
from router_service.core.errors import DataError
from switchcraft_training.datasets.rows import ROW_ERRORS, decode_row, encode_row, read_lines
from switchcraft_training.records import Example, Judged


class CorrectionKind(StrEnum):
    """The part of a row that a correction changes: the expected calls, or the user's message."""

    TRUTH = "truth"
    INPUT = "input"


class ErrorCategory(StrEnum):
    """The error that a correction fixes; the one with the greatest impact if there are several."""

    WRONG_FUNCTION = "wrong_function"
    INCORRECT_VALUE = "incorrect_parameter_value"
    INCORRECT_CONTENT = "incorrect_content"
    FORMAT = "format_or_schema_error"
    TEMPORAL = "temporal_error"
    LOGICAL = "logical_or_state_tracking_error"
    AMBIGUOUS_TIME = "temporal_ambiguity"
    AMBIGUOUS_OTHER = "other_ambiguity"

    @property
    def display_name(self) -> str:
        """The category in words."""
        return self.replace("_", " ")


_INPUT_CATEGORIES: Final = (ErrorCategory.AMBIGUOUS_TIME, ErrorCategory.AMBIGUOUS_OTHER)
CATEGORIES: Final[Mapping[CorrectionKind, tuple[ErrorCategory, ...]]] = {
    CorrectionKind.TRUTH: tuple(c for c in ErrorCategory if c not in _INPUT_CATEGORIES),
    CorrectionKind.INPUT: _INPUT_CATEGORIES,
}


class _StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TruthCall(_StrictModel):
    """One expected call in the format of a row: each parameter has one or more accepted values."""

    name: str
    arguments: dict[str, Annotated[list[Json], Field(min_length=1)]]
    optional: tuple[str, ...] = ()
    after: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _check_optional(self) -> Self:
        unknown = set(self.optional) - set(self.arguments)
        if unknown:
            raise ValueError(f"`optional` lists {sorted(unknown)}, but `arguments` does not")
        return self


Truth: TypeAlias = tuple[TruthCall, ...]
"""All calls that a row expects; empty if no tool fits the query."""


class Change(_StrictModel):
    """A change of either a row's expected calls or its last user message."""

    kind: CorrectionKind
    category: ErrorCategory
    expected: Truth | None = None
    utterance: str | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        has = self.expected is not None, self.utterance is not None
        if has != (self.kind is CorrectionKind.TRUTH, self.kind is CorrectionKind.INPUT):
            raise ValueError("kind `truth` requires only `expected`, `input` only `utterance`")
        if self.category not in CATEGORIES[self.kind]:
            raise ValueError(f"{self.category} is not a category of kind {self.kind}")
        return self


class Correction(Change):
    """A line of a patch file: a change of a row, with its reason and reviewer."""

    id: str
    dataset: str
    row_sha256: str
    explanation: str
    reviewer: str
    round: int = 1

    @classmethod
    def parse(cls, row: Json) -> Self:
        """Read a line of a patch file; raises ValueError with the first problem."""
        try:
            return cls.model_validate(row)
        except ValidationError as exc:
            raise ValueError(first_problem(exc)) from exc


def apply_patch(rows: Iterable[Judged], patch: Path) -> Iterator[Judged]:
    """Stream all rows, with the corrections of a patch file applied.

    Raises DataError immediately if a line of the patch is invalid, at a row whose hash differs
    from the reviewed row's, and at the end if a row of the patch is missing.
    """
    corrections: dict[tuple[str, str], dict[CorrectionKind, Correction]] = {}
    for correction in read_lines(patch, Correction.parse):
        of_row = corrections.setdefault((correction.dataset, correction.id), {})
        if correction.kind in of_row:
            problem = f"corrects the {correction.kind} of {correction.id} twice"
            raise DataError(patch, None, problem)
        of_row[correction.kind] = correction

    def corrected_rows() -> Iterator[Judged]:
        missing = set(corrections)
        for judged in rows:
            key = judged.example.dataset, judged.example.id
            missing.discard(key)
            sha256 = row_sha256(judged) if key in corrections else ""
            corrected, identifier = judged, judged.example.id
            for correction in corrections.get(key, {}).values():
                if correction.row_sha256 != sha256:
                    problem = "is not the row that was reviewed: it has changed, or is corrected"
                    raise DataError(patch, None, f"{identifier} {problem} already")
                try:
                    corrected = apply_change(corrected, correction)
                except ROW_ERRORS as exc:
                    problem = f"{identifier}: {type(exc).__name__}: {exc}"
                    raise DataError(patch, None, problem) from exc
            yield corrected
        if missing:
            names = ", ".join(identifier for _, identifier in sorted(missing)[:5])
            raise DataError(patch, None, f"corrects {len(missing)} rows not in the data: {names}")

    return corrected_rows()


def row_sha256(judged: Judged) -> str:
    """Return the SHA-256 of a row's line, in hexadecimal."""
    return hashlib.sha256(encode_row(judged)).hexdigest()


def apply_change(judged: Judged, change: Change) -> Judged:
    """Return a row with a change applied; raises as `with_truth` and `with_utterance` do."""
    if change.expected is not None:
        return with_truth(judged, change.expected)
    return with_utterance(judged, change.utterance or "")


def with_truth(judged: Judged, truth: Truth) -> Judged:
    """Return a copy of a row that expects the calls `truth`.

    Raises one of `rows.ROW_ERRORS` if a row cannot contain these calls.
    """
    for index, call in enumerate(truth):
        if not set(call.after) <= set(range(len(truth))) - {index}:
            raise ValueError(
                f"`after` of call {index} must be indices of other calls, not {list(call.after)}"
            )
    row: dict[str, Any] = orjson.loads(encode_row(judged))
    row["expected"] = [call.model_dump() for call in truth]
    row["any_call"] = False
    return Judged(judged.example, decode_row(row).expected)


def truth_of(judged: Judged) -> Truth:
    """Return the expected calls of a row in the format of corrections."""
    row = orjson.loads(encode_row(judged))
    return tuple(TruthCall.model_validate(call) for call in row["expected"])


def with_utterance(judged: Judged, utterance: str) -> Judged:
    """Return a copy of a row with `utterance` as the last user message.

    Raises ValueError if the row's last user message is not plain text.
    """
    example = judged.example
    index = _last_user_index(example)
    if index is None or last_utterance(example) is None:
        raise ValueError("the last user message is not plain text")
    messages = list(example.request["messages"])
    messages[index] = {**messages[index], "content": utterance}
    request = {**example.request, "messages": messages}
    return Judged(replace(example, request=request), judged.expected)


def last_utterance(example: Example) -> str | None:
    """Return the last user message, or None if it is not plain text."""
    index = _last_user_index(example)
    content = None if index is None else example.request["messages"][index].get("content")
    return content if isinstance(content, str) else None


def _last_user_index(example: Example) -> int | None:
    messages = example.request["messages"]
    roles = [message.get("role") for message in messages]
    return max((i for i, role in enumerate(roles) if role == "user"), default=None)


def first_problem(exc: ValidationError) -> str:
    """Return the first problem that pydantic found, on one line with its path."""
    first = exc.errors(include_url=False)[0]
    path = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"{path}: {message}" if path else message
