"""Releases of artifacts: the pointer that a fleet of gateways follows, and canary limits.

A *release* is an artifact's directory. It is complete before the pointer names it, and is never
changed afterwards. The *pointer* is one JSON value, a `Publication`, in a file beside the releases,
which is replaced in one step (`store.pointers`). Gateways read it regularly. If it has changed, a
gateway loads the releases that it names, and verifies each against the pointer's hash, the
release's manifest and its canary requests. If all pass, the gateway serves them. Otherwise it
refuses them and keeps the previous releases.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from router_service.core.errors import ArtifactError
from router_service.core.values import Tolerant

MAX_POINTER_BYTES = 64 * 1024
"""Longest pointer that is read. Real ones have about 1 KB."""

Z = 1.645
"""Quantile for a one-sided confidence of 95%, so that a canary is not withdrawn for an excess that
chance explains. The turns of one conversation are not independent, which this quantile ignores;
`min_requests` leaves room for that."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(gt=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Release(Tolerant):
    """A published artifact: its directory, and the hash of its manifest.

    The manifest contains the hashes of all other files, so its hash covers the whole directory.
    """

    name: str = Field(min_length=1, max_length=200)
    """The manifest's name."""
    path: str = Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")
    """The name of the folder beside the pointer's file."""
    manifest_sha256: Sha256
    created: str = Field(max_length=100)
    """Time of publication (RFC 3339). The same artifact published again is another release."""

    @property
    def label(self) -> str:
        """Return the name and a short hash, for people and metrics."""
        return f"{self.name}-{self.manifest_sha256[:12]}"

    @property
    def key(self) -> str:
        """Return a unique key, which differs even for two releases of the same artifact."""
        return f"{self.manifest_sha256}@{self.created}"

    def directory(self, beside: Path) -> Path:
        """Return the artifact's directory, which is in the pointer's directory `beside`.

        Raise ArtifactError if the path is not the name of a folder there.
        """
        if Path(self.path).name != self.path or self.path == "..":
            problem = f"the path {self.path!r} is no folder beside the pointer"
            raise ArtifactError(f"the release {self.label}", problem)
        return beside / self.path


class Canary(Tolerant):
    """A release that decides for a share of the conversations, and its limits.

    The release is withdrawn if it exceeds a limit after at least `min_requests` requests.
    """

    release: Release
    share: Share = 0.1
    """Share of all conversations."""
    max_error_increase: NotNegative = 0.02
    """How much the canary's share of failed requests may exceed that of the stable release."""
    max_cost_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.2
    """Largest ratio of the canary's mean cost per request to that of the stable release."""
    min_requests: Annotated[int, Field(ge=1, le=2**53)] = 200


class Publication(Tolerant):
    """The pointer: the stable release, and optionally a canary release."""

    schema_version: Literal[1] = 1
    serial: Annotated[int, Field(ge=1, le=2**53)]
    """A number that increases with every change."""
    stable: Release
    canary: Canary | None = None

    @classmethod
    def parse(cls, text: bytes, source: str) -> Publication:
        """Parse a pointer, or raise ArtifactError with its source."""
        if len(text) > MAX_POINTER_BYTES:
            problem = f"has more than {MAX_POINTER_BYTES} bytes; publish again"
            raise ArtifactError(source, problem)
        try:
            return cls.model_validate_json(text)
        except ValidationError as exc:
            first = exc.errors(include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the pointer"
            problem = f"is not a publication: {where}: {first['msg']}"
            raise ArtifactError(source, problem) from exc

    def to_json(self) -> bytes:
        """Return the pointer's text, which `parse` reads."""
        return self.model_dump_json(indent=2).encode()

    @property
    def releases(self) -> tuple[Release, ...]:
        """Return all releases of the pointer, the stable one first."""
        return (self.stable,) if self.canary is None else (self.stable, self.canary.release)


class Track(StrEnum):
    """Which published release decides for a request: the stable one or the canary."""

    STABLE = "stable"
    CANARY = "canary"


PublicationUpdate = Callable[[Publication | None], Publication]
"""Function that takes the current publication, or None before the first, and returns the next."""


@dataclass(slots=True)
class ReleaseStats:
    """Failures and costs of the requests that one release decided."""

    requests: int = 0
    failures: int = 0
    priced: int = 0
    """Requests with a known cost."""
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
        """Return the share of failed requests, or 0 without requests."""
        return self.failures / self.requests if self.requests else 0.0

    @property
    def mean_cost_usd(self) -> float:
        """Return the mean of the known costs, or 0 if none is known."""
        return self.cost_usd / self.priced if self.priced else 0.0

    def adjusted_error_share(self) -> tuple[float, float]:
        """Return the error share with one success and one failure added, and its variance."""
        share = (self.failures + 1) / (self.requests + 2)
        return share, share * (1 - share) / (self.requests + 2)

    def relative_cost_variance(self) -> float:
        """Return the variance of the mean cost, divided by the square of that mean."""
        mean_squared = self.mean_cost_usd**2
        variance = max(0.0, self.cost_squared / self.priced - mean_squared)
        return variance / self.priced / mean_squared


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """The limit that a canary exceeds, and the measured values."""

    limit: str
    """`errors` or `cost`."""
    text: str


def find_exceeded_limit(
    canary: ReleaseStats, stable: ReleaseStats, limits: Canary
) -> ExceededLimit | None:
    """Return the limit that a canary exceeds by more than chance explains, if any.

    The difference of error shares is tested as in Agresti and Caffo (2000): adding a success and a
    failure to each sample makes the test accurate for small samples too. The ratio of costs is
    tested on its logarithm (delta method), because costs span orders of magnitude.
    """
    if canary.requests < limits.min_requests:
        return None
    (p, p_variance), (q, q_variance) = canary.adjusted_error_share(), stable.adjusted_error_share()
    if p - q - Z * math.sqrt(p_variance + q_variance) > limits.max_error_increase:
        shares = f"{canary.error_share:.1%} of {canary.requests} requests failed"
        text = f"{shares}, against {stable.error_share:.1%} with the stable release"
        return ExceededLimit("errors", text)
    if canary.priced < limits.min_requests or stable.priced < 2 or canary.mean_cost_usd == 0:
        return None
    lowest_ratio = math.inf
    if stable.mean_cost_usd != 0:
        spread = math.sqrt(canary.relative_cost_variance() + stable.relative_cost_variance())
        lowest_ratio = canary.mean_cost_usd / stable.mean_cost_usd * math.exp(-Z * spread)
    if lowest_ratio <= limits.max_cost_ratio:
        return None
    means = f"a request cost {canary.mean_cost_usd:.6f} USD on average"
    text = f"{means}, against {stable.mean_cost_usd:.6f} USD with the stable release"
    return ExceededLimit("cost", text)


OnExcess = Callable[[Canary, ExceededLimit], None]

Tallies = Mapping[Track, ReleaseStats]


class CanaryTrial:
    """Trial of a canary release on a share of the conversations, with both releases' results.

    The trial ends when the canary exceeds a limit. From then on, the stable release decides for all
    conversations.
    """

    def __init__(
        self,
        canary: Canary,
        on_excess: OnExcess,
        tallies: Tallies | None = None,
    ) -> None:
        """Start, or continue with the `tallies` of an earlier trial of the same canary.

        `on_excess` is called once, on the event loop, if the canary exceeds a limit.
        """
        self.canary = canary
        self.tallies: Tallies = tallies or {track: ReleaseStats() for track in Track}
        self._on_excess = on_excess
        self._is_over = False

    def takes(self, opening: Iterable[str]) -> bool:
        """Return whether the canary decides for a conversation that begins with these texts."""
        if self._is_over:
            return False
        # A number in [0, 1) from the conversation's opening, and different for each release.
        facts = "\0".join((self.canary.release.key, *opening))
        digest = hashlib.sha256(facts.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8]) / 2**64 < self.canary.share

    def observe(self, track: Track, *, has_failed: bool, cost_usd: float | None) -> None:
        """Count a request that has ended, and end the trial if the canary exceeds a limit."""
        self.tallies[track].add(has_failed=has_failed, cost_usd=cost_usd)
        if self._is_over or track is not Track.CANARY:
            return
        excess = find_exceeded_limit(
            self.tallies[Track.CANARY], self.tallies[Track.STABLE], self.canary
        )
        if excess is not None:
            self._is_over = True
            self._on_excess(self.canary, excess)
