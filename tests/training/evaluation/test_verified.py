"""Figures of verified answers, and the simpler rules that they are compared with."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from router_service.measurement.simulation import VerifiedAnswers
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.report import (
    write_verification,
)
from switchcraft_training.evaluation.verified import (
    VerifiedFigures,
    VerifiedRow,
    verified_figures,
)
from switchcraft_training.verification import VerifierStudy
from tests.training.verifiers import COSTS_USD, PRICES_USD, SECONDS, invented_data, invented_table


@pytest.fixture(scope="module")
def figures(verifier_study: VerifierStudy) -> VerifiedFigures:
    """Return the figures of the invented study."""
    return verified_figures(verifier_study)


def other(figures: VerifiedFigures, name: str) -> VerifiedRow:
    """Return the row of a simpler rule."""
    return next(row for row in figures.others if row.entry.name == name)


def test_every_price_has_a_row(figures: VerifiedFigures, verifier_study: VerifierStudy) -> None:
    """Rows go by price; a higher price asks more models, which costs more money and time."""
    names = [row.entry.name for row in figures.frontier]
    assert names == [f"verified={price:g}" for price in PRICES_USD]
    assert figures.operating is figures.frontier[1]
    for values in (
        [row.candidates.value for row in figures.frontier],
        [row.entry.cost_usd.value for row in figures.frontier],
        [row.added_s.value for row in figures.frontier if row.added_s],
    ):
        assert len(values) == len(PRICES_USD)
        assert values == sorted(values)
    answers = verifier_study.by_price[PRICES_USD[1]]
    later = answers.asked[:, 0] != answers.accepted
    assert figures.operating.is_later.value == pytest.approx(np.mean(later))


def scripted(study: VerifierStudy, correct: Floats) -> VerifierStudy:
    """Return a study of a few queries with these labels; right answers agree, wrong ones do not."""
    queries = len(correct)
    table = replace(invented_table(queries), correct=correct, folds=np.arange(queries) % 2)
    evidence = replace(
        study.evidence,
        candidates=invented_data(table).candidates,
        probabilities=correct,
        expected_costs_usd=np.tile(COSTS_USD, (queries, 1)),
        cheapest=VerifiedAnswers(
            np.tile([0, 1, 2], (queries, 1)),
            np.zeros(queries, dtype=np.int64),
            np.where(np.tri(3, dtype=np.bool_), 0.5, np.nan)[None].repeat(queries, axis=0),
        ),
    )
    by_price = {1.0: one_arm(0, queries)}
    return replace(study, table=table, by_price=by_price, price_usd=1.0, evidence=evidence)


def one_arm(arm: int, queries: int) -> VerifiedAnswers:
    """Return answers of one arm that was asked alone."""
    asked = np.full((queries, 1), arm)
    return VerifiedAnswers(asked, asked[:, 0], np.full((queries, 1, 1), 0.5))


PATTERNS = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 1], [1, 1, 0], [0, 0, 1]], float)
"""Correct answers of the cheap, the middle and the dear arm."""


@pytest.fixture(scope="module")
def rules(verifier_study: VerifierStudy) -> VerifiedFigures:
    """Return the figures of queries for which each rule's decisions are known."""
    return verified_figures(scripted(verifier_study, np.tile(PATTERNS, (4, 1))))


def figures_of(row: VerifiedRow) -> tuple[float, float, float]:
    """Return accuracy, candidates and added seconds of a row."""
    assert row.added_s is not None
    return row.entry.accuracy.value, row.candidates.value, row.added_s.value


_, MIDDLE_S, DEAR_S = SECONDS


@pytest.mark.parametrize(
    ("name", "accuracy", "candidates", "added_s"),
    [
        ("dear", 5 / 6, 1, 0),
        # Every answer fits its schema.
        ("schema check", 3 / 6, 1, 0),
        # The first and the fifth pattern agree; for the others the dear arm is asked and right.
        ("two agree", 1, 2 + 4 / 6, MIDDLE_S + DEAR_S * 4 / 6),
        ("perfect verifier", 1, (3 * 1 + 2 + 2 * 3) / 6, (MIDDLE_S * 3 + DEAR_S * 2) / 6),
    ],
)
def test_simpler_rules(
    rules: VerifiedFigures, name: str, accuracy: float, candidates: float, added_s: float
) -> None:
    """Each rule asks and accepts as its definition says."""
    assert figures_of(other(rules, name)) == pytest.approx((accuracy, candidates, added_s))


def test_price_is_chosen_on_other_folds(verifier_study: VerifierStudy) -> None:
    """Each fold gets the highest price that the other one affords.

    The second price asks the middle arm. It is within the budget of 10% in one fold only, so that
    the other fold gets it.
    """
    costs = np.array([[1.0, 5.0, 100.0], [1.0, 20.0, 100.0]])
    scripted_study = scripted(verifier_study, np.tile([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]], (10, 1)))
    study = replace(
        scripted_study,
        table=replace(scripted_study.table, cost_usd=np.tile(costs, (10, 1))),
        by_price={**scripted_study.by_price, 2.0: one_arm(1, 20)},
        cost_share=0.1,
    )
    row = other(verified_figures(study), "verified, price from other folds")
    assert row.entry.cost_usd.value == (1 + 20) / 2
    assert row.entry.accuracy.value == 0.5


def test_verification_is_written_next_to_the_artifact(
    figures: VerifiedFigures, tmp_path: Path
) -> None:
    """The page is self-contained and shows the table; the JSON has the same figures."""
    page = write_verification(figures, tmp_path / "artifact")
    assert page == tmp_path / "artifact-verification.html"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert not re.search(r"<(?:script|link|img|iframe)\b|url\(http|@import", text)
    assert f"{figures.operating.entry.accuracy.value * 100:.1f}% correct" in text
    values = json.loads(page.with_suffix(".json").read_text())
    assert values["operating"]["entry"]["name"] == "verified=0.002"
    assert len(values["frontier"]) == len(PRICES_USD)
