"""The table of examples x arms that every stage of training shares, and its costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from router_service.measurement.rules import Choices, pick
from router_service.policies.costs import SECONDS_PER_HOUR, TOKENS_PER_MTOK, ArmProfile, Price
from router_service.predictor.packing import Packed
from switchcraft_training.records import Example
from switchcraft_training.storage import complete_file

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RECORDED: Final = (*("correct", "attempts", "input_tokens", "output_tokens", "seconds"),)
"""The layers that come from recordings; `cost_usd` follows from them and from prices."""
LAYERS: Final = (*RECORDED, "cost_usd")
_COLUMNS: Final = ("groups", "own_groups", "folds", "expected_calls", "is_measured")


def _not_given() -> Any:  # noqa: ANN401 - an array of any type
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Examples in rows and arms in columns, with the recorded data about each pair.

    The layers `correct` to `attempts` have the shape (rows, arms). A value is NaN if the arm was
    not asked or nothing was recorded; a layer that is not given is NaN everywhere. `correct` is the
    probability of a correct answer: the share of `attempts` that were correct, which is 0 or 1 for
    a query that was asked once (paper, appendix on probabilistic labels). Tokens, seconds and cost
    are means over the attempts. Output tokens include reasoning tokens.

    The other arrays have the shape (rows,). Near-duplicate rows have equal `groups` (default: each
    row has its own group). `own_groups` are those of the measured rows if there were no others, so
    that folds do not depend on rows that are only used for training. `folds` is the fold that tests
    a row (default: -1), and `expected_calls` is the number of calls that a query requires (default:
    NaN, unknown). Metrics are computed only on rows with `is_measured` (default: all); the other
    rows are only used for training. `packed` holds the conversations as the service packs them, and
    is empty until training packs them.
    """

    examples: tuple[Example, ...]
    arms: tuple[str, ...]
    correct: Floats
    cost_usd: Floats = field(default_factory=_not_given)
    input_tokens: Floats = field(default_factory=_not_given)
    output_tokens: Floats = field(default_factory=_not_given)
    seconds: Floats = field(default_factory=_not_given)
    attempts: Floats = field(default_factory=_not_given)
    groups: NDArray[np.int64] = field(default_factory=_not_given)
    own_groups: NDArray[np.int64] = field(default_factory=_not_given)
    folds: NDArray[np.int64] = field(default_factory=_not_given)
    expected_calls: Floats = field(default_factory=_not_given)
    is_measured: Flags = field(default_factory=_not_given)
    packed: tuple[Packed, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.examples)
        defaults = {
            **{name: np.full((rows, len(self.arms)), np.nan) for name in LAYERS},
            "groups": np.arange(rows),
            "own_groups": np.arange(rows),
            "folds": np.full(rows, -1),
            "expected_calls": np.full(rows, np.nan),
            "is_measured": np.ones(rows, dtype=np.bool_),
        }
        for name, default in defaults.items():
            if getattr(self, name).size == 0:
                object.__setattr__(self, name, default)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def labels(self) -> NDArray[np.float32]:
        """`correct` in single precision, in which networks are trained."""
        return self.correct.astype(np.float32)

    @property
    def has_tokens(self) -> Flags:
        """Whether the tokens of each answer were counted, with the shape (rows, arms)."""
        return ~np.isnan(self.input_tokens + self.output_tokens)

    @property
    def measured_rows(self) -> tuple[int, ...]:
        """The indices of the rows that metrics are computed on."""
        return tuple(np.flatnonzero(self.is_measured).tolist())

    @property
    def teaching_rows(self) -> tuple[int, ...]:
        """The indices of the rows that are only used for training."""
        return tuple(np.flatnonzero(~self.is_measured).tolist())

    def take(self, rows: Sequence[int] | Choices | Flags) -> Table:
        """Return the rows at these indices in the given order, or the rows that a mask selects."""
        selection = rows if isinstance(rows, np.ndarray) else np.array(rows, dtype=np.int64)
        chosen = np.arange(len(self))[selection]
        arrays: dict[str, Any] = {
            name: getattr(self, name)[chosen] for name in (*LAYERS, *_COLUMNS)
        }
        return replace(
            self,
            examples=tuple(self.examples[row] for row in chosen),
            packed=tuple(self.packed[row] for row in chosen) if self.packed else (),
            **arrays,
        )

    def measured(self, arms: Sequence[str]) -> Table:
        """Return the rows that metrics are computed on, with these arms as columns."""
        return self.take(self.is_measured).select_arms(arms)

    def select_arms(self, arms: Sequence[str]) -> Table:
        """Return the table with these arms as columns; a missing arm counts as never asked."""
        places = [self.arms.index(arm) if arm in self.arms else len(self.arms) for arm in arms]
        layers: dict[str, Any] = {}
        for name in LAYERS:
            missing = 0 if name == "attempts" else np.nan
            padded = np.pad(getattr(self, name), ((0, 0), (0, 1)), constant_values=missing)
            layers[name] = np.ascontiguousarray(padded[:, places])
        return replace(self, arms=tuple(arms), **layers)

    def pick(self, choices: Choices) -> tuple[Floats, Floats]:
        """Return the correctness and the cost in USD of each row's chosen arm, (rows,) each."""
        return pick(self, choices)


def concatenate(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of several tables, which must all have the same arms."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in (*LAYERS, *_COLUMNS)
    }
    return replace(
        tables[0],
        examples=tuple(example for table in tables for example in table.examples),
        packed=tuple(row for table in tables for row in table.packed),
        **arrays,
    )


def save_layers(table: Table, path: Path) -> None:
    """Write the recorded data to a file that appears only when it is complete.

    Training keeps these files because judging a hundred thousand answers takes minutes.
    """
    layers = {name: getattr(table, name) for name in RECORDED} | {"correct": table.labels}
    with complete_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **layers)  # pyrefly: ignore[bad-argument-type]


def load_layers(path: Path, examples: Sequence[Example], arms: Sequence[str]) -> Table:
    """Read a file that `save_layers` wrote for these examples and arms."""
    with np.load(path, allow_pickle=False) as file:
        layers = {name: file[name].astype(np.float64) for name in RECORDED}
    return Table(tuple(examples), tuple(arms), **layers)


def costs_usd(table: Table, prices: Mapping[str, Price]) -> Floats:
    """Return the cost of every recorded answer, (rows, arms); `prices` must include every arm.

    A failed request without usage counts costs 0.
    """
    arms = [prices[arm] for arm in table.arms]
    read = table.input_tokens * np.array([price.input_usd_per_mtok or 0.0 for price in arms])
    written = table.output_tokens * np.array([price.output_usd_per_mtok or 0.0 for price in arms])
    ran = table.seconds * np.array([price.usd_per_hour or 0.0 for price in arms])
    tokens_usd: Floats = np.nan_to_num(read + written, nan=0.0) / TOKENS_PER_MTOK
    hours_usd: Floats = np.nan_to_num(ran, nan=0.0) / SECONDS_PER_HOUR
    return tokens_usd + hours_usd


def profile_arms(table: Table, prices: Mapping[str, Price]) -> dict[str, ArmProfile]:
    """Return each arm's mean usage at its price; `prices` must include every arm.

    A profile describes the cost of an answer. It therefore omits failed requests, which have no
    usage counts. Raises ValueError if an arm has no request with all the counts that its price
    needs.
    """
    return {arm: _profile_arm(table, column, prices[arm]) for column, arm in enumerate(table.arms)}


def _profile_arm(table: Table, column: int, price: Price) -> ArmProfile:
    has_seconds = ~np.isnan(table.seconds[:, column])
    is_counted = (table.has_tokens[:, column] | (not price.has_token_prices)) & (
        has_seconds | (not price.has_hourly_price)
    )
    if not is_counted.any():
        problem = "has no recorded answer with the tokens or seconds that its price needs"
        raise ValueError(f"arm {table.arms[column]!r} {problem}")

    def mean(layer: Floats) -> float:
        """Return the mean of the known values, or 0 if none is known and the price needs none."""
        values = layer[is_counted, column]
        known = values[~np.isnan(values)]
        return float(known.mean()) if known.size else 0.0

    return ArmProfile(
        input_tokens=mean(table.input_tokens),
        output_tokens=mean(table.output_tokens),
        seconds=mean(table.seconds),
        price=price,
        n=int(is_counted.sum()),
    )
