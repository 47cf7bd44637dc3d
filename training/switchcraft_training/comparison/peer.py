"""The AST checker of the installed `bfcl-eval`, run on the same answers as ours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from switchcraft_training.datasets.bfcl.files import (
    ANY_CALL,
    MULTI_TURN,
    NO_CALL,
    package_missing,
    question_files,
)
from switchcraft_training.datasets.bfcl.questions import read_truths
from switchcraft_training.datasets.lines import read_lines, refuse
from switchcraft_training.records import Call, Json

_HANDLERS: Final = "bfcl_eval.constants.model_config"
_KEEPS_DOTS, _FOLDS_DOTS = "text", "native"
_FIRST_VERSION: Final = 3
"""Of the format of truths that the installed checker reads."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as the leaderboard's checker takes it: its functions and accepted answers."""

    category: str
    functions: Sequence[Mapping[str, Json]]
    truth: Sequence[Mapping[str, Json]]


class PeerChecker:
    """The leaderboard's checker. Raises ConfigError where `bfcl-eval` is not installed."""

    def __init__(self) -> None:
        try:
            importlib.import_module("bfcl_eval")
            sys.modules.setdefault(_HANDLERS, _without_handlers())
            self._check = importlib.import_module(
                "bfcl_eval.eval_checker.ast_eval.ast_checker"
            ).ast_checker
            self._languages = importlib.import_module("bfcl_eval.constants.enums").Language
        except ImportError as exc:
            raise package_missing() from exc

    def accepts(self, question: Question, calls: Sequence[Call]) -> bool:
        """Tell whether it accepts an answer's calls; where it crashes, it does not."""
        names = {function["name"] for function in question.functions}
        style = _KEEPS_DOTS if all(call.name in names for call in calls) else _FOLDS_DOTS
        made = [{call.name: call.arguments} for call in calls]
        try:
            verdict = self._check(
                question.functions,
                made,
                question.truth,
                self._language(question),
                question.category,
                style,
            )
        except Exception:  # noqa: BLE001 - a schema that it does not know makes it raise anything
            return False
        return bool(verdict["valid"])

    def _language(self, question: Question) -> Any:  # noqa: ANN401 - an enum of an untyped package
        if question.category.endswith("javascript"):
            return self._languages.JAVASCRIPT
        return (
            self._languages.JAVA if question.category.endswith("java") else self._languages.PYTHON
        )


def peer_questions(path: Path) -> dict[str, Question]:
    """Return the questions of a folder that the leaderboard's AST checker judges, by id."""
    questions: dict[str, Question] = {}
    for file in question_files(path):
        if file.version < _FIRST_VERSION or file.category in NO_CALL | ANY_CALL | MULTI_TURN:
            continue
        truths = read_truths(file, refuse)
        for name, functions in read_lines(file.path, lambda row: (row["id"], row["function"])):
            questions[name] = Question(file.category, functions, truths[name])
    return questions


def _without_handlers() -> ModuleType:
    """Return what the checker reads of the package's models: whether dots are folded.

    The package's own module of that name imports the client library of every provider.
    """
    module = ModuleType(_HANDLERS)
    styles = {_KEEPS_DOTS: False, _FOLDS_DOTS: True}
    mapping = {name: SimpleNamespace(underscore_to_dot=folds) for name, folds in styles.items()}
    vars(module)["MODEL_CONFIG_MAPPING"] = mapping
    return module
