"""Report of a soak: figures, exceeded limits, JSON and a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.mixed.disturbances import Disturbance
from benchmarks.mixed.traffic import Outcome
from benchmarks.mixed.watching import Probe, Sample
from router_service.apis.conversation import Json

MAX_SLOPE_MB = 1.0
"""Most growth of resident memory per 10,000 requests, after the warm-up."""
MAX_RESIDENT_MB = 384.0
_BLOCK_S = 60.0
"""The slope uses medians per minute, because samples within a minute are correlated."""
_BIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that has ended."""

    at_s: float
    """Time of sending, from the start of the soak."""
    kind: str
    outcome: Outcome
    status: int
    """HTTP status; 0 without a complete answer."""
    seconds: float
    problem: str = ""
    """Reason if it is lost."""
    about_s: float = 0.0
    """Time when the requested record was written, from the start of the soak."""
    is_inference: bool = True


@dataclass(frozen=True, slots=True)
class Balance:
    """One number, counted in two places."""

    name: str
    ours: int
    theirs: int
    uncertain: int = 0
    """Largest allowed difference: the gateway may or may not count a client that disconnected."""

    @property
    def agrees(self) -> bool:
        """Whether the two counts agree."""
        return abs(self.ours - self.theirs) <= self.uncertain


@dataclass(frozen=True, slots=True)
class Soak:
    """All records of a soak."""

    seconds: float
    warm_up_s: float
    began_unix_s: float
    ended: Sequence[Ended]
    samples: Sequence[Sample]
    probes: Sequence[Probe]
    disturbances: Sequence[Disturbance]
    balances: Sequence[Balance]
    peak_mb: float
    """Highest resident memory after the warm-up, according to the kernel."""
    at_rest: Sample
    """Sample after the last answer, when all connections are closed."""
    errors_logged: Sequence[str]
    """The gateway's log lines of level error, except refused reloads."""
    exit_status: int

    @property
    def measured(self) -> Sequence[Sample]:
        """The samples after the warm-up."""
        return [sample for sample in self.samples if sample.at_s >= self.warm_up_s]

    @property
    def lost(self) -> Sequence[Ended]:
        """The requests that were lost."""
        return [ended for ended in self.ended if ended.outcome is Outcome.LOST]


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth of resident memory in 10^6 bytes per 10,000 requests, with its 95% interval."""

    mb: float
    low_mb: float
    high_mb: float


def slope_of(samples: Sequence[Sample]) -> Slope | None:
    """Return the least-squares slope of the medians per minute; None below three minutes."""
    blocks: dict[int, list[Sample]] = {}
    for sample in samples:
        blocks.setdefault(int(sample.at_s // _BLOCK_S), []).append(sample)
    if len(blocks) < 3:
        return None
    requests = [np.median([sample.answered for sample in block]) for block in blocks.values()]
    memory = [np.median([sample.resident_mb for sample in block]) for block in blocks.values()]
    fit = stats.linregress(np.array(requests) / 1e4, memory)
    margin = stats.t.ppf(0.975, len(blocks) - 2) * fit.stderr
    return Slope(float(fit.slope), float(fit.slope - margin), float(fit.slope + margin))


def problems(soak: Soak) -> Iterator[str]:
    """Yield a message for every exceeded limit."""
    if soak.lost:
        yield f"{len(soak.lost)} requests lost, the first: {_describe(soak.lost[0])}"
    for balance in soak.balances:
        if not balance.agrees:
            yield f"{balance.name}: {balance.ours} here, {balance.theirs} there"
    for disturbance in soak.disturbances:
        if disturbance.problem:
            yield f"{disturbance.name} at {disturbance.at_s:.0f} s: {disturbance.problem}"
    slope = slope_of(soak.measured)
    if slope is not None and slope.mb >= MAX_SLOPE_MB:
        yield f"resident memory grows by {slope.mb:.2f} MB per 10,000 requests"
    highest_mb = max(sample.resident_mb for sample in soak.measured)
    if highest_mb >= MAX_RESIDENT_MB:
        yield f"resident memory reaches {highest_mb:.0f} MB"
    if soak.exit_status != 0:
        yield f"the gateway exited with status {soak.exit_status}"
    if soak.errors_logged:
        yield f"{len(soak.errors_logged)} errors logged, the first: {soak.errors_logged[0]}"


def summary(soak: Soak) -> Iterator[str]:
    """Yield the figures as Markdown."""
    outcomes = Counter(ended.outcome for ended in soak.ended)
    yield f"{len(soak.ended):,} requests in {soak.seconds:.0f} s: " + ", ".join(
        f"{outcomes[outcome]:,} {outcome}" for outcome in Outcome
    )
    yield from _table_of_kinds(soak)
    yield ""
    for name, figure in _figures(soak).items():
        yield f"- {name.replace('_', ' ')}: {_format(figure)}"
    yield ""
    for balance in soak.balances:
        sign = "=" if balance.agrees else "IS NOT"
        counts = f"{balance.ours:,} {sign} {balance.theirs:,} (± {balance.uncertain})"
        yield f"- {balance.name}: {counts}"
    yield ""
    for name, count in Counter(it.name for it in soak.disturbances).items():
        yield f"- {name}: {count}"


def as_json(soak: Soak) -> dict[str, Json]:
    """Return the figures, and the samples that the plot shows."""
    kinds: dict[str, Counter[str]] = {}
    for ended in soak.ended:
        kinds.setdefault(ended.kind, Counter())[f"{ended.outcome} {ended.status}"] += 1
    slope = slope_of(soak.measured)
    slowest = sorted(soak.probes, key=lambda probe: probe.idle_s - probe.gateway_s)
    return {
        "seconds": soak.seconds,
        "warm_up_s": soak.warm_up_s,
        "requests": len(soak.ended),
        "outcomes": dict(Counter(str(ended.outcome) for ended in soak.ended)),
        "kinds": {kind: dict(counts) for kind, counts in sorted(kinds.items())},
        "figures": _figures(soak),
        "slope": asdict(slope) if slope else None,
        "balances": [asdict(balance) for balance in soak.balances],
        "problems": list(problems(soak)),
        "lost": [_describe(ended) for ended in soak.lost[:50]],
        "errors_logged": list(soak.errors_logged[:50]),
        "disturbances": [asdict(disturbance) for disturbance in soak.disturbances],
        "samples": [asdict(sample) for sample in soak.samples],
        "slowest_probes": [asdict(probe) for probe in slowest[:20]],
    }


def plot(soak: Soak, path: Path) -> None:
    """Plot memory, latency, rate, and open resources over time."""
    import matplotlib as mpl  # noqa: PLC0415 - only a plot needs it

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(4, 1, figsize=(12, 13), sharex=True, layout="constrained")
    minutes = [sample.at_s / 60 for sample in soak.samples]
    axes[0].plot(minutes, [sample.resident_mb for sample in soak.samples], lw=1)
    axes[0].axhline(MAX_RESIDENT_MB, color="red", lw=0.8, ls="--")
    for share in (50, 99):
        axes[1].plot(*_latencies(soak, share), lw=1, label=f"P{share} of complete answers")
    waits = [(probe.at_s - soak.began_unix_s) / 60 for probe in soak.probes]
    gateway_s = [probe.gateway_s for probe in soak.probes]
    axes[1].plot(waits, gateway_s, ".", ms=1, color="gray", label="/healthz, 20 a second")
    axes[1].set_yscale("log")
    for outcome in Outcome:
        axes[2].plot(*_rates(soak, outcome), lw=1, label=str(outcome))
    for name in ("descriptors", "threads"):
        values = [getattr(sample, name) for sample in soak.samples]
        axes[3].plot(minutes, values, lw=1, label=name)
    axes[3].set_xlabel("minutes")
    for axis in axes[1:]:
        axis.legend(loc="upper right")
    labels = ("resident memory, MB", "seconds", "requests a second", "open")
    for axis, label in zip(axes, labels, strict=True):
        axis.set_ylabel(label)
        axis.axvspan(0, soak.warm_up_s / 60, color="gray", alpha=0.1)
    for disturbance in soak.disturbances:
        axes[0].axvline(disturbance.at_s / 60, color="gray", lw=0.2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _figures(soak: Soak) -> Mapping[str, Json]:
    samples = soak.measured
    memory = [sample.resident_mb for sample in samples]
    slope = slope_of(samples)
    gateway = np.array([probe.gateway_s for probe in soak.probes])
    idle = np.array([probe.idle_s for probe in soak.probes])
    return {
        "requests_per_s": len(soak.ended) / soak.seconds,
        "resident_mb_median": float(np.median(memory)),
        "resident_mb_highest": max(memory),
        "resident_mb_peak": soak.peak_mb,
        "resident_mb_at_rest": soak.at_rest.resident_mb,
        "slope_mb_per_10000_requests": slope.mb if slope else None,
        "slope_low_mb": slope.low_mb if slope else None,
        "slope_high_mb": slope.high_mb if slope else None,
        "descriptors_highest": max(sample.descriptors for sample in samples),
        "descriptors_at_rest": soak.at_rest.descriptors,
        "threads_highest": max(sample.threads for sample in samples),
        "probes": len(soak.probes),
        "stall_s_p50": float(np.percentile(gateway, 50)),
        "stall_s_p99": float(np.percentile(gateway, 99)),
        "stall_s_p999": float(np.percentile(gateway, 99.9)),
        "stall_s_slowest": float(gateway.max()),
        "stall_s_slowest_beyond_idle": float((gateway - idle).max()),
        "stalls_over_100_ms": int((gateway - idle > 0.1).sum()),
        "idle_server_s_p99": float(np.percentile(idle, 99)),
        "idle_server_s_slowest": float(idle.max()),
    }


def _table_of_kinds(soak: Soak) -> Iterator[str]:
    yield ""
    yield "| kind | requests | complete | explained | left | lost | P50, ms | P99, ms |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for kind in sorted({ended.kind for ended in soak.ended}):
        mine = [ended for ended in soak.ended if ended.kind == kind]
        counts = Counter(ended.outcome for ended in mine)
        waits = [e.seconds * 1e3 for e in mine if e.outcome is not Outcome.LEFT] or [0.0]
        p50, p99 = np.percentile(waits, (50, 99))
        cells = [f"{counts[outcome]:,}" for outcome in Outcome]
        yield f"| {kind} | {len(mine):,} | {' | '.join(cells)} | {p50:.1f} | {p99:.1f} |"


def _latencies(soak: Soak, share: int) -> tuple[Sequence[float], Sequence[float]]:
    bins: dict[int, list[float]] = {}
    for ended in soak.ended:
        if ended.outcome is Outcome.COMPLETE:
            bins.setdefault(int(ended.at_s // _BIN_S), []).append(ended.seconds)
    times = sorted(bins)
    return (
        [number * _BIN_S / 60 for number in times],
        [float(np.percentile(bins[number], share)) for number in times],
    )


def _rates(soak: Soak, outcome: Outcome) -> tuple[Sequence[float], Sequence[float]]:
    counts = Counter(int(e.at_s // _BIN_S) for e in soak.ended if e.outcome is outcome)
    numbers = range(int(soak.seconds // _BIN_S))
    return [n * _BIN_S / 60 for n in numbers], [counts[n] / _BIN_S for n in numbers]


def _describe(ended: Ended) -> str:
    return f"{ended.kind} at {ended.at_s:.1f} s, after {ended.seconds:.2f} s: {ended.problem}"


def _format(figure: Json) -> str:
    return f"{figure:.4g}" if isinstance(figure, float) else str(figure)
