"""Which artifacts a fleet of gateways serves: one small value that a publisher moves.

The protocol. A *release* is an artifact's directory, complete before anything points at it and
never changed after. The *pointer* is one JSON value, a `Publication`, kept under `POINTER_FILE`
in a directory or under `POINTER_KEY` in Redis, and replaced in one step. Gateways look at it
again and again; one that sees another pointer loads the releases that it names, verifies each
against the pointer's hash, its own manifest and its canaries, and takes them up, or refuses them
and goes on with what it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router_service.core.errors import PublicationError

POINTER_FILE = "current.json"
"""The pointer's file in a publication directory; releases are folders beside it."""

POINTER_KEY = "switchcraft:publication"
"""The pointer's key in Redis; it has no end of life."""

MAX_POINTER_BYTES = 64 * 1024
"""Longest pointer that is read. Real ones have about 1 KB."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(gt=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Frozen(BaseModel):
    # Publishers and gateways of two versions share a pointer: fields unknown here are passed over.
    model_config = ConfigDict(frozen=True, extra="ignore")


class Release(_Frozen):
    """An artifact as it was published: where it lies, and the hash that everything hangs on.

    The manifest holds the hashes of all other files, so its own vouches for the whole directory.
    """

    name: str = Field(min_length=1, max_length=200)
    """The manifest's name."""
    path: str = Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")
    """The directory: a folder's name beside the pointer's file, or an absolute path."""
    manifest_sha256: Sha256
    created: str = Field(max_length=100)
    """When it was published, RFC 3339; the same artifact published again is another release."""

    @property
    def label(self) -> str:
        """What people and metrics call it."""
        return f"{self.name}-{self.manifest_sha256[:12]}"

    @property
    def key(self) -> str:
        """What tells it from every other release, the same artifact published earlier included."""
        return f"{self.manifest_sha256}@{self.created}"

    def directory(self, beside: Path | None) -> Path:
        """Return its directory; `beside` is the pointer's, None where the pointer is no file.

        Raises PublicationError for a path that leads anywhere else.
        """
        path = Path(self.path)
        if path.is_absolute():
            return path
        if beside is None or len(path.parts) != 1 or self.path in {".", ".."}:
            problem = f"the path {self.path!r} is neither absolute nor a folder beside the pointer"
            raise PublicationError(f"the release {self.label}", problem)
        return beside / path


class Canary(_Frozen):
    """A release that decides for a share of the conversations, and the bounds it must keep.

    It is withdrawn once it has seen `min_requests` and either bound is exceeded.
    """

    release: Release
    share: Share = 0.1
    """Of all conversations."""
    max_error_increase: NotNegative = 0.02
    """How much larger its share of failed requests may be than the stable release's."""
    max_cost_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.2
    """How many times the stable release's mean cost a request may cost."""
    min_requests: Annotated[int, Field(ge=1, le=2**53)] = 200


class Publication(_Frozen):
    """The pointer: the release that serves, and those that are tried beside it."""

    schema_version: Literal[1] = 1
    serial: Annotated[int, Field(ge=1, le=2**53)]
    """One more with every change."""
    stable: Release
    shadow: Release | None = None
    """Decides too, is recorded, and is not obeyed."""
    canary: Canary | None = None

    @classmethod
    def parse(cls, text: bytes, source: str) -> Publication:
        """Read a pointer; raises PublicationError naming `source` where it is none."""
        if len(text) > MAX_POINTER_BYTES:
            raise PublicationError(source, f"has more than {MAX_POINTER_BYTES} bytes")
        try:
            return cls.model_validate_json(text)
        except ValidationError as exc:
            first = exc.errors(include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the pointer"
            raise PublicationError(source, f"is no publication: {where}: {first['msg']}") from exc

    def to_json(self) -> bytes:
        """Return what `parse` reads."""
        return self.model_dump_json(indent=2).encode()

    @property
    def releases(self) -> tuple[Release, ...]:
        """Every release that it names, the stable one first."""
        canary = self.canary.release if self.canary else None
        return tuple(release for release in (self.stable, self.shadow, canary) if release)


Z = 1.645
"""One-sided 95%: what exceeds a bound by chance alone is not held against a canary. Turns of one
conversation are alike, which this does not know of; `min_requests` leaves room for it."""


@dataclass(slots=True)
class ReleaseStats:
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
class ExceededLimit:
    """Which bound a canary exceeds, and by which figures."""

    limit: str
    """`errors` or `cost`."""
    text: str


def find_exceeded_limit(
    tried: ReleaseStats, stable: ReleaseStats, bounds: Canary
) -> ExceededLimit | None:
    """Return the bound that a canary exceeds beyond what chance explains; None while it keeps both.

    The difference of error shares is that of Agresti and Caffo (2000), who add a success and a
    failure to either side, which holds for small samples too; the ratio of costs is judged by its
    logarithm (delta method), for costs spread over orders of magnitude.
    """
    if tried.requests < bounds.min_requests:
        return None
    if _lower_difference(tried, stable) > bounds.max_error_increase:
        shares = f"{tried.error_share:.1%} of {tried.requests} requests failed"
        return ExceededLimit(
            "errors", f"{shares}, {stable.error_share:.1%} of the stable release's"
        )
    if tried.priced >= bounds.min_requests and _lower_ratio(tried, stable) > bounds.max_cost_ratio:
        means = f"a request cost {tried.mean_cost_usd:.6f} USD"
        return ExceededLimit("cost", f"{means}, {stable.mean_cost_usd:.6f} with the stable release")
    return None


def _lower_difference(tried: ReleaseStats, stable: ReleaseStats) -> float:
    (p, p_variance), (q, q_variance) = _adjusted(tried), _adjusted(stable)
    return p - q - Z * math.sqrt(p_variance + q_variance)


def _adjusted(tally: ReleaseStats) -> tuple[float, float]:
    """Return an error share with one success and one failure added, and its variance."""
    share = (tally.failures + 1) / (tally.requests + 2)
    return share, share * (1 - share) / (tally.requests + 2)


def _lower_ratio(tried: ReleaseStats, stable: ReleaseStats) -> float:
    if stable.priced < 2 or tried.mean_cost_usd == 0:
        return 0.0
    if stable.mean_cost_usd == 0:
        return math.inf
    spread = math.sqrt(_relative_variance(tried) + _relative_variance(stable))
    return tried.mean_cost_usd / stable.mean_cost_usd * math.exp(-Z * spread)


def _relative_variance(tally: ReleaseStats) -> float:
    """Return the variance of a mean cost, over the square of that mean."""
    mean_squared = tally.mean_cost_usd**2
    variance = max(0.0, tally.cost_squared / tally.priced - mean_squared)
    return variance / tally.priced / mean_squared
