"""Terminal output of a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from switchcraft_training.evaluation.metrics import Estimate
from switchcraft_training.replay.estimators import Replayed
from switchcraft_training.replay.stage import Replay

Cell = Callable[[Estimate | None], str]

MARK = "*"


def print_replay(found: Replay, console: Console | None = None) -> None:
    """Print a summary of the log, the logged choices, and the estimates for each policy."""
    console = console or Console(highlight=False)
    for line in _head(found):
        console.print(line, soft_wrap=True)
    console.print(_table(found))
    for line in _notes(found):
        console.print(line, soft_wrap=True)


def _head(found: Replay) -> Iterator[str]:
    yield (
        f"{found.replayed:,} of {found.decisions:,} decisions, {found.conversations:,}"
        f" conversations; {_share(found.with_feedback, found.replayed)} have feedback,"
        f" {_share(found.explored, found.replayed)} were taken with exploration on"
    )
    for reason, count in found.left.items():
        yield f"left out: {count:,} {reason}"
    yield f"probabilities: {found.artifact or 'as logged'}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"


def _table(found: Replay) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("policy")
    table.add_column("estimate")
    table.add_column("accuracy, %", justify="right")
    table.add_column("USD per 1,000", justify="right")
    table.add_row(
        "what was chosen", "mean", _percent(found.accuracy.chosen), _usd(found.cost_usd.chosen)
    )
    for name in found.accuracy.policies or found.cost_usd.policies:
        table.add_section()
        got, paid = found.accuracy.policies.get(name), found.cost_usd.policies.get(name)
        for row in _rows(name, got, paid):
            table.add_row(*row)
    return table


def _rows(
    name: str, got: Replayed | None, paid: Replayed | None
) -> Iterator[tuple[str, str, str, str]]:
    either = got or paid
    mark = MARK if either is not None and (either.coverage < 1 or either.is_thin) else ""
    yield (
        name,
        f"DR{mark}",
        _percent(got.dr if got else None),
        _usd(paid.dr if paid else None),
    )
    beside = ["", ""] if either is None else _overlap(either)
    yield (
        beside[0],
        "SNIPS",
        _percent(got.snips if got else None),
        _usd(paid.snips if paid else None),
    )
    yield beside[1], "IPS", _percent(got.ips if got else None), _usd(paid.ips if paid else None)
    yield (
        "",
        f"regret{mark}",
        _percent(got.regret if got else None, signed=True),
        _usd(paid.regret if paid else None, signed=True),
    )


def _overlap(replayed: Replayed) -> list[str]:
    return [f"{replayed.same:.0%} as logged", f"effective n {replayed.effective_n:,.0f}"]


def _notes(found: Replay) -> Iterator[str]:
    yield (
        "DR: doubly robust; (SN)IPS: (self-normalised) inverse propensity; regret: worse than what"
        " was chosen by so much (negative: better), DR, paired. 95% intervals, over conversations."
    )
    if not found.accuracy.policies:
        yield "No feedback: accuracy is unknown (POST /v1/feedback)."
    elif found.with_feedback < found.replayed:
        yield "Accuracy holds if whether there is feedback does not depend on the answer."
    for name, replayed in (found.accuracy.policies or found.cost_usd.policies).items():
        if replayed.is_thin and found.explored:
            yield (
                f"{MARK} {name}: exploration took its arm, where the logged policy took another, in"
                f" {replayed.tried} decisions alone. Its intervals are too narrow: log more, or"
                " explore more."
            )
        if replayed.coverage < 1:
            yield (
                f"{MARK} {name}: in {1 - replayed.coverage:.1%} of the decisions the log could not"
                " have chosen its arm. There DR is the old router's own word, its error is in no"
                " interval, and (SN)IPS say nothing: let the gateway explore."
            )


def _percent(found: Estimate | None, *, signed: bool = False) -> str:
    return _interval(found, 100, 1, signed=signed)


def _usd(found: Estimate | None, *, signed: bool = False) -> str:
    return _interval(found, 1_000, 3, signed=signed)


def _interval(found: Estimate | None, factor: float, digits: int, *, signed: bool) -> str:
    if found is None:
        return "-"
    sign = "+" if signed else ""
    low, high = (f"{end * factor:{sign}.{digits}f}" for end in found.interval)
    return f"{found.value * factor:{sign}.{digits}f} [{low}, {high}]"
