"""Trials: every own query is asked once, of a router that has not seen it or one like it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from switchcraft_training.config import RunConfig
from switchcraft_training.dataset import load_dataset
from switchcraft_training.models.encoders import load_encoder, packing_for
from switchcraft_training.trial import Material, cross_validate, expected_costs_usd, gather


@pytest.fixture
def material(config: Path, benchmark: Path, tmp_path: Path) -> Material:
    """Gather the made-up benchmark for a router of trees and words."""
    values = yaml.safe_load(config.read_text())
    values["training"] |= {"shares": {"forest": 1, "lexical": 3}, "select_on": "last"}
    run = RunConfig.model_validate(values)
    dataset = load_dataset(run, benchmark)
    encoder = load_encoder(run.encoder.source)
    run = run.model_copy(update={"packing": packing_for(encoder, run.packing)})
    (tmp_path / "work").mkdir()
    return gather(run, dataset, encoder, tmp_path / "work")


def test_every_own_row_is_asked_once_of_a_router_that_has_not_seen_it(material: Material) -> None:
    """No fold trains on what it tests, nor on a near-duplicate of that; together they test all."""
    groups, own = material.rows.groups, list(material.dataset.own)
    tested: list[int] = []
    for split in material.folds():
        held = set(groups[list(split.test + split.validation)])
        assert not held & set(groups[list(split.train + split.teaching)])
        assert not set(groups[list(split.test)]) & set(groups[list(split.validation)])
        assert split.train
        tested += split.test
    assert sorted(tested) == own
    trial = cross_validate(material, exported=False)
    assert trial is not None
    for number, split in enumerate(material.folds()):
        assert set(trial.folds[list(split.test)]) == {number}
        assert trial.expected_costs_usd[split.test[0]].tolist() == pytest.approx(
            expected_costs_usd(material, split.train)
        )
    assert trial.probabilities is None
    assert trial.branches.keys() == {"forest", "lexical"}
    assert all(np.isfinite(logits).all() for logits in trial.branches.values())
    assert not np.isnan(trial.expected_costs_usd).any()


def test_a_row_s_own_labels_do_not_move_what_is_said_of_it(material: Material) -> None:
    """Turned over in one group, labels change what is said of others, and of that group nothing."""
    group = material.rows.groups[0]
    chosen = material.rows.groups == group
    fold = next(set(s.test) for s in material.folds() if 0 in s.test)
    first = cross_validate(material, exported=False)
    material.rows.labels[chosen] = 1 - material.rows.labels[chosen]
    second = cross_validate(material, exported=False)
    assert first is not None
    assert second is not None
    same = sorted(fold)  # all that is asked of the router that has not seen the group
    others = [row for row in material.dataset.own if row not in fold]
    for name in first.branches:
        np.testing.assert_array_equal(first.branches[name][same], second.branches[name][same])
        assert not np.allclose(first.branches[name][others], second.branches[name][others])


def test_what_the_graph_says_is_the_branches_mixed(material: Material) -> None:
    """A router without an encoder has nothing to quantize: both ways give one probability."""
    trial = cross_validate(material, exported=True)
    assert trial is not None
    assert trial.probabilities is not None
    shares = material.config.training.branch_shares
    np.testing.assert_allclose(trial.probabilities, trial.mixed(shares), atol=1e-5)
    twice = {name: 2 * share for name, share in shares.items()}
    np.testing.assert_allclose(trial.mixed(twice), trial.mixed(shares))
    alone = trial.branches["forest"]
    np.testing.assert_allclose(trial.mixed({"forest": 0.2}), 1 / (1 + np.exp(-alone)))


def test_a_student_learns_from_no_row_that_is_tested_nor_one_like_it(material: Material) -> None:
    """Rows apart are those that only teach, less the near-duplicates of the pool's own."""
    own = material.dataset.own[:50]
    groups = np.arange(len(material.rows.packed))
    groups[60:70] = groups[:10]
    parted = replace(
        material,
        dataset=replace(material.dataset, own=own),
        rows=replace(material.rows, groups=groups),
    )
    ids = [row.token_ids for row in material.rows.packed]
    assert parted.apart == (*ids[50:60], *ids[70:])


def test_another_seed_parts_the_queries_otherwise(material: Material) -> None:
    """A seed is of folds and branches; the same one parts them the same."""
    assert material.with_seed(42).folds() == material.folds()
    assert material.with_seed(2).folds() != material.folds()


def test_other_ids_leave_counts_and_labels(material: Material) -> None:
    """Truncated input changes what is read of a query, and nothing that is known of it."""
    other = material.with_ids([(1, 2, 3)] * len(material.rows.packed))
    assert {row.token_ids for row in other.rows.packed} == {(1, 2, 3)}
    pairs = zip(other.rows.packed, material.rows.packed, strict=True)
    assert all(one.features == before.features for one, before in pairs)
    assert other.rows.labels is material.rows.labels
