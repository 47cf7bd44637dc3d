"""Public recordings are downloaded, arranged, continued after an interruption, and verified."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from router_service.checker.toolbox import Call
from switchcraft_training.datasets import bfcl
from switchcraft_training.errors import DataError, FetchError
from switchcraft_training.fetching.recordings import SOURCES, fetch_recording
from switchcraft_training.fetching.sources import RECORDINGS, PublicRecording
from tests.training.fetching.places import (
    QUESTION,
    RIGHT,
    Git,
    pinned,
    questions_v1,
    results_v1,
    served_folder,
    to_lines,
    write_wheel,
)

ROOT = Path(__file__).parents[3]
MODELS = [f"model-{i}-FC" for i in range(40)]
"""More files than the command asks for in one request."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Git]:
    """Serve the questions and the results of v1 as repositories."""
    folder = tmp_path_factory.mktemp("public")
    return {name: Git(folder / f"{name}.git") for name in ("gorilla", "bfcl-result")}


@pytest.fixture(scope="module")
def recording(places: dict[str, Git]) -> PublicRecording:
    """Publish a recording of v1, followed by a later commit without it."""
    commits = {
        "gorilla": places["gorilla"].commit(questions_v1()),
        "bfcl-result": places["bfcl-result"].commit(results_v1([*MODELS, "model-text"])),
    }
    places["bfcl-result"].commit({"README.md": "moved"})
    return pinned("bfcl-2024-08", commits)


@pytest.fixture
def mirrors(places: dict[str, Git], recording: PublicRecording) -> dict[str, str]:  # noqa: ARG001
    """Return the addresses of the repositories."""
    return {name: place.url for name, place in places.items()}


def test_arranged_recording_is_readable_and_says_where_it_is_from(
    recording: PublicRecording, mirrors: dict[str, str], tmp_path: Path
) -> None:
    """Questions and answers are those of the pinned commits, with their checksums."""
    folder = fetch_recording(recording, tmp_path, mirrors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bfcl-2024-08"]
    found = bfcl.open_recording(folder)
    assert found.arms() == sorted([*MODELS, "model-text"])
    assert {judged.example.id for judged in found.judged()} == {
        *("simple_0", "relevance_0", "relevance_1")
    }
    answers = {answer.example_id: answer.calls for answer in found.answers(MODELS[0])}
    assert answers["simple_0"] == (Call("geometry_area", {"base": 3}),)
    sources = json.loads((folder / SOURCES).read_bytes())
    assert {each["name"]: each["url"] for each in sources["sources"]} == mirrors
    assert {each["revision"] for each in sources["sources"]} == {f.commit for f in recording.files}
    written = {str(p.relative_to(folder)) for p in folder.rglob("*.gz")}
    assert written == set(sources["sha256"])
    assert not any("sql" in path or "rest" in path for path in written)


def test_killed_download_continues(
    recording: PublicRecording,
    mirrors: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a kill in the middle, the same command asks only for the files that are missing."""
    asked, hang, hanging = (tmp_path / name for name in ("asked", "hang", "hanging"))
    hook, wanted = tmp_path / "hook.sh", tmp_path / "wanted"
    # The server writes down which objects it is asked for. It does not answer its fifth request,
    # the second batch of results: before it are the two lists of files and a batch of each.
    hook.write_text(
        f'#!/bin/sh\ncat > "{wanted}"\n'
        f'(echo; grep -E "^[0-9a-f]{{40}}" "{wanted}") >> "{asked}"\n'
        f'if [ -e "{hang}" ] && [ "$(grep -c "^$" "{asked}")" = 5 ]; then'
        f' touch "{hanging}"; exec sleep 60; fi\n'
        f'exec "$@" < "{wanted}"\n'
    )
    hook.chmod(0o700)
    settings = tmp_path / "gitconfig"
    settings.write_text(f"[uploadpack]\n\tpackObjectsHook = {hook}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    hang.touch()
    data = tmp_path / "data"
    script = tmp_path / "fetch.py"
    commits = {files.source.name: files.commit for files in recording.files}
    script.write_text(
        "from pathlib import Path\n"
        "from switchcraft_training.fetching.recordings import fetch_recording\n"
        "from tests.training.fetching.places import pinned\n"
        f"fetch_recording(pinned('bfcl-2024-08', {commits}), Path({str(data)!r}), {mirrors})\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(
        [sys.executable, script], env=environment, start_new_session=True
    ) as command:
        while not hanging.exists():
            assert command.poll() is None
            time.sleep(0.02)
        os.killpg(command.pid, signal.SIGKILL)
    assert not (data / recording.folder).exists()
    arrived = asked.read_text().split("\n\n")[3].split()
    asked.write_text("")
    hang.unlink()
    folder = fetch_recording(recording, data, mirrors)
    assert len(bfcl.open_recording(folder).arms()) == len(MODELS) + 1
    again = asked.read_text().split()
    assert not set(arrived) & set(again)
    # Two files of results of each model, and two contents of scores.
    assert len(arrived) + len(again) == 2 * (len(MODELS) + 1) + 2


def test_repeated_command_verifies_the_folder(
    recording: PublicRecording, mirrors: dict[str, str], tmp_path: Path
) -> None:
    """An unchanged folder is accepted without the network; a changed or missing file is named."""
    folder = fetch_recording(recording, tmp_path, mirrors)
    nowhere = dict.fromkeys(mirrors, (tmp_path / "nowhere").as_uri())
    assert fetch_recording(recording, tmp_path, nowhere) == folder
    victim = next(folder.rglob("*simple_result.json.gz"))
    victim.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(DataError, match=r"differs from what was downloaded \(1 such") as caught:
        fetch_recording(recording, tmp_path, mirrors)
    assert caught.value.path == victim
    assert f"Remove the folder {folder}, and run the same command again" in str(caught.value)
    victim.unlink()
    with pytest.raises(DataError, match="is missing"):
        fetch_recording(recording, tmp_path, mirrors)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("http://127.0.0.1:9/gone", r"could not be downloaded.*Check the network and the proxy"),
        ("file:///nowhere/at/all", "is not a public repository.*--mirror"),
    ],
)
def test_unreachable_repository_says_what_to_do(
    recording: PublicRecording, tmp_path: Path, address: str, problem: str
) -> None:
    """The error names the address, git's reason and the remedy."""
    with pytest.raises(FetchError, match=problem) as caught:
        fetch_recording(recording, tmp_path, {"gorilla": address})
    assert caught.value.source == address


QUESTION_V4 = QUESTION | {
    "id": "simple_python_0",
    "question": [[{"role": "user", "content": "Area of a triangle with base 3?"}]],
    "function": [QUESTION["function"]],
}


def test_questions_may_come_from_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned wheel is downloaded by pip, and its questions are read beside the answers."""
    for key in os.environ:
        if re.match("pip_", key, re.IGNORECASE):
            monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    truth = {"id": "simple_python_0", "ground_truth": [{"geometry.area": {"base": [3]}}]}
    package = write_wheel(
        tmp_path / "index",
        {
            "bfcl_eval/data/BFCL_v4_simple_python.json": to_lines(QUESTION_V4),
            "bfcl_eval/data/possible_answer/BFCL_v4_simple_python.json": to_lines(truth),
            "bfcl_eval/data/BFCL_v4_memory.json": to_lines({"id": "memory_0"}),
        },
    )
    git = Git(tmp_path / "results.git")
    files = {"2025-12-16/score/README": "scores"}
    models = RECORDINGS["bfcl-2025-12"].models
    answer = RIGHT | {"id": "simple_python_0"}
    for model in (*models, "another-model"):
        place = f"2025-12-16/result/{model}"
        files[f"{place}/non_live/BFCL_v4_simple_python_result.json"] = to_lines(answer)
        files[f"{place}/agentic/memory/kv/BFCL_v4_memory_kv_result.json"] = to_lines({"id": "m"})
        files[f"{place}/agentic/BFCL_v4_web_search_base_result.json"] = to_lines({"id": "w"})
    commits = {"bfcl-result": git.commit(files)}
    recording = pinned("bfcl-2025-12", commits, package)
    with served_folder(tmp_path / "index") as address:
        mirrors = {"bfcl-result": git.url, "bfcl-eval": f"{address}/simple"}
        for wrong, problem in (
            (replace(package, sha256="0" * 64), r"==0\.1 has another hash than the pinned one"),
            (
                replace(package, version="9"),
                r"==9 could not be downloaded: No matching .*pip config",
            ),
        ):
            with pytest.raises(FetchError, match=problem):
                fetch_recording(pinned("bfcl-2025-12", commits, wrong), tmp_path / "no", mirrors)
        folder = fetch_recording(recording, tmp_path / "data", mirrors)
    assert folder.name == "bfcl-v4-2025-12"
    found = bfcl.open_recording(folder)
    assert found.arms() == sorted(models)
    (judged,) = found.judged()
    assert judged.example.id == "simple_python_0"
    assert [judged.expected.calls[0].name] == ["geometry_area"]
