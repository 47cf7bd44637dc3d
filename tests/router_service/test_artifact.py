"""Artifacts: saving, loading, and errors that name a damaged file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

from router_service.artifact import (
    CANARIES,
    MANIFEST,
    SHIPPED,
    TOKENIZER,
    Artifact,
    file_hashes,
)
from router_service.core.errors import ArtifactError
from router_service.router import Router


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the shipped artifact, which a test may damage."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "artifact"))


def edit_manifest(directory: Path, **fields: object) -> None:
    """Change fields of a manifest in place."""
    path = directory / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.int8.onnx", TOKENIZER, CANARIES])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_damaged_file_is_named(copy: Path, name: str, damage: Callable[[Path], None]) -> None:
    """One flipped bit, a missing file or an empty file is an error that names the file."""
    damage(copy / name)
    with pytest.raises(ArtifactError) as caught:
        Artifact.load(copy)
    assert caught.value.source == copy / name
    assert str(copy / name) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"schema_version": 2}, "schema version 2"),
        ({"arms": ["a", "a"]}, "twice"),
        ({"arms": ["a", "b"]}, "profile"),
        ({"policies": {}}, "default"),
        ({"policies": {"default": "verified"}}, "a policy named 'fast'"),
        ({"files": {}}, "no hash"),
        ({"packing": {"budget_tokens": 4}}, "budget_tokens"),
    ],
)
def test_inconsistent_manifest_is_refused(
    copy: Path, fields: dict[str, object], problem: str
) -> None:
    """Every rule of the manifest is checked on loading, and the error names the broken one."""
    edit_manifest(copy, **fields)
    with pytest.raises(ArtifactError, match=problem) as caught:
        Artifact.load(copy)
    assert caught.value.source == copy / MANIFEST


def rehash(directory: Path) -> None:
    """Write the hashes of the current files to the manifest, like a broken export."""
    edit_manifest(directory, files=file_hashes(directory))


def test_failing_canary_request_refuses_the_artifact(copy: Path) -> None:
    """An artifact whose hashes match but whose probabilities differ is not used."""
    path = copy / CANARIES
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    arm = next(iter(rows[3]["probabilities"]))
    rows[3]["probabilities"][arm] = 1 - round(rows[3]["probabilities"][arm])
    path.write_text("\n".join(map(json.dumps, rows)))
    rehash(copy)
    with pytest.raises(ArtifactError, match="line 4") as caught:
        Router.load(copy)
    assert caught.value.source == path
    assert arm in str(caught.value)


def with_gpu_graph(directory: Path) -> Path:
    """Give an artifact a graph for GPUs, which is that for CPUs, and return its path."""
    graph = directory / "model.fp16.onnx"
    shutil.copyfile(directory / "model.int8.onnx", graph)
    models = {"cpu": "model.int8.onnx", "cuda": graph.name}
    edit_manifest(directory, models=models, files=file_hashes(directory))
    return graph


def test_gpu_graph_is_refused_without_cuda(copy: Path) -> None:
    """A graph for GPUs does not silently run on the CPU; the error names the graph and remedies."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine's runtime has CUDA")
    graph = with_gpu_graph(copy)
    with pytest.raises(ArtifactError, match=r"cannot run on a GPU.*pip uninstall") as caught:
        Router(Artifact.load(copy), device="cuda")
    assert caught.value.source == graph
