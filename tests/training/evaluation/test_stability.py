"""Stability across runs and folds, and variants of the router."""

from __future__ import annotations

import numpy as np
import pytest

from switchcraft_training.evaluation.report import all_sections, main_figures
from switchcraft_training.evaluation.stability import stability
from tests.training.evaluation.cases import complete_experiment


def test_stability_has_the_spread_of_the_runs() -> None:
    """The spread covers the runs' own figures; a single run has no spread."""
    runs = complete_experiment().runs
    found = stability(runs, "theta=0.5")
    assert found is not None
    values = [run.router.accuracy.value for run in found.runs]
    assert found.spread["accuracy"].mean == pytest.approx(np.mean(values))
    assert found.spread["accuracy"].std == pytest.approx(np.std(values, ddof=1))
    assert stability(runs[:1], "theta=0.5") is None


def test_folds_contain_the_queries_that_they_tested() -> None:
    """Together the folds contain all queries, and their accuracies average to the router's."""
    experiment = complete_experiment()
    figures = main_figures(experiment)
    sections = all_sections(experiment, figures)
    assert sections.folds is not None
    assert [run.router.accuracy.n for run in sections.folds.runs] == [20, 20, 20]
    router = figures.entry(figures.default_policy)
    assert sections.folds.spread["accuracy"].mean == pytest.approx(router.accuracy.value)
    own, truncated = sections.parts
    assert own.difference == 0
    assert truncated.difference == pytest.approx(truncated.accuracy.value - own.accuracy.value)
    assert [row.name for row in sections.field] == ["router", "noise"]
