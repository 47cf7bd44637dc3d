"""Verifiers: their graphs, what they learn, and that they judge no query they have seen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from router_service.artifact import (
    MANIFEST,
    SHIPPED,
    Artifact,
    Measure,
    Onboarding,
    read_manifest,
)
from router_service.checker.toolbox import Call, ExpectedCall
from router_service.core.errors import ConfigError
from router_service.measurement.rules import Bench
from router_service.measurement.simulation import (
    STEPS_PER_UNIT,
    JudgedAnswers,
    Simulation,
    VerifiedAnswers,
)
from router_service.policies.costs import Price
from router_service.verifier.graphs import GAIN_FEATURES, StepTerms, Verifier
from switchcraft_training.config import RunConfig, trained_config
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.verified import answers_of, decided
from switchcraft_training.models.verifier import (
    TrainedVerifier,
    VerifierData,
    fit_verifier,
)
from switchcraft_training.predictions import cross_validate
from switchcraft_training.records import Answer, Example, Expected, Judged
from switchcraft_training.training_data import TrainingData, read_training_data
from switchcraft_training.unfamiliar import CONTEXTS, LOOPS, PLAIN, study_unfamiliar
from switchcraft_training.verification import (
    VerifierStudy,
    operating_price,
    recorded_calls,
    study_verifier,
    with_current_pool,
)
from tests.candidates import request
from tests.training.runs import answer_line, write_run
from tests.training.verifiers import (
    LITTLE,
    PRICES_USD,
    invented_data,
    invented_table,
    judgements,
    one_thread,
)


@pytest.fixture(scope="module")
def known() -> VerifierData:
    """Return the queries that a verifier learns from."""
    return invented_data(invented_table(240))


@pytest.fixture(scope="module")
def fitted(known: VerifierData) -> TrainedVerifier:
    """Return a verifier that was fitted with little effort."""
    with one_thread():
        return fit_verifier(known, 0, LITTLE)


@pytest.fixture(scope="module")
def verifier(fitted: TrainedVerifier, tmp_path_factory: pytest.TempPathFactory) -> Verifier:
    """Return the exported verifier."""
    folder = tmp_path_factory.mktemp("verifier")
    return Verifier(folder, fitted.export(folder, 1e-3))


@pytest.fixture(scope="module")
def unseen() -> VerifierData:
    """Return queries that the verifier has not seen."""
    return invented_data(invented_table(120, seed=1), seed=1)


def test_verifier_learns_that_agreement_means_correctness(
    verifier: Verifier, unseen: VerifierData
) -> None:
    """On unseen queries, answers that agree are judged correct, and lone ones mostly are not."""
    agreeing: list[float] = []
    lone: list[float] = []
    for query, candidates in enumerate(unseen.candidates):
        beliefs = verifier.beliefs(unseen.features[query], unseen.probabilities[query])
        for column, p in verifier.p_correct(beliefs, candidates).items():
            is_right = unseen.correct[query, column] == 1
            (agreeing if is_right and unseen.correct[query].sum() > 1 else lone).append(p)
    assert np.mean(agreeing) > 0.9
    assert np.mean(lone) < 0.4


def answer_by_steps(
    verifier: Verifier, data: VerifierData, price_usd: float, floor: float
) -> VerifiedAnswers:
    """Answer every query as a gateway does, one step after the other."""
    made, costs = [], data.costs_usd / price_usd
    judged = np.full((len(data.candidates), 3, 3), np.nan)
    for query, candidates in enumerate(data.candidates):
        beliefs = verifier.beliefs(data.features[query], data.probabilities[query])
        asked: tuple[int, ...] = ()
        while True:
            askable = [column for column in range(len(costs)) if column not in asked]
            able, terms = askable if len(asked) < 3 else [], StepTerms(floor=floor)
            step = verifier.choose_step(beliefs, candidates.only(asked), costs, able, terms)
            if asked:
                judged[query, len(asked) - 1, : len(asked)] = [step.p_correct[c] for c in asked]
            if step.accept is not None:
                break
            asked += step.ask
        made.append((asked, step.accept))
    return replace(answers_of(made), judged=judged)


@pytest.fixture(scope="module")
def judged(fitted: TrainedVerifier, unseen: VerifierData) -> JudgedAnswers:
    """Return all judgements of the queries that the verifier has not seen."""
    return judgements(fitted, unseen)


@pytest.fixture(scope="module")
def simulation(judged: JudgedAnswers) -> Simulation:
    """Return the simulation with these judgements."""
    return Simulation(judged, GAIN_FEATURES)


@pytest.mark.parametrize("floor", [0.0, 0.8])
@pytest.mark.parametrize("price_usd", PRICES_USD)
def test_simulation_decides_as_the_gateway(
    verifier: Verifier,
    unseen: VerifierData,
    simulation: Simulation,
    price_usd: float,
    floor: float,
) -> None:
    """It asks and accepts the same arms in the same order as one step after the other.

    Its probabilities differ only by their rounding.
    """
    wanted = answer_by_steps(verifier, unseen, price_usd, floor)
    found = simulation.answer(unseen.costs_usd[None], price_usd, floor=floor)
    for query in range(120):
        assert decided(wanted, query) == decided(found, query)
    np.testing.assert_allclose(found.judged, wanted.judged, atol=0.6 / STEPS_PER_UNIT)


def test_text_is_accepted_unverified_if_no_call_is_expected(
    judged: JudgedAnswers, unseen: VerifierData
) -> None:
    """The rule applies to text alone, and only if the probability of no call is high enough."""
    queries = np.arange(120)
    is_text = np.tile((queries % 2 == 0)[:, None], 3)
    p_no_call = np.where(queries % 3 == 0, 0.9, np.nan).astype(np.float32)
    simulation = Simulation(replace(judged, is_text=is_text, p_no_call=p_no_call), GAIN_FEATURES)
    costs_usd, price_usd = unseen.costs_usd[None], 5e-3
    usual = simulation.answer(costs_usd, price_usd)
    found = simulation.answer(costs_usd, price_usd, streams_text_from=0.9)
    is_streamed = queries % 6 == 0
    assert (found.counts[is_streamed] == 1).all()
    assert (usual.counts[is_streamed] > 1).any()
    np.testing.assert_array_equal(found.asked[:, 0], usual.asked[:, 0])
    np.testing.assert_array_equal(found.asked[~is_streamed], usual.asked[~is_streamed])
    never = simulation.answer(costs_usd, price_usd, streams_text_from=0.95)
    np.testing.assert_array_equal(never.asked, usual.asked)


def example(name: str) -> Example:
    """Return a query of the tool `forecast`."""
    return Example(name, "c", request(f"Forecast for {name}?"), "d")


class Recorded:
    """Source of recorded answers."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers

    def arms(self) -> list[str]:
        """Return the models with recorded answers."""
        return sorted({answer.arm for answer in self._answers})

    def judged(self) -> list[Judged]:
        """Return no queries."""
        return []

    def answers(self, arm: str) -> list[Answer]:
        """Return a model's answers."""
        return [answer for answer in self._answers if answer.arm == arm]


def test_recorded_answers_become_calls() -> None:
    """An answer in words makes no calls, an unparsable one is None, and the first attempt counts.

    Answers to other queries are ignored, and an arm without an answer has none.
    """
    call = Call("forecast", {"city": "Oslo"})

    def recorded(
        query: str, calls: tuple[Call, ...] | None, problem: str | None = None, arm: str = "a",
        attempt: int = 0,
    ) -> Answer:  # fmt: skip
        return Answer(query, arm, calls, problem, 1, 1, attempt)

    source = Recorded(
        recorded("calls", (call,)),
        recorded("calls", (), attempt=1),
        recorded("none", ()),
        recorded("words", None, "text"),
        recorded("call in words", None, "call_in_text"),
        recorded("broken", None, "bad_json"),
        recorded("other", (call,)),
        recorded("calls", (), arm="b"),
    )
    names = ("calls", "none", "words", "call in words", "broken")
    found = recorded_calls(CheckedAnswers.of(source), list(map(example, names)), ("b", "a"))
    assert found == [{0: (), 1: (call,)}, {1: ()}, {1: ()}, {1: ()}, {1: None}]


@pytest.mark.parametrize(
    ("shares", "best"),
    [({0.1: 0.05, 0.2: 0.15, 0.3: 0.2}, 0.2), ({0.1: 0.4, 0.2: 0.5}, 0.1)],
    ids=["within the budget", "none within the budget"],
)
def test_operating_price_stays_within_the_budget(shares: dict[float, float], best: float) -> None:
    """The highest affordable price is chosen, or else the lowest price."""
    table = replace(invented_table(40), cost_usd=np.ones((40, 3)))
    bench = Bench.of(table)
    right = table.correct[:, 2]
    entries = {
        price: bench.measure("router", "x", right * (1 - 1 / (9 + 9 * price)), right * 0 + share)
        for price, share in shares.items()
    }
    assert operating_price(entries, 0.16) == best


CITIES = 60


@pytest.fixture
def training(config: Path, tmp_path: Path) -> TrainingData:
    """Return a labelling run of 60 queries and two arms, packed for a router of words."""
    answered(tmp_path / "data")
    values = yaml.safe_load(config.read_text())
    values["source"] = {"format": "labelled", "path": "rows.jsonl", "answers": "."}
    values["training"] |= {"shares": {"lexical": 1}, "select_on": "last"}
    run = RunConfig.model_validate(values)
    return read_training_data(run, tmp_path / "data", tmp_path / "work")


WORDS = "amber birch cedar delta ember fjord grove haven iris jade".split()


def city(number: int) -> str:
    """Return a name that no other query has."""
    return f"{WORDS[number % 10]} {WORDS[number // 10]} {number * 7919}"


def answered(folder: Path) -> None:
    """Write the queries, and the answers of two arms, of which the small one often errs."""
    judged = [
        Judged(
            Example(f"q{i}", "c", request(f"Forecast for {city(i)}?"), "d"),
            Expected((ExpectedCall("forecast", {"city": (city(i),)}),)),
        )
        for i in range(CITIES)
    ]
    lines = []
    for arm, every in (("small-FC", 3), ("large-FC", 10)):
        for i in range(CITIES):
            given = f"place {i} {arm}" if i % every == 0 else city(i)
            lines.append(answer_line(f"q{i}", arm, ("forecast", {"city": given})))
    write_run(folder, judged, lines)


def study(training: TrainingData, correct: Floats, tmp_path: Path) -> VerifierStudy:
    """Cross-validate a verifier on these labels."""
    data = replace(training, table=replace(training.table, correct=correct))
    with one_thread():
        validation = cross_validate(data)
        assert validation is not None
        held_out = validation.mix(data.config.training.branch_shares)
        return study_verifier(data, validation, held_out, tmp_path / "data", LITTLE)


def test_no_query_is_judged_by_a_verifier_that_knows_its_label(
    training: TrainingData, tmp_path: Path
) -> None:
    """Flipping the labels of a fold's queries changes no prediction for this fold.

    Neither the verifier nor the router's probabilities that it learned from have seen these labels.
    Predictions for the other folds do change.
    """
    labels = training.table.correct.copy()
    first = study(training, labels, tmp_path)
    fold = np.flatnonzero(first.table.folds == 0)
    # Both arms are flipped for as many queries each, so that the best single model and with it the
    # grid of prices stay the same.
    flipped = labels.copy()
    flipped[fold[:8]] = 1 - flipped[fold[:8]]
    second = study(training, flipped, tmp_path)
    assert list(first.by_price) == list(second.by_price)
    others = np.flatnonzero(first.table.folds != 0)
    changed = 0
    for price, answers in first.by_price.items():
        again = second.by_price[price]
        np.testing.assert_array_equal(answers.asked[fold], again.asked[fold])
        np.testing.assert_array_equal(answers.judged[fold], again.judged[fold])
        np.testing.assert_array_equal(answers.p_correct[fold], again.p_correct[fold])
        changed += (answers.p_correct[others] != again.p_correct[others]).sum()
    assert changed > 0


def test_verifier_of_unfamiliar_requests_learns_and_is_measured_in_context(
    training: TrainingData, tmp_path: Path
) -> None:
    """It is measured in each context on queries that it has not seen, and joins an artifact."""
    table = training.table.measured(training.config.arms)
    table = replace(table, folds=np.arange(len(table)) % 2)
    artifact = tmp_path / "artifact"
    shutil.copytree(SHIPPED, artifact)
    spec = read_manifest(artifact / MANIFEST).verifier
    assert spec is not None
    costs_usd = np.array(training.expected_costs_usd(training.table.measured_rows))
    with one_thread():
        study = study_unfamiliar(
            training.config, table, costs_usd, spec, tmp_path / "data", effort=LITTLE
        )
    assert [each.context for each in study.figures] == [PLAIN, *CONTEXTS, *LOOPS]
    assert all(each.auc_of_two > 0.7 for each in study.figures)
    study.add_to(artifact)
    added = Artifact.load(artifact).manifest.verifier
    assert added is not None
    assert added.unfamiliar is not None
    assert added.unfamiliar.calibration == study.verifier.calibration


def test_verifier_learns_from_the_arms_that_are_left() -> None:
    """Arms that were removed or joined are left out, and prices are those of the artifact."""
    manifest = read_manifest(SHIPPED / MANIFEST)
    config = trained_config(manifest)
    dear = Price(input_usd_per_mtok=100, output_usd_per_mtok=200)
    first, second, third = manifest.arms[:3]
    profile = {arm: manifest.profile[arm] for arm in (first, second, third)}
    profile[second] = profile[second].model_copy(update={"price": dear})
    accuracy = Measure(value=0.7, stderr=0.02, n=100)
    facts = Onboarding(answers=100, models=7, accuracy=accuracy, probability_stderr=0.03)
    changed = manifest.model_copy(update={"profile": profile, "onboarded": {third: facts}})
    assert with_current_pool(config, changed).prices == {first: config.prices[first], second: dear}
    alone = changed.model_copy(update={"profile": {first: profile[first]}})
    with pytest.raises(ConfigError, match="1 of the arms that the artifact was trained with"):
        with_current_pool(config, alone)
