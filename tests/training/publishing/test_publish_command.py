"""`switchcraft-train publish`: complete and verified before the pointer moves, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from router_service.core.artifact import (
    MANIFEST,
    SHIPPED,
    Artifact,
    file_hashes,
    save_manifest,
    sha256,
)
from router_service.core.releases import POINTER_FILE, POINTER_KEY, Publication, Release
from router_service.router import Router
from switchcraft_training.cli import main
from switchcraft_training.publishing.changes import put_stable
from switchcraft_training.publishing.pointers import open_pointer
from switchcraft_training.publishing.releases import make_release
from tests.publishing import flip, make_artifact


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that is not the shipped one."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "other")


def published(directory: Path) -> Publication:
    """Return what a directory's pointer says."""
    return Publication.parse((directory / POINTER_FILE).read_bytes(), "test")


def publish(*arguments: object) -> int:
    """Run the command."""
    return main(["publish", *map(str, arguments)])


def test_to_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The release beside the pointer is whole, loads, and is what the output says."""
    assert publish(SHIPPED, "--to", tmp_path) == 0
    pointer = published(tmp_path)
    release = pointer.stable.directory(tmp_path)
    Router.load(release)
    assert (
        sha256(release / MANIFEST) == pointer.stable.manifest_sha256 == sha256(SHIPPED / MANIFEST)
    )
    assert release.name == f"reference-pool-{pointer.stable.manifest_sha256[:12]}"
    assert pointer.stable.label in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [release.name]


def test_to_redis(
    redis_url: str, tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With Redis the pointer is a key, and its release an absolute path in the store."""
    with redis.Redis.from_url(redis_url) as server:
        server.delete(POINTER_KEY)
        assert publish(other, "--to", redis_url, "--store", tmp_path) == 0
        text = server.get(POINTER_KEY)
        assert isinstance(text, bytes)
        pointer = Publication.parse(text, "test")
        assert pointer.stable.directory(None).parent == tmp_path
        assert publish(other, "--to", redis_url) == 1
        assert "--store" in capsys.readouterr().err
        assert server.ttl(POINTER_KEY) == -1
        server.delete(POINTER_KEY)


def test_trials_come_and_go(
    tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shadow and a canary stand beside the stable release; one is withdrawn, one promoted."""
    publish(SHIPPED, "--to", tmp_path)
    publish(other, "--to", tmp_path, "--as", "shadow")
    publish(other, "--to", tmp_path, "--as", "canary", "--share", 0.25, "--min-requests", 50)
    pointer = published(tmp_path)
    assert pointer.shadow is not None
    assert pointer.canary is not None
    assert (pointer.serial, pointer.shadow.name, pointer.canary.share) == (3, "other", 0.25)
    capsys.readouterr()
    assert publish("--to", tmp_path, "--list") == 0
    assert "25.0% of conversations; withdrawn after 50 requests" in capsys.readouterr().out
    publish("--to", tmp_path, "--withdraw", "shadow")
    publish("--to", tmp_path, "--promote")
    pointer = published(tmp_path)
    assert (pointer.serial, pointer.stable.name, pointer.shadow, pointer.canary) == (
        5, "other", None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--promote"], "no canary to promote"),
        (["--withdraw", "shadow"], "no shadow to withdraw"),
        ([], "name the artifact"),
        ([str(SHIPPED), "--as", "canary", "--share", "2"], "--share"),
        ([str(SHIPPED), "--as", "canary", "--max-cost-ratio", "nan"], "--max-cost-ratio"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    tmp_path: Path, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what is wrong, and the pointer stays."""
    publish(SHIPPED, "--to", tmp_path)
    before = published(tmp_path)
    assert publish("--to", tmp_path, *arguments) == 1
    assert problem in capsys.readouterr().err
    assert published(tmp_path) == before


def test_a_trial_needs_something_to_stand_beside(
    tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a stable release nothing is tried, and nothing is copied."""
    assert publish(other, "--to", tmp_path, "--as", "shadow") == 1
    assert "publish a stable one first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: _replace(path, b"")])
def test_a_damaged_artifact_is_not_published(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit, a missing file, an empty one: the pointer stays, and nothing is left over."""
    target = tmp_path / "published"
    publish(SHIPPED, "--to", target)
    before = published(target), sorted(target.iterdir())
    artifact = make_artifact(tmp_path, "damaged")
    damage(artifact / "model.int8.onnx")
    assert publish(artifact, "--to", target) == 1
    assert "model.int8.onnx" in capsys.readouterr().err
    assert (published(target), sorted(target.iterdir())) == before


def test_canaries_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An artifact whose hashes hold, but that predicts otherwise than recorded, is refused."""
    artifact = Path(shutil.copytree(SHIPPED, tmp_path / "artifact"))
    canaries = artifact / "canary.jsonl"
    first, rest = canaries.read_text().split("\n", 1)
    row = json.loads(first)
    row["probabilities"] = {arm: 1 - p for arm, p in row["probabilities"].items()}
    _replace(canaries, f"{json.dumps(row)}\n{rest}".encode())
    manifest = Artifact.load(SHIPPED).manifest
    save_manifest(artifact, manifest.model_copy(update={"files": file_hashes(artifact)}))
    assert publish(artifact, "--to", tmp_path / "published") == 1
    assert "probability" in capsys.readouterr().err


def test_a_release_is_never_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An artifact published again is the same folder; one that was damaged there is refused."""
    publish(SHIPPED, "--to", tmp_path)
    release = published(tmp_path).stable.directory(tmp_path)
    inodes = {path.name: path.stat().st_ino for path in release.iterdir()}
    publish(SHIPPED, "--to", tmp_path)
    assert {path.name: path.stat().st_ino for path in release.iterdir()} == inodes
    flip(release / "tokenizer.json")
    assert publish(SHIPPED, "--to", tmp_path) == 1
    assert "tokenizer.json" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["directory", "redis"])
def test_publishers_at_the_same_time_undo_nothing(
    kind: str, tmp_path: Path, redis_url: str
) -> None:
    """Of twenty moves at once each counts: the serial has grown by twenty."""
    release = make_release(SHIPPED, tmp_path, is_beside_pointer=False)
    place = str(tmp_path) if kind == "directory" else redis_url
    with redis.Redis.from_url(redis_url) as server, ThreadPoolExecutor(8) as pool:
        server.delete(POINTER_KEY)
        list(pool.map(lambda _: _move(place, release), range(20)))
        last = open_pointer(place).read()
        assert last is not None
        assert last.serial == 20
        server.delete(POINTER_KEY)


def test_a_password_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error about a Redis names its host, and neither user nor password."""
    url = "redis://someone:planted-secret@127.0.0.1:9/0"
    assert publish(SHIPPED, "--to", url, "--store", tmp_path) == 1
    told = "".join(capsys.readouterr())
    assert "redis://127.0.0.1:9/0: is away" in told
    assert "planted-secret" not in told


def _move(place: str, release: Release) -> None:
    open_pointer(place).move(lambda published: put_stable(published, release))


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)
