"""Correct answers that are made wrong, as additional negatives for the verifier.

Recorded answers contain few invented values, because the models that were recorded are good. Small
models in production invent them, so the verifier also learns from answers in which one thing was
changed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum

from router_service.apis.conversation import Json, parse_conversation, unwrap_tool
from router_service.checker.comparison import is_number
from router_service.checker.parameter_schema import ANY_SCHEMA, JsonType, Schema
from router_service.checker.toolbox import Call, Toolbox
from router_service.core.errors import SchemaError
from router_service.verifier.answer_features import (
    CandidateAnswer,
    Candidates,
    Question,
    read_answer,
    relate,
)
from switchcraft_training.records import Example

PLACEHOLDERS = (
    *("YOUR_API_KEY", "your_{name}", "<{name}>", "{name}_here", "example", "string", "unknown"),
    *("placeholder", "https://example.com", "path/to/{name}", "test", "abc123", "default"),
    "{{{name}}}",
)
_WORDS = re.compile(r"[^\W\d_]{4,}")
_DATE = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")


class Corruption(StrEnum):
    """What was changed in a correct answer."""

    OWN_NAME = "own name"
    """A text is replaced by the name of its parameter."""
    PLACEHOLDER = "placeholder"
    FOREIGN_VALUE = "foreign value"
    """A text is replaced by one of another query."""
    CHANGED_NUMBER = "changed number"
    SWAPPED = "swapped"
    """Two values of the same type change places."""
    ENUM_NEIGHBOUR = "enum neighbour"
    SHIFTED_DATE = "shifted date"
    OTHER_ENTITY = "other entity"
    """A text is replaced by another name or word of the same conversation."""
    DROPPED_ARGUMENT = "dropped argument"
    INVENTED_ARGUMENT = "invented argument"
    """An optional argument that nobody asked for is filled."""
    REPEATED_CALL = "repeated call"
    MISSING_CALL = "missing call"
    OTHER_FUNCTION = "other function"
    WORDS = "words"
    """Words instead of a call."""


WEIGHTS: Mapping[Corruption, float] = {
    Corruption.CHANGED_NUMBER: 4.0,
    Corruption.SHIFTED_DATE: 3.0,
    Corruption.SWAPPED: 0.5,
    Corruption.OTHER_ENTITY: 0.25,
    Corruption.MISSING_CALL: 0.25,
}
"""Weights of corruptions that are harder or hardly possible to recognize; the others weigh 1."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A correct answer, and what a corruption may take from elsewhere.

    `tools` are the names of the request's tools, `foreign` are texts of other queries' answers, and
    `said` are words of the conversation.
    """

    calls: tuple[Call, ...]
    toolbox: Toolbox
    tools: Sequence[str]
    foreign: Sequence[str]
    said: Sequence[str] = ()


def corrupt(subject: Subject, kind: Corruption, rng: random.Random) -> tuple[Call, ...] | None:
    """Return the answer with one change of this kind, or None if it has nothing to change.

    The result is never equal to the answer as it is written.
    """
    calls = [*subject.calls]
    if kind is Corruption.WORDS:
        changed: list[Call] = []
    elif kind is Corruption.REPEATED_CALL:
        changed = [*calls, calls[-1]] if calls else calls
    elif kind is Corruption.MISSING_CALL:
        gone = rng.randrange(len(calls)) if len(calls) > 1 else len(calls)
        changed = calls[:gone] + calls[gone + 1 :]
    elif kind is Corruption.OTHER_FUNCTION:
        changed = calls
        others = [name for name in subject.tools if calls and name != calls[0].name]
        if others:
            other = _call_other(rng.choice(others), _Site(subject, calls[0], rng))
            changed = [other, *calls[1:]]
    elif not calls:
        return None
    else:
        place = rng.randrange(len(calls))
        arguments = _CHANGES[kind](_Site(subject, calls[place], rng))
        if arguments is None:
            return None
        changed = [*calls]
        changed[place] = Call(calls[place].name, arguments)
    result = tuple(changed)
    return None if result == subject.calls else result


@dataclass(frozen=True, slots=True)
class CorruptedAnswer:
    """An answer of the arm in a column that was correct until one thing was changed."""

    column: int
    kind: Corruption
    answer: CandidateAnswer


def corrupt_answers(
    examples: Sequence[Example],
    answers: Sequence[Mapping[int, tuple[Call, ...] | None]],
    candidates: Sequence[Candidates],
    is_correct: Callable[[int, int], bool],
    seed: int,
) -> list[tuple[CorruptedAnswer, ...]]:
    """Return for each query one answer with each kind of change that is possible.

    `answers` are the recorded calls by column, and `candidates` the same answers with their
    features. `is_correct` says whether the answer to a query (first) by an arm (second) is correct.
    """
    foreign = [
        value
        for made in answers
        for calls in made.values()
        for call in calls or ()
        for value in call.arguments.values()
        if isinstance(value, str) and value
    ]
    found = []
    for row, (example, made) in enumerate(zip(examples, answers, strict=True)):
        rng = random.Random(f"{seed} {example.id}")  # noqa: S311 - no secret
        right = [column for column, calls in made.items() if calls and is_correct(row, column)]
        kept = []
        if right and foreign:
            tools = example.request["tools"]
            question = Question(parse_conversation(example.request), tools)
            functions = filter(None, map(unwrap_tool, tools))
            names = [function["name"] for function in functions]
            said = sorted(set(_WORDS.findall(question.query_lower)))
            for kind in Corruption:
                column = rng.choice(right)
                calls = made[column] or ()
                changed = corrupt(Subject(calls, question.toolbox, names, foreign, said), kind, rng)
                if changed is None:
                    continue
                answer = read_answer(question, changed)
                # A default that was left out, for example, changes nothing.
                if not relate(question, candidates[row].answers[column], answer).is_same:
                    kept.append(CorruptedAnswer(column, kind, answer))
        found.append(tuple(kept))
    return found


Arguments = dict[str, Json]


@dataclass(frozen=True, slots=True)
class _Site:
    """The call that is changed, with the schemas of its arguments."""

    subject: Subject
    call: Call
    rng: random.Random

    @property
    def arguments(self) -> Mapping[str, Json]:
        return self.call.arguments

    @property
    def schemas(self) -> Mapping[str, Schema]:
        """The schemas of the tool's parameters; empty if they cannot be interpreted."""
        try:
            return self.subject.toolbox.schema(self.call.name).properties
        except SchemaError:
            return {}

    def members(self, key: str) -> list[Json]:
        """Return the members of a parameter's enum."""
        try:
            return list(self.schemas.get(key, ANY_SCHEMA).members)
        except SchemaError:
            return []

    def places(self, is_wanted: Callable[[Json], bool]) -> list[tuple[str, int | None]]:
        """Return the wanted values: the argument, and the place of an item in a list."""
        found: list[tuple[str, int | None]] = []
        for key, value in self.arguments.items():
            if is_wanted(value):
                found.append((key, None))
            elif isinstance(value, list):
                found += [(key, place) for place, item in enumerate(value) if is_wanted(item)]
        return found

    def get(self, key: str, place: int | None) -> Json:
        value = self.arguments[key]
        return value if place is None else value[place]

    def put(self, key: str, place: int | None, new: Json) -> Arguments:
        """Return the arguments with another value at a place."""
        old = self.arguments[key]
        value = new if place is None else [*old[:place], new, *old[place + 1 :]]
        return {**self.arguments, key: value}


def _replace_text(site: _Site, replace: Callable[[str, str], str | None]) -> Arguments | None:
    """Replace one text; `replace` gets the parameter's name and the text."""
    places = site.places(lambda value: isinstance(value, str) and bool(value))
    places = [(key, place) for key, place in places if not site.members(key)]
    site.rng.shuffle(places)
    for key, place in places:
        old = site.get(key, place)
        new = replace(key, old)
        if new is not None and new.lower() != old.lower():
            return site.put(key, place, new)
    return None


def _other_entity(site: _Site) -> Arguments | None:
    if not site.subject.said:
        return None
    return _replace_text(site, lambda *_: site.rng.choice(site.subject.said))


def _shifted_date(site: _Site) -> Arguments | None:
    def shift(_: str, text: str) -> str | None:
        found = _DATE.search(text)
        if found is None:
            return None
        days = timedelta(days=site.rng.choice([1, -1, 7, 30, 365]))
        try:
            moved = date(*map(int, found.groups())) + days
        except (ValueError, OverflowError):
            return None
        return text.replace(found[0], moved.isoformat())

    return _replace_text(site, shift)


def _enum_neighbour(site: _Site) -> Arguments | None:
    keys = [key for key in site.arguments if len(site.members(key)) > 1]
    if not keys:
        return None
    key = site.rng.choice(keys)
    others = [member for member in site.members(key) if member != site.arguments[key]]
    return {**site.arguments, key: site.rng.choice(others)} if others else None


def _changed_number(site: _Site) -> Arguments | None:
    places = site.places(is_number)
    if not places:
        return None
    key, place = site.rng.choice(places)
    old = site.get(key, place)
    return site.put(key, place, site.rng.choice([old + 1, old + 7, old + 100, old - 1, old * 7]))


def _swapped(site: _Site) -> Arguments | None:
    pairs = [
        (one, other)
        for one, value in site.arguments.items()
        for other, rival in site.arguments.items()
        if one < other
        and type(value) is type(rival)
        and (isinstance(value, str) or is_number(value))
        and value != rival
    ]
    if not pairs:
        return None
    one, other = site.rng.choice(pairs)
    return {**site.arguments, one: site.arguments[other], other: site.arguments[one]}


def _dropped(site: _Site) -> Arguments | None:
    if not site.arguments:
        return None
    gone = site.rng.choice(sorted(site.arguments))
    return {key: value for key, value in site.arguments.items() if key != gone}


def _invented(site: _Site) -> Arguments | None:
    schemas = site.schemas
    try:
        required = site.subject.toolbox.schema(site.call.name).required
        free = sorted(key for key in schemas if key not in site.arguments and key not in required)
        key = site.rng.choice(free) if free else None
        types = schemas[key].types if key is not None else frozenset()
    except SchemaError:
        return None
    if key is None:
        return None
    value: Json
    if site.members(key):
        value = site.rng.choice(site.members(key))
    elif JsonType.BOOLEAN in types:
        value = site.rng.random() < 0.5
    elif types & {JsonType.INTEGER, JsonType.NUMBER}:
        value = site.rng.choice([0, 1, 2, 5, 10, 20, 100, 2024])
    elif JsonType.STRING in types:
        value = site.rng.choice([key, site.rng.choice(site.subject.foreign), "", "any"])
    elif JsonType.ARRAY in types:
        value = []
    else:
        return None
    return {**site.arguments, key: value}


_CHANGES: Mapping[Corruption, Callable[[_Site], Arguments | None]] = {
    Corruption.OWN_NAME: lambda site: _replace_text(site, lambda key, _: key),
    Corruption.PLACEHOLDER: lambda site: _replace_text(
        site, lambda key, _: site.rng.choice(PLACEHOLDERS).format(name=key)
    ),
    Corruption.FOREIGN_VALUE: lambda site: _replace_text(
        site, lambda *_: site.rng.choice(site.subject.foreign)
    ),
    Corruption.OTHER_ENTITY: _other_entity,
    Corruption.SHIFTED_DATE: _shifted_date,
    Corruption.ENUM_NEIGHBOUR: _enum_neighbour,
    Corruption.CHANGED_NUMBER: _changed_number,
    Corruption.SWAPPED: _swapped,
    Corruption.DROPPED_ARGUMENT: _dropped,
    Corruption.INVENTED_ARGUMENT: _invented,
}


def _call_other(name: str, site: _Site) -> Call:
    """Return a call of another function with the same values, under its parameters' names."""
    other = _Site(site.subject, Call(name, {}), site.rng)
    names = list(other.schemas) or list(site.arguments)
    return Call(name, dict(zip(names, site.arguments.values(), strict=False)))
