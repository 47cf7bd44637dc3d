"""Advice: which few of the available models are enough."""

from __future__ import annotations

import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.advice import Advice, advise, best_addition
from router_service.measurement.held_out import HELD_OUT, HeldOut, describe_pool

LARGE, SMALL = "claude-sonnet-4.5", "grok-4.1-fast"
HAIKU, FLASH = "claude-haiku-4.5", "gemini-2.5-flash-lite"
FOUR = (LARGE, SMALL, HAIKU, FLASH)


@pytest.fixture(scope="module")
def judged() -> Artifact:
    """Return the shipped artifact."""
    return Artifact.load(SHIPPED)


@pytest.fixture(scope="module")
def advice(judged: Artifact) -> Advice:
    """Return advice on four models."""
    return advise(judged, FOUR, max_models=3)


def test_single_models_have_their_own_figures(judged: Artifact, advice: Advice) -> None:
    """A model alone has the accuracy and the cost of its recorded answers."""
    held_out = HeldOut.read(judged.directory / HELD_OUT)
    prices = [judged.manifest.profile[arm].price for arm in judged.manifest.arms]
    column = judged.manifest.arms.index(SMALL)
    (alone,) = [each for each in advice.efficient if each.arms == (SMALL,)]
    assert alone.point.accuracy.value == held_out.correct[:, column].mean()
    costs_usd = held_out.recorded_costs_usd(prices)[:, column]
    assert alone.point.cost_usd.value == pytest.approx(costs_usd.mean())
    assert advice.best_single == LARGE
    assert advice.queries == len(held_out.folds)


def test_recommended_pools_grow_and_stay_within_the_budget(advice: Advice) -> None:
    """A larger pool is recommended only if it is more accurate, at a fifth of the cost at most."""
    for kind in ("once", "verified"):
        pools = [each for each in advice.recommended if each.kind == kind]
        sizes = [len(each.figures.arms) for each in pools]
        assert sizes == sorted(set(sizes))
        shares = [each.figures.point.versus_best for each in pools]
        assert all(share and (share.cost_share or 0) <= 0.25 for share in shares)
    once, verified = (
        max(e.figures.point.accuracy.value for e in advice.recommended if e.kind == kind)
        for kind in ("once", "verified")
    )
    assert verified > once + 0.01


def test_best_addition_saves_most_and_keeps_the_accuracy(judged: Artifact) -> None:
    """It is one more model for today's pool; no model is named if none saves a tenth."""
    few = describe_pool(judged, (LARGE, "gpt-4.1-mini", SMALL), {})
    found = best_addition(few, 0.5)
    assert found is not None
    assert set(found.arms) == {LARGE, "gpt-4.1-mini", SMALL, FLASH}
    versus = found.point.versus_best
    assert versus is not None
    assert versus.difference >= -0.005
    assert (versus.cost_share or 1) < 0.1
    once = best_addition(few, 0.5, verified_goals=False)
    assert once is None or once.kind == "once"
    assert best_addition(judged, 0.5) is None
    assert best_addition(describe_pool(judged, (SMALL, HAIKU, FLASH), {}), 0.5) is None
