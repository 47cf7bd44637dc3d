"""Comparisons of delivered answers with those of a second model: stored, and added up.

A row has no part of a request's content except the name of the tool that was called.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

from pydantic import BaseModel
from sqlalchemy import delete, func, select

from router_service.core.money import NANO
from router_service.core.text import aligned, printable
from router_service.database.engine import Database, insert_into
from router_service.database.schema import comparisons
from router_service.telemetry.usage import DAY_S

KEPT_S = 30 * DAY_S
"""Time for which comparisons are kept, and in which `router.compare.budget_usd` may be spent."""
MAX_PENDING = 1_000
"""Number of comparisons that wait at most for the database; further ones are lost."""
MAX_GROUPS = 20
"""Number of keys, and of tools, that are shown: those with the most comparisons."""
Z = 1.96
"""Quantile of a 95% interval."""


class Comparison(NamedTuple):
    """A delivered answer, and that of another model to the same request: a row of the table."""

    id: str
    """Id of the delivered answer's decision."""
    ended_s: float
    key: str | None
    tool: str | None
    """The first tool that the delivered answer calls, or else the other one; None if none does."""
    model: str
    """The model whose answer was delivered."""
    other: str
    is_same: bool | None
    """Whether both make the same calls; None if the other model gave no answer."""
    cost_nusd: int | None
    """Cost of the delivered answer with all candidates; None if it is unknown."""
    other_nusd: int
    seconds: float
    """From the request's arrival to the end of the delivered answer."""
    other_seconds: float


class Comparisons:
    """Collects this process's comparisons, writes them to the database, and deletes old ones."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Write nothing yet."""
        self._clock = clock
        self._pending: deque[Comparison] = deque()
        self._stored_usd: float | None = None
        """What all processes have spent in `KEPT_S`; None before it was read."""

    @property
    def spent_usd(self) -> float:
        """What second answers have cost in the last 30 days; infinite before it is known."""
        if self._stored_usd is None:
            return math.inf
        return self._stored_usd + sum(each.other_nusd for each in list(self._pending)) / NANO

    def add(self, comparison: Comparison) -> None:
        """Store a comparison with the next `write`, unless too many wait."""
        if len(self._pending) < MAX_PENDING:
            self._pending.append(comparison)

    def write(self, database: Database) -> None:
        """Write what is pending, delete what is old, and read what is spent.

        Raises DatabaseError, and then keeps what is pending.
        """
        batch = list(self._pending)
        oldest_s = self._clock() - KEPT_S
        if batch:
            with database.write() as connection:
                statement = insert_into(connection, comparisons)
                rows = [each._asdict() for each in batch]
                connection.execute(statement.on_conflict_do_nothing(), rows)
                connection.execute(delete(comparisons).where(comparisons.c.ended_s < oldest_s))
        with database.read() as connection:
            spent = select(func.sum(comparisons.c.other_nusd)).where(
                comparisons.c.ended_s >= oldest_s
            )
            self._stored_usd = int(connection.execute(spent).scalar() or 0) / NANO
        for _ in batch:
            self._pending.popleft()


class ComparedGroup(BaseModel):
    """What the comparisons of one key, of one tool, or all say."""

    name: str
    comparisons: int
    """Number of requests to which both models gave an answer."""
    same: float
    """Share of them with the same calls."""
    low: float
    high: float
    """The share's 95% interval (Wilson's)."""
    usd: float
    """Mean cost of the delivered answers."""
    other_usd: float
    seconds: float
    """Mean time of the delivered answers."""
    other_seconds: float

    @classmethod
    def of(cls, name: str, rows: Sequence[Comparison]) -> Self:
        """Add up comparisons, at least one, in which both models have answered."""
        n = len(rows)
        same = sum(bool(each.is_same) for each in rows) / n
        low, high = wilson(same, n)
        return cls(
            name=name,
            comparisons=n,
            same=same,
            low=low,
            high=high,
            usd=sum(each.cost_nusd or 0 for each in rows) / NANO / n,
            other_usd=sum(each.other_nusd for each in rows) / NANO / n,
            seconds=sum(each.seconds for each in rows) / n,
            other_seconds=sum(each.other_seconds for each in rows) / n,
        )


class ComparedModel(BaseModel):
    """How one model's answers compare with the delivered ones."""

    other: str
    """The model that answered in the background."""
    failed: int
    """Requests to which it gave no answer."""
    spent_usd: float
    """What its answers have cost."""
    sentence: str
    """What the comparison says, for people."""
    total: ComparedGroup | None
    """None if it has given no answer."""
    keys: tuple[ComparedGroup, ...]
    tools: tuple[ComparedGroup, ...]


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share of n."""
    centre = share + Z**2 / (2 * n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    return (centre - half) / scale, (centre + half) / scale


def read_comparisons(database: Database) -> tuple[ComparedModel, ...]:
    """Return what is stored, by the model that answered in the background.

    Raises DatabaseError.
    """
    columns = [comparisons.c[name] for name in Comparison._fields]
    with database.read() as connection:
        rows = [Comparison(*row) for row in connection.execute(select(*columns))]
    by_model: dict[str, list[Comparison]] = defaultdict(list)
    for row in rows:
        by_model[row.other].append(row)
    found: list[ComparedModel] = []
    for other, compared in sorted(by_model.items()):
        answered = [each for each in compared if each.is_same is not None]
        total = ComparedGroup.of("all", answered) if answered else None
        found.append(
            ComparedModel(
                other=other,
                failed=len(compared) - len(answered),
                spent_usd=sum(each.other_nusd for each in compared) / NANO,
                sentence=_sentence(other, total),
                total=total,
                keys=_group(answered, lambda each: each.key or "without a key"),
                tools=_group(answered, lambda each: each.tool or "no call"),
            )
        )
    return tuple(found)


def _sentence(other: str, total: ComparedGroup | None) -> str:
    if total is None:
        return f"{other} has given no answer."
    dearer_usd, cheaper = max(
        (total.usd, f"{other} alone"), (total.other_usd, "the present routing")
    )
    saved = abs(total.other_usd - total.usd) / dearer_usd if dearer_usd else 0.0
    return (
        f"{other} makes the same calls as the delivered answer for {total.same:.1%}"
        f" ({total.low:.1%} to {total.high:.1%}) of {total.comparisons:,} requests. 1,000 requests"
        f" cost {total.usd * 1000:.3g} USD as delivered, and {total.other_usd * 1000:.3g} USD with"
        f" {other} alone: {cheaper} saves {saved:.0%}."
    )


def _group(
    rows: Iterable[Comparison], name_of: Callable[[Comparison], str]
) -> tuple[ComparedGroup, ...]:
    """Return the largest groups, the largest first."""
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for each in rows:
        groups[name_of(each)].append(each)
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))[:MAX_GROUPS]
    return tuple(ComparedGroup.of(name, members) for name, members in largest)


def comparison_lines(models: Sequence[ComparedModel]) -> list[str]:
    """Return the comparisons as lines of text."""
    lines: list[str] = []
    for model in models:
        lines += [model.sentence, ""]
        if model.total is None:
            continue
        head = ("", "REQUESTS", "SAME CALLS", "95%", "USD/1K", "ITS USD/1K", "SECONDS", "ITS")
        rows = [head, _cells("all requests", model.total)]
        rows += [_cells(f"key {each.name}", each) for each in model.keys]
        rows += [_cells(f"tool {each.name}", each) for each in model.tools]
        lines += [*aligned(rows), ""]
        lines.append(f"Its answers have cost {model.spent_usd:.4f} USD in 30 days.")
        if model.failed:
            lines.append(f"It gave no answer to {model.failed:,} further requests.")
    return lines


def _cells(name: str, group: ComparedGroup) -> tuple[str, ...]:
    return (
        printable(name),
        f"{group.comparisons:,}",
        f"{group.same:.1%}",
        f"{group.low:.0%}-{group.high:.0%}",
        f"{group.usd * 1000:.3f}",
        f"{group.other_usd * 1000:.3f}",
        f"{group.seconds:.2f}",
        f"{group.other_seconds:.2f}",
    )
