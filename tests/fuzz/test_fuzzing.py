"""Replay of the corpus, and a short, reproducible fuzzing run of each target.

By hand, for longer: `python -m tests.fuzz --seconds 3600`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import entries
from tests.fuzz.__main__ import problem_in, run_engine
from tests.fuzz.names import NAMES, load

SEED = 15
MAX_SECONDS = 60


@pytest.mark.parametrize("name", NAMES)
def test_corpus_has_no_finding(name: str) -> None:
    """No input of the repository shows a defect."""
    target, problems = load(name), []
    assert entries.read(name), f"tests/fuzz/corpus/{name}.jsonl is empty"
    for entry in entries.inputs(name, target.attacks):
        try:
            target.check(entry.data)
        except Exception as exc:  # noqa: BLE001 - all of them are reported
            problems.append(f"{entry.data!r} ({entry.found or entry.id}): {exc!r}")
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_short_run_has_no_finding(name: str, tmp_path: Path) -> None:
    """A coverage-guided run from the corpus finds no defect."""
    pytest.importorskip("atheris", reason="atheris has no wheel for this platform")
    target = load(name)
    entries.export(entries.read(name), tmp_path / "in")
    limits = [f"-runs={target.runs}", f"-max_total_time={MAX_SECONDS}", f"-seed={SEED}"]
    output = run_engine(name, [*limits, f"-artifact_prefix={tmp_path}/", str(tmp_path / "in")])
    found = [path.read_bytes() for path in tmp_path.glob("*-*")]
    assert not problem_in(output), (
        f"{problem_in(output)}\nThe input is {found}. To replay it, write it to a file and run: "
        f"python -m tests.fuzz --target {name} --replay FILE\n{output[-3000:]}"
    )
