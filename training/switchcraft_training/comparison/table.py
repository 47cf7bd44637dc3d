"""The checkers' table as Markdown: accuracy under both, and where they differ (paper, 3.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from switchcraft_training.comparison.compare import Tally

_HEAD = "| model | answers | read | BFCL | ours | FN | FP |"
_PEER_HEAD = " re-judged | bfcl-eval | ours |"


def to_markdown(tallies: Sequence[Tally]) -> str:
    """Return a summary by dataset, a table of models for each, and why answers were not read."""
    datasets = {name: list(group) for name, group in groupby(tallies, lambda t: t.dataset)}
    has_peer = any(tally.peer for tally in tallies)
    totals = [_total(name, members) for name, members in datasets.items()]
    sections = [_table("dataset", totals, has_peer=has_peer)]
    for name, members in datasets.items():
        ranked = sorted(members, key=lambda tally: -tally.ours / tally.answers)
        sections.append(f"### {name}\n\n{_table('model', ranked, has_peer=has_peer)}")
    sections.append(f"### Answers that are no calls\n\n{_problems(totals)}")
    return "\n\n".join(sections) + "\n"


def _total(name: str, members: Iterable[Tally]) -> Tally:
    total = Tally(name, name)
    for tally in members:
        for count in (
            "answers", "theirs", "ours", "false_negatives", "false_positives",
            "peer", "rerun", "ours_on_peer",
        ):  # fmt: skip
            setattr(total, count, getattr(total, count) + getattr(tally, count))
        total.problems.update(tally.problems)
    return total


def _table(first: str, tallies: Iterable[Tally], *, has_peer: bool) -> str:
    head = _HEAD.replace("model", first) + (_PEER_HEAD if has_peer else "")
    rule = "|---|" + "--:|" * (head.count("|") - 2)
    return "\n".join([head, rule, *(_row(tally, has_peer=has_peer) for tally in tallies)])


def _row(tally: Tally, *, has_peer: bool) -> str:
    cells = [
        tally.arm,
        f"{tally.answers:,}",
        f"{tally.parsed:.1%}",
        f"{tally.theirs / tally.answers:.1%}",
        f"{tally.ours / tally.answers:.1%}",
        f"{tally.false_negatives:,}",
        f"{tally.false_positives:,}",
    ]
    if has_peer:
        cells.append(f"{tally.peer:,}")
        shares = (tally.rerun, tally.ours_on_peer)
        cells.extend(f"{share / tally.peer:.1%}" if tally.peer else "" for share in shares)
    return f"| {' | '.join(cells)} |"


def _problems(totals: Sequence[Tally]) -> str:
    counted = sum((tally.problems for tally in totals), Counter[str]())
    head = f"| code | {' | '.join(tally.arm for tally in totals)} |"
    rows = [
        f"| `{problem}` | {' | '.join(f'{tally.problems[problem]:,}' for tally in totals)} |"
        for problem, _ in counted.most_common()
    ]
    return "\n".join([head, "|---|" + "--:|" * len(totals), *rows])
