"""The table: selecting, joining, saving and loading rows and arms loses nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from switchcraft_training.data.table import Table, concatenate, load_layers, save_layers
from switchcraft_training.records import Example

NAN = np.nan
LAYERS = ("correct", "cost_usd", "input_tokens", "output_tokens", "seconds", "attempts")


def example(name: str) -> Example:
    """Return an example with this id."""
    return Example(name, "c", {})


TABLE = Table(
    examples=(example("x"), example("y")),
    arms=("a", "b"),
    correct=np.array([[1.0, 0.5], [0.0, NAN]]),
    input_tokens=np.array([[100.0, 200.0], [300.0, NAN]]),
    output_tokens=np.array([[10.0, 50.0], [30.0, NAN]]),
    attempts=np.array([[1.0, 2.0], [1.0, 0.0]]),
    groups=np.array([7, 9]),
    expected_calls=np.array([1.0, NAN]),
    is_measured=np.array([True, False]),
)


def test_missing_layers_are_unknown_and_columns_have_defaults() -> None:
    """A layer that is not given is NaN; by default each row is its own group and is measured."""
    table = Table((example("x"), example("y")), ("a",), np.ones((2, 1)))
    for name in LAYERS[1:]:
        assert np.isnan(getattr(table, name)).all()
        assert getattr(table, name).shape == (2, 1)
    assert table.groups.tolist() == [0, 1]
    assert table.folds.tolist() == [-1, -1]
    assert np.isnan(table.expected_calls).all()
    assert (table.measured_rows, table.teaching_rows) == ((0, 1), ())


def test_taken_rows_joined_again_are_the_table() -> None:
    """All layers and columns are preserved; masks and indices select the same rows."""
    mask = TABLE.take(np.array([True, False]))
    whole = concatenate([mask, TABLE.take([1])])
    assert whole.examples == TABLE.examples
    for name in (*LAYERS, "groups", "folds", "expected_calls", "is_measured"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(TABLE, name))
    assert TABLE.take([1, 0, 1]).groups.tolist() == [9, 7, 9]
    assert len(TABLE.take([])) == 0


def test_selected_arms_keep_their_order_and_unknown_arms_were_not_asked() -> None:
    """An arm that the table lacks is NaN in every layer, and has no attempts."""
    turned = TABLE.select_arms(["b", "c", "a"])
    assert turned.arms == ("b", "c", "a")
    np.testing.assert_array_equal(turned.input_tokens, [[200, NAN, 100], [NAN, NAN, 300]])
    np.testing.assert_array_equal(turned.correct, [[0.5, NAN, 1], [NAN, NAN, 0]])
    assert turned.attempts.tolist() == [[2, 0, 1], [0, 0, 1]]


def test_measured_rows_with_the_pool_s_arms() -> None:
    """Rows that are only used for training are left out."""
    measured = TABLE.measured(["b"])
    assert (measured.examples, measured.correct.tolist()) == ((example("x"),), [[0.5]])


def test_picked_cells_are_the_chosen_arms() -> None:
    """Each row gives the correctness and cost of its chosen arm."""
    correct, cost_usd = TABLE.pick(np.array([1, 0]))
    assert correct.tolist() == [0.5, 0.0]
    assert np.isnan(cost_usd).all()


def test_saved_layers_are_loaded_as_they_were(tmp_path: Path) -> None:
    """Loading returns the recorded data; costs depend on prices and are not saved."""
    path = tmp_path / "below" / "layers.npz"
    save_layers(TABLE, path)
    assert [file.name for file in path.parent.iterdir()] == ["layers.npz"]
    loaded = load_layers(path, TABLE.examples, TABLE.arms)
    for name in LAYERS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(TABLE, name))
