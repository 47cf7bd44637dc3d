"""Fuzz from the command line: `python -m tests.fuzz --seconds 600`.

Findings and inputs with new coverage are kept in `runs/fuzz` for the next run. `--keep` adds to the
repository's corpus the fewest inputs that have all of the coverage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import entries
from tests.fuzz.entries import Entry
from tests.fuzz.names import NAMES, load
from tests.fuzz.target import kind_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "fuzz"

MAX_CORPUS_BYTES = 96 * 1024
"""For one target in the repository."""

_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")
_EDGES = re.compile(r"cov: (\d+) ft: (\d+)")
_EXCEPTION = re.compile(r"Uncaught Python exception: ===\n(.*)")
_ARTIFACT = re.compile(r"Test unit written to (\S+)")


@dataclass(slots=True)
class Tally:
    """Result of fuzzing one target."""

    executions: int = 0
    seconds: float = 0.0
    edges: int = 0
    features: int = 0
    findings: dict[str, Path] = field(default_factory=dict)
    """An input for each problem, by the problem's description."""


def main() -> int:
    """Run the command line; return 1 if a target has a finding."""
    options = _options()
    names = options.target or NAMES
    if options.replay:
        return _replay(names, options.replay)
    if options.keep:
        for name in names:
            keep(name)
        return 0
    if options.lines:
        _print_lines(names)
        return 0
    tallies = fuzz(names, options.seconds, slice_s=options.slice, jobs=options.jobs)
    _print_table(tallies)
    return int(any(tally.findings for tally in tallies.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--target", action="append", choices=NAMES, help="all by default")
    parser.add_argument("--slice", type=float, default=60, help="seconds before the next target")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    parser.add_argument("--replay", action="append", type=Path, help="a file to run a target on")
    parser.add_argument("--keep", action="store_true", help="add to the repository's corpus")
    parser.add_argument("--lines", action="store_true", help="print the covered lines")
    return parser.parse_args()


def fuzz(names: Sequence[str], seconds: float, *, slice_s: float, jobs: int) -> Mapping[str, Tally]:
    """Fuzz the targets in turns until the time is over."""
    tallies = {name: Tally() for name in names}
    turn_s = min(slice_s, seconds * jobs / len(names))
    end_s = time.monotonic() + seconds
    for name in names:
        entries.export(entries.inputs(name, load(name).attacks), FOLDER / name / "inputs")

    def turn(name: str) -> None:
        turn_end_s = min(end_s, time.monotonic() + turn_s)
        while (left_s := turn_end_s - time.monotonic()) >= 1:
            _fuzz_once(name, int(left_s), tallies[name])

    with ThreadPoolExecutor(jobs) as pool:
        while end_s - time.monotonic() >= 1:
            list(pool.map(turn, names))
    return tallies


def _fuzz_once(name: str, seconds: int, tally: Tally) -> None:
    began_s = time.monotonic()
    arguments = [f"-max_total_time={seconds}", str(FOLDER / name / "inputs")]
    output = run_engine(name, arguments, known=tally.findings)
    tally.seconds += time.monotonic() - began_s
    executions = _EXECUTIONS.search(output)
    tally.executions += int(executions[1]) if executions else 0
    for found in _EDGES.finditer(output):
        tally.edges = max(tally.edges, int(found[1]))
        tally.features = max(tally.features, int(found[2]))
    if problem := problem_in(output):
        artifact = _ARTIFACT.search(output)
        kind = kind_of(problem)
        if kind not in tally.findings:
            tally.findings[kind] = Path(artifact[1]) if artifact else Path()
            print(f"{name}: {problem[:1000]}\n    {tally.findings[kind]}", flush=True)


def run_engine(name: str, arguments: Iterable[str], known: Iterable[str] = ()) -> str:
    """Run libFuzzer on a target, and return its output.

    Problems of the kinds in `known` do not end the run.
    """
    target, folder = load(name), FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = folder / "dictionary"
    dictionary.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens))
    # libFuzzer reads the peak memory of its process, and a new process inherits its parent's.
    inherited_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    # A script, because libFuzzer starts itself again to merge corpora.
    script = folder / "engine"
    module = (sys.executable, "-m", "tests.fuzz.engine")
    words = shlex.join((*module, name, json.dumps(list(known))))
    script.write_text(f'#!/bin/sh\nexec {words} "$0" "$@"\n')
    script.chmod(0o755)
    command = [
        str(script),
        f"-max_len={target.max_bytes}",
        f"-dict={dictionary}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        "-timeout=20",
        f"-rss_limit_mb={inherited_mb + 1500}",
        *arguments,
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, check=False, text=True,
        errors="replace",
    )  # fmt: skip
    return done.stderr + done.stdout


def problem_in(output: str) -> str:
    """Return the problem that a run of the engine found, if any."""
    found = _EXCEPTION.search(output)
    if found:
        return found[1]
    errors = [line for line in output.splitlines() if "ERROR: libFuzzer" in line]
    if errors or "stat::number_of_executed_units" not in output:
        return errors[0] if errors else f"the engine failed: {output[-2000:]}"
    return ""


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def _replay(names: Sequence[str], paths: Sequence[Path]) -> int:
    failures = 0
    for name in names:
        for path in paths:
            try:
                load(name).check(path.read_bytes())
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is what is asked for
                print(f"{name}: {path}: {type(exc).__name__}: {exc}")
                failures += 1
    return min(1, failures)


def keep(name: str) -> None:
    """Replace a target's corpus by the fewest inputs with all coverage, and those of defects."""
    found = [entry for entry in entries.read(name) if entry.found]
    merged = FOLDER / name / "merged"
    merged.mkdir(parents=True, exist_ok=True)
    for path in merged.iterdir():
        path.unlink()
    inputs = FOLDER / name / "inputs"
    output = run_engine(name, ["-merge=1", str(merged), str(inputs)])
    if "MERGE-OUTER: the last" not in output and not any(merged.iterdir()):
        print(output[-3000:])
        raise SystemExit(f"{name}: the inputs could not be merged")
    data = sorted((path.read_bytes() for path in merged.iterdir()), key=len)
    kept: list[Entry] = []
    size_bytes = 0
    for one in data:
        size_bytes += len(one)
        if size_bytes <= MAX_CORPUS_BYTES:
            kept.append(Entry(one))
    known = {entry.data for entry in found}
    entries.write(name, [*found, *(entry for entry in kept if entry.data not in known)])
    print(f"{name}: {len(found)} of defects, {len(kept)} of {len(data)} for coverage")


def _print_table(tallies: Mapping[str, Tally]) -> None:
    print("\n| target | executions | a second | branches | features | findings |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, tally in tallies.items():
        rate = tally.executions / max(1.0, tally.seconds)
        cells = (tally.executions, round(rate), tally.edges, tally.features, len(tally.findings))
        print(f"| `{name}` | {' | '.join(f'{cell:,}' for cell in cells)} |")
    for name, tally in tallies.items():
        for problem, path in tally.findings.items():
            print(f"\n{name}: {problem}\n    python -m tests.fuzz --target {name} --replay {path}")


def _print_lines(names: Sequence[str]) -> None:
    """Print how many lines in functions of each measured file the inputs cover."""
    for name in names:
        command = [sys.executable, "-m", "tests.fuzz.lines", name, str(FOLDER / name / "inputs")]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for file, (covered, total, missed) in json.loads(done.stdout).items():
            print(f"{name}: {file}: {covered} of {total} lines; not {missed}")


if __name__ == "__main__":
    sys.exit(main())
