"""Whether a canary does worse than the stable release, by what was counted of both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from router_service.core.publication import Canary

Z = 1.645
"""One-sided 95%: what exceeds a bound by chance alone is not held against a canary. Turns of one
conversation are alike, which this does not know of; `min_requests` leaves room for it."""


@dataclass(slots=True)
class Tally:
    """What became of the requests that one release decided."""

    requests: int = 0
    failures: int = 0
    priced: int = 0
    """Requests whose cost is known."""
    cost_usd: float = 0.0
    cost_squared: float = 0.0
    """Sum of the squared costs."""

    def add(self, *, has_failed: bool, cost_usd: float | None) -> None:
        """Count one request."""
        self.requests += 1
        self.failures += has_failed
        if cost_usd is not None:
            self.priced += 1
            self.cost_usd += cost_usd
            self.cost_squared += cost_usd**2

    @property
    def error_share(self) -> float:
        """Failures by requests; 0 where there is none."""
        return self.failures / self.requests if self.requests else 0.0

    @property
    def mean_cost_usd(self) -> float:
        """Mean of the known costs; 0 where none is known."""
        return self.cost_usd / self.priced if self.priced else 0.0


@dataclass(frozen=True, slots=True)
class Excess:
    """Which bound a canary exceeds, and by which figures."""

    bound: str
    """`errors` or `cost`."""
    text: str


def find_excess(tried: Tally, stable: Tally, bounds: Canary) -> Excess | None:
    """Return the bound that a canary exceeds beyond what chance explains; None while it keeps both.

    The difference of error shares is that of Agresti and Caffo (2000), who add a success and a
    failure to either side, which holds for small samples too; the ratio of costs is judged by its
    logarithm (delta method), for costs spread over orders of magnitude.
    """
    if tried.requests < bounds.min_requests:
        return None
    if _lower_difference(tried, stable) > bounds.max_error_increase:
        shares = f"{tried.error_share:.1%} of {tried.requests} requests failed"
        return Excess("errors", f"{shares}, {stable.error_share:.1%} of the stable release's")
    if tried.priced >= bounds.min_requests and _lower_ratio(tried, stable) > bounds.max_cost_ratio:
        means = f"a request cost {tried.mean_cost_usd:.6f} USD"
        return Excess("cost", f"{means}, {stable.mean_cost_usd:.6f} with the stable release")
    return None


def _lower_difference(tried: Tally, stable: Tally) -> float:
    (p, p_variance), (q, q_variance) = _adjusted(tried), _adjusted(stable)
    return p - q - Z * math.sqrt(p_variance + q_variance)


def _adjusted(tally: Tally) -> tuple[float, float]:
    """Return an error share with one success and one failure added, and its variance."""
    share = (tally.failures + 1) / (tally.requests + 2)
    return share, share * (1 - share) / (tally.requests + 2)


def _lower_ratio(tried: Tally, stable: Tally) -> float:
    if stable.priced < 2 or tried.mean_cost_usd == 0:
        return 0.0
    if stable.mean_cost_usd == 0:
        return math.inf
    spread = math.sqrt(_relative_variance(tried) + _relative_variance(stable))
    return tried.mean_cost_usd / stable.mean_cost_usd * math.exp(-Z * spread)


def _relative_variance(tally: Tally) -> float:
    """Return the variance of a mean cost, over the square of that mean."""
    mean_squared = tally.mean_cost_usd**2
    variance = max(0.0, tally.cost_squared / tally.priced - mean_squared)
    return variance / tally.priced / mean_squared
