"""Validation of goals: rules are picked as in the gateway, and measured without selection bias."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from router_service.core.errors import PolicyError
from router_service.core.goals import find_point, parse_goal
from router_service.core.model import sigmoid
from switchcraft_training.data.table import Table
from switchcraft_training.evaluation.calibrating import choose_calibration
from switchcraft_training.evaluation.experiment import Experiment
from switchcraft_training.evaluation.goal_validation import validate_goals
from switchcraft_training.evaluation.report import Report, write_report
from switchcraft_training.evaluation.sections import all_sections, main_figures
from switchcraft_training.records import Example
from tests.training.evaluation.cases import PROVENANCE, bare

ARMS = ("cheap", "middle", "dear")
COSTS_USD = (1e-4, 1e-3, 1e-2)


def experiment(queries: int = 300, skill: float = 1.0, seed: int = 0) -> Experiment:
    """Return unrelated queries, and a router that knows a share `skill` of the truth.

    Without skill its predictions are noise, and every rule's figures are chance.
    """
    rng = np.random.default_rng(seed)
    true = sigmoid(rng.normal([0.5, 1.0, 1.5], 2.0, (queries, 3)))
    said = skill * true + (1 - skill) * rng.random(true.shape)
    words = ["".join(map(chr, rng.integers(97, 123, 12))) for _ in range(queries)]
    requests = [{"messages": [{"role": "user", "content": w}], "tools": [{}]} for w in words]
    examples = tuple(Example(str(i), "c", request, "d") for i, request in enumerate(requests))
    correct = (rng.random(true.shape) < true).astype(float)
    table = Table(examples, ARMS, correct, np.tile(COSTS_USD, (queries, 1)))
    return Experiment(table, said, COSTS_USD, {"default": "drift=0.1"})


def test_the_rule_is_the_one_that_the_gateway_would_take() -> None:
    """The pick on all queries is the one that `core` makes from the artifact's frontier."""
    made = experiment()
    figures = main_figures(made)
    best = figures.entry(figures.best_single).accuracy
    for promise in validate_goals(made, ("accuracy=best", "accuracy=best-1@95", "usd_per_1k=2")):
        goal = parse_goal(promise.goal, param="")
        assert goal is not None
        point = find_point(goal, figures.frontier, best, param="")
        assert promise.rule == point.policy
        assert promise.picked is not None
        assert promise.picked.accuracy == point.accuracy


def test_the_luck_of_the_pick_is_measured() -> None:
    """Rules of a router without skill look better on the queries that they were picked on."""
    gains = []
    for seed in range(6):
        (promise,) = validate_goals(experiment(150, 0.0, seed), ("usd_per_1k=100",), seed=seed)
        assert promise.picked is not None
        assert promise.nested is not None
        gains.append(promise.picked.accuracy.value - promise.nested.accuracy.value)
    assert np.mean(gains) > 0.01


def test_every_query_is_left_out_once() -> None:
    """If every fold reaches a goal, the nested figures cover all queries."""
    (promise,) = validate_goals(experiment(), ("usd_per_1k=2",))
    assert promise.nested is not None
    assert (promise.folds, promise.nested.accuracy.n) == (5, 300)


def test_a_goal_that_nothing_reaches_promises_nothing() -> None:
    """A goal that no rule reaches has no pick and no figures; an invalid goal is an error."""
    (promise,) = validate_goals(experiment(), ("accuracy=1",))
    assert (promise.rule, promise.picked, promise.nested, promise.folds) == (None, None, None, 0)
    with pytest.raises(PolicyError, match="a rule, not a goal"):
        validate_goals(experiment(), ("theta=0.5",))


def test_copies_of_one_query_hold_nothing_out() -> None:
    """If all queries are near-duplicates, there are no folds and so no results."""
    assert validate_goals(bare()) == ()


def test_the_report_tells_promises_and_calibration(tmp_path: Path) -> None:
    """The page and the JSON contain both tables, and the chosen method is marked."""
    made = experiment()
    labels, raw = made.table.correct, made.probabilities
    study = choose_calibration(labels, raw, range(len(raw)), seed=0)
    told = Experiment(made.table, raw, made.expected_costs_usd, made.policies, calibrating=study)
    figures = main_figures(told)
    write_report(Report("made-up", figures, PROVENANCE, all_sections(told, figures)), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "What a goal gets" in page
    assert f"{study.calibration.method} <i>chosen</i>" in page
    sections = json.loads((tmp_path / "report.json").read_text())["sections"]
    assert len(sections["calibrating"]["trials"]) == 4
    assert sections["calibrating"]["calibration"]["method"] == study.calibration.method
    assert sections["promises"][0]["goal"] == "accuracy=best-1"
