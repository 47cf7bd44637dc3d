"""How often the interval of the relative accuracy contains the truth.

    python -m benchmarks.expectations --out runs/expectations.json

Days of traffic are simulated from the held-out predictions of the shipped artifact. A day has
requests of one group of queries, whose tools the router had not seen. The errors of the
probabilities are measured on the other groups only, as if the day's tools were new to them too. The
truth is the number of correct answers of the policy, divided by that of the best single model, on
the day's requests. Days have one policy, or a mix of four.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.stamp import write_figures
from router_service.artifact import ARTIFACTS, MANIFEST, Manifest, read_manifest
from router_service.measurement.expectations import (
    ComparedAnswers,
    EstimateErrors,
    RelativeAccuracy,
    compare_policies,
)
from router_service.measurement.held_out import HELD_OUT, HeldOut, named_floors
from router_service.policies.verified import is_verified

SIZES = (30, 100, 300, 1_000, 4_000)
"""Numbers of a day's requests."""
MIX = 4
"""Number of policies of a mixed day."""


@dataclass(frozen=True)
class Day:
    """The interval of a simulated day, and whether it contains the truth."""

    is_right: bool
    half_width: float
    is_right_by_chance_alone: bool
    """Whether an interval without the errors of the probabilities contains the truth."""


def take(answers: ComparedAnswers, rows: np.ndarray) -> ComparedAnswers:
    """Return some of the queries."""
    return ComparedAnswers(*(getattr(answers, field.name)[rows] for field in fields(answers)))


def simulate_day(
    parts: list[tuple[str, ComparedAnswers]], errors: EstimateErrors, rows: np.ndarray
) -> Day:
    """Return what the gateway would say of a day, whose requests take turns between policies."""
    sums = np.zeros(4)
    biased = actual = actual_baseline = 0.0
    for number, (rule, answers) in enumerate(parts):
        day = take(answers, rows[number :: len(parts)])
        error = errors.find(rule)
        if error is None:
            raise ValueError(f"{rule} was not measured")
        differs = day.differs
        own = np.where(differs, np.maximum(0.0, day.p_correct + error.bias), day.p_correct)
        independent = day.p_correct * (1 - day.p_correct) + day.p_baseline * (1 - day.p_baseline)
        sums += (
            own.sum(),
            day.p_baseline.sum(),
            error.variance_share * independent[differs].sum(),
            error.spread * differs.sum(),
        )
        biased += day.p_correct.sum()
        actual += day.correct.sum()
        actual_baseline += day.baseline_correct.sum()
    stated = RelativeAccuracy.of(*sums)
    by_chance = RelativeAccuracy.of(biased, sums[1], sums[2], 0.0)
    truth = actual / max(actual_baseline, 1.0)
    if stated is None or by_chance is None:
        raise ValueError("the baseline model is never expected to be right")
    return Day(
        stated.low <= truth <= stated.high,
        (stated.high - stated.low) / 2,
        by_chance.low <= truth <= by_chance.high,
    )


def simulate(
    compared: dict[str, ComparedAnswers], groups: np.ndarray, days: int
) -> Iterator[tuple[str, int, Day]]:
    """Yield the kind of policy, the size and the outcome of each simulated day."""
    rng = np.random.default_rng(0)
    rules = list(compared)
    for group in np.unique(groups):
        inside, outside = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        others = {rule: take(answers, outside) for rule, answers in compared.items()}
        errors = EstimateErrors.of(others, groups[outside])
        for rule in rules:
            mixed = [rule, *rng.choice(rules, MIX - 1)]
            kinds = {"verified" if is_verified(rule) else "once": [rule], "mixed": mixed}
            for kind, chosen in kinds.items():
                parts = [(each, compared[each]) for each in chosen]
                for size in SIZES:
                    for _ in range(days):
                        yield kind, size, simulate_day(parts, errors, rng.choice(inside, size))


def compare_with_best(directory: Path, manifest: Manifest) -> dict[str, ComparedAnswers]:
    """Return what an artifact's policies answer beside its best single model, by rule."""
    return compare_policies(
        directory / HELD_OUT,
        range(len(manifest.arms)),
        manifest.arms.index(manifest.best_single_arm or ""),
        [manifest.profile[arm].price for arm in manifest.arms],
        named_floors(manifest),
        () if manifest.verifier is None else manifest.verifier.gain_features,
    )


def main() -> None:
    """Print and write the share of days whose interval contains the truth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=20, help="of each policy, group and size")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    figures = {}
    heads = "".join(f"{name:>8}" for name in ("days", "right", "half", "chance"))
    print(f"{'artifact and policies':30}{'requests':>9}{heads}")
    for directory in sorted(path for path in ARTIFACTS.iterdir() if path.is_dir()):
        manifest = read_manifest(directory / MANIFEST)
        compared = compare_with_best(directory, manifest)
        groups = HeldOut.read(directory / HELD_OUT).folds
        found: dict[tuple[str, int], list[Day]] = {}
        for kind, size, day in simulate(compared, groups, arguments.days):
            found.setdefault((kind, size), []).append(day)
        for (kind, size), days in sorted(found.items()):
            row = {
                "days": len(days),
                "right": float(np.mean([day.is_right for day in days])),
                "half_width": float(np.mean([day.half_width for day in days])),
                "right_by_chance_alone": float(
                    np.mean([day.is_right_by_chance_alone for day in days])
                ),
            }
            name = f"{manifest.name}, {kind}"
            figures[f"{name}, {size}"] = row
            print(
                f"{name:30}{size:9,}{len(days):8,}{row['right']:8.1%}{row['half_width']:8.1%}"
                f"{row['right_by_chance_alone']:8.1%}"
            )
    write_figures(arguments.out, figures, "numpy")


if __name__ == "__main__":
    main()
