"""A public repository and a package index on this machine, with files in their published form."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from switchcraft_training.fetching.sources import (
    RECORDINGS,
    Package,
    PublicRecording,
    Repository,
)

V1 = "gorilla_openfunctions_v1_test_"
BOARD = "berkeley-function-call-leaderboard"

QUESTION = {
    "id": "simple_0",
    "question": "Area of a triangle with base 3?",
    "function": {
        "name": "geometry.area",
        "description": "Area of a triangle.",
        "parameters": {"type": "dict", "properties": {"base": {"type": "integer"}}},
    },
}
JOKE = QUESTION | {"id": "relevance_0", "question": "Tell me a joke."}
TRUTH = {"id": "simple_0", "ground_truth": {"geometry.area": {"base": [3]}}}
COUNTS: Mapping[str, object] = {"input_token_count": 90, "output_token_count": 9, "latency": 0.5}
RIGHT = {"id": "simple_0", "result": [{"geometry_area": '{"base":3}'}], **COUNTS}
TEXT = {"id": "relevance_1", "result": "I know no joke.", **COUNTS}
CALL = {"id": "relevance_0", "result": [{"geometry_area": '{"base":1}'}], **COUNTS}


def to_lines(*rows: Mapping[str, object]) -> str:
    """Return rows as the leaderboard writes them: without a line break at the end of the file."""
    return "\n".join(map(json.dumps, rows))


def failed(number: int | str, kind: str, **details: object) -> Mapping[str, object]:
    """Return a line of a score file; v1 counts the answers of a category from 1."""
    return {"id": number, "model_name": "m", "valid": False, "error_type": kind, **details}


def header(correct: int, total: int) -> Mapping[str, object]:
    """Return the first line of a score file."""
    return {"accuracy": correct / total, "correct_count": correct, "total_count": total}


class Git:
    """A bare repository that serves partial clones, as the public host does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder.as_uri()
        subprocess.run(["git", "init", "--quiet", "--bare", str(folder)], check=True)
        for setting in ("allowFilter", "allowAnySHA1InWant"):
            self._run("config", f"uploadpack.{setting}", "true")

    def commit(self, files: Mapping[str, str]) -> str:
        """Commit these files in place of all others, and return the commit."""
        stream = ["commit refs/heads/main", "committer T <t@example.com> 0 +0000", "data 4", "test"]
        stream += ["deleteall"]
        for path, text in files.items():
            stream += [f'M 100644 inline "{path}"', f"data {len(text.encode())}", text]
        self._run("fast-import", "--quiet", "--force", stdin="\n".join(stream) + "\n")
        return self._run("rev-parse", "refs/heads/main").strip()

    def _run(self, *arguments: str, stdin: str | None = None) -> str:
        command = ["git", f"--git-dir={self.folder}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True)
        return done.stdout


def results_v1(models: Sequence[str]) -> dict[str, str]:
    """Return the results repository of a day of v1: each model calls where it should not.

    Every file of results has other contents, and all files of scores of a category are equal.
    """
    files = {"README.md": "# BFCL-Result"}
    for number, model in enumerate(models):
        result, score = f"2024-08-11/result/{model}/{V1}", f"2024-08-11/score/{model}/"
        took = {"latency": 1 + number / 8}
        right = RIGHT if "-FC" in model else RIGHT | {"result": "[geometry.area(base=3)]"}
        files[f"{result}simple_result.json"] = to_lines(right | took)
        files[f"{result}relevance_result.json"] = to_lines(CALL, TEXT | took)
        files[f"{result}rest_result.json"] = to_lines(RIGHT | {"id": "rest_0"})
        files[f"{score}simple_score.json"] = to_lines(header(1, 1))
        # An executed function's result may be a number that is no double.
        huge = failed(1, "relevance_error", model_result=10**400)
        files[f"{score}relevance_score.json"] = to_lines(header(1, 2), huge)
    return files


def questions_v1() -> dict[str, str]:
    """Return the leaderboard's own repository, with two categories that are not judged."""
    data = f"{BOARD}/data"
    return {
        f"{data}/{V1}simple.json": to_lines(QUESTION),
        f"{data}/{V1}relevance.json": to_lines(JOKE, JOKE | {"id": "relevance_1"}),
        f"{data}/{V1}sql.json": to_lines({"id": "sql_0"}),
        f"{data}/{V1}rest.json": to_lines({"id": "rest_0"}),
        f"{data}/possible_answer/{V1}simple.json": to_lines(TRUTH),
        f"{data}/README.md": "About the data",
    }


def pinned(
    name: str, commits: Mapping[str, str], package: Package | None = None
) -> PublicRecording:
    """Return a recording of the table, with other commits by repository, and another package."""
    recording = RECORDINGS[name]
    files = tuple(
        replace(each, commit=commits[each.source.name])
        if isinstance(each.source, Repository)
        else replace(each, source=package or each.source)
        for each in recording.files
    )
    return replace(recording, files=files)


def write_wheel(folder: Path, files: Mapping[str, str]) -> Package:
    """Write a wheel of bfcl-eval into an index in the form of PEP 503, and return its pin."""
    name = "bfcl_eval-0.1-py3-none-any.whl"
    page = folder / "simple/bfcl-eval"
    page.mkdir(parents=True)
    info = "bfcl_eval-0.1.dist-info"
    described = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: bfcl-eval\nVersion: 0.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(page / name, "w") as archive:
        for path, text in {**files, **described}.items():
            archive.writestr(path, text)
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    digest = hashlib.sha256((page / name).read_bytes()).hexdigest()
    return Package("bfcl-eval", "0.1", sha256=digest, licence="Apache-2.0")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        """Print nothing."""


@contextmanager
def served_folder(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
