"""Comparison of our checker with the leaderboard's: accuracies and disagreements.

The leaderboard's verdicts are those of a recording, or, for a labelling run of any dataset, those
of the AST checker in the installed `bfcl-eval`.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Final

import orjson
from tqdm import tqdm

from router_service.apis.conversation import Json
from router_service.checker.comparison import IsParaphrase, OneOf
from router_service.checker.toolbox import Call
from router_service.core.errors import DataError
from switchcraft_training.checking import TEXT_PROBLEMS, Verdict, check_answer, paraphrase_check
from switchcraft_training.datasets.bfcl import PACKAGE, Recording, RepeatedRuns, open_recording
from switchcraft_training.datasets.bfcl.format import (
    ANY_CALL,
    MULTI_TURN,
    NO_CALL,
    package_missing_error,
    question_files,
)
from switchcraft_training.datasets.bfcl.recorded import read_accepted_answers
from switchcraft_training.datasets.rows import encode_row, read_lines
from switchcraft_training.labelling.answers import LabelledRun
from switchcraft_training.records import Answer, Judged

_MODEL_CONFIG_MODULE: Final = "bfcl_eval.constants.model_config"
_BENCHMARK: Final = "bfcl"
"""Start of the names of the leaderboard's datasets."""
_KEEPS_DOTS, _REPLACES_DOTS = "text", "native"
_FIRST_PEER_VERSION: Final = 3
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
        is_judged = file.category not in NO_CALL | ANY_CALL | MULTI_TURN
        if is_judged and file.version >= _FIRST_PEER_VERSION:
            truths = read_accepted_answers(file)
            for name, functions in read_lines(file.path, lambda row: (row["id"], row["function"])):
                questions[name] = PeerQuestion(file.category, functions, truths[name])
    return questions


def labelled_question(judged: Judged, benchmark: Mapping[str, PeerQuestion]) -> PeerQuestion | None:
    """Return a row's question for the leaderboard's AST checker; None if the checker cannot judge.

    It judges expected calls only. `benchmark` holds the leaderboard's own questions by id, in the
    types of its own language; of its rows, only these are judged, which excludes multi-turn
    categories. Rows of other datasets keep their JSON Schemas, so the checker rejects answers whose
    parameters have types that it does not know, such as `object`.
    """
    example, expected = judged
    if example.dataset.startswith(_BENCHMARK):
        return benchmark.get(example.id)
    if expected.any_call or not expected.calls:
        return None
    functions = [tool["function"] for tool in example.request["tools"]]
    truth = [
        {
            call.name: {
                name: [*map(_to_accepted, values), *([""] if name in call.optional else [])]
                for name, values in call.arguments.items()
            }
        }
        for call in expected.calls
    ]
    category = "parallel" if len(truth) > 1 else "multiple" if len(functions) > 1 else "simple"
    return PeerQuestion(category, functions, truth)


def _to_accepted(value: Json) -> Json:
    """Return an accepted value in the leaderboard's format: objects list values for every field."""
    if isinstance(value, list):
        return [_to_accepted(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    fields: dict[str, Json] = {}
    for name, inner in value.items():
        values = inner.values if isinstance(inner, OneOf) else (inner,)
        is_optional = isinstance(inner, OneOf) and inner.is_optional
        fields[name] = [*map(_to_accepted, values), *([""] if is_optional else [])]
    return fields


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An answer that one checker accepts and the other rejects."""

    dataset: str
    arm: str
    judged: Judged
    answer: Answer
    their_reason: str | None
    ours: Verdict

    @property
    def kind(self) -> str:
        """`FN` if only our checker accepts the answer, `FP` if only the leaderboard's does.

        The paper's table of checkers uses the same terms.
        """
        return "FN" if self.ours.correct else "FP"

    def to_json(self) -> Json:
        """Return everything that a person needs to judge the answer."""
        return {
            "kind": self.kind,
            "dataset": self.dataset,
            "category": self.judged.example.category,
            "id": self.judged.example.id,
            "model": self.arm,
            "query": self.judged.example.query,
            "expected": orjson.loads(encode_row(self.judged))["expected"],
            "calls": self.answer.calls,
            "problem": self.answer.problem,
            "theirs": self.their_reason,
            "ours": [asdict(error) for error in self.ours.errors],
            "tools": self.judged.example.request["tools"],
        }


@dataclass(slots=True)
class Tally:
    """Counts of one model's answers in one dataset.

    `theirs` counts answers that the recorded verdicts accept, `ours` those that our checker
    accepts. `peer` counts the answers that the installed checker judges. Of these, the installed
    checker accepts `rerun`, and our checker accepts `ours_on_peer`.
    """

    dataset: str
    arm: str
    answers: int = 0
    theirs: int = 0
    ours: int = 0
    false_negatives: int = 0
    false_positives: int = 0
    peer: int = 0
    rerun: int = 0
    ours_on_peer: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    @property
    def parsed(self) -> float:
        """The share of answers that were parsed as calls or as intentional text."""
        unread = sum(n for problem, n in self.problems.items() if problem not in TEXT_PROBLEMS)
        return 1 - unread / self.answers if self.answers else 1.0

    def add(self, answer: Answer, *, theirs: bool, ours: bool) -> None:
        """Count an answer; `theirs` is the recorded verdict, `ours` that of our checker."""
        self.answers += 1
        self.theirs += theirs
        self.ours += ours
        self.false_negatives += ours and not theirs
        self.false_positives += theirs and not ours
        if answer.problem is not None:
            self.problems[answer.problem] += 1

    @classmethod
    def total(cls, name: str, members: Iterable[Tally]) -> Tally:
        """Return the sums of several models' counts."""
        total = cls(name, name)
        for tally in members:
            for count in (
                "answers", "theirs", "ours", "false_negatives", "false_positives",
                "peer", "rerun", "ours_on_peer",
            ):  # fmt: skip
                setattr(total, count, getattr(total, count) + getattr(tally, count))
            total.problems.update(tally.problems)
        return total


@dataclass(frozen=True, slots=True)
class Peer:
    """The installed checker, with the questions that it can judge."""

    checker: PeerChecker
    questions: Mapping[str, PeerQuestion]


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What `compare` compares and writes.

    `paraphrases` is an encoder, as in `checking.paraphrases`; without it, our checker accepts no
    paraphrases. With `with_peer`, the installed checker judges recordings too.
    """

    recordings: Sequence[Path] = ()
    labelled: Sequence[LabelledRun] = ()
    with_peer: bool = False
    paraphrases: str | None = None


def compare_checkers(options: CompareOptions, out: Path) -> str:
    """Compare our checker with the leaderboard's, and return a table in Markdown.

    Writes the table and all disagreements to `out`. Raises DataError
    if a recording or a labelling run cannot be read or has nothing that the leaderboard's checker
    can judge, and ConfigError if `bfcl-eval` is needed and not installed.
    """
    alike = paraphrase_check(options.paraphrases)
    tallies: list[Tally] = []
    disagreements: list[Disagreement] = []
    for run in options.labelled:
        counted, found = compare_labelled(run, alike)
        tallies.extend(counted)
        disagreements.extend(found)
    for folder in options.recordings:
        recording = open_recording(folder)
        judged = {entry.example.id: entry for entry in recording.judged()}
        source = Path(PACKAGE) if isinstance(recording, RepeatedRuns) else folder
        peer = Peer(PeerChecker(), peer_questions(source)) if options.with_peer else None
        for arm in tqdm(recording.arms(), desc=folder.name, unit="model"):
            tally, found = compare_arm(folder.name, arm, recording, judged, peer, alike)
            tallies.append(tally)
            disagreements.extend(found)
    out.mkdir(parents=True, exist_ok=True)
    table = to_markdown(sorted(tallies, key=lambda tally: tally.dataset))
    (out / "table.md").write_text(table)
    lines = (orjson.dumps(each.to_json(), default=str) + b"\n" for each in disagreements)
    (out / "disagreements.jsonl").write_bytes(b"".join(lines))
    return table


def compare_labelled(
    run: LabelledRun, alike: IsParaphrase | None = None
) -> tuple[list[Tally], list[Disagreement]]:
    """Judge every answer of a labelling run with both checkers, by dataset and model."""
    checker, benchmark = PeerChecker(), dict[str, PeerQuestion]()
    judged = {entry.example.id: entry for entry in run.judged()}
    if any(entry.example.dataset.startswith(_BENCHMARK) for entry in judged.values()):
        benchmark = peer_questions(Path(PACKAGE))
    questions = {name: labelled_question(entry, benchmark) for name, entry in judged.items()}
    if not any(questions.values()):
        problem = (
            "has no query that the leaderboard's AST checker can judge: it judges expected calls,"
            " and of its own categories only single-turn ones"
        )
        raise DataError(run.rows, None, problem)
    tallies: dict[tuple[str, str], Tally] = {}
    disagreements: list[Disagreement] = []
    for arm in tqdm(run.arms(), desc=run.folder.name, unit="model"):
        for answer in run.answers(arm):
            question = questions.get(answer.example_id)
            if question is None:
                continue
            entry = judged[answer.example_id]
            dataset = entry.example.dataset
            theirs = checker.accepts(question, answer.calls or ())
            ours = check_answer(*entry, answer, alike)
            tally = tallies.setdefault((dataset, arm), Tally(dataset, arm))
            tally.add(answer, theirs=theirs, ours=ours.correct)
            if theirs != ours.correct:
                disagreements.append(Disagreement(dataset, arm, entry, answer, None, ours))
    return list(tallies.values()), disagreements


def compare_arm(
    dataset: str,
    arm: str,
    recording: Recording,
    judged: Mapping[str, Judged],
    peer: Peer | None,
    alike: IsParaphrase | None = None,
) -> tuple[Tally, list[Disagreement]]:
    """Judge every answer of one model, and return the counts and the disagreements.

    Raises KeyError if an answer has no recorded verdict.
    """
    tally, disagreements = Tally(dataset, arm), []
    verdicts = {(v.example_id, v.attempt): v for v in recording.verdicts(arm)}
    for answer in recording.answers(arm):
        entry, theirs = judged[answer.example_id], verdicts[answer.example_id, answer.attempt]
        ours = check_answer(*entry, answer, alike)
        tally.add(answer, theirs=theirs.valid, ours=ours.correct)
        if peer is not None and answer.example_id in peer.questions:
            question = peer.questions[answer.example_id]
            tally.peer += 1
            tally.rerun += peer.checker.accepts(question, answer.calls or ())
            tally.ours_on_peer += ours.correct
        if theirs.valid != ours.correct:
            disagreements.append(Disagreement(dataset, arm, entry, answer, theirs.error_type, ours))
    return tally, disagreements


def to_markdown(tallies: Sequence[Tally]) -> str:
    """Return Markdown tables of the datasets, of each dataset's models, and of problem codes."""
    datasets = {name: list(group) for name, group in groupby(tallies, lambda t: t.dataset)}
    has_peer = any(tally.peer for tally in tallies)
    totals = [Tally.total(name, members) for name, members in datasets.items()]
    overall = [Tally.total("all datasets", totals)] if len(totals) > 1 else []
    sections = [_tally_table("dataset", [*totals, *overall], has_peer=has_peer)]
    for name, members in datasets.items():
        ranked = sorted(members, key=lambda tally: -tally.ours / tally.answers)
        sections.append(f"### {name}\n\n{_tally_table('model', ranked, has_peer=has_peer)}")
    counted = sum((total.problems for total in totals), Counter[str]())
    problems = [
        f"| code | {' | '.join(total.arm for total in totals)} |",
        "|---|" + "--:|" * len(totals),
    ]
    for problem, _ in counted.most_common():
        cells = " | ".join(f"{total.problems[problem]:,}" for total in totals)
        problems.append(f"| `{problem}` | {cells} |")
    sections.append("### Answers without readable calls\n\n" + "\n".join(problems))
    return "\n\n".join(sections) + "\n"


def _tally_table(title: str, tallies: Iterable[Tally], *, has_peer: bool) -> str:
    head = f"| {title} | answers | read | BFCL | ours | FN | FP |"
    head += " re-judged | bfcl-eval | ours |" if has_peer else ""
    lines = [head, "|---|" + "--:|" * (head.count("|") - 2)]
    for tally in tallies:
        cells = [
            tally.arm,
            f"{tally.answers:,}",
            f"{tally.parsed:.1%}",
            f"{tally.theirs / tally.answers:.1%}",
            f"{tally.ours / tally.answers:.1%}",
            f"{tally.false_negatives:,}",
            f"{tally.false_positives:,}",
        ]
        if has_peer:
            cells.append(f"{tally.peer:,}")
            shares = (tally.rerun, tally.ours_on_peer)
            cells.extend(f"{share / tally.peer:.1%}" if tally.peer else "" for share in shares)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
