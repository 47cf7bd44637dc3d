"""Startup: the first router of a gateway, whatever state the publication is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.runtime.engine import EngineBuilder
from router_service.settings import RouterSettings, Settings
from router_service.store.pointers import POINTER_FILE
from switchcraft_training.cli import main
from tests.publishing import flip, make_artifact

ARMS = Artifact.load(SHIPPED).manifest.arms


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that differs from the shipped one."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "other")


def settings(directory: Path) -> Settings:
    """Return settings with a publication."""
    base = Settings.sandbox("http://127.0.0.1:9/v1", ARMS)
    return base.model_copy(update={"router": RouterSettings(publication=directory)})


@pytest.mark.parametrize("damage", ["nothing", "pointer", "release"])
def test_unusable_publication_falls_back_to_artifact(
    damage: str, tmp_path: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No pointer, a damaged pointer or release: the artifact serves, with a warning."""
    if damage == "release":
        main(["publish", "--to", str(tmp_path), str(other)])
        (release,) = (path for path in tmp_path.iterdir() if path.is_dir())
        flip(release / "tokenizer.json")
    elif damage == "pointer":
        (tmp_path / POINTER_FILE).write_bytes(b"{")
    router, publication = EngineBuilder().first_router(settings(tmp_path))
    assert (router.artifact.manifest.name, publication) == (SHIPPED.name, None)
    assert "router.artifact serves" in caplog.text


def test_stable_release_serves_from_directory(tmp_path: Path, other: Path) -> None:
    """The stable release serves from the first request; the canary is added later."""
    publish = ["publish", "--to", str(tmp_path)]
    main([*publish, str(other)])
    main([*publish, str(SHIPPED), "--as", "canary"])
    router, publication = EngineBuilder().first_router(settings(tmp_path))
    assert router.artifact.manifest.name == "other"
    assert publication is not None
    assert (publication.serial, publication.canary) == (2, None)
