"""Speed of the checker and of the leaderboard's checker on the same pairs.

    python benchmarks/checker.py --out runs/checker.json

The pairs come from BFCL v4's questions with Python types, in the installed `bfcl-eval`. Each
question has one pair with the first accepted values and one with a changed value. Both checkers
run in one process and thread, in turns, and each round checks every pair once. `lines` measures
all of `switchcraft-train score --encoder none`, from JSON to JSON.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import orjson

from benchmarks.stamp import write_figures
from router_service.apis.conversation import Json
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.checking import check
from switchcraft_training.checking.score import score_lines
from switchcraft_training.datasets.bfcl import PACKAGE, read_source
from switchcraft_training.datasets.bfcl.format import (
    ANY_CALL,
    NO_CALL,
    package_missing_error,
    question_files,
)
from switchcraft_training.datasets.bfcl.recorded import read_accepted_answers
from switchcraft_training.datasets.rows import read_lines
from switchcraft_training.records import Judged

TARGET_PAIRS_PER_S = 20_000
_MODEL_CONFIG_MODULE = "bfcl_eval.constants.model_config"
_KEEPS_DOTS, _REPLACES_DOTS = "text", "native"
_FIRST_PEER_VERSION = 3
"""First leaderboard version whose accepted answers the installed checker can read."""


@dataclass(frozen=True, slots=True)
class PeerQuestion:
    """A question in the format of the leaderboard's checker: functions and accepted answers."""

    category: str
    functions: Sequence[Mapping[str, Json]]
    truth: Sequence[Mapping[str, Json]]


class PeerChecker:
    """The AST checker of the installed `bfcl-eval`."""

    def __init__(self) -> None:
        """Import the checker; raises ConfigError if `bfcl-eval` is not installed."""
        try:
            importlib.import_module("bfcl_eval")
            # The checker needs this module only to look up whether a model replaces the dots in
            # names. It is faked, because the real one imports every provider's client library.
            module = ModuleType(_MODEL_CONFIG_MODULE)
            styles = {_KEEPS_DOTS: False, _REPLACES_DOTS: True}
            vars(module)["MODEL_CONFIG_MAPPING"] = {
                name: SimpleNamespace(underscore_to_dot=replaces)
                for name, replaces in styles.items()
            }
            sys.modules.setdefault(_MODEL_CONFIG_MODULE, module)
            self._check = importlib.import_module(
                "bfcl_eval.eval_checker.ast_eval.ast_checker"
            ).ast_checker
            self._languages = importlib.import_module("bfcl_eval.constants.enums").Language
        except ImportError as exc:
            raise package_missing_error() from exc

    def accepts(self, question: PeerQuestion, calls: Sequence[Call]) -> bool:
        """Return whether the checker accepts an answer's calls; False if the checker crashes."""
        names = {function["name"] for function in question.functions}
        if question.category.endswith("javascript"):
            language = self._languages.JAVASCRIPT
        elif question.category.endswith("java"):
            language = self._languages.JAVA
        else:
            language = self._languages.PYTHON
        try:
            verdict = self._check(
                question.functions,
                [{call.name: call.arguments} for call in calls],
                question.truth,
                language,
                question.category,
                _KEEPS_DOTS if all(call.name in names for call in calls) else _REPLACES_DOTS,
            )
        except Exception:  # noqa: BLE001 - an unknown schema can make it raise any exception
            return False
        return bool(verdict["valid"])


def peer_questions(path: Path) -> dict[str, PeerQuestion]:
    """Return, by id, a directory's questions that the leaderboard's AST checker can judge."""
    questions: dict[str, PeerQuestion] = {}
    for file in question_files(path):
        is_judged = file.category not in NO_CALL | ANY_CALL
        if is_judged and file.version >= _FIRST_PEER_VERSION:
            truths = read_accepted_answers(file)
            for name, functions in read_lines(file.path, lambda row: (row["id"], row["function"])):
                questions[name] = PeerQuestion(file.category, functions, truths[name])
    return questions


Pair = tuple[Judged, PeerQuestion, list[Call]]


def main() -> None:
    """Print a table, and write it as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    pairs = list(_pairs())
    figures = measure(pairs, arguments.rounds)
    print(f"{len(pairs):,} pairs, {arguments.rounds} rounds; pairs per second: median (min to max)")
    for name, rates in figures.items():
        print(
            f"{name:<8} {statistics.median(rates):>9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        )
    peer = PeerChecker()
    ours = [check(j.example.request["tools"], j.expected, c).correct for j, _, c in pairs]
    theirs = [peer.accepts(question, calls) for _, question, calls in pairs]
    agreed = statistics.mean(a == b for a, b in zip(ours, theirs, strict=True))
    print(
        f"accepted: ours {statistics.mean(ours):.1%}, bfcl {statistics.mean(theirs):.1%};", end=" "
    )
    print(f"the same verdict on {agreed:.1%}")
    row = {"pairs": len(pairs), "pairs_per_s": figures, "agreement": agreed}
    write_figures(arguments.out, row, PACKAGE)


def measure(pairs: Sequence[Pair], rounds: int) -> dict[str, list[float]]:
    """Return each contender's pairs per second in each round, after one warm-up round."""
    peer = PeerChecker()
    lines = [orjson.dumps(_as_line(judged, calls)) for judged, _, calls in pairs]
    contenders: dict[str, Callable[[], object]] = {
        "check": lambda: [check(j.example.request["tools"], j.expected, c) for j, _, c in pairs],
        "lines": lambda: list(score_lines(lines)),
        "bfcl": lambda: [peer.accepts(question, calls) for _, question, calls in pairs],
    }
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, judge_all in contenders.items():
            start = time.perf_counter()
            judge_all()
            figures[name].append(len(pairs) / (time.perf_counter() - start))
    return {name: rates[1:] for name, rates in figures.items()}


def _pairs() -> Iterator[Pair]:
    source = Path(PACKAGE)
    questions = peer_questions(source)
    for judged in read_source(source):
        question = questions.get(judged.example.id)
        if question is not None and "java" not in question.category:
            calls = [_ideal(call) for call in judged.expected.calls]
            yield judged, question, calls
            yield judged, question, [_changed(calls[0]), *calls[1:]]


def _ideal(call: ExpectedCall) -> Call:
    """Return the call with the first accepted value of every required parameter."""
    given = {
        name: _first(values) for name, values in call.arguments.items() if name not in call.optional
    }
    return Call(call.name, given)


def _first(values: Sequence[Json]) -> Json:
    return _plain(next((value for value in values if value != ""), ""))


def _plain(value: Json) -> Json:
    if isinstance(value, OneOf):
        return _first(value.values)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _changed(call: Call) -> Call:
    """Return the call with its first value replaced by another of the same type."""
    if not call.arguments:
        return replace(call, name=f"{call.name}_other")
    name, value = next(iter(call.arguments.items()))
    other = "elsewhere"
    if isinstance(value, int | float):
        other = not value if isinstance(value, bool) else value + 1
    return replace(call, arguments={**call.arguments, name: other})


def _as_line(judged: Judged, calls: Sequence[Call]) -> Json:
    expected = [
        {
            "name": call.name,
            "arguments": {name: [_plain(v) for v in vs] for name, vs in call.arguments.items()},
            "optional": sorted(call.optional),
        }
        for call in judged.expected.calls
    ]
    made = [{"name": call.name, "arguments": call.arguments} for call in calls]
    tools = judged.example.request["tools"]
    return {"id": judged.example.id, "tools": tools, "expected": expected, "calls": made}


if __name__ == "__main__":
    main()
