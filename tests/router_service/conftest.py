"""Fixtures of the service's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from router_service.artifact import (
    MANIFEST,
    SHIPPED,
    Manifest,
    file_hashes,
    read_manifest,
    save_manifest,
)
from router_service.policies.costs import ArmProfile, Price
from tests.candidates import write_verifier


@pytest.fixture(scope="session")
def verifying_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shipped artifact with a hand-made verifier, and with costs that are easy to read.

    The arms cost 1, 2, 3, ... USD per 1,000 requests, and take as many seconds.
    """
    directory = tmp_path_factory.mktemp("verifying") / "artifact"
    shutil.copytree(SHIPPED, directory)
    manifest = read_manifest(directory / MANIFEST)
    spec = write_verifier(directory, len(manifest.packing.features), len(manifest.arms))
    profile = {
        arm: ArmProfile(
            input_tokens=1000,
            output_tokens=0,
            seconds=place,
            price=Price(input_usd_per_mtok=place, output_usd_per_mtok=0),
            n=1,
        )
        for place, arm in enumerate(manifest.arms, start=1)
    }
    fields = manifest.model_dump() | {"verifier": spec, "profile": profile}
    fields |= {"frontier": (), "verified_frontier": (), "files": file_hashes(directory)}
    save_manifest(directory, Manifest.model_validate(fields))
    return directory
