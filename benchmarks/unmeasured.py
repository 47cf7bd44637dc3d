"""Pools with models that nobody has measured: what verified answers reach, on unseen tools.

    python -m benchmarks.unmeasured DATA --workspace WORK [--parts 83] [--processes 2]

Of the eight models of the shipped artifact, four are left out of the training of a verifier, which
then judges the answers of these four (70 pools), or one is left out and joins the seven others
(8 pools). Verifiers that know all eight are the comparison. The verifier is that of unfamiliar
requests, by today's recipe, and has not seen the tools of the queries that it is measured on.
Accuracies and costs of the models that were left out are estimated as a gateway does. A part is one
pool in one of the five folds; on two idle cores, a part of four models takes one minute of
processor time, and one of eight two. Each pool comes once before any comes twice. Fitted parts are
kept in WORK, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.measurement.simulation import Simulation
from router_service.measurement.unmeasured import PRICE_OF_CORRECT, AccuracyByCost
from router_service.policies.costs import ArmProfile
from router_service.verifier.answer_features import Candidates
from router_service.verifier.graphs import GAIN_FEATURES, VerifierSpec
from switchcraft_training.config import trained_config
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.models.verifier import FULL_EFFORT, VerifierData, fit_verifier
from switchcraft_training.training_data import read_training_data
from switchcraft_training.unfamiliar import PLAIN, Answers, Settings, read_answers
from switchcraft_training.verification import judge_answers, with_current_pool
from switchcraft_training.workers import Workers

FACTORS = (3.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0)
"""Prices of a correct answer, in units of the expected cost of the strongest model."""

FOLDS = 5


class Part(NamedTuple):
    """Columns of the models that are left out, and the fold that the verifier is measured on."""

    unseen: tuple[int, ...]
    fold: int

    @property
    def name(self) -> str:
        """Name of the part's folder."""
        return f"{''.join(map(str, self.unseen))}-{self.fold}"


class Guess(NamedTuple):
    """What is assumed of the arms of a pool: how often each is right, and its cost in USD."""

    accuracies: Floats
    costs_usd: Floats


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded answers, with their verifier's settings and the arms' token profiles."""

    settings: Settings
    profiles: Sequence[ArmProfile]
    floor: float
    workspace: Path

    @classmethod
    def read(cls, data: Path, workspace: Path) -> Recorded:
        """Read the shipped artifact and its recordings; answers in context are kept in a file."""
        workspace.mkdir(parents=True, exist_ok=True)
        kept = workspace / "settings.pickle"
        manifest = Artifact.load(SHIPPED).manifest
        assert manifest.verifier is not None  # noqa: S101 - for types
        if not kept.exists():
            config = with_current_pool(trained_config(manifest), manifest)
            held_out = HeldOut.read(SHIPPED / HELD_OUT)
            table = read_training_data(config, data, workspace).table.measured(config.arms)
            table = replace(table, folds=held_out.folds)
            prices = [entry.price for entry in config.pool]
            costs_usd = held_out.fold_costs_usd(prices).mean(axis=0)
            answers = read_answers(config, table, data)
            settings = Settings(table, answers, costs_usd, config.seed, FULL_EFFORT)
            kept.write_bytes(pickle.dumps(settings))
        profiles = [manifest.profile[arm] for arm in manifest.arms]
        settings = pickle.loads(kept.read_bytes())  # noqa: S301 - written above
        return cls(settings, profiles, manifest.verifier.floor, workspace)

    @property
    def table(self) -> Table:
        """The measured queries."""
        return self.settings.table

    def known(self, part: Part) -> list[int]:
        """Return the columns of the models that a verifier learns from."""
        return [each for each in range(len(self.profiles)) if each not in part.unseen]

    def rows(self, part: Part, *, tested: bool) -> np.ndarray:
        """Return the queries that a verifier is measured on, or those that it learns from."""
        return np.flatnonzero((self.table.folds == part.fold) == tested)

    def data(
        self, answers: Sequence[Answers], arms: Sequence[int], rows: np.ndarray, guess: Guess
    ) -> VerifierData:
        """Return some queries with the answers of some arms, in this order."""
        chosen = [_select_arms(each, arms) for each in answers]
        settings = replace(self.settings, costs_usd=guess.costs_usd)
        return settings.data(chosen, rows, guess.accuracies)

    def guess(self, part: Part, arms: Sequence[int], *, knows_accuracies: bool = False) -> Guess:
        """Return what a gateway assumes of these arms, of which it has measured the known ones."""
        known, train = self.known(part), self.rows(part, tested=False)
        costs_usd = np.array([each.cost_usd() for each in self.profiles])
        accuracies = self.table.correct[train].mean(axis=0)
        line = AccuracyByCost.fit(costs_usd[known].tolist(), accuracies[known].tolist())
        measured = [self.profiles[each] for each in known]
        tokens = {
            name: float(np.mean([getattr(each, name) for each in measured]))
            for name in ("input_tokens", "output_tokens", "seconds")
        }
        for each in part.unseen:
            costs_usd[each] = self.profiles[each].model_copy(update=tokens).cost_usd()
            if not knows_accuracies:
                accuracies[each] = line.at(costs_usd[each])
        return Guess(accuracies[[*arms]], costs_usd[[*arms]])


def fit_part(recorded: Recorded, part: Part) -> None:
    """Fit the verifier of a part from the known arms, and write it to the workspace."""
    folder = recorded.workspace / part.name
    if (folder / "spec.json").exists():
        return
    folder.mkdir(exist_ok=True)
    arms, rows = recorded.known(part), recorded.rows(part, tested=False)
    learned = recorded.settings.answers.learned
    data = recorded.data(learned, arms, rows, recorded.guess(part, arms))
    fitted = fit_verifier(data, recorded.settings.seed, recorded.settings.effort)
    (folder / "spec.json").write_text(fitted.export(folder, 1.0).model_dump_json())


class Outcome(NamedTuple):
    """A pool in a fold: points against its best model, and the mean costs of both in USD."""

    points: float
    cost_usd: float
    best_usd: float


def measure_part(
    recorded: Recorded, part: Part, *, knows_accuracies: bool = False
) -> Mapping[float, Outcome]:
    """Return the outcome of verified answers for each of `FACTORS`."""
    folder = recorded.workspace / part.name
    arms = [*part.unseen] if len(part.unseen) > 1 else [*range(len(recorded.profiles))]
    guess = recorded.guess(part, arms, knows_accuracies=knows_accuracies)
    spec = VerifierSpec.model_validate_json((folder / "spec.json").read_text())
    spec = spec.model_copy(update={"reliabilities": tuple(guess.accuracies.tolist())})
    rows = recorded.rows(part, tested=True)
    data = recorded.data([recorded.settings.answers.tested[PLAIN]], arms, rows, guess)
    simulation = Simulation(judge_answers(folder, spec, data), GAIN_FEATURES)
    strongest_usd = max(zip(guess.accuracies, guess.costs_usd, strict=True))[1]
    correct = recorded.table.correct[rows][:, arms]
    paid_usd = np.nan_to_num(recorded.table.cost_usd[rows][:, arms])
    best = int(recorded.table.correct[:, arms].mean(axis=0).argmax())
    found = {}
    for factor in FACTORS:
        answers = simulation.answer(
            guess.costs_usd[None, :], factor * strongest_usd, floor=recorded.floor
        )
        picked, cost_usd, _ = answers.outcome(correct, paid_usd, np.zeros_like(correct))
        points = 100 * float((picked - correct[:, best]).mean())
        found[factor] = Outcome(points, float(cost_usd.mean()), float(paid_usd[:, best].mean()))
    return found


def _select_arms(answers: Answers, arms: Sequence[int]) -> Answers:
    """Return the answers of some arms, whose columns are then their places in `arms`."""
    place = {arm: number for number, arm in enumerate(arms)}
    return answers._replace(
        candidates=[
            Candidates(
                {place[arm]: each.answers[arm] for arm in arms},
                {
                    (place[one], place[other]): relation
                    for (one, other), relation in each.relations.items()
                    if one in place and other in place
                },
            )
            for each in answers.candidates
        ],
        correct=answers.correct[:, [*arms]],
        corrupted=[
            [replace(one, column=place[one.column]) for one in each if one.column in place]
            for each in answers.corrupted
        ],
    )


def all_parts(arms: int) -> Iterator[Part]:
    """Yield every pool in one of the folds, single models first, and then in the others.

    Before them come verifiers that know all models, for comparison. Pools are in random order, so
    that the first ones are a sample.
    """
    yield from (Part((), fold) for fold in range(FOLDS))
    pools = [(column,) for column in range(arms)] + [*combinations(range(arms), 4)]
    order = np.random.default_rng(0).permutation(len(pools)).tolist()
    for number in range(FOLDS):
        parts = [Part(pools[place], (place - arms + number) % FOLDS) for place in order]
        yield from sorted(parts, key=lambda part: len(part.unseen))


def print_table(recorded: Recorded, parts: Sequence[Part]) -> None:
    """Print points against the best model of a pool and the share of its cost, by price.

    The first share is that of the costs of all pools together, the second the median of the pools.
    """
    for name, size in (
        ("four unseen models", 4),
        ("one unseen model and seven known ones", 1),
        ("eight known models", 0),
    ):
        chosen = [each for each in parts if len(each.unseen) == size]
        for knows_accuracies in (False, True):
            accuracies = "known" if knows_accuracies else "estimated"
            print(f"\n{name}, accuracies {accuracies}: {len(chosen)} parts")
            measured = [
                measure_part(recorded, part, knows_accuracies=knows_accuracies) for part in chosen
            ]
            for factor in FACTORS:
                points, cost_usd, best_usd = np.array([each[factor] for each in measured]).T
                note = "  <- the default" if factor == PRICE_OF_CORRECT else ""
                print(
                    f"  {factor:4g} times its cost: {points.mean():+.2f} points"
                    f" ({points.min():+.1f} to {points.max():+.1f}) at"
                    f" {cost_usd.sum() / best_usd.sum():.1%}"
                    f" (median {np.median(cost_usd / best_usd):.1%}){note}"
                )


def main() -> None:
    """Fit what is not fitted yet, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--parts", type=int, default=83, help="fitted parts, of 395")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    recorded = Recorded.read(arguments.data, arguments.workspace)
    parts = [*all_parts(len(recorded.profiles))]
    for _ in Workers(arguments.processes).map(fit_part, recorded, parts[: arguments.parts], "part"):
        pass
    print_table(recorded, parts[: arguments.parts])


if __name__ == "__main__":
    main()
