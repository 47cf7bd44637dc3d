"""`switchcraft-train compare`: the checkers' table, and their disagreements to be read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from training.comparison.compare import Disagreement, Peer, Tally, compare_arm
from training.comparison.disagreements import sample, write
from training.comparison.peer import PeerChecker, peer_questions
from training.comparison.table import to_markdown
from training.datasets.bfcl import Runs, recorded
from training.datasets.bfcl.files import PACKAGE


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `compare` stage."""
    compare = stages.add_parser(
        "compare", help="our verdicts beside the leaderboard's, over folders of recorded answers"
    )
    compare.add_argument("recordings", type=Path, nargs="+", help="folders as BFCL records them")
    compare.add_argument("--out", type=Path, required=True, help="where table and lists go")
    compare.add_argument("--sample", type=int, default=200, help="disagreements drawn to be read")
    compare.add_argument("--seed", type=int, default=1)
    compare.add_argument(
        "--peer", action="store_true", help="judge with the checker of the installed bfcl-eval too"
    )
    compare.set_defaults(stage=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    tallies: list[Tally] = []
    disagreements: list[Disagreement] = []
    for folder in arguments.recordings:
        for tally, found in _compare_recording(folder, with_peer=arguments.peer):
            tallies.append(tally)
            disagreements.extend(found)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    table = to_markdown(tallies)
    (out / "table.md").write_text(table)
    write(disagreements, out / "disagreements.jsonl")
    write(sample(disagreements, arguments.sample, arguments.seed), out / "sample.jsonl")
    print(table)
    return 0


def _compare_recording(
    folder: Path, *, with_peer: bool
) -> Iterator[tuple[Tally, list[Disagreement]]]:
    recording = recorded(folder)
    judged = {entry.example.id: entry for entry in recording.judged()}
    source = Path(PACKAGE) if isinstance(recording, Runs) else folder
    peer = Peer(PeerChecker(), peer_questions(source)) if with_peer else None
    for arm in tqdm(recording.arms(), desc=folder.name, unit="model"):
        yield compare_arm(folder.name, arm, recording, judged, peer)
