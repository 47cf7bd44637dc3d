"""Every section of a report, from one experiment."""

from __future__ import annotations

from dataclasses import dataclass

from switchcraft_training.evaluation.breakdowns import (
    Breakdown,
    Category,
    Confusion,
    Routing,
    by_category,
    confusion,
    dataset_oracle,
    misroutes,
    routing,
)
from switchcraft_training.evaluation.calibrating import CalibrationStudy
from switchcraft_training.evaluation.calibration import Calibration, calibration
from switchcraft_training.evaluation.evaluate import Evaluation, evaluate
from switchcraft_training.evaluation.experiment import Experiment
from switchcraft_training.evaluation.field import Budget, FieldRow, budgets, field_row
from switchcraft_training.evaluation.goal_validation import GoalResult, validate_goals
from switchcraft_training.evaluation.stability import (
    Ablation,
    Stability,
    ablation,
    folds,
    stability,
)
from switchcraft_training.evaluation.tokens import TokenUse, token_use


@dataclass(frozen=True, slots=True)
class Sections:
    """The report's sections in addition to the main table; None and empty ones are omitted."""

    categories: tuple[Category, ...]
    routing: Routing
    misroutes: tuple[Breakdown, ...]
    confusion: Confusion
    calibration: Calibration
    calibrating: CalibrationStudy | None
    promises: tuple[GoalResult, ...]
    field: tuple[FieldRow, ...]
    budgets: tuple[Budget, ...]
    tokens: tuple[TokenUse, ...]
    parts: tuple[Ablation, ...]
    folds: Stability | None
    seeds: Stability | None


def main_figures(experiment: Experiment) -> Evaluation:
    """Return the main table and the sweep, with the dataset oracle and all entrants."""
    table = experiment.table
    return evaluate(
        table,
        experiment.probabilities,
        experiment.expected_costs_usd,
        experiment.policies,
        (dataset_oracle(table, experiment.categories()), *experiment.entrants),
    )


def all_sections(experiment: Experiment, figures: Evaluation) -> Sections:
    """Return every section for which the experiment has input."""
    table, chosen = experiment.table, experiment.chosen()
    return Sections(
        categories=by_category(table, chosen, experiment.categories()),
        routing=routing(table, chosen),
        misroutes=misroutes(table, chosen, experiment.table.examples),
        confusion=confusion(table, chosen),
        calibration=calibration(table, experiment.probabilities),
        calibrating=experiment.calibrating,
        promises=validate_goals(experiment),
        field=field_rows(experiment),
        budgets=budgets(figures.sweep),
        tokens=token_use(table, experiment.prices) if experiment.prices else (),
        parts=ablation(experiment),
        folds=stability(folds(experiment), experiment.rule),
        seeds=stability(experiment.runs, experiment.rule),
    )


def field_rows(experiment: Experiment) -> tuple[FieldRow, ...]:
    """Apply other papers' metrics to the router and every entrant that has probabilities."""
    named = [("router", experiment.probabilities)] + [
        (entrant.name, entrant.probabilities)
        for entrant in experiment.entrants
        if entrant.probabilities is not None
    ]
    return tuple(
        field_row(name, experiment.table, probabilities, experiment.expected_costs_usd)
        for name, probabilities in named
    )
