"""Fuzz from the command line: `python -m tests.fuzz --seconds 600`.

Inputs with new coverage are kept in `runs/fuzz` for the next run. An input that shows a defect
belongs to the target's corpus, with the defect's name.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz import entries
from tests.fuzz.names import NAMES, load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "fuzz"

_EXCEPTION = re.compile(r"Uncaught Python exception: ===\n(.*)")


def main() -> int:
    """Run the command line; return 1 if a target has a finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--target", action="append", choices=NAMES, help="all by default")
    parser.add_argument("--replay", type=Path, help="a file to run the targets on instead")
    options = parser.parse_args()
    names = options.target or NAMES
    if options.replay:
        for name in names:
            load(name).check(options.replay.read_bytes())
        return 0
    problems = {name: fuzz(name, options.seconds / len(names)) for name in names}
    return int(any(problems.values()))


def fuzz(name: str, seconds: float) -> str:
    """Fuzz a target until the time is over, or until it has a finding, which is returned."""
    inputs = FOLDER / name / "inputs"
    entries.export(entries.inputs(name, load(name).attacks), inputs)
    began_s = time.monotonic()
    output = run_engine(name, [f"-max_total_time={max(1, int(seconds))}", str(inputs)])
    problem = problem_in(output)
    executions = re.findall(r"stat::number_of_executed_units: (\d+)", output)
    print(
        f"{name}: {executions} executions in {time.monotonic() - began_s:.0f} s; {problem or 'ok'}"
    )
    if problem:
        print("\n".join(re.findall(r"Test unit written to \S+", output)))
    return problem


def run_engine(name: str, arguments: Iterable[str]) -> str:
    """Run libFuzzer on a target, and return its output."""
    target, folder = load(name), FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = folder / "dictionary"
    dictionary.write_text("".join(f'"{_escaped(token)}"\n' for token in target.tokens))
    # libFuzzer reads the peak memory of its process, and a new process inherits its parent's.
    inherited_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    command = [
        *(sys.executable, "-m", "tests.fuzz.engine", name),
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


if __name__ == "__main__":
    sys.exit(main())
