"""Models that an artifact has not measured: what is assumed of them, so that they can take part.

The verifier of unfamiliar requests reads answers, and of the arms only how often they are right. So
it can judge the answers of any model whose accuracy can be estimated. Choosing before an answer
exists needs measured answers, so that such a model takes part in verified answers only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from router_service.artifact import Artifact, Measure, Onboarding
from router_service.measurement.held_out import single_accuracies
from router_service.policies.costs import ArmProfile, Price
from router_service.policies.verified import VERIFIED, Verified, is_verified

MOST = 0.98
"""Largest accuracy that is assumed, that of a model which the operator calls the last resort."""

PRICE_OF_CORRECT = 10.0
"""Price of a correct answer, in units of the expected cost of the strongest model, by which answers
are verified in a pool with models that are not measured. It is higher than that of measured pools,
because the verifier is less sure (`python -m benchmarks.unmeasured`; `training/EXPERIMENTS.md`)."""

ECONOMY, QUALITY = 3.0, 16.0
"""The same of the policies `economy` and `quality`, which have no measured goal in such a pool."""

EXPECTED = (
    "Models of this pool are not measured, so its figures are not known. In pools of four models"
    " that the verifier had not seen, verified answers were 0.8 points below the best of the four"
    " on average (+2.8 to -5.4), and all pools together cost 24% of what their best models cost."
    " `switchcraft onboard CONFIG` measures them."
)
"""What is expected of a pool with such models (the same table)."""


def can_join(artifact: Artifact, price: Price | None) -> bool:
    """Return whether a model with this price can take part without having been measured.

    Its price must say what an answer costs: an answer that costs nothing would always be asked for.
    """
    verifier = artifact.manifest.verifier
    is_priced = price is not None and price.has_token_prices and price.cost_usd(1000, 100, 0) > 0
    return is_priced and verifier is not None and verifier.unfamiliar is not None


@dataclass(frozen=True, slots=True)
class AccuracyByCost:
    """Accuracy as a line over the logarithm of the expected cost, which does not fall.

    No estimate is outside of the range of the accuracies that the line was fitted to.
    """

    slope: float
    start: float
    least: float
    most: float
    stderr: float
    """Standard deviation of the accuracies around the line."""

    @classmethod
    def fit(cls, costs_usd: Sequence[float], accuracies: Sequence[float]) -> AccuracyByCost:
        """Fit the line to models; with fewer than three, it is level."""
        logs, values = np.log(costs_usd), np.array(accuracies)
        slope = max(0.0, float(np.polyfit(logs, values, 1)[0])) if len(values) > 2 else 0.0
        start = float(values.mean() - slope * logs.mean())
        stderr = float(np.std(values - slope * logs - start))
        return cls(slope, start, float(values.min()), float(values.max()), stderr)

    def at(self, cost_usd: float) -> float:
        """Return the estimated accuracy of a model with this expected cost."""
        return min(max(self.start + self.slope * math.log(cost_usd), self.least), self.most)


def with_unmeasured(
    artifact: Artifact,
    prices: Mapping[str, Price],
    pool: Mapping[str, Price],
    last_resort: str | None = None,
) -> Artifact:
    """Return the artifact with further arms, of which no answer is known.

    `prices` are those of the models, whose names become the names of the arms, and `pool` those of
    the measured arms beside them. An arm is assumed to need as many tokens and as much time as the
    measured arms do on average, and to be right as often as these are at its cost. `last_resort` is
    the model that the operator trusts most. `can_join` holds for each price.
    """
    manifest = artifact.manifest
    measured = {arm: each.value for arm, each in single_accuracies(artifact).items()}
    rates = measured or manifest.base_rates
    costs_usd = [manifest.profile[arm].cost_usd() for arm in rates]
    line = AccuracyByCost.fit(costs_usd, [*rates.values()])
    profiles = [manifest.profile[arm] for arm in manifest.arms]
    n = min(each.n for each in profiles)
    tokens = {
        name: float(np.mean([getattr(each, name) for each in profiles]))
        for name in ("input_tokens", "output_tokens", "seconds")
    }
    joined: dict[str, Onboarding] = {}
    profile: dict[str, ArmProfile] = {}
    for name, price in prices.items():
        profile[name] = ArmProfile(**tokens, price=price, n=n)
        estimate = line.at(profile[name].cost_usd())
        if name == last_resort:
            estimate = min(MOST, line.most + line.stderr)
        joined[name] = Onboarding(
            answers=0,
            models=len(rates),
            accuracy=Measure(value=estimate, stderr=line.stderr, n=n),
            probability_stderr=line.stderr,
        )
    verifier = manifest.verifier
    assert verifier is not None  # noqa: S101 - for types; `can_join` holds
    profiled = {**manifest.profile, **profile}
    reliable = {arm: rates[arm] for arm in pool if arm in rates}
    reliable |= {arm: facts.accuracy.value for arm, facts in joined.items()}
    strongest_usd = max(
        (accuracy, profiled[arm].cost_usd({**pool, **prices}[arm]))
        for arm, accuracy in reliable.items()
    )[1]
    price_usd, economy_usd, quality_usd = (
        float(f"{times * strongest_usd:.3g}") for times in (PRICE_OF_CORRECT, ECONOMY, QUALITY)
    )
    policies = {
        **{
            name: VERIFIED if is_verified(rule) else rule
            for name, rule in manifest.policies.items()
        },
        "economy": str(Verified(economy_usd)),
        "quality": str(Verified(quality_usd)),
    }
    shares = (*verifier.reliabilities, *(each.accuracy.value for each in joined.values()))
    changed = manifest.model_copy(
        update={
            "arms": (*manifest.arms, *joined),
            "profile": profiled,
            "onboarded": {**manifest.onboarded, **joined},
            "policies": policies,
            "policy_goals": {},
            "verifier": verifier.model_copy(
                update={"reliabilities": shares, "price_usd": price_usd}
            ),
        }
    )
    return replace(artifact, manifest=changed)
