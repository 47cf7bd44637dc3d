"""The locks: every package is pinned with hashes, and satisfies pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.locks import FOLDER, NAMES, ROOT, read_lock

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str | dict[str, str]]] = PROJECT["dependency-groups"]


def of_group(name: str) -> Iterator[str]:
    """Yield the requirements of a dependency group, with those of the groups that it includes."""
    for entry in GROUPS[name]:
        yield from of_group(entry["include-group"]) if isinstance(entry, dict) else (entry,)


def of_extras(*names: str) -> Iterator[str]:
    """Yield the requirements of the package with some of its extras."""
    yield from PROJECT["project"]["dependencies"]
    for name in names:
        yield from EXTRAS[name]


SERVING = ("redis", "postgres", "aws", "google", "azure", "otlp")
REQUIREMENTS = {
    "cpu": [*of_extras("cpu", *SERVING)],
    "gpu": [*of_extras("gpu", *SERVING)],
    "dev": [*of_extras("cpu", *SERVING, "train"), *of_group("dev")],
    **{name: [*of_group(name)] for name in ("build", "sbom", "installer", "no-deps")},
}
"""Requirements that each lock is compiled from; `make lock` has the same list."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_is_pinned_with_hashes(name: str) -> None:
    """Each line of a lock is a version with its SHA-256 hashes, and nothing else."""
    pins = read_lock(name)
    assert pins
    for pin in pins:
        assert pin.hashes, pin.name
    assert "://" not in (FOLDER / f"{name}.lock").read_text(), "the index is configured"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", sorted(REQUIREMENTS))
def test_locks_satisfy_pyproject(name: str, python: str) -> None:
    """Each requirement of pyproject.toml has one version in the lock that satisfies it."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.8",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    locked: dict[str, str] = {}
    for pin in read_lock(name):
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in locked, f"two versions of {pin.name}"
            locked[pin.name] = pin.version
    for requirement in map(Requirement, REQUIREMENTS[name]):
        wanted = canonicalize_name(requirement.name)
        if wanted == "torch" or (
            requirement.marker is not None and not requirement.marker.evaluate(environment)
        ):
            continue
        assert wanted in locked, f"{wanted} is not locked: run `make lock`"
        assert requirement.specifier.contains(locked[wanted], prereleases=True), (
            f"{wanted} {locked[wanted]} is locked, pyproject.toml asks for {requirement}: "
            "run `make lock`"
        )


def test_locks_agree_on_versions() -> None:
    """Tests run with the versions of the image."""
    dev = {(pin.name, pin.version) for pin in read_lock("dev")}
    for name in ("cpu", "build", "sbom", "installer"):
        assert {(pin.name, pin.version) for pin in read_lock(name)} <= dev
    served = {(pin.name, pin.version) for pin in read_lock("cpu") if pin.name != "onnxruntime"}
    assert served <= {(pin.name, pin.version) for pin in read_lock("gpu")}
