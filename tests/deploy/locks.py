"""The locks of `requirements/`, as pip reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
NAMES = sorted(path.stem for path in FOLDER.glob("*.lock"))

_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Pin:
    """One entry of a lock: a version of a package, for the environments of a marker."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]

    @property
    def applies(self) -> bool:
        """Return whether this Python on this platform installs it."""
        return self.marker is None or self.marker.evaluate()


def read_lock(name: str) -> list[Pin]:
    """Return the entries of a lock. Raises AssertionError for a line that is not a pin."""
    text = (FOLDER / f"{name}.lock").read_text()
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [_pin(line) for line in lines if line.strip()]


def _pin(line: str) -> Pin:
    hashes = tuple(_HASH.findall(line))
    rest = _HASH.sub("", line).strip()
    assert "--" not in rest, f"an option in a lock: {rest}"
    requirement = Requirement(rest)
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", rest
    assert "*" not in specifier.version, rest
    assert requirement.url is None, rest
    return Pin(canonicalize_name(requirement.name), specifier.version, requirement.marker, hashes)
