"""Memory and time of `replay` and `import decisions:` on generated decision logs.

    python benchmarks/own_traffic.py --decisions 10000 100000 1000000 --work /tmp/own-traffic

The generated gateway chooses among eight arms by `drift=0.05`, explores one request in ten, and
logs content. A line has 3 KB on average: a system text, one to five turns, three to eight tools,
and the answer's calls. Half of the decisions get feedback, one verdict in five as expected calls.
One decision in ten repeats an earlier query. Files have up to 100 MB, like a gateway's.

`predict` is `replay` with the shipped artifact, which predicts every request again and looks for it
among the queries that it has learned from. Each command runs in its own process. The table has its
time, its time on a processor, its peak resident memory, and its memory per decision above that of a
log with 100 decisions. The log is deleted afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import NamedTuple

import orjson

from benchmarks.stamp import stamp
from router_service.apis.conversation import Json
from router_service.artifact import SHIPPED
from router_service.policies.drift import Drift
from router_service.policies.exploration import explore

COMMANDS = ("replay", "predict", "import")
FILE_BYTES = 100_000_000
EXPLORED_SHARE = 0.1
REPEATED_SHARE = 0.1
COSTS_USD = {
    "gpt-4o-2024-08-06-FC": 1.2e-3, "claude-3-5-sonnet-20240620-FC": 1.6e-3,
    "gpt-4-turbo-2024-04-09-FC": 4e-3, "gpt-3.5-turbo-0125-FC": 3e-4,
    "gpt-4o-mini-2024-07-18-FC": 8e-5, "claude-3-haiku-20240307-FC": 3e-4,
    "gemini-1.5-flash-preview-0514": 6e-5, "open-mistral-nemo-2407-FC-Auto": 3e-5,
}  # fmt: skip
"""The arms of the shipped artifact, so that it can be replayed."""
ARMS = tuple(COSTS_USD)
SKILL = (0.88, 0.87, 0.85, 0.82, 0.78, 0.8, 0.76, 0.7)
TEXT = (
    "please find the next flight from Oslo to Lima and book a table for two near the harbour then"
    " tell my manager that the report about quarterly revenue will be late because the data of last"
    " week is missing and convert all prices to euros with the rate of today "
) * 100
NAMES = ("search", "book", "convert", "send", "list", "update", "delete", "report")


class Request(NamedTuple):
    """A generated request: its conversation, its content and the calls that it requires."""

    conversation: str
    content: Mapping[str, Json]
    calls: list[Mapping[str, Json]]


def write_log(folder: Path, decisions: int, content_share: float = 1.0, seed: int = 0) -> int:
    """Write a log of generated decisions to a new folder, and return its size in bytes.

    `content_share` scales the length of the messages.
    """
    folder.mkdir(parents=True)
    size = total = number = 0
    file = (folder / f"decisions-{number:04}.jsonl").open("wb")
    for line in generate_lines(decisions, content_share, seed):
        if size + len(line) > FILE_BYTES:
            file.close()
            number, size = number + 1, 0
            file = (folder / f"decisions-{number:04}.jsonl").open("wb")
        file.write(line)
        size += len(line)
        total += len(line)
    file.close()
    return total


def generate_lines(decisions: int, content_share: float, seed: int) -> Iterator[bytes]:
    """Yield the lines of decisions, each followed by its feedback, if any."""
    rng = Random(seed)  # noqa: S311 - no secret
    recent: list[Request] = []
    for number in range(decisions):
        if recent and rng.random() < REPEATED_SHARE:
            request = rng.choice(recent)
        else:
            request = _request(rng, number, content_share)
            recent = [*recent[-99:], request]
        difficulty = rng.gauss(0, 0.1)
        probabilities = [
            min(0.99, max(0.01, skill - difficulty + rng.gauss(0, 0.05))) for skill in SKILL
        ]
        chosen = Drift(0.05).choose(probabilities, list(COSTS_USD.values())).arm
        drawn = explore(chosen, len(ARMS), EXPLORED_SHARE, rng.random())
        is_correct = rng.random() < probabilities[drawn.arm]
        made = request.calls if is_correct else [{**request.calls[0], "arguments": {"value": 0}}]
        created = 1.7e9 + number
        decision = {
            "type": "decision",
            "id": f"dec_{number:012x}",
            "created": created,
            "model": ARMS[drawn.arm],
            "key": "team-a",
            "deployment": "d0",
            "attempts": 1,
            "arm": ARMS[drawn.arm],
            "release": "stable",
            "reason": "drift" if drawn.arm == chosen else "explored",
            "policy": "drift=0.05",
            "propensity": drawn.propensity,
            "probabilities": dict(zip(ARMS, probabilities, strict=True)),
            "expected_cost_usd": COSTS_USD,
            "packed_tokens": 300,
            "stream": False,
            "status": 200,
            "ending": "complete",
            "prompt_tokens": 600,
            "completion_tokens": 60,
            "calls": len(made),
            "usage_is_estimated": False,
            "cost_usd": COSTS_USD[ARMS[drawn.arm]] * rng.uniform(0.5, 1.5),
            "latency_s": rng.uniform(0.5, 3.0),
            "first_byte_s": 0.4,
            "conversation": request.conversation,
            "request_sha256": _digest(number, 32),
            "artifact": "generated",
            "artifact_sha256": _digest(-1, 32),
            "features": [round(rng.random(), 4) for _ in range(24)],
            "is_fallback": False,
            "cached_tokens": 0,
            "answer_sha256": _digest(-number - 2, 32),
            "calls_fit": True,
            "content": {"calls": made, "text": "", "request": request.content},
        }
        yield orjson.dumps(decision) + b"\n"
        draw = rng.random()
        if draw < 0.5:
            feedback = {
                "type": "feedback",
                "created": created + 0.5,
                "decision_id": decision["id"],
                "arm": decision["arm"],
                "correct": is_correct if draw < 0.4 else None,
                "expected": None if draw < 0.4 else request.calls,
            }
            yield orjson.dumps(feedback) + b"\n"


def _request(rng: Random, number: int, content_share: float) -> Request:
    def text(characters: int, share: float = content_share) -> str:
        start = rng.randrange(len(TEXT) // 2)
        return TEXT[start : start + round(characters * share)]

    names = rng.sample(NAMES, rng.randint(3, len(NAMES)))
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": text(80, 1),
                "parameters": {
                    "type": "object",
                    "properties": {"value": {"type": "integer", "description": text(30, 1)}},
                    "required": ["value"],
                },
            },
        }
        for name in names
    ]
    messages = [{"role": "system", "content": text(300)}]
    for turn in range(rng.randint(0, 2)):
        messages.append({"role": "user", "content": f"{text(100)} {number}.{turn}"})
        messages.append({"role": "assistant", "content": text(150)})
    messages.append({"role": "user", "content": f"{text(100)} {number}"})
    # Most conversations have one or two decisions.
    conversation = _digest(number - number % rng.choice((1, 2, 4)), 16)
    call = {"name": names[0], "arguments": {"value": number % 1000}}
    return Request(conversation, {"messages": messages, "tools": tools}, [call])


def _digest(number: int, size: int) -> str:
    return blake2b(str(number).encode(), digest_size=size).hexdigest()


class Figures(NamedTuple):
    """Time, time on a processor, and peak memory of one command."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def run_command(arguments: list[str]) -> Figures:
    """Run `switchcraft-train` in its own process; raises RuntimeError if it fails."""
    code = "import sys; from switchcraft_training.cli import main; sys.exit(main(sys.argv[1:]))"
    started_s = time.perf_counter()
    child = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"{arguments} failed with status {status}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Figures(time.perf_counter() - started_s, cpu_s, usage.ru_maxrss / 1024)


def main() -> None:
    """Print a table of the commands by the number of decisions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--work", type=Path, required=True, help="folder for the generated log")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    log, rows = arguments.work / "log", arguments.work / "rows.jsonl"
    policies = ["--policy", "drift=0.05", "--policy", "theta=0.8"]
    commands = {
        "replay": ["replay", str(log), *policies],
        "predict": ["replay", str(log), *policies, "--artifact", str(SHIPPED)],
        "import": ["import", f"decisions:{log}", "--out", str(rows)],
    }
    commands = {name: commands[name] for name in arguments.commands}
    start: dict[str, Figures] = {}
    figures: list[Mapping[str, Json]] = []
    print(f"{'decisions':>9} {'log, MB':>8} {'command':<8} {'seconds':>8} {'CPU, s':>7}", end=" ")
    print(f"{'peak, MB':>9} {'bytes per decision':>18}")
    for decisions in (100, *arguments.decisions):
        shutil.rmtree(log, ignore_errors=True)
        size = write_log(log, decisions)
        try:
            for name, command in commands.items():
                found = run_command(command)
                base = start.setdefault(name, found)
                each = (found.peak_mb - base.peak_mb) * 2**20 / decisions
                figures.append({"decisions": decisions, "command": name, **found._asdict()})
                print(
                    f"{decisions:>9,} {size / 1e6:>8,.0f} {name:<8} {found.seconds:>8.1f}"
                    f" {found.cpu_seconds:>7.1f} {found.peak_mb:>9,.0f} {each:>18,.0f}",
                    flush=True,
                )
        finally:
            shutil.rmtree(log, ignore_errors=True)
            rows.unlink(missing_ok=True)
    if arguments.out:
        row = {"figures": figures, **stamp("numpy", "orjson", "pydantic")}
        arguments.out.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
