"""What is added up over requests, in the units of the database.

Money is in nanodollars, and probabilities are in millionths, so that sums are exact whichever way
they are added. `telemetry.usage_figures` has the same figures for people.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

PPM = 1_000_000
"""Millionths in one."""

LATENCY_RATIO = 2**0.25
"""Ratio of two bounds of the latency histogram. A percentile is off by 19% at most."""
LATENCY_BOUNDS_S = tuple(0.001 * LATENCY_RATIO**step for step in range(81))
"""Upper bounds of the latency histogram's bins, from 1 ms to 17 minutes; the last bin is open."""


@dataclass(slots=True)
class UsageSums:
    """Sums over requests; those of routed requests and of feedback are explained in its figures."""

    requests: int = 0
    errors: int = 0
    unpriced: int = 0
    cost_nusd: int = 0
    compared_nusd: int = 0
    baseline_nusd: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    candidates: int = 0
    unfamiliar: int = 0
    estimated: int = 0
    correct_ppm: int = 0
    baseline_correct_ppm: int = 0
    variance_ppm: int = 0
    """Sum of the variances of the differences in correctness (`Expectation.variance`)."""
    error_ppm: int = 0
    """Sum of the standard errors of the expected differences (`Expectation.error`)."""
    feedback_correct: int = 0
    feedback_wrong: int = 0
    invalid_calls: int = 0
    tool_errors: int = 0
    repeated_calls: int = 0
    latencies: dict[int, int] = field(default_factory=dict)
    """Histogram of the time from a request's arrival to the end of its answer: the number of
    requests by bin. Requests that were refused before a model was asked are not in it."""

    def add(self, other: UsageSums) -> None:
        """Add the sums over other requests."""
        for name in USAGE_SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for index, count in other.latencies.items():
            self.latencies[index] = self.latencies.get(index, 0) + count

    def columns(self) -> dict[str, int]:
        """Return the sums by name, without the latencies."""
        return {name: getattr(self, name) for name in USAGE_SUMS}

    def percentile_s(self, share: float) -> float | None:
        """Return a percentile of the latencies by interpolation; None without any."""
        wanted = share * sum(self.latencies.values())
        below = 0
        for index, count in sorted(self.latencies.items()):
            if count and below + count >= wanted:
                upper_s = LATENCY_BOUNDS_S[min(index, len(LATENCY_BOUNDS_S) - 1)]
                return upper_s * math.pow(LATENCY_RATIO, (wanted - below) / count - 1)
            below += count
        return None


USAGE_SUMS = tuple(each.name for each in fields(UsageSums) if each.name != "latencies")
"""Names of the sums, which are columns of the table `usage`."""
