"""Training measures a policy that has one line in the registry."""

from __future__ import annotations

import numpy as np

from router_service.measurement.rules import route
from switchcraft_training.evaluation.evaluate import evaluate
from switchcraft_training.evaluation.plots import sweep_svg
from tests.toy_policy import registered
from tests.training.evaluation.cases import table_of

CORRECT = np.array([[1, 1], [0, 1], [1, 0], [0, 1]], dtype=float)
TABLE = table_of(CORRECT, np.array([[1.0, 10.0]] * 4), ("cheap", "dear"))
PROBABILITIES = np.array([[0.8, 0.9], [0.2, 0.7], [0.9, 0.6], [0.5, 0.6]])


def test_new_policy_is_measured_on_rows() -> None:
    """It chooses for rows, is an entry of the table, and is part of the sweep and its plot."""
    with registered():
        assert route(PROBABILITIES, [1, 10], "ratio=0.85").tolist() == [0, 1, 0, 1]
        evaluation = evaluate(TABLE, PROBABILITIES, [1, 10], {"default": "ratio=0.85"})
        assert evaluation.entry("default (ratio=0.85)").accuracy.value == 1
        assert {"ratio=0.7", "ratio=0.9"} < {entry.name for entry in evaluation.sweep}
        assert "ratio" in sweep_svg(evaluation)
