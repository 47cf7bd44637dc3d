"""Two assumptions about agents, checked on recorded answers.

    python -m benchmarks.agent_assumptions DATA

- Models answer in other context as they did without it. BFCL's multi-turn conversations were asked
  twice, with all tools and with one that is needed only later held back. The first calls of a
  conversation are compared between runs with the same tools and between runs with other tools.
- The text of a whole task does not tell whether a model will solve it. A ridge regression on the
  words of MCPMark's instructions predicts the tasks' mean success, for services that it has not
  seen and for random tasks.
"""

from __future__ import annotations

import argparse
import gzip
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import RidgeCV
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, KFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from benchmarks.stamp import write_figures
from router_service.predictor.model import Floats

MODELS = ("gpt-oss-20b", "gpt-oss-120b")
PLAIN, WITHOUT_TOOL = "multi_turn_base", "multi_turn_miss_func"
RUNS = (1, 2)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line, compressed or not."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    yield from map(orjson.loads, text.splitlines())


def first_calls(result: Sequence[Any]) -> tuple[tuple[str, Any], ...] | None:
    """Return the calls of a conversation's first answer; None if they cannot be read."""
    try:
        return tuple(
            (name, orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS))
            for call in result[0][0]
            for name, arguments in call.items()
        )
    except (IndexError, AttributeError, TypeError, orjson.JSONDecodeError):
        return None


def used_functions(result: Sequence[Any]) -> set[str]:
    """Return the functions that a conversation's first turn calls."""
    steps = (step for step in result[0] if isinstance(step, list))
    return {name for step in steps for call in step if isinstance(call, dict) for name in call}


def agreement(data: Path, model: str) -> Mapping[str, float]:
    """Return how often first calls are equal with the same tools and with other tools."""
    questions = {
        category: {
            line["id"].rpartition("_")[2]: line
            for line in read_lines(Path(str(files("bfcl_eval") / f"data/BFCL_v4_{category}.json")))
        }
        for category in (PLAIN, WITHOUT_TOOL)
    }
    answers = {
        (run, category): {
            line["id"].rpartition("_")[2]: line["result"]
            for line in read_lines(
                data / f"bfcl-v4-gptoss/run-{run}/result/openai_{model}/multi_turn"
                f"/BFCL_v4_{category}_result.json.gz"
            )
        }
        for run in RUNS
        for category in (PLAIN, WITHOUT_TOOL)
    }
    same, other = [], []
    for number, asked in questions[WITHOUT_TOOL].items():
        held_back = asked["missed_function"]
        names = {name for names in held_back.values() for name in names}
        is_needed_first = any(int(turn) < 2 for turn in held_back) or any(
            names & used_functions(answers[run, PLAIN][number]) for run in RUNS
        )
        if is_needed_first or asked["question"][0] != questions[PLAIN][number]["question"][0]:
            continue
        plain = [first_calls(answers[run, PLAIN][number]) for run in RUNS]
        without = [first_calls(answers[run, WITHOUT_TOOL][number]) for run in RUNS]
        if None in plain or None in without:
            continue
        same.append(((plain[0] == plain[1]) + (without[0] == without[1])) / 2)
        other.append(((plain[0] == without[1]) + (plain[1] == without[0])) / 2)
    difference = np.subtract(other, same)
    return {
        "conversations": len(same),
        "same_tools": float(np.mean(same)),
        "other_tools": float(np.mean(other)),
        "difference": float(difference.mean()),
        "stderr": float(difference.std(ddof=1) / np.sqrt(len(same))),
    }


def told_by_text(data: Path) -> Mapping[str, float]:
    """Return the AUC with which texts tell a service's harder tasks from its easier ones.

    Services differ in difficulty, so tasks are compared within each. The AUC is their mean.
    """
    folder = data / "mcpmark-2025-12"
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for run in read_lines(folder / "runs.jsonl.gz"):
        outcomes[run["task"]].append(run["success"])
    tasks = [task for task in read_lines(folder / "tasks.jsonl.gz") if task["task"] in outcomes]
    success = np.array([np.mean(outcomes[task["task"]]) for task in tasks])
    texts = [task["instruction"] for task in tasks]
    services = np.array([task["service"] for task in tasks])
    regression = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, min_df=2), RidgeCV(np.logspace(-1, 3, 9))
    )
    unseen = GroupKFold(len(set(services)))
    by_service = cross_val_predict(regression, texts, success, groups=services, cv=unseen)
    at_random = cross_val_predict(
        regression, texts, success, cv=KFold(10, shuffle=True, random_state=0)
    )

    def auc(predicted: Floats) -> float:
        """Return the mean AUC within a service."""
        found = []
        for service in np.unique(services):
            own = services == service
            is_easy = success[own] > np.median(success[own])
            found.append(roc_auc_score(is_easy, predicted[own]))
        return float(np.mean(found))

    return {"tasks": len(tasks), "unseen_services": auc(by_service), "random_tasks": auc(at_random)}


def main() -> None:
    """Print and write both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="directory of recorded answers")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    figures: dict[str, Mapping[str, float]] = {}
    for model in MODELS:
        found = figures[model] = agreement(arguments.data, model)
        print(
            f"{model}: of {found['conversations']} first answers,"
            f" {found['same_tools']:.1%} are equal in another run with the same tools, and"
            f" {found['other_tools']:.1%} with a tool less"
            f" ({found['difference'] * 100:+.1f} ± {found['stderr'] * 100:.1f} points)"
        )
    texts = figures["texts"] = told_by_text(arguments.data)
    print(
        f"texts of {texts['tasks']} tasks: AUC {texts['unseen_services']:.2f} for unseen services,"
        f" {texts['random_tasks']:.2f} for random tasks"
    )
    write_figures(arguments.out, figures, "numpy")


if __name__ == "__main__":
    main()
