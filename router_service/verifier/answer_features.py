"""What the verifier reads: features of candidate answers, and of the arms that may be asked next.

The features of a candidate describe the request, the answer itself (does it fit the tools' schemas,
are its values grounded in the conversation), and how it relates to the other candidates (do they
make the same calls, which arguments differ). No feature depends on which arms a pool has, so one
design serves every pool. The order of the candidates does not matter.

Answers and schemas may be hostile. Everything that is read of them is limited, and so is the work
to compare them.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import orjson

from router_service.apis.answers import ParsedAnswer
from router_service.apis.conversation import Conversation, Json, Role, Turn, unwrap_tool
from router_service.checker.comparison import Comparer
from router_service.checker.defaults import documented_defaults
from router_service.checker.parameter_schema import ANY_SCHEMA, JsonType, Schema
from router_service.checker.toolbox import Call, Toolbox, read_function, same_calls
from router_service.core.errors import SchemaError
from router_service.core.values import request_value
from router_service.predictor.model import Floats, logit
from router_service.predictor.text_features import STEM_CHARS, WORD, Stems, overlap, topic_stems
from router_service.verifier.grounding import (
    MAX_COMPUTED,
    MAX_VALUE_CHARACTERS,
    PASSAGE_CHARACTERS,
    Earlier,
    Said,
    SaidPiece,
    Source,
    exact,
    fits_examples,
    identifies,
    is_date,
    is_filler,
    is_named_after,
    is_placeholder,
    is_written,
    plain_numbers_in,
    read_pieces,
    scaled,
    source_of,
)

MAX_SAID_CHARACTERS = 1_000_000
"""Characters of the conversation in which values are looked up, counted from its end."""

LATEST_CHARACTERS = 40_000
"""Characters at the end of the conversation, and at most as many again as a passage has, in which
values are also found in other forms, such as a sum of two numbers."""

MAX_QUERY_CHARACTERS = 40_000

MAX_TOOLS = 128
MAX_CALLS = 32
MAX_LEAVES = 200
MAX_DEPTH = 16
MAX_ARGUMENT_CHARACTERS = 50_000
"""Limits on an answer's calls, on the values and levels of their arguments, and on their length. An
answer that exceeds one of them counts as unreadable."""

MAX_LOOP_CALLS = 200
"""Earlier calls of a tool loop that are read, from its end."""

MAX_NAMED_ARGUMENTS = 8
MAX_NAME_CHARACTERS = 100
"""Limits on the invented arguments of an answer that are named, and on the length of each name."""

MAX_TRACED = 64
"""Values of an answer whose source is looked up as a feature; the first ones count."""

MAX_COMPARED_LEAVES = 60
"""Answers with more values are the same only if their values are equal as they are written. Lists
in any order are compared item by item, which takes 3 us for each pair of items."""

MAX_TOOL_BYTES = 64 * 1024
_UNBOUNDED_KEYWORDS = (b'"$ref"', b'"patternProperties"', b'"allOf"')
"""Keywords with which a small schema can take long to interpret. The arguments of a tool whose
schema has one of them, or is longer than `MAX_TOOL_BYTES`, are compared without the schema."""

_MULTIPLIERS, _DIVISORS = (100,), (100, 1000)
"""Factors between a number in a call and in the conversation: 0.05 is 5%, 2,000 m is 2 km."""
_QUOTED = re.compile(r'"[^"]+"|\'[^\'\n]{2,80}?\'|`[^`]+`')
_NAME = re.compile(r"[A-Z][\w'-]+(?:,? (?:of|de|the|[A-Z][\w'-]+))*")
_SEPARATORS = re.compile(r"[_.]")
_PARTLY_GROUNDED = 0.9
"""Highest grounding of a text whose words were said, but not together."""
_UNGROUNDED_BELOW = 0.5
_COMPARER = Comparer()


class Question:
    """A request as the verifier reads it: its tools, and the words and numbers that were said.

    Most parts are read only if an answer has calls. An answer in words needs a tenth of them.
    """

    def __init__(
        self, conversation: Conversation, tools: Sequence[Json] | Callable[[], Sequence[Json]]
    ) -> None:
        """Read a conversation, and its tools as the request's body has them.

        If `tools` is a function, it returns the tools once they are needed.
        """
        self._conversation = conversation
        self._tools = tools
        latest = conversation.deciding_turn
        text = "" if latest is None else conversation.turns[latest].text
        self._query = text[:MAX_QUERY_CHARACTERS]
        self._bounded: dict[str, bool] = {}
        self._hints: dict[str, Mapping[str, tuple[float, frozenset[str]]]] = {}
        self._read: list[tuple[ParsedAnswer | None, CandidateAnswer]] = []

    def read(self, answer: ParsedAnswer | None) -> CandidateAnswer:
        """Return an answer with its features. Every step asks for all answers so far again."""
        for known, read in self._read:
            if known is answer:
                return read
        read = read_answer(self, decode_calls(answer))
        self._read.append((answer, read))
        return read

    @cached_property
    def _functions(self) -> Mapping[str, Mapping[str, Json]]:
        """The tools by name."""
        tools = self._tools() if callable(self._tools) else self._tools
        return {
            function["name"]: function
            for function in map(unwrap_tool, tools[:MAX_TOOLS])
            if function is not None
        }

    @cached_property
    def _text(self) -> str:
        return " ".join([turn.text for turn in self._conversation.turns])

    @cached_property
    def _begin(self) -> int:
        """Where the end of the conversation begins: after whole passages."""
        passages = max(0, len(self._text) - LATEST_CHARACTERS) // PASSAGE_CHARACTERS
        return passages * PASSAGE_CHARACTERS

    @cached_property
    def _latest(self) -> str:
        return self._text[self._begin :]

    @cached_property
    def _earlier(self) -> Earlier:
        oldest = max(0, self._begin + LATEST_CHARACTERS - MAX_SAID_CHARACTERS)
        return Earlier(self._text[oldest : self._begin])

    @cached_property
    def _pieces(self) -> Sequence[SaidPiece]:
        return read_pieces(self._latest)

    @cached_property
    def _words(self) -> str:
        return f" {' '.join([piece.plain_words for piece in self._pieces if piece.plain_words])} "

    @cached_property
    def _stems(self) -> Stems:
        return frozenset([word[:STEM_CHARS] for word in self._words.split()])

    @cached_property
    def _numbers(self) -> frozenset[int | float]:
        return frozenset().union(*[piece.plain_numbers for piece in self._pieces])

    @cached_property
    def said(self) -> Said:
        """The words and numbers of the conversation, in which the source of a value is found."""
        return Said(self._pieces, self._earlier)

    @cached_property
    def query_numbers(self) -> frozenset[int | float]:
        """Absolute values of the query's numbers."""
        return plain_numbers_in(self._query)

    @cached_property
    def query_topic(self) -> Stems:
        """Stems of the words that carry the query's topic."""
        return topic_stems(self._query)

    @cached_property
    def _query_words(self) -> str:
        return f" {' '.join(WORD.findall(self.query_lower))} "

    @cached_property
    def query_lower(self) -> str:
        """The query in lower case."""
        return self._query.lower()

    @cached_property
    def query_stems(self) -> Stems:
        """Stems of the query's words."""
        return _stems_of(self._query)

    @cached_property
    def quoted(self) -> Sequence[str]:
        """Quoted texts of the query, in lower case."""
        return [quoted[1:-1].lower() for quoted in _QUOTED.findall(self._query)[:MAX_LEAVES]]

    @cached_property
    def names(self) -> Sequence[Stems]:
        """Stems of the names in the query. Its first letter is ignored."""
        return [_stems_of(name) for name in _NAME.findall(self._query[1:])[:MAX_LEAVES]]

    @cached_property
    def _loop(self) -> Sequence[Turn]:
        """The turns after the query: the tool loop that the answer continues."""
        latest = self._conversation.deciding_turn
        return () if latest is None else self._conversation.turns[latest + 1 :]

    @cached_property
    def results_so_far(self) -> int:
        """The number of tools' results since the query."""
        return sum(turn.role in {Role.TOOL, Role.FUNCTION} for turn in self._loop)

    @cached_property
    def calls_so_far(self) -> Sequence[tuple[str, str]]:
        """The calls since the query: their names, and their arguments as sorted JSON."""
        made = []
        for call in [call for turn in self._loop for call in turn.tool_calls][-MAX_LOOP_CALLS:]:
            arguments = call.arguments[:MAX_VALUE_CHARACTERS]
            with suppress(ValueError, RecursionError):  # else it is compared as it is written
                arguments = _sorted_json(json.loads(arguments or "{}"))
            made.append((self.toolbox.name(call.name), arguments))
        return made

    @cached_property
    def written_so_far(self) -> str:
        """What the calls since the query say, in lower case."""
        texts = (
            f"{name} {arguments[:MAX_VALUE_CHARACTERS]}" for name, arguments in self.calls_so_far
        )
        return " ".join(texts).lower()

    @cached_property
    def toolbox(self) -> Toolbox:
        """The tools as the checker reads them."""
        return Toolbox(map(read_function, self._functions.values()))

    @cached_property
    def fits(self) -> Mapping[str, float]:
        """How well the words of each tool's name and description match those of the query."""
        fits = {}
        for name, function in self._functions.items():
            description = function.get("description")
            called, told = _topics_of_tool(
                name[:MAX_VALUE_CHARACTERS],
                description[:MAX_VALUE_CHARACTERS] if isinstance(description, str) else "",
            )
            topic = self.query_topic
            fits[name] = overlap(called, topic) + overlap(told, topic) + overlap(topic, told)
        return fits

    def schema(self, name: str) -> Schema:
        """Return the schema of a tool's arguments, or one that allows everything.

        That is so for an unknown tool, and for a schema that could take long to interpret.
        """
        return self.toolbox.schema(name) if self.is_bounded(name) else ANY_SCHEMA

    def is_bounded(self, name: str) -> bool:
        """Return whether a tool's schema can be interpreted in a short time."""
        if name not in self._bounded:
            text = orjson.dumps(self._functions.get(name))
            self._bounded[name] = len(text) <= MAX_TOOL_BYTES and not any(
                keyword in text for keyword in _UNBOUNDED_KEYWORDS
            )
        return self._bounded[name]

    def hints(self, name: str) -> Mapping[str, tuple[float, frozenset[str]]]:
        """Return the parameters of a tool that the query speaks of.

        The values are from 0 to 1 how much of the parameter's name was said, or 1 if a member of
        its enum was, and these members in lower case.
        """
        if name not in self._hints:
            found = {}
            for key, schema in _members_of(self.schema(name))[0].items():
                members = frozenset(
                    member.lower() for member in _texts_in(schema) if self.says(member)
                )
                named = overlap(_stems_of(_SEPARATORS.sub(" ", key)), self.query_stems)
                hint = 1.0 if members else named
                if hint > 0:
                    found[key] = hint, members
            self._hints[name] = found
        return self._hints[name]

    def says(self, text: str) -> bool:
        """Return whether the query has a text as whole words."""
        words = WORD.findall(text[:MAX_VALUE_CHARACTERS].lower())
        return bool(words) and f" {' '.join(words)} " in self._query_words

    def grounding(self, value: Json) -> float | None:
        """Return from 0 to 1 how much of a value was said; None for a boolean or null."""
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int | float):
            number = exact(abs(value))
            return float(
                number in self._numbers
                or not self._numbers.isdisjoint(scaled(number, _MULTIPLIERS, _DIVISORS))
                or self._earlier.has(number)
            )
        words = WORD.findall(value[:MAX_VALUE_CHARACTERS].lower())
        if not words or f" {' '.join(words)} " in self._words or self._earlier.has(value):
            return 1.0
        said = sum(word[:STEM_CHARS] in self._stems for word in words) / len(words)
        return _PARTLY_GROUNDED * max(said, self._earlier.share_of_text(value))


@lru_cache(maxsize=256)
def _topics_of_tool(name: str, description: str) -> tuple[Stems, Stems]:
    """Return the topics of a tool's name and description, which an agent's requests repeat."""
    return topic_stems(_SEPARATORS.sub(" ", name)), topic_stems(description)


def _stems_of(text: str) -> Stems:
    return frozenset([word[:STEM_CHARS] for word in WORD.findall(text.lower())])


@request_value(frozen=True, slots=True)
class CandidateAnswer:
    """A candidate's calls with decoded arguments, and the features of its answer.

    `calls` is empty for an answer in words, and None for one that cannot be read: its arguments
    are not a JSON object, or it exceeds a limit.
    """

    calls: tuple[Call, ...] | None
    features: tuple[float, ...]
    leaves: int
    """Values in the calls' arguments, with lists and objects included."""


def decode_calls(answer: ParsedAnswer | None) -> tuple[Call, ...] | None:
    """Return an answer's calls with decoded arguments, or None if one of them is not readable."""
    if answer is None or len(answer.calls) > MAX_CALLS:
        return None
    if sum(len(call.arguments) for call in answer.calls) > MAX_ARGUMENT_CHARACTERS:
        return None
    calls = []
    for written in answer.calls:
        arguments = written.decoded_exactly()
        if arguments is None:
            return None
        calls.append(Call(written.name, arguments))
    return tuple(calls)


def read_answer(question: Question, calls: Sequence[Call] | None) -> CandidateAnswer:
    """Return an answer with its features; `calls` is None if they could not be decoded."""
    leaves = 0 if calls is None else _count_leaves(calls)
    read = None if calls is None or leaves is None else tuple(calls)
    features = map(float, _features_of(question, read).values())
    return CandidateAnswer(read, tuple(features), leaves or 0)


def _features_of(question: Question, calls: tuple[Call, ...] | None) -> dict[str, float]:
    made = calls or ()
    names = [question.toolbox.name(call.name) for call in made]
    written = [(name, call.arguments) for name, call in zip(names, made, strict=True)]
    return {
        "is_unreadable": calls is None,
        "calls": len(made),
        "unknown_tools": sum(name not in question.fits for name in names),
        "tools_called": len(set(names)),
        "calls_of_one_tool": max(Counter(names).values(), default=0),
        "repeated_calls": sum(each in written[:place] for place, each in enumerate(written)),
        **_argument_features(question, names, made),
        **_match_features(question, names),
        **_source_features(question, names, made),
        **_progress_features(question, names, made),
        **_form_features(question, names, made),
    }


def _progress_features(
    question: Question, names: Sequence[str], calls: Sequence[Call]
) -> dict[str, float]:
    """Return how far the tool loop has come, and what is left of the query after this answer."""
    own = [(name, _sorted_json(call.arguments)) for name, call in zip(names, calls, strict=True)]
    texts = (f"{name} {arguments[:MAX_VALUE_CHARACTERS]}" for name, arguments in own)
    written = " ".join((question.written_so_far, *texts)).lower()
    before, after = (
        _stems_of(_SEPARATORS.sub(" ", text)) for text in (question.written_so_far, written)
    )
    so_far = question.calls_so_far
    done = {name for name, _ in (*so_far, *own)}
    fits = question.fits
    left = [fit for name, fit in fits.items() if name not in done]
    topic, numbers = question.query_topic, plain_numbers_in(written)
    return {
        "results_so_far": question.results_so_far,
        "calls_so_far": len(so_far),
        "repeated_so_far": sum(call in so_far for call in own),
        "tools_again": sum(name in {made for made, _ in so_far} for name in names),
        "numbers_left": len(question.query_numbers - numbers),
        "quoted_left": sum(quoted not in written for quoted in question.quoted),
        "names_left": sum(not name & after for name in question.names),
        "topic_left": 1 - overlap(topic, after),
        "topic_gained": overlap(topic, after) - overlap(topic, before),
        "fit_left": max(left, default=0.0),
        "fit_left_margin": max(left, default=0.0)
        - min((fits.get(name, 0.0) for name in done), default=0.0),
    }


def _count_leaves(calls: Sequence[Call]) -> int | None:
    """Return the number of values in the arguments, or None if they exceed a limit."""
    if len(calls) > MAX_CALLS:
        return None
    waiting: list[tuple[Json, int]] = [(call.arguments, 1) for call in calls]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, (Mapping, list, tuple)):
            seen += len(value)
            if depth > MAX_DEPTH or seen > MAX_LEAVES:
                return None
            inner = value.values() if isinstance(value, Mapping) else value
            waiting += [(item, depth + 1) for item in inner]
    return seen


_PROBLEMS = ("missing", "unknown_arguments", "wrong_types", "not_in_enum")
_KINDS_OF_ARGUMENTS = ("arguments", "booleans", "optional", "optional_defaults", "optional_left")


def _argument_features(
    question: Question, names: Sequence[str], calls: Sequence[Call]
) -> dict[str, float]:
    """Return features of the arguments: whether they fit their schemas, and are grounded."""
    counts: Counter[str] = Counter()
    strings: list[float] = []
    numbers: list[float] = []
    optional: list[float] = []
    used_numbers: set[int | float] = set()
    texts: list[str] = []
    for name, call in zip(names, calls, strict=True):
        schema = question.schema(name)
        properties, required = _members_of(schema)
        counts["missing"] += sum(key not in call.arguments for key in required)
        counts["optional_left"] += sum(
            key not in call.arguments and key not in required for key in properties
        )
        for key, value in call.arguments.items():
            inner = properties.get(key, ANY_SCHEMA)
            counts["arguments"] += 1
            counts["unknown_arguments"] += bool(properties) and key not in properties
            counts["wrong_types"] += not _has_allowed_type(value, inner)
            counts["not_in_enum"] += not _is_in_enum(value, inner)
            grounded = []
            for leaf in _leaves(value):
                counts["booleans"] += isinstance(leaf, bool)
                share = question.grounding(leaf)
                if share is None:
                    continue
                grounded.append(share)
                if isinstance(leaf, str):
                    strings.append(share)
                    texts.append(leaf[:MAX_VALUE_CHARACTERS].lower())
                else:
                    numbers.append(share)
                    used_numbers.add(exact(abs(leaf)))
            if key not in required:
                counts["optional"] += 1
                if _is_default(value, inner):
                    counts["optional_defaults"] += 1
                else:
                    optional += grounded
    text = " ".join(texts)
    stems = _stems_of(text)
    is_call = bool(calls)
    return {
        "fits_schema": is_call and not any(counts[problem] for problem in _PROBLEMS),
        **{name: counts[name] for name in (*_PROBLEMS, *_KINDS_OF_ARGUMENTS)},
        "text_chars": len(text),
        "longest_text": max(map(len, texts), default=0),
        **_grounding_features("all", [*strings, *numbers]),
        **_grounding_features("text", strings),
        **_grounding_features("number", numbers),
        **_grounding_features("optional", optional),
        "numbers_unused_exact": is_call
        and sum(
            number not in used_numbers
            and (str(number) if isinstance(number, int) else f"{number:g}") not in text
            for number in question.query_numbers
        ),
        "quoted_unused": is_call and sum(quoted not in text for quoted in question.quoted),
        "names_unused": is_call and sum(not name & stems for name in question.names),
        "topic_used": overlap(question.query_topic, stems | _stems_of(" ".join(names))),
    }


_COUNTED_AS = {
    Source.SAID: "values_said_exact",
    Source.CALCULATED: "values_calculated_exact",
    Source.SCHEMA: "values_of_schema_exact",
    Source.NOWHERE: "values_invented_exact",
}
_COUNTED = (
    *_COUNTED_AS.values(), "texts_invented_exact", "numbers_invented_exact",
    "required_invented_exact", "optional_invented_exact", "dates_invented_exact",
    "numbers_changed_exact", "fillers", "members_unused", "named_after_parameter", "placeholders",
)  # fmt: skip
"""Features that count values of an answer, most of them by their source."""


def _source_features(
    question: Question, names: Sequence[str], calls: Sequence[Call]
) -> dict[str, float]:
    """Return where the values come from, and what the user said that no value has."""
    counts: Counter[str] = Counter()
    worst = verbatim = 1.0
    texts = swapped = left_said = 0.0
    used: set[int | float] = set()
    traced = 0
    for name, call in zip(names, calls, strict=True):
        said = question.said
        properties, required = _members_of(question.schema(name))
        places: list[int] = []
        values: list[Json] = []
        for key, value in call.arguments.items():
            kind = "required" if key in required else "optional"
            counts["fillers"] += kind == "optional" and is_filler(value)
            for inner, leaf, schema, is_identifying in _named_leaves(
                key, value, properties.get(key, ANY_SCHEMA)
            ):
                if traced == MAX_TRACED:
                    break
                share = said.share_of_text(leaf) if isinstance(leaf, str) else None
                source = source_of(said, inner, leaf, schema, share, is_identifying=is_identifying)
                if source is None:
                    continue
                traced += 1
                counts[_COUNTED_AS[source]] += 1
                values.append(leaf)
                if source is Source.NOWHERE:
                    counts[f"{'numbers' if share is None else 'texts'}_invented_exact"] += 1
                    counts[f"{kind}_invented_exact"] += 1
                    counts["dates_invented_exact"] += isinstance(leaf, str) and is_date(leaf)
                if share is not None:
                    texts += 1
                    counts["named_after_parameter"] += is_named_after(inner, leaf)
                    counts["placeholders"] += is_placeholder(leaf)
                    if source is not Source.SCHEMA:
                        worst = min(worst, share)
                    place = question.query_lower.find(leaf[:MAX_VALUE_CHARACTERS].lower())
                    is_verbatim = source is not Source.SAID or place >= 0
                    verbatim = min(verbatim, float(is_verbatim))
                    used |= plain_numbers_in(leaf[:MAX_VALUE_CHARACTERS])
                else:
                    counts["numbers_changed_exact"] += source is not Source.SAID
                    used.add(exact(abs(leaf)))
                    place = question.query_lower.find(f"{leaf:g}" if abs(leaf) < 1e6 else str(leaf))
                if place >= 0:
                    places.append(place)
        swapped += sum(one > other for one, other in pairwise(places))
        counts["values_twice"] += len(values) - len({repr(value) for value in values})
        made = {value.lower() for value in values if isinstance(value, str)}
        for key, (hint, members) in question.hints(name).items():
            counts["members_unused"] += not members <= made
            if key not in call.arguments:
                left_said = max(left_said, hint)
                counts["optional_left_said"] += hint >= 1
    explained = {number * scale for number in used for scale in (1, 100, 1000)}
    explained |= {n / scale for n in used if n < MAX_COMPUTED for scale in (100, 1000)}
    return {
        **{name: counts[name] for name in _COUNTED},
        "text_said_min_exact": worst if texts else -1,
        "text_verbatim": verbatim if texts else -1,
        "order_inversions": swapped,
        "values_twice": counts["values_twice"],
        "optional_left_said": counts["optional_left_said"],
        "optional_left_said_max": left_said,
        "numbers_left_over_exact": len(question.query_numbers - explained) if calls else 0,
    }


def _form_features(
    question: Question, names: Sequence[str], calls: Sequence[Call]
) -> dict[str, float]:
    """Return how many texts have an example in their parameter's description, or another form."""
    fits = []
    for name, call in zip(names, calls, strict=True):
        properties, _ = _members_of(question.schema(name))
        for key, value in call.arguments.items():
            schema = properties.get(key, ANY_SCHEMA)
            leaves = _named_leaves(key, value, schema)
            fits += [fits_examples(leaf, its) for _, leaf, its, _ in leaves]
    return {
        "forms_known": sum(each is not None for each in fits),
        "forms_other": sum(each is False for each in fits),
    }


def _texts_in(schema: Schema) -> list[str]:
    """Return the enum's texts, at most as many as an answer may have values."""
    try:
        return [member for member in schema.members[:MAX_LEAVES] if isinstance(member, str)]
    except SchemaError:
        return []


def _named_leaves(
    key: str, value: Json, schema: Schema
) -> Iterator[tuple[str, Json, Schema, bool]]:
    """Yield the values inside an argument, with the name of their parameter, and its schema.

    The last item says whether the value identifies something. A list or its items' schema tells.
    """
    waiting = [(key, value, schema, identifies(key, schema))]
    while waiting:
        name, inner, its, is_identifying = waiting.pop()
        try:
            if isinstance(inner, Mapping):
                for each, item in inner.items():
                    part = its.key(each)
                    waiting.append((each, item, part, identifies(each, part, name)))
            elif isinstance(inner, (list, tuple)):
                is_identifying = is_identifying or identifies(name, its.items)
                waiting += [(name, item, its.items, is_identifying) for item in reversed(inner)]
            else:
                yield name, inner, its, is_identifying
        except SchemaError:
            yield from ((name, leaf, ANY_SCHEMA, is_identifying) for leaf in _leaves(inner))


def _grounding_features(kind: str, shares: Sequence[float]) -> dict[str, float]:
    """Return the grounding of values of a kind. Unless these are texts, numbers are exact."""
    how = "" if kind == "text" else "_exact"
    return {
        f"{kind}_values": len(shares),
        f"{kind}_grounding{how}": sum(shares) / len(shares) if shares else -1,
        f"{kind}_grounding_min{how}": min(shares, default=-1),
        f"{kind}_ungrounded{how}": sum(share < _UNGROUNDED_BELOW for share in shares),
    }


def _match_features(question: Question, names: Sequence[str]) -> dict[str, float]:
    """Return how well the called tools match the query, compared with the other tools."""
    fits = [question.fits.get(name, 0.0) for name in names]
    best_called = max(fits, default=0.0)
    return {
        "match": max(fits, default=-1),
        "match_min": min(fits, default=-1),
        "match_lead": best_called - max(question.fits.values(), default=0.0),
        "better_tools": sum(fit > best_called + 1e-9 for fit in question.fits.values()),
    }


def _members_of(schema: Schema) -> tuple[Mapping[str, Schema], frozenset[str]]:
    """Return the schemas of an object's keys, and the required keys; empty if they are invalid."""
    try:
        return schema.properties, frozenset(key for key in schema.required if isinstance(key, str))
    except SchemaError:
        return {}, frozenset()


_TYPES: Mapping[type, frozenset[JsonType]] = {
    bool: frozenset({JsonType.BOOLEAN}),
    type(None): frozenset({JsonType.NULL}),
    int: frozenset({JsonType.INTEGER, JsonType.NUMBER}),
    float: frozenset({JsonType.NUMBER}),
    str: frozenset({JsonType.STRING}),
    dict: frozenset({JsonType.OBJECT}),
    list: frozenset({JsonType.ARRAY}),
    tuple: frozenset({JsonType.ARRAY}),
}


def _has_allowed_type(value: Json, schema: Schema) -> bool:
    try:
        allowed = schema.types
    except SchemaError:
        return True
    if isinstance(value, float) and value.is_integer() and JsonType.INTEGER in allowed:
        return True
    return not allowed or not allowed.isdisjoint(_TYPES.get(type(value), frozenset()))


def _is_in_enum(value: Json, schema: Schema) -> bool:
    """Return whether a string is one of the enum's members, if there is an enum."""
    try:
        return not isinstance(value, str) or not schema.members or value in schema.members
    except SchemaError:
        return True


def _is_default(value: Json, schema: Schema) -> bool:
    try:
        return any(
            _COMPARER.is_equal(value, default, schema) for default in documented_defaults(schema)
        )
    except (SchemaError, RecursionError):
        return False


def _leaves(value: Json) -> Iterator[Json]:
    """Yield the values inside a value that are neither lists nor objects."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, Mapping):
            waiting += inner.values()
        elif isinstance(inner, (list, tuple)):
            waiting += inner
        else:
            yield inner


class Relation(NamedTuple):
    """How one candidate's calls relate to another's.

    `agreement` is the share of calls and arguments that are equal. `differing` counts arguments
    with other values, and `grounding_lead` sums how much more of the first candidate's values was
    said. The other leads count differing arguments that are written as in the query, or as an
    example, or longer, less those of the other candidate. `only_here` and `only_there` count
    arguments that only one of the two has, and how much of their values was said.
    """

    is_same: bool
    agreement: float
    differing: float = 0
    grounding_lead: float = 0.0
    only_here: float = 0
    only_there: float = 0
    verbatim_lead: float = 0
    form_lead: float = 0
    length_lead: float = 0
    said_only_here: float = 0.0
    said_only_there: float = 0.0

    def mirrored(self) -> Relation:
        """Return how the second candidate relates to the first."""
        return self._replace(
            grounding_lead=-self.grounding_lead,
            only_here=self.only_there,
            only_there=self.only_here,
            verbatim_lead=-self.verbatim_lead,
            form_lead=-self.form_lead,
            length_lead=-self.length_lead,
            said_only_here=self.said_only_there,
            said_only_there=self.said_only_here,
        )


def relate(question: Question, answer: CandidateAnswer, other: CandidateAnswer) -> Relation:
    """Return how an answer relates to another one. An unreadable answer is like no other one."""
    if answer.calls is None or other.calls is None:
        return Relation(is_same=False, agreement=0.0)
    if not answer.calls and not other.calls:
        return Relation(is_same=True, agreement=1.0)
    name_of = question.toolbox.name
    pairs = _pair_calls(question, answer.calls, other.calls)
    paired = {place for place, _, _ in pairs}, {place for _, place, _ in pairs}
    equal = 0
    found: defaultdict[str, float] = defaultdict(float)
    total = sum(
        1 + len(call.arguments)
        for calls, places in zip((answer.calls, other.calls), paired, strict=True)
        for place, call in enumerate(calls)
        if place not in places
    )
    for here, there, same_keys in pairs:
        own, rival = answer.calls[here].arguments, other.calls[there].arguments
        keys = own.keys() | rival.keys()
        total += 1 + len(keys)
        equal += 1 + len(same_keys)
        for key in sorted(keys - same_keys):
            if key not in rival:
                found["only_here"] += 1
                found["said_only_here"] += _mean_grounding(question, own[key])
            elif key not in own:
                found["only_there"] += 1
                found["said_only_there"] += _mean_grounding(question, rival[key])
            else:
                found["differing"] += 1
                schema = question.schema(name_of(answer.calls[here].name))
                one, two = (
                    _Written.read(question, key, each[key], schema) for each in (own, rival)
                )
                found["verbatim_lead"] += one.is_verbatim - two.is_verbatim
                found["form_lead"] += one.form - two.form
                longer, shorter = one.characters > two.characters, one.characters < two.characters
                found["length_lead"] += longer - shorter
                grounding = _mean_grounding(question, own[key])
                found["grounding_lead"] += grounding - _mean_grounding(question, rival[key])
    agreement = equal / max(1, total)
    # If every argument is equal, so are the calls. Otherwise the checker decides, which knows that
    # an argument with its default value may be left out.
    is_same = agreement == 1.0 or (
        len(answer.calls) == len(other.calls)
        and len(pairs) == len(answer.calls)
        and not found["differing"]
        and max(answer.leaves, other.leaves) <= MAX_COMPARED_LEAVES
        and all(question.is_bounded(name_of(call.name)) for call in answer.calls)
        and same_calls(question.toolbox, answer.calls, other.calls)
    )
    return Relation(is_same, agreement, **found)


class _Written(NamedTuple):
    """How an argument is written.

    `is_verbatim` says whether the query has its texts as they are. `form` is 1 if they have the
    form of an example in their parameter's description, -1 if not, and 0 without an example.
    """

    is_verbatim: bool
    form: int
    characters: int

    @classmethod
    def read(cls, question: Question, key: str, value: Json, properties: Schema) -> _Written:
        """Read an argument of a call whose tool has these properties."""
        leaves = [leaf for leaf in _leaves(value) if isinstance(leaf, str)]
        try:
            fits = [fits_examples(leaf, properties.key(key)) for leaf in leaves]
        except (SchemaError, RecursionError):
            fits = []
        known = [each for each in fits if each is not None]
        return cls(
            is_verbatim=bool(leaves)
            and all(leaf[:MAX_VALUE_CHARACTERS].lower() in question.query_lower for leaf in leaves),
            form=0 if not known else 1 if all(known) else -1,
            characters=sum(map(len, leaves)) if leaves else len(str(value)),
        )


def _pair_calls(
    question: Question, calls: Sequence[Call], others: Sequence[Call]
) -> list[tuple[int, int, frozenset[str]]]:
    """Pair calls of the same tool, most equal arguments first; return places and equal arguments.

    The pairs do not depend on which of the two answers is the first.
    """
    name_of = question.toolbox.name
    other_names = [name_of(other.name) for other in others]
    alike = [
        (_equal_arguments(call, others[there], question.schema(name)), here, there)
        for here, call in enumerate(calls)
        for name in (name_of(call.name),)
        for there, other_name in enumerate(other_names)
        if other_name == name
    ]
    alike.sort(key=lambda pair: (-len(pair[0]), pair[1] + pair[2], abs(pair[1] - pair[2])))
    pairs: list[tuple[int, int, frozenset[str]]] = []
    seen: tuple[set[int], set[int]] = set(), set()
    for same_keys, here, there in alike:
        if here not in seen[0] and there not in seen[1]:
            seen[0].add(here)
            seen[1].add(there)
            pairs.append((here, there, same_keys))
    return pairs


def _equal_arguments(call: Call, other: Call, schema: Schema) -> frozenset[str]:
    """Return the arguments that two calls of a tool share, with equal values."""
    made, others = call.arguments, other.arguments
    shared = [key for key in made if key in others]
    return frozenset([k for k in shared if _is_equal(made[k], others[k], schema, k)])


def _is_equal(value: Json, other: Json, schema: Schema, key: str) -> bool:
    """Return whether two values of a tool's argument are equal, by its schema if possible."""
    if type(value) is type(other) and value == other:
        return True
    if isinstance(value, (list, dict)):
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) > MAX_VALUE_CHARACTERS:
            return False
    try:
        inner = schema.key(key)
        return _COMPARER.is_equal(value, other, inner) or _COMPARER.is_equal(other, value, inner)
    except (SchemaError, RecursionError):
        return False


def _sorted_json(value: Json) -> str:
    """Return a value as JSON that is equal for equal objects."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _mean_grounding(question: Question, value: Json) -> float:
    shares = [share for share in map(question.grounding, _leaves(value)) if share is not None]
    return sum(shares) / len(shares) if shares else _UNGROUNDED_BELOW


def unconfirmed_arguments(
    question: Question, answers: Mapping[int, CandidateAnswer], tools: Collection[str]
) -> dict[int, tuple[str, ...]]:
    """Return the invented arguments of some tools that no other candidate confirms, by column.

    An argument is named as `delete_file.path`. It is invented if a value in it comes from nowhere
    (`grounding.Source`), unless the model is asked to write it, and confirmed if another candidate
    calls the same tool with an equal value. Nobody confirms a placeholder or a parameter's name.
    The names are shown in headers and records, so an argument that the schema does not have, which
    may be any text that the model wrote, is named `*`.
    """
    found: dict[int, tuple[str, ...]] = {}
    for column, answer in answers.items():
        others = [
            (question.toolbox.name(call.name), call.arguments)
            for other, each in answers.items()
            if other != column
            for call in each.calls or ()
        ]
        paths = []
        for call in answer.calls or ():
            name = question.toolbox.name(call.name)
            if name not in tools:
                continue
            schema = question.schema(name)
            properties, _ = _members_of(schema)
            for key, value in call.arguments.items():
                invented = [
                    (inner, leaf)
                    for inner, leaf, its, is_identifying in _named_leaves(
                        key, value, properties.get(key, ANY_SCHEMA)
                    )
                    if source_of(question.said, inner, leaf, its, is_identifying=is_identifying)
                    is Source.NOWHERE
                    and not is_written(inner, leaf)
                ]
                # Several models may leave the same gap: `"path": "path"` twice confirms nothing.
                is_gap = any(
                    isinstance(leaf, str) and (is_named_after(inner, leaf) or is_placeholder(leaf))
                    for inner, leaf in invented
                )
                is_confirmed = not is_gap and any(
                    other == name and key in made and _is_equal(value, made[key], schema, key)
                    for other, made in others
                )
                if invented and not is_confirmed:
                    path = f"{name}.{key if key in properties else '*'}"
                    shown = path if path.isprintable() else ascii(path)[1:-1]
                    paths.append(shown[:MAX_NAME_CHARACTERS])
        if paths:
            found[column] = tuple(dict.fromkeys(paths))[:MAX_NAMED_ARGUMENTS]
    return found


class Beliefs(NamedTuple):
    """What is known before an arm is asked.

    `features` are those of the request that the router reads. `probabilities` are the router's for
    this request, and `logits` their log-odds. `reliable_logits` are the log-odds of the shares of
    training queries that the arms answered correctly. All three are (arms,). `pool` has the largest
    and the mean of `logits`.
    """

    features: Sequence[float]
    probabilities: Floats
    logits: Floats
    reliable_logits: Floats
    pool: tuple[float, float]

    @classmethod
    def of(
        cls, features: Sequence[float], probabilities: Floats, reliable_logits: Floats
    ) -> Beliefs:
        """Return the beliefs for a request's features and probabilities."""
        logits = clipped_logit(probabilities)
        pool = float(logits.max()), float(logits.sum() / len(logits))  # `mean` takes 6 us
        return cls(features, probabilities, logits, reliable_logits, pool)


_COMPARED_WITH_OTHERS = (
    "calls", "arguments", "optional", "fits_schema", "match", "all_grounding_exact",
    "all_ungrounded_exact", "numbers_unused_exact", "quoted_unused",
    "names_unused", "topic_left", "numbers_left", "forms_other", "values_invented_exact", "fillers",
    "optional_left_said", "members_unused", "text_chars", "topic_gained",
)  # fmt: skip
"""Features of an answer that are also compared with the mean of all candidates."""

NO_LOGIT = -9.0
"""Feature for the log-odds of an arm that does not exist. Real ones are above it."""


@request_value(frozen=True, slots=True)
class Candidates:
    """The candidate answers of one request, by the column of their arm, and their relations.

    `relations[column, other]` says how the candidate of one column relates to that of another.
    """

    answers: Mapping[int, CandidateAnswer]
    relations: Mapping[tuple[int, int], Relation]

    @classmethod
    def of(cls, question: Question, answers: Mapping[int, CandidateAnswer]) -> Candidates:
        """Compare all answers with each other."""
        relations: dict[tuple[int, int], Relation] = {}
        for column, other in combinations(answers, 2):
            relation = relate(question, answers[column], answers[other])
            relations[column, other] = relation
            relations[other, column] = relation.mirrored()
        return cls(answers, relations)

    def only(self, columns: Iterable[int]) -> Candidates:
        """Return some of the candidates."""
        return Candidates({column: self.answers[column] for column in columns}, self.relations)


def candidate_features(beliefs: Beliefs, candidates: Candidates) -> Floats:
    """Return `CANDIDATE_FEATURES` of each candidate, (candidates, features)."""
    relations, columns = candidates.relations, list(candidates.answers)
    answers = [candidates.answers[column].features for column in columns]
    compared = [_SAME_AS_MEAN]
    if len(columns) > 1:
        values = np.array(answers)[:, _COMPARED_PLACES]
        compared = (values - values.sum(axis=0) / len(values)).tolist()
    logits: list[float] = beliefs.logits.tolist()
    reliable: list[float] = beliefs.reliable_logits.tolist()
    best = max(logits[column] for column in columns)
    rows = []
    for column, own, lead in zip(columns, answers, compared, strict=True):
        others = [other for other in columns if other != column]
        agreeing = [other for other in others if relations[column, other].is_same]
        differing = [other for other in others if not relations[column, other].is_same]
        here = [relations[column, other] for other in differing]
        shares = [relations[column, other].agreement for other in others]
        rival_arms, rival_weight = _strongest_group(differing, relations, logits)
        relation = (
            logits[column],
            reliable[column],
            best,
            *beliefs.pool,
            len(columns),
            len(agreeing),
            sum(logits[other] for other in agreeing),
            max((logits[other] for other in agreeing), default=NO_LOGIT),
            max((reliable[other] for other in agreeing), default=NO_LOGIT),
            len(differing),
            sum(_weight(logits, other) for other in differing),
            max((logits[other] for other in differing), default=NO_LOGIT),
            max((reliable[other] for other in differing), default=NO_LOGIT),
            rival_arms,
            rival_weight,
            sum(shares) / len(shares) if shares else -1.0,
            min((relation.agreement for relation in here), default=2.0),
            max((relation.agreement for relation in here), default=2.0),
            *(sum(map(each, here)) for each in _SUMMED),
        )
        rows.append((*own, *lead, *relation))
    return np.array(rows)


_SUMMED = tuple(
    attrgetter(name)
    for name in (
        "grounding_lead", "only_here", "only_there", "verbatim_lead", "form_lead", "length_lead",
        "said_only_here", "said_only_there",
    )
)  # fmt: skip
"""Fields of `Relation` that are added up over the rival candidates."""

RELATION_FEATURES = (
    "own_logit", "own_reliability", "best_candidate_logit", "best_pool_logit", "mean_pool_logit",
    "candidates", "agreeing", "agreeing_logits", "agreeing_logit_max", "agreeing_reliability_max",
    "differing", "differing_weight", "differing_logit_max", "differing_reliability_max",
    "rival_arms", "rival_weight", "agreement", "rival_agreement_min", "rival_agreement_max",
    "rival_grounding_lead_exact", "only_here", "only_there",
    "rival_verbatim_lead", "rival_form_lead", "rival_length_lead", "said_only_here",
    "said_only_there",
)  # fmt: skip


def clipped_logit(probabilities: Floats) -> Floats:
    """Return log-odds between -7 and 7, so that no single arm outweighs all others."""
    return logit(probabilities, nearest=0.001)


def _weight(logits: Sequence[float], column: int) -> float:
    """Return the weight of an arm's vote: its log-odds, or a small one if it is often wrong."""
    return max(logits[column], 0.05)


def _strongest_group(
    columns: Sequence[int], relations: Mapping[tuple[int, int], Relation], logits: Sequence[float]
) -> tuple[int, float]:
    """Return the number and the weight of the arms in the heaviest group that agrees."""
    best = (0, NO_LOGIT)
    left = list(columns)
    while left:
        first = left[0]
        group = [c for c in left if c == first or relations[first, c].is_same]
        left = [c for c in left if c not in group]
        weight = sum(_weight(logits, column) for column in group)
        if weight > best[1]:
            best = (len(group), weight)
    return best


_ANSWER_FEATURES = tuple(_features_of(Question(Conversation(turns=()), ()), ()))
_COMPARED_PLACES = [_ANSWER_FEATURES.index(name) for name in _COMPARED_WITH_OTHERS]
_SAME_AS_MEAN = [0.0] * len(_COMPARED_PLACES)
"""How a single candidate compares with the mean of all candidates."""

CANDIDATE_FEATURES = (
    *_ANSWER_FEATURES,
    *(f"{name}_lead" for name in _COMPARED_WITH_OTHERS),
    *RELATION_FEATURES,
)
"""Names of all features of a candidate. The meaning of a name never changes: a changed feature gets
a new name. Those that end in `exact` compare integers exactly, and identifying numbers by their
digits only; before, they kept 12 to 15 digits, under the names without this ending."""
