"""Baselines on tables with a known best routing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsRegressor

from router_service.measurement.rules import Choices
from router_service.measurement.statistics import mean_auc
from switchcraft_training.baselines.base import (
    Baseline,
    HeldOutResult,
    held_out,
    profiled_costs_usd,
)
from switchcraft_training.baselines.predictors import Neighbours
from switchcraft_training.baselines.registry import baselines, baselines_to_fit
from switchcraft_training.data.splits import Split
from switchcraft_training.data.table import Floats, Table
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

PROFILES = dict(zip(ARMS, ("river stone", "violin market"), strict=True))
ALL = {each.name: each for each in baselines(ARMS, views(), CountingEmbedder(), PROFILES)}
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


@cache
def learnable_result(name: str) -> HeldOutResult:
    """Return a baseline's results on the learnable table; it is fitted once for all tests."""
    return held_out(ALL[name], learnable(), [SPLIT], ["theta=0.5", "drift=0.1"])


def accuracy(table: Table, result: HeldOutResult, rule: str = "theta=0.5") -> float:
    """Return the share of queries for which the chosen arm is correct."""
    return float(table.correct[list(result.rows), result.choices[rule]].mean())


def test_registry_has_every_baseline() -> None:
    """The registry has single models, heuristics, random choice, predictors and oracles by name."""
    others = {"number of turns", "length", "number of tools", "random", "dataset oracle", "oracle"}
    assert ALL.keys() == {*ARMS, *others, *PREDICTING}


def test_baselines_to_fit_exclude_single_models_random_and_oracle() -> None:
    """Baselines that need no fitting are excluded; truncated input is optional."""
    known = {*ARMS, "random", "oracle"}
    given = (views(), CountingEmbedder(), PROFILES)
    every, packed = (
        [each.name for each in baselines_to_fit(*given, truncated=truncated)]
        for truncated in (True, False)
    )
    assert every == [name for name in ALL if name not in known]
    assert set(every) - set(packed) == {"TF-IDF + LR, truncated input", "MLP, truncated input"}
    assert packed == [name for name in every if name in packed]


def test_mirt_is_left_out_without_profiles() -> None:
    """MIRT is not fitted on arms' names as if they described the arms."""
    names = {each.name for each in baselines_to_fit(views(), CountingEmbedder())}
    assert set(PREDICTING) - names == {"MIRT"}


@pytest.mark.parametrize("name", PREDICTING)
def test_predictor_learns_for_which_queries_the_small_arm_is_correct(name: str) -> None:
    """On held-out queries, each predictor recognizes the small arm's queries and routes by it."""
    table = learnable()
    result = learnable_result(name)
    rows = list(result.rows)
    assert result.probabilities is not None
    assert mean_auc(table.correct[rows, :1], result.probabilities[:, :1]) > 0.95
    assert ((result.probabilities >= 0) & (result.probabilities <= 1)).all()
    random = learnable_result("random")
    assert accuracy(table, result, "drift=0.1") > accuracy(table, random) + 0.1


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_give_equal_results(name: str) -> None:
    """A baseline that is fitted twice on the same queries gives equal results."""
    first, second = learnable_result(name), held_out(ALL[name], learnable(), [SPLIT])
    assert first.choices["theta=0.5"].tolist() == second.choices["theta=0.5"].tolist()
    np.testing.assert_array_equal(first.probabilities, second.probabilities)


@pytest.mark.parametrize("name", ALL)
def test_no_baseline_beats_the_oracle(name: str) -> None:
    """No baseline is correct more often than the oracle, or cheaper when both are correct."""
    table = learnable()
    result, oracle = learnable_result(name), learnable_result("oracle")
    assert accuracy(table, result) <= accuracy(table, oracle)
    solvable = (table.correct[list(result.rows)] == 1).any(1)
    right = table.correct[list(result.rows), result.choices["theta=0.5"]] == 1
    paid, least = (np.asarray(COSTS_USD)[s.choices["theta=0.5"]] for s in (result, oracle))
    assert (least <= paid)[right & solvable].all()


@pytest.mark.parametrize("name", ALL)
def test_only_the_oracle_reads_test_labels(name: str) -> None:
    """Other labels of the test queries change only the oracle's choices."""
    table = learnable()
    test = list(SPLIT.test)
    flipped = table.correct.copy()
    flipped[test] = 1 - flipped[test]
    other = Table(table.examples, table.arms, flipped, table.cost_usd)
    first, second = learnable_result(name), held_out(ALL[name], other, [SPLIT])
    same = first.choices["theta=0.5"].tolist() == second.choices["theta=0.5"].tolist()
    assert same is (name != "oracle")


@pytest.mark.parametrize("name", PREDICTING)
def test_missing_label_is_ignored(name: str) -> None:
    """Without all but ten of its wrong answers, the small arm gets a higher probability.

    If missing labels counted as wrong, the probability would not change. If they counted as
    correct, it would be higher still.
    """
    table = learnable()
    hard = [r for r in (*SPLIT.train, *SPLIT.validation) if table.correct[r, 0] == 0]
    unknown = without_labels(table, hard[10:], arm=0)
    correct = np.where(np.isnan(unknown.correct), 1.0, unknown.correct)
    as_correct = Table(table.examples, ARMS, correct, table.cost_usd)
    is_hard = table.correct[list(SPLIT.test), 0] == 0
    means = []
    for result in (
        learnable_result(name),
        held_out(ALL[name], unknown, [SPLIT]),
        held_out(ALL[name], as_correct, [SPLIT]),
    ):
        assert result.probabilities is not None
        means.append(result.probabilities[is_hard, 0].mean())
    assert means == sorted(set(means))


@pytest.mark.parametrize("name", PREDICTING)
def test_soft_labels_are_predicted_as_probabilities(name: str) -> None:
    """If every answer was correct in 7 of 10 attempts, the prediction is 0.7."""
    table = learnable()
    soft = Table(table.examples, ARMS, np.full_like(table.correct, 0.7), table.cost_usd)
    result = held_out(ALL[name], soft, [SPLIT])
    assert result.probabilities is not None
    np.testing.assert_allclose(result.probabilities.mean(0), 0.7, atol=0.05)


def test_paper_rule_takes_the_cheapest_arm_that_is_probably_correct() -> None:
    """At theta 0.5, easy queries go to the small arm and hard queries to the large arm."""
    table = learnable()
    result = learnable_result("TF-IDF + LR")
    is_easy = table.correct[list(result.rows), 0] == 1
    assert (result.choices["theta=0.5"] == np.where(is_easy, 0, 1)).mean() > 0.95


def test_cost_weighted_loss_lowers_expensive_arms_most() -> None:
    """Compared with the network without weights, the expensive arm's probability falls most."""
    plain, weighted = (
        learnable_result(name).probabilities for name in ("MLP", "MLP, cost-weighted loss")
    )
    assert plain is not None
    assert weighted is not None
    fall = (plain - weighted).mean(0)
    assert fall[1] > max(fall[0], 0.01)


def chosen(baseline: Baseline, table: Table) -> Choices:
    """Return a baseline's choices for the queries that it was fitted on."""
    return baseline.fit(table, table).choices(table)


def table_of(correct: Floats, cost_usd: Floats) -> Table:
    """Return a table of as many queries as there are labels."""
    return Table(tuple(example(i, "x") for i in range(len(correct))), ARMS, correct, cost_usd)


def test_heuristic_finds_its_threshold_in_the_training_data() -> None:
    """Here, the number of tools separates hard from easy.

    The number of turns, always 1, does not.
    """
    table = learnable()
    by_tools = learnable_result("number of tools")
    is_hard = table.correct[list(by_tools.rows), 0] == 0
    assert by_tools.choices["theta=0.5"].tolist() == is_hard.astype(int).tolist()
    by_turns = learnable_result("number of turns")
    assert set(by_turns.choices["theta=0.5"]) == {1}


def test_dataset_oracle_uses_categories_and_else_the_best_arm() -> None:
    """A category has its best arm, the cheaper of equal ones.

    An unseen category the best overall.
    """
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


def test_oracle_takes_the_cheapest_correct_arm_or_the_most_expensive() -> None:
    """The oracle never takes an arm that was not asked.

    Among probabilities, it takes the highest.
    """
    correct = np.array([[1, 1], [0, 1], [0, 0], [0, np.nan], [np.nan, 1], [0.4, 0.6], [0.5, 0.5]])
    cost_usd = np.where(np.isnan(correct), np.nan, [[1.0, 2.0]])
    table = table_of(correct, cost_usd)
    assert chosen(ALL["oracle"], table).tolist() == [0, 1, 1, 0, 1, 1, 0]


def clustered(rows: int, seed: int) -> Floats:
    """Return vectors of length 1 around 40 centers."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(40, 16))
    noise = np.random.default_rng(seed)
    found = centers[noise.integers(40, size=rows)] + noise.normal(0, 0.3, (rows, 16))
    scaled: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
    return scaled


def test_neighbours_are_those_of_an_exact_search() -> None:
    """The mean label equals scikit-learn's, also of an arm that was asked only some queries."""
    rng = np.random.default_rng(1)
    known, unseen = clustered(300, 1), clustered(700, 2)
    labels = rng.random((300, 3))
    labels[:200, 2] = np.nan
    found = Neighbours(known, labels).predict(unseen, (5, 40))
    for k, predicted in zip((5, 40), found, strict=True):
        for arm in range(3):
            asked = ~np.isnan(labels[:, arm])
            exact = KNeighborsRegressor(k, metric="cosine").fit(known[asked], labels[asked, arm])
            np.testing.assert_allclose(predicted[:, arm], exact.predict(unseen), atol=1e-9)


def test_a_search_in_cells_finds_most_neighbours() -> None:
    """If only a quarter of the vectors is searched, at most 2% of the labels change."""
    known, unseen = clustered(4_000, 1), clustered(200, 2)
    labels = np.arange(4_000.0)[:, None]
    (exact,) = Neighbours(known, labels).predict(unseen, (1,))
    (found,) = Neighbours(known, labels, searched_rows=1_000).predict(unseen, (1,))
    assert (found == exact).mean() >= 0.98


def test_costs_are_profiled_over_labelled_queries() -> None:
    """A cost without a label does not count; an arm without any label raises an error."""
    correct = np.array([[1.0, np.nan], [0.0, 1.0]])
    cost_usd = np.array([[2.0, 9.0], [4.0, 5.0]])
    assert profiled_costs_usd(table_of(correct, cost_usd)) == (3.0, 5.0)
    correct[1, 1] = np.nan
    with pytest.raises(ValueError, match="no training query has a label of large"):
        profiled_costs_usd(table_of(correct, cost_usd))


def test_folds_cover_every_query_once() -> None:
    """Rows follow the test parts of the folds, and every policy has a choice for each row."""
    table = learnable(60)
    parts = [tuple(range(start, start + 20)) for start in (0, 20, 40)]
    folds = [Split(parts[i - 2], parts[i - 1], parts[i]) for i in range(3)]
    result = held_out(ALL["MLP"], table, folds, ["theta=0.5", "drift=0.05"])
    assert result.rows == tuple(range(60))
    assert {rule: len(arms) for rule, arms in result.choices.items()} == {
        "theta=0.5": 60,
        "drift=0.05": 60,
    }
