"""Corrections of a benchmark: a patch file of reviewed changes, applied to rows as they are read.

The categories are those of the paper's appendix on ConFETTI, and two of ambiguous input.
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

from router_service.core.errors import DataError
from switchcraft_training.datasets.lines import BAD_ROW, read_lines
from switchcraft_training.datasets.rows import decode, encode
from switchcraft_training.records import Example, Json, Judged


class Kind(StrEnum):
    """What a correction changes: the expected calls, or what the user says."""

    TRUTH = "truth"
    INPUT = "input"


class Category(StrEnum):
    """What was wrong with an entry; the most impactful error where there are several."""

    WRONG_FUNCTION = "wrong_function"
    INCORRECT_VALUE = "incorrect_parameter_value"
    INCORRECT_CONTENT = "incorrect_content"
    FORMAT = "format_or_schema_error"
    TEMPORAL = "temporal_error"
    LOGICAL = "logical_or_state_tracking_error"
    AMBIGUOUS_TIME = "temporal_ambiguity"
    AMBIGUOUS_OTHER = "other_ambiguity"


_OF_INPUT: Final = (Category.AMBIGUOUS_TIME, Category.AMBIGUOUS_OTHER)
CATEGORIES: Final[Mapping[Kind, tuple[Category, ...]]] = {
    Kind.TRUTH: tuple(category for category in Category if category not in _OF_INPUT),
    Kind.INPUT: _OF_INPUT,
}


def title_of(category: Category) -> str:
    """Return a category in words."""
    return category.replace("_", " ")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TruthCall(_Strict):
    """One expected call as rows spell it: accepted values by parameter, at least one each."""

    name: str
    arguments: dict[str, Annotated[list[Json], Field(min_length=1)]]
    optional: tuple[str, ...] = ()
    after: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _optional_is_named(self) -> Self:
        unknown = set(self.optional) - set(self.arguments)
        if unknown:
            raise ValueError(f"optional names {sorted(unknown)}, which arguments does not")
        return self


Truth: TypeAlias = tuple[TruthCall, ...]
"""All calls that an entry expects; none where no tool fits."""


class Change(_Strict):
    """A change of an entry's expected calls, or of its last user utterance, never of both."""

    kind: Kind
    category: Category
    expected: Truth | None = None
    utterance: str | None = None

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        has = self.expected is not None, self.utterance is not None
        if has != (self.kind is Kind.TRUTH, self.kind is Kind.INPUT):
            raise ValueError("a truth has `expected`, an input `utterance`, and neither has both")
        if self.category not in CATEGORIES[self.kind]:
            raise ValueError(f"{self.category} is no category of kind {self.kind}")
        return self


class Correction(Change):
    """A line of a patch file: a change, of which row, for what reason, by whom."""

    id: str
    dataset: str
    row_sha256: str
    explanation: str
    reviewer: str
    round: int


_Patch: TypeAlias = dict[tuple[str, str], dict[Kind, Correction]]


def apply(rows: Iterable[Judged], patch: Path) -> Iterator[Judged]:
    """Stream rows through, those corrected that a patch file names.

    Raises DataError at once where a line of the patch does not parse, at a row that is not the
    one that was reviewed (its hash differs), and at the end where a row never came.
    """
    return _stream(rows, _read(patch), patch)


def row_sha256(judged: Judged) -> str:
    """Return the SHA-256 of a row's line, in hexadecimal."""
    return hashlib.sha256(encode(judged)).hexdigest()


def changed(judged: Judged, change: Change) -> Judged:
    """Return a row with one change made; raises as `with_truth` and `with_utterance` do."""
    if change.expected is not None:
        return with_truth(judged, change.expected)
    return with_utterance(judged, change.utterance or "")


def with_truth(judged: Judged, truth: Truth) -> Judged:
    """Return a row with other expected calls, read as `rows` reads them.

    Raises one of `lines.BAD_ROW` where they are none that a row can hold.
    """
    for index, call in enumerate(truth):
        if not set(call.after) <= set(range(len(truth))) - {index}:
            raise ValueError(
                f"call {index} comes after {list(call.after)}: no other calls' indices"
            )
    row: dict[str, Any] = orjson.loads(encode(judged))
    row["expected"] = [call.model_dump() for call in truth]
    row["any_call"] = False
    return Judged(judged.example, decode(row).expected)


def truth_of(judged: Judged) -> Truth:
    """Return the expected calls of a row as a correction spells them."""
    row = orjson.loads(encode(judged))
    return tuple(TruthCall.model_validate(call) for call in row["expected"])


def with_utterance(judged: Judged, utterance: str) -> Judged:
    """Return a row whose user said something else last; ValueError where that is no plain text."""
    example = judged.example
    index = _last_user(example)
    if index is None or utterance_of(example) is None:
        raise ValueError("the last user message is no plain text")
    messages = list(example.request["messages"])
    messages[index] = {**messages[index], "content": utterance}
    request = {**example.request, "messages": messages}
    return Judged(replace(example, request=request), judged.expected)


def utterance_of(example: Example) -> str | None:
    """Return what the user said last; None where that is no plain text."""
    index = _last_user(example)
    content = None if index is None else example.request["messages"][index].get("content")
    return content if isinstance(content, str) else None


def describe(exc: ValidationError) -> str:
    """Return the first fault that pydantic found, on one line with its path."""
    first = exc.errors(include_url=False)[0]
    path = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _read(patch: Path) -> _Patch:
    corrections: _Patch = {}
    for correction in read_lines(patch, _parse):
        of_row = corrections.setdefault((correction.dataset, correction.id), {})
        if correction.kind in of_row:
            raise DataError(patch, None, f"corrects the {correction.kind} of {correction.id} twice")
        of_row[correction.kind] = correction
    return corrections


def _parse(row: Json) -> Correction:
    try:
        return Correction.model_validate(row)
    except ValidationError as exc:
        raise ValueError(describe(exc)) from exc


def _stream(rows: Iterable[Judged], corrections: _Patch, patch: Path) -> Iterator[Judged]:
    left = set(corrections)
    for judged in rows:
        key = judged.example.dataset, judged.example.id
        of_row = corrections.get(key)
        left.discard(key)
        yield judged if of_row is None else _corrected(judged, of_row, patch)
    if left:
        names = ", ".join(identifier for _, identifier in sorted(left)[:5])
        raise DataError(patch, None, f"corrects {len(left)} rows that never came: {names}")


def _corrected(judged: Judged, of_row: Mapping[Kind, Correction], patch: Path) -> Judged:
    found, identifier = row_sha256(judged), judged.example.id
    for correction in of_row.values():
        if correction.row_sha256 != found:
            problem = "is not the row that was reviewed: it has changed, or is corrected already"
            raise DataError(patch, None, f"{identifier} {problem}")
        try:
            judged = changed(judged, correction)
        except BAD_ROW as exc:
            raise DataError(patch, None, f"{identifier}: {type(exc).__name__}: {exc}") from exc
    return judged


def _last_user(example: Example) -> int | None:
    messages = example.request["messages"]
    roles = [message.get("role") for message in messages]
    return max((i for i, role in enumerate(roles) if role == "user"), default=None)
