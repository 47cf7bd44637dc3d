"""The comparison of the checkers over whole recordings: table, disagreements, sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from switchcraft_training.comparison.compare import Disagreement, Peer, Tally, compare_arm
from switchcraft_training.comparison.disagreements import sample, write
from switchcraft_training.comparison.peer import PeerChecker, peer_questions
from switchcraft_training.comparison.table import to_markdown
from switchcraft_training.datasets.bfcl import Runs, recorded
from switchcraft_training.datasets.bfcl.files import PACKAGE


def compare_all(
    recordings: Sequence[Path], out: Path, *, with_peer: bool, sample_size: int, seed: int
) -> str:
    """Compare over every recording; write table, disagreements and sample, return the table."""
    tallies: list[Tally] = []
    disagreements: list[Disagreement] = []
    for folder in recordings:
        for tally, found in _compare_recording(folder, with_peer=with_peer):
            tallies.append(tally)
            disagreements.extend(found)
    out.mkdir(parents=True, exist_ok=True)
    table = to_markdown(tallies)
    (out / "table.md").write_text(table)
    write(disagreements, out / "disagreements.jsonl")
    write(sample(disagreements, sample_size, seed), out / "sample.jsonl")
    return table


def _compare_recording(
    folder: Path, *, with_peer: bool
) -> Iterator[tuple[Tally, list[Disagreement]]]:
    recording = recorded(folder)
    judged = {entry.example.id: entry for entry in recording.judged()}
    source = Path(PACKAGE) if isinstance(recording, Runs) else folder
    peer = Peer(PeerChecker(), peer_questions(source)) if with_peer else None
    for arm in tqdm(recording.arms(), desc=folder.name, unit="model"):
        yield compare_arm(folder.name, arm, recording, judged, peer)
