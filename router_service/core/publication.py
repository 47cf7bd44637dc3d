"""Which artifacts a fleet of gateways serves: one small value that a publisher moves.

The protocol. A *release* is an artifact's directory, complete before anything points at it and
never changed after. The *pointer* is one JSON value, a `Publication`, kept under `POINTER_FILE`
in a directory or under `POINTER_KEY` in Redis, and replaced in one step. Gateways look at it
again and again; one that sees another pointer loads the releases that it names, verifies each
against the pointer's hash, its own manifest and its canaries, and takes them up, or refuses them
and goes on with what it has.
"""

from __future__ import annotations

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
