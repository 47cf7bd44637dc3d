"""Replay of verified policies, on logs of a world in which the answers of every arm are known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from router_service.apis.conversation import Json, parse_conversation
from router_service.artifact import SHIPPED, Artifact
from router_service.core.decision_record import (
    AnswerContent,
    CandidateRecord,
    Content,
    LoggedCall,
)
from router_service.policies.verified import Verified
from router_service.router import Prediction, Router
from router_service.verifier.answer_features import Question
from switchcraft_training.cli import main
from switchcraft_training.decisions.log import DecisionLog, read_log
from switchcraft_training.replay.estimators import PolicyEstimate
from switchcraft_training.replay.replay import Replay, replay_log
from switchcraft_training.replay.verified import LoggedAnswer, VerifiableRequest, parse_answer
from tests.candidates import request
from tests.training.decisions.cases import (
    Line,
    decision,
    expects,
    negative_evidence,
    right,
    write_log,
    wrong,
)

CITIES = ("Oslo", "Lima", "Bern", "Rome", "Kyiv", "Riga", "Baku", "Doha")
REQUESTS = 40
DECISIONS = 240
PRICES_USD = [float(f"{price:.2g}") for price in np.geomspace(5e-5, 5e-1, 41)]
"""Prices of verified policies, from one that asks one model to one that often asks several."""


@dataclass(frozen=True, eq=False)
class World:
    """Requests, the city that each arm's answer names, and what the router predicts.

    `cities`, (requests, arms), are places in `CITIES`; the right answer is the city of the request.
    """

    router: Router
    requests: tuple[Json, ...]
    predictions: tuple[Prediction, ...]
    cities: np.ndarray[tuple[int, int], np.dtype[np.int64]]

    @property
    def arms(self) -> tuple[str, ...]:
        """The artifact's arms."""
        return self.router.artifact.manifest.arms

    @property
    def costs_usd(self) -> Mapping[str, float]:
        """The arms' expected costs, which are also their actual costs."""
        return dict(zip(self.arms, self.router.artifact.manifest.costs_usd(), strict=True))

    def content(self, row: int, arm: str) -> AnswerContent:
        """Return the answer of an arm to a request."""
        city = CITIES[self.cities[row, self.arms.index(arm)]]
        call = LoggedCall(name="forecast", arguments={"city": city})
        return AnswerContent(calls=(call,), text="")

    def is_correct(self, row: int, arm: str) -> bool:
        """Return whether an arm answers a request correctly."""
        return bool(self.cities[row, self.arms.index(arm)] == row % len(CITIES))

    @cache  # noqa: B019 - the world lives as long as the module
    def follow(self, row: int, price_usd: float) -> tuple[str, tuple[str, ...]]:
        """Return the accepted arm and the arms asked, in order, if every answer is known."""
        body = self.requests[row]
        question = Question(parse_conversation(body), body["tools"])
        answers = {
            arm: LoggedAnswer(parse_answer(self.content(row, arm)), 0.0, 0.0) for arm in self.arms
        }
        for first in self.arms:  # the arm that the policy asks first is the first one of `answers`
            ordered = {first: answers[first], **answers}
            known = VerifiableRequest(question, self.predictions[row], self.costs_usd, ordered)
            found = known.follow(self.router, Verified(price_usd))
            if found.accepted is not None:
                return found.accepted, found.asked
        raise AssertionError

    @cached_property
    def lower_usd(self) -> float:
        """A price at which some requests need one model and others several."""
        for price_usd in PRICES_USD:
            asked = [self.follow(row, price_usd)[1] for row in range(REQUESTS)]
            if 0.1 < np.mean([len(arms) == 1 for arms in asked]) < 0.9:
                return price_usd
        raise AssertionError

    @cached_property
    def logged_usd(self) -> float:
        """A higher price, whose log shows what the lower one does for most but not all requests."""
        lower = [self.follow(row, self.lower_usd)[1] for row in range(REQUESTS)]
        for price_usd in PRICES_USD[PRICES_USD.index(self.lower_usd) + 1 :]:
            logged = [self.follow(row, price_usd)[1] for row in range(REQUESTS)]
            if 0.8 < np.mean(list(map(is_shown, lower, logged))) < 1:
                return price_usd
        raise AssertionError

    def truth(self, price_usd: float, rows: list[int] | None = None) -> tuple[float, float]:
        """Return the accuracy and the cost of a policy, over all requests or some of them."""
        results = [(row, *self.follow(row, price_usd)) for row in rows or range(REQUESTS)]
        correct = np.mean([self.is_correct(row, accepted) for row, accepted, _ in results])
        cost = np.mean([sum(self.costs_usd[arm] for arm in asked) for *_, asked in results])
        return float(correct), float(cost)

    def facts(self, number: int, row: int, arm: str) -> dict[str, Json]:
        """Return the fields of a logged decision about a request that `arm` answered."""
        probabilities = dict(zip(self.arms, self.predictions[row].probabilities, strict=True))
        return {
            "conversation": f"c{number}",
            "probabilities": probabilities,
            "expected_cost_usd": self.costs_usd,
            "content": Content(request=self.requests[row], **dict(self.content(row, arm))),
        }

    def verified_lines(
        self, price_usd: float, *, is_checked: bool, is_judged: bool = True
    ) -> Iterator[Line]:
        """Yield verified decisions with a verdict, or with the expected calls if `is_checked`.

        If not `is_judged`, they have neither: four of five wrong answers are contradicted by weak
        evidence instead.
        """
        rng = np.random.default_rng(1)
        for number in range(DECISIONS):
            row = int(rng.integers(REQUESTS))
            accepted, asked = self.follow(row, price_usd)
            candidates = [
                CandidateRecord(
                    arm=arm,
                    model=arm,
                    step=step,
                    is_accepted=arm == accepted,
                    p_correct=0.5,
                    cost_usd=self.costs_usd[arm],
                    seconds=1.0,
                    content=self.content(row, arm),
                )
                for step, arm in enumerate(asked, start=1)
            ]
            facts = self.facts(number, row, accepted) | {
                "policy": f"verified={price_usd:g}",
                "reason": "verified",
                "propensity": None,
                "candidates": candidates,
                "cost_usd": sum(self.costs_usd[arm] for arm in asked),
            }
            yield decision(f"d{number}", accepted, **facts)
            if not is_judged:
                if number % 5 and not self.is_correct(row, accepted):
                    yield negative_evidence(f"d{number}")
            elif is_checked:
                call = LoggedCall(name="forecast", arguments={"city": CITIES[row % len(CITIES)]})
                yield expects(f"d{number}", call)
            else:
                verdict = right if self.is_correct(row, accepted) else wrong
                yield verdict(f"d{number}")


@pytest.fixture(scope="module")
def world() -> World:
    """Return requests that dearer arms answer more correctly, for the shipped artifact."""
    router = Router(Artifact.load(SHIPPED))
    costs_usd = np.array(router.artifact.manifest.costs_usd())
    rng = np.random.default_rng(0)
    skill = 0.55 + 0.35 * np.argsort(np.argsort(costs_usd)) / (len(costs_usd) - 1)
    own = np.arange(REQUESTS)[:, None] % len(CITIES)
    others = rng.integers(1, len(CITIES), (REQUESTS, len(skill)))
    is_right = rng.random((REQUESTS, len(skill))) < skill
    requests = tuple(
        request(f"Trip {row}: what is the forecast for {CITIES[row % len(CITIES)]}?")
        for row in range(REQUESTS)
    )
    return World(
        router,
        requests,
        tuple(router.predict(parse_conversation(body)) for body in requests),
        np.where(is_right, own, (own + others) % len(CITIES)),
    )


class Replayed(NamedTuple):
    """A log, and the estimates of the policy that wrote it, of a lower price, and of `theta=0`."""

    log: DecisionLog
    found: Replay
    logged: str
    lower: str

    @classmethod
    def of(cls, world: World, lines: Iterator[Line], folder: Path) -> Replayed:
        """Write a log, and replay it."""
        log = read_log(write_log(folder, lines))
        logged, lower = (f"verified={usd:g}" for usd in (world.logged_usd, world.lower_usd))
        return cls(log, replay_log(log, [logged, lower, "theta=0"], world.router), logged, lower)


@pytest.fixture(scope="module")
def judged(world: World, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    """Replay verified answers with a verdict on the delivered answer."""
    lines = world.verified_lines(world.logged_usd, is_checked=False)
    return Replayed.of(world, lines, tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="module")
def checked(world: World, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    """Replay verified answers with the expected calls."""
    lines = world.verified_lines(world.logged_usd, is_checked=True)
    return Replayed.of(world, lines, tmp_path_factory.mktemp("checked"))


def logged_rows(log: DecisionLog) -> list[int]:
    """Return the number of each decision's request."""
    texts = [each.content.request["messages"][0]["content"] for each in log.decisions
             if each.content is not None]  # fmt: skip
    return [int(text.removeprefix("Trip ").partition(":")[0]) for text in texts]


def is_shown(asked: tuple[str, ...], logged: tuple[str, ...]) -> bool:
    """Return whether a log of these candidates shows what a policy does that asks these arms."""
    return asked[0] == logged[0] and set(asked) <= set(logged)


def contains(estimate: PolicyEstimate, name: str, truth: float) -> bool:
    """Return whether an estimate's interval contains the truth."""
    low, high = getattr(estimate, name).interval
    return bool(low - 1e-9 <= truth <= high + 1e-9)


def test_logged_policy_is_covered_completely(judged: Replayed) -> None:
    """The policy that wrote a log of verified answers gets exactly the logged accuracy and cost."""
    found = judged.found
    for reward in (found.accuracy, found.cost_usd):
        estimate = reward.policies[judged.logged]
        assert (estimate.n, estimate.same, estimate.coverage) == (DECISIONS, 1, 1)
        assert reward.chosen is not None
        for each in (estimate.dr, estimate.snips, estimate.covered):
            assert each is not None
            assert each.value == pytest.approx(reward.chosen.value)
            assert each.interval == pytest.approx(reward.chosen.interval)
        assert estimate.regret is not None
        assert estimate.regret.value == pytest.approx(0, abs=1e-12)
    assert (found.replayed, found.left) == (DECISIONS, {})
    assert found.verified == [judged.logged, judged.lower]


def test_lower_price_is_estimated_from_longer_trajectories(world: World, checked: Replayed) -> None:
    """With expected calls, every candidate has a verdict, so fewer candidates are covered."""
    covered = [
        row
        for row in range(REQUESTS)
        if is_shown(world.follow(row, world.lower_usd)[1], world.follow(row, world.logged_usd)[1])
    ]
    rows = logged_rows(checked.log)
    shown = [row for row in rows if row in covered]
    assert 0.8 < len(shown) / len(rows) < 1
    truth = world.truth(world.lower_usd, shown)
    assert truth[1] < 0.9 * world.truth(world.logged_usd, shown)[1], "the policies differ"
    found = checked.found
    for reward, value in zip((found.accuracy, found.cost_usd), truth, strict=True):
        estimate = reward.policies[checked.lower]
        assert estimate.coverage == pytest.approx(len(shown) / len(rows))
        assert estimate.covered is not None
        assert estimate.covered.value == pytest.approx(value)


def test_verdict_does_not_judge_other_candidates(world: World, judged: Replayed) -> None:
    """A verdict on the delivered answer covers another candidate only if its calls are the same."""
    known = []
    for row in logged_rows(judged.log):
        one, logged = world.follow(row, world.logged_usd)
        other, asked = world.follow(row, world.lower_usd)
        is_same = world.content(row, one) == world.content(row, other)
        known.append(is_shown(asked, logged) and is_same)
    estimate = judged.found.accuracy.policies[judged.lower]
    assert estimate.coverage == pytest.approx(np.mean(known))
    assert estimate.coverage < judged.found.cost_usd.policies[judged.lower].coverage


def test_table_shows_coverage_and_marks_what_is_predicted(
    checked: Replayed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has the covered part, marks DR, and gives costs as lower bounds."""
    options = [
        "--artifact",
        str(SHIPPED),
        "--policy",
        checked.lower,
        "--out",
        str(tmp_path),
    ]
    assert main(["replay", str(checked.log.path), *options]) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "replay.json").read_bytes())
    coverage = found["accuracy"]["policies"][checked.lower]["coverage"]
    row = next(line for line in printed.splitlines() if " coverage " in line)
    assert row.split()[-2:] == [f"{coverage:.1%}"] * 2
    assert "covered part" in printed
    assert printed.count("≥ ") == 4, (
        "in each table: of the first the regret too, of the second the seconds"
    )
    assert f"* {checked.lower}: the log has all answers that this policy asks for" in printed


@pytest.fixture(scope="module")
def contradicted(world: World, tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    """Replay verified answers without verdicts, but with weak evidence against wrong ones."""
    lines = world.verified_lines(world.logged_usd, is_checked=False, is_judged=False)
    return Replayed.of(world, lines, tmp_path_factory.mktemp("contradicted"))


def test_weak_evidence_is_estimated_apart_from_accuracy(
    world: World, contradicted: Replayed
) -> None:
    """Without verdicts, replay estimates contradicted answers and seconds, and no accuracy."""
    found, log = contradicted.found, contradicted.log
    assert found.accuracy.policies == {}
    share = len(log.evidence) / DECISIONS
    assert share > 0.02
    asked = [len(world.follow(row, world.logged_usd)[1]) for row in logged_rows(log)]
    for reward, truth in ((found.contradicted, share), (found.added_s, np.mean(asked) - 1)):
        estimate = reward.policies[contradicted.logged]
        assert (estimate.coverage, estimate.n) == (1, DECISIONS)
        assert estimate.dr is not None
        assert reward.chosen is not None
        assert estimate.dr.value == pytest.approx(reward.chosen.value) == pytest.approx(truth)
    assert "theta=0" not in found.added_s.policies
    assert found.evidence is not None
    assert (found.evidence.contradicted, found.evidence.others) == (0, 0)
