"""`switchcraft-train publish`: the pointer moves only to complete, verified releases."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from router_service.artifact import (
    MANIFEST,
    SHIPPED,
    Artifact,
    save_manifest,
    sha256,
)
from router_service.core.releases import Publication
from router_service.router import Router
from router_service.store.pointers import POINTER_FILE, Pointer
from switchcraft_training.cli import main
from switchcraft_training.publishing.releases import make_release, put_stable
from tests.publishing import flip, make_artifact


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that differs from the shipped one."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "other")


def published(directory: Path) -> Publication:
    """Return the publication in a directory."""
    return Publication.parse((directory / POINTER_FILE).read_bytes(), "test")


def publish(*arguments: object) -> int:
    """Run the command."""
    return main(["publish", *map(str, arguments)])


def test_publish_to_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The release next to the pointer is complete, loads, and is named in the output."""
    assert publish(SHIPPED, "--to", tmp_path) == 0
    pointer = published(tmp_path)
    release = pointer.stable.directory(tmp_path)
    Router.load(release)
    assert (
        sha256(release / MANIFEST) == pointer.stable.manifest_sha256 == sha256(SHIPPED / MANIFEST)
    )
    assert release.name == f"{SHIPPED.name}-{pointer.stable.manifest_sha256[:12]}"
    assert pointer.stable.label in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [release.name]


def test_canary_can_be_added_withdrawn_and_promoted(
    tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A canary exists next to the stable release until it is withdrawn or promoted."""
    publish(SHIPPED, "--to", tmp_path)
    canary = [other, "--to", tmp_path, "--as", "canary", "--share", 0.25, "--min-requests", 50]
    publish(*canary)
    pointer = published(tmp_path)
    assert pointer.canary is not None
    assert (pointer.serial, pointer.canary.release.name, pointer.canary.share) == (2, "other", 0.25)
    capsys.readouterr()
    assert publish("--to", tmp_path, "--list") == 0
    assert "25.0% of conversations; withdrawn after 50 requests" in capsys.readouterr().out
    publish("--to", tmp_path, "--withdraw", "canary")
    assert published(tmp_path).canary is None
    publish(*canary)
    publish("--to", tmp_path, "--promote")
    pointer = published(tmp_path)
    assert (pointer.serial, pointer.stable.name, pointer.canary) == (5, "other", None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--promote"], "no canary to promote"),
        (["--withdraw", "canary"], "no canary to withdraw"),
        ([], "no artifact is given"),
        ([str(SHIPPED), "--as", "canary", "--share", "2"], "--share"),
        ([str(SHIPPED), "--as", "canary", "--max-cost-ratio", "nan"], "--max-cost-ratio"),
    ],
)
def test_invalid_command_leaves_publication_unchanged(
    tmp_path: Path, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the problem, and the pointer does not move."""
    publish(SHIPPED, "--to", tmp_path)
    before = published(tmp_path)
    assert publish("--to", tmp_path, *arguments) == 1
    assert problem in capsys.readouterr().err
    assert published(tmp_path) == before


def test_an_address_of_redis_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No folder is created with its name, because no gateway would look there."""
    monkeypatch.chdir(tmp_path)
    assert publish(SHIPPED, "--to", "redis://redis:6379/0") == 1
    assert "--to: artifacts are published in a directory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: _replace(path, b"")])
def test_damaged_artifact_is_not_published(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit, a missing or an empty file: the pointer stays, and no files remain."""
    target = tmp_path / "published"
    publish(SHIPPED, "--to", target)
    before = published(target), sorted(target.iterdir())
    artifact = make_artifact(tmp_path, "damaged")
    damage(artifact / "model.int8.onnx")
    assert publish(artifact, "--to", target) == 1
    assert "model.int8.onnx" in capsys.readouterr().err
    assert (published(target), sorted(target.iterdir())) == before


def test_artifact_with_wrong_canary_predictions_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An artifact with valid hashes but other predictions than recorded is refused."""
    artifact = Path(shutil.copytree(SHIPPED, tmp_path / "artifact"))
    canaries = artifact / "canary.jsonl"
    first, rest = canaries.read_text().split("\n", 1)
    row = json.loads(first)
    row["probabilities"] = {arm: 1 - p for arm, p in row["probabilities"].items()}
    _replace(canaries, f"{json.dumps(row)}\n{rest}".encode())
    save_manifest(artifact, Artifact.load(SHIPPED).manifest)
    assert publish(artifact, "--to", tmp_path / "published") == 1
    assert "probability" in capsys.readouterr().err
    assert not list((tmp_path / "published").glob(f"*/{MANIFEST}")), "no release is left"


def test_existing_release_is_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Publishing again reuses the release's directory, and fails if it has been damaged."""
    publish(SHIPPED, "--to", tmp_path)
    release = published(tmp_path).stable.directory(tmp_path)
    inodes = {path.name: path.stat().st_ino for path in release.iterdir()}
    publish(SHIPPED, "--to", tmp_path)
    assert {path.name: path.stat().st_ino for path in release.iterdir()} == inodes
    flip(release / "tokenizer.json")
    assert publish(SHIPPED, "--to", tmp_path) == 1
    assert "tokenizer.json" in capsys.readouterr().err


def test_concurrent_publishers_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """After twenty concurrent moves, the serial number has grown by twenty."""
    change = partial(put_stable, release=make_release(SHIPPED, tmp_path))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: Pointer(tmp_path).move(change), range(20)))
    assert published(tmp_path).serial == 20


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)
