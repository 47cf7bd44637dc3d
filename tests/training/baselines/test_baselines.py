"""Every baseline, on tables whose right answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from switchcraft_training.baselines.base import Baseline, HeldOut, held_out, profiled_costs_usd
from switchcraft_training.baselines.registry import baselines, contenders
from switchcraft_training.evaluation.evaluate import Choices
from switchcraft_training.evaluation.metrics import mean_auc
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.preferences.splits import Split
from tests.training.baselines.cases import (
    ARMS,
    COSTS_USD,
    SPLIT,
    CountingEmbedder,
    example,
    learnable,
    views,
    without_labels,
)

ALL = {baseline.name: baseline for baseline in baselines(ARMS, views(), CountingEmbedder())}
PREDICTING = (
    "TF-IDF + LR",
    "TF-IDF + LR, truncated input",
    "kNN",
    "similarity",
    "MLP",
    "MLP, truncated input",
    "MLP, cost-weighted loss",
    "matrix factorization",
    "MIRT",
)


def accuracy(table: Table, said: HeldOut, rule: str = "theta=0.5") -> float:
    """Return the share of queries whose chosen arm is right."""
    return float(table.correct[list(said.rows), said.choices[rule]].mean())


def test_the_registry_has_every_baseline() -> None:
    """Singles, three heuristics, random, the predictors, and both oracles are there by name."""
    others = {"number of turns", "length", "number of tools", "random", "dataset oracle", "oracle"}
    assert ALL.keys() == {*ARMS, *others, *PREDICTING}


def test_contenders_are_what_an_evaluation_does_not_know_by_itself() -> None:
    """Single models, random choice and the oracle are left out; truncated input unless asked."""
    known = {*ARMS, "random", "oracle"}
    every, packed = (
        [each.name for each in contenders(views(), CountingEmbedder(), truncated=truncated)]
        for truncated in (True, False)
    )
    assert every == [name for name in ALL if name not in known]
    assert set(every) - set(packed) == {"TF-IDF + LR, truncated input", "MLP, truncated input"}
    assert packed == [name for name in every if name in packed]


@pytest.mark.parametrize("name", PREDICTING)
def test_what_can_be_learned_is_learned(name: str) -> None:
    """On queries it has not seen, each tells for which the small arm is right, and saves by it."""
    table = learnable()
    said = held_out(ALL[name], table, [SPLIT], ["theta=0.5", "drift=0.1"])
    rows = list(said.rows)
    assert said.probabilities is not None
    assert mean_auc(table.correct[rows, :1], said.probabilities[:, :1]) > 0.95
    assert ((said.probabilities >= 0) & (said.probabilities <= 1)).all()
    random = held_out(ALL["random"], table, [SPLIT])
    assert accuracy(table, said, "drift=0.1") > accuracy(table, random) + 0.1


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_says_the_same(name: str) -> None:
    """Fitted twice on the same queries, a baseline says the same of others."""
    first, second = (held_out(ALL[name], learnable(), [SPLIT]) for _ in range(2))
    assert first.choices["theta=0.5"].tolist() == second.choices["theta=0.5"].tolist()
    np.testing.assert_array_equal(first.probabilities, second.probabilities)


@pytest.mark.parametrize("name", ALL)
def test_the_oracle_bounds_every_baseline(name: str) -> None:
    """None is right more often than the oracle, and of those as often right none is cheaper."""
    table = learnable()
    said, oracle = (held_out(b, table, [SPLIT]) for b in (ALL[name], ALL["oracle"]))
    assert accuracy(table, said) <= accuracy(table, oracle)
    solvable = (table.correct[list(said.rows)] == 1).any(1)
    right = table.correct[list(said.rows), said.choices["theta=0.5"]] == 1
    paid, least = (np.asarray(COSTS_USD)[s.choices["theta=0.5"]] for s in (said, oracle))
    assert (least <= paid)[right & solvable].all()


@pytest.mark.parametrize("name", ALL)
def test_no_label_of_the_queries_asked_about_is_read(name: str) -> None:
    """Other labels of the test queries change nothing that a baseline says, but the oracle."""
    table = learnable()
    test = list(SPLIT.test)
    flipped = table.correct.copy()
    flipped[test] = 1 - flipped[test]
    other = Table(table.examples, table.arms, flipped, table.cost_usd)
    first, second = (held_out(ALL[name], t, [SPLIT]) for t in (table, other))
    same = first.choices["theta=0.5"].tolist() == second.choices["theta=0.5"].tolist()
    assert same is (name != "oracle")


@pytest.mark.parametrize("name", PREDICTING)
def test_a_query_that_an_arm_was_not_asked_teaches_nothing_of_it(name: str) -> None:
    """Of the small arm's wrong answers all but ten are struck out: it is believed more than before.

    Were they read as wrong, nothing would change; were they read as correct, it would be believed
    more still.
    """
    table = learnable()
    hard = [r for r in (*SPLIT.train, *SPLIT.validation) if table.correct[r, 0] == 0]
    unknown = without_labels(table, hard[10:], arm=0)
    correct = np.where(np.isnan(unknown.correct), 1.0, unknown.correct)
    as_correct = Table(table.examples, ARMS, correct, table.cost_usd)
    is_hard = table.correct[list(SPLIT.test), 0] == 0
    believed = []
    for labelled in (table, unknown, as_correct):
        said = held_out(ALL[name], labelled, [SPLIT])
        assert said.probabilities is not None
        believed.append(said.probabilities[is_hard, 0].mean())
    assert believed == sorted(set(believed))


@pytest.mark.parametrize("name", PREDICTING)
def test_soft_labels_are_probabilities_to_be_met(name: str) -> None:
    """Where every answer was correct in 7 of 10 attempts, 0.7 is predicted."""
    table = learnable()
    soft = Table(table.examples, ARMS, np.full_like(table.correct, 0.7), table.cost_usd)
    said = held_out(ALL[name], soft, [SPLIT])
    assert said.probabilities is not None
    np.testing.assert_allclose(said.probabilities.mean(0), 0.7, atol=0.05)


def test_the_paper_rule_takes_the_cheapest_arm_that_is_probably_right() -> None:
    """At theta 0.5 easy queries go to the small arm, hard ones to the large one."""
    table = learnable()
    said = held_out(ALL["TF-IDF + LR"], table, [SPLIT])
    is_easy = table.correct[list(said.rows), 0] == 1
    assert (said.choices["theta=0.5"] == np.where(is_easy, 0, 1)).mean() > 0.95


def test_the_cost_weighted_loss_doubts_dear_arms_more() -> None:
    """Against the same network without weights, the dear arm's probability falls most."""
    table = learnable()
    plain, weighted = (
        held_out(ALL[name], table, [SPLIT]).probabilities
        for name in ("MLP", "MLP, cost-weighted loss")
    )
    assert plain is not None
    assert weighted is not None
    fall = (plain - weighted).mean(0)
    assert fall[1] > max(fall[0], 0.01)


def chosen(baseline: Baseline, table: Table) -> Choices:
    """Return what a baseline chooses for the queries that it was fitted on."""
    return baseline.fit(table, table).choices(table)


def table_of(correct: Floats, cost_usd: Floats) -> Table:
    """Return a table of as many queries as there are labels."""
    return Table(tuple(example(i, "x") for i in range(len(correct))), ARMS, correct, cost_usd)


def test_heuristics_part_queries_where_training_data_says() -> None:
    """The number of tools tells hard from easy here; the number of turns, always 1, does not."""
    table = learnable()
    by_tools = held_out(ALL["number of tools"], table, [SPLIT])
    is_hard = table.correct[list(by_tools.rows), 0] == 0
    assert by_tools.choices["theta=0.5"].tolist() == is_hard.astype(int).tolist()
    by_turns = held_out(ALL["number of turns"], table, [SPLIT])
    assert set(by_turns.choices["theta=0.5"]) == {1}


def test_the_dataset_oracle_knows_categories_and_falls_back_on_the_best_arm() -> None:
    """Each category has its arm, of equal ones the cheaper; an unseen one has the best of all."""
    table = learnable()
    fitted = ALL["dataset oracle"].fit(table, table)
    unknown = (
        example(0, "x", category="easy"),
        example(1, "x", category="hard"),
        example(2, "x", category="other"),
    )
    asked = Table(unknown, ARMS, np.zeros((3, 2)), np.zeros((3, 2)))
    assert fitted.choices(asked).tolist() == [0, 1, 1]
    tied = table_of(np.ones((4, 2)), np.tile([2.0, 1.0], (4, 1)))
    assert chosen(ALL["dataset oracle"], tied).tolist() == [1, 1, 1, 1]


def test_the_oracle_takes_the_cheapest_correct_arm_or_else_the_dearest() -> None:
    """Arms that were not asked are never taken; of probabilities, the highest is."""
    correct = np.array([[1, 1], [0, 1], [0, 0], [0, np.nan], [np.nan, 1], [0.4, 0.6], [0.5, 0.5]])
    cost_usd = np.where(np.isnan(correct), np.nan, [[1.0, 2.0]])
    table = table_of(correct, cost_usd)
    assert chosen(ALL["oracle"], table).tolist() == [0, 1, 1, 0, 1, 1, 0]


def test_costs_are_profiled_over_the_queries_that_an_arm_was_asked() -> None:
    """A cost recorded without a label does not count; an arm without any label is refused."""
    correct = np.array([[1.0, np.nan], [0.0, 1.0]])
    cost_usd = np.array([[2.0, 9.0], [4.0, 5.0]])
    assert profiled_costs_usd(table_of(correct, cost_usd)) == (3.0, 5.0)
    correct[1, 1] = np.nan
    with pytest.raises(ValueError, match="no training label of large"):
        profiled_costs_usd(table_of(correct, cost_usd))


def test_folds_give_every_query_once() -> None:
    """Rows follow the folds' tests, and every policy asked for has a choice for each."""
    table = learnable(60)
    parts = [tuple(range(start, start + 20)) for start in (0, 20, 40)]
    folds = [Split(parts[i - 2], parts[i - 1], parts[i]) for i in range(3)]
    said = held_out(ALL["MLP"], table, folds, ["theta=0.5", "drift=0.05"])
    assert said.rows == tuple(range(60))
    assert {rule: len(arms) for rule, arms in said.choices.items()} == {
        "theta=0.5": 60,
        "drift=0.05": 60,
    }
