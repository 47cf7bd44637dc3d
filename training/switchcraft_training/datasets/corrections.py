"""Corrections of rows that a critic suggested and a person accepted, applied when rows are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from router_service.apis.conversation import Json
from switchcraft_training.datasets.conversations import check_offered, parameters_of
from switchcraft_training.datasets.rows import ROW_ERRORS, decode_row, encode_row, read_lines
from switchcraft_training.errors import DataError
from switchcraft_training.records import Example, Judged

PLAIN_TEXT: Final = "the last user message is not plain text"


class Correction(BaseModel):
    """A line of a review: other expected calls of a row, or another last user message.

    Only lines with `accept` are applied. `row_sha256` is the hash of the row that was reviewed.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    dataset: str
    row_sha256: str
    accept: bool = False
    expected: tuple[Mapping[str, Json], ...] | None = None
    utterance: str | None = None

    @model_validator(mode="after")
    def _check_change(self) -> Correction:
        if self.accept and (self.expected is None) == (self.utterance is None):
            raise ValueError("an accepted correction has either `expected` or `utterance`")
        return self

    def apply(self, judged: Judged) -> Judged:
        """Return the row with the correction; raises one of ROW_ERRORS if it cannot have it."""
        if self.utterance is not None:
            return with_utterance(judged, self.utterance)
        return with_truth(judged, self.expected or ())


def apply_corrections(rows: Iterable[Judged], path: Path) -> Iterator[Judged]:
    """Stream all rows, with the accepted corrections of a review applied.

    Raises DataError immediately if a line of the review is invalid, at a row that has changed since
    the review or cannot have its correction, and at the end if a corrected row is missing.
    """
    corrections = {
        (each.dataset, each.id): each for each in read_lines(path, read_correction) if each.accept
    }

    def corrected_rows() -> Iterator[Judged]:
        missing = set(corrections)
        for judged in rows:
            key = judged.example.dataset, judged.example.id
            correction = corrections.get(key)
            if correction is None:
                yield judged
                continue
            missing.discard(key)
            if correction.row_sha256 != row_sha256(judged):
                problem = "is not the row that was reviewed: it has changed, or is corrected"
                raise DataError(path, None, f"{judged.example.id} {problem} already")
            try:
                yield correction.apply(judged)
            except ROW_ERRORS as exc:
                raise DataError(path, None, f"{judged.example.id}: {exc}") from exc
        if missing:
            names = ", ".join(identifier for _, identifier in sorted(missing)[:5])
            raise DataError(path, None, f"corrects {len(missing)} rows not in the data: {names}")

    return corrected_rows()


def read_correction(row: Json) -> Correction:
    """Read a line of a review; raises ValueError with the first problem."""
    try:
        return Correction.model_validate(row)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {first['msg']}".removeprefix(": ")) from exc


def row_sha256(judged: Judged) -> str:
    """Return the SHA-256 of a row's line, in hexadecimal."""
    return hashlib.sha256(encode_row(judged)).hexdigest()


def with_truth(judged: Judged, truth: Iterable[Mapping[str, Json]]) -> Judged:
    """Return a copy of a row that expects other calls, in the format of rows.

    Raises one of `rows.ROW_ERRORS` if a row cannot contain these calls, or if the row does not
    offer their functions and parameters.
    """
    row: dict[str, Any] = orjson.loads(encode_row(judged))
    row["expected"] = [{"optional": (), "after": (), **call} for call in truth]
    row["any_call"] = False
    expected = decode_row(row).expected
    check_offered(expected.calls, parameters_of(row["request"]["tools"]))
    if not all(values for call in expected.calls for values in call.arguments.values()):
        raise ValueError("an argument has no accepted value")
    return judged._replace(expected=expected)


def with_utterance(judged: Judged, utterance: str) -> Judged:
    """Return a copy of a row with another last user message.

    Raises ValueError if the row's last user message is not plain text.
    """
    example = judged.example
    if last_utterance(example) is None:
        raise ValueError(PLAIN_TEXT)
    messages = list(example.request["messages"])
    place = max(i for i, message in enumerate(messages) if message.get("role") == "user")
    messages[place] = {**messages[place], "content": utterance}
    request = {**example.request, "messages": messages}
    return judged._replace(example=replace(example, request=request))


def last_utterance(example: Example) -> str | None:
    """Return the last user message, or None if it is not plain text."""
    messages = [each for each in example.request["messages"] if each.get("role") == "user"]
    content = messages[-1].get("content") if messages else None
    return content if isinstance(content, str) else None
