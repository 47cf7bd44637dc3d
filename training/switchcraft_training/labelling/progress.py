"""The bar of a labelling run: what is done, and an estimate of the time and cost left."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from tqdm import tqdm

_FORMAT: Final = (
    "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, {remaining} to go{postfix}]"
)
"""Without a rate, so that the cost is not cut off at 80 columns."""


class Progress:
    """Counts of a run by arm, shown on stderr as they change; a context manager."""

    def __init__(self, left: Mapping[str, int], answered: int, spent_usd: float) -> None:
        """Begin with what is left to ask of each arm, and what former runs answered and spent."""
        self._left = Counter(left)
        self._costs_usd: defaultdict[str, float] = defaultdict(float)
        self._answered: Counter[str] = Counter()
        self._spent_usd = spent_usd
        self.failed = 0
        total = answered + self._left.total()
        self._bar = tqdm(total=total, initial=answered, bar_format=_FORMAT, dynamic_ncols=True)
        self._show()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    @property
    def answered(self) -> int:
        """How many answers came in this run."""
        return self._answered.total()

    @property
    def left_usd(self) -> float:
        """What the rest will cost, if answers cost an arm's mean so far; nothing before its first.

        A question that failed is not counted: this run does not ask it again.
        """
        return sum(
            self._left[arm] * self._costs_usd[arm] / count for arm, count in self._answered.items()
        )

    def charge(self, usd: float) -> None:
        """Count what a request cost, or may have cost."""
        self._spent_usd += usd
        self._show()

    def answer(self, arm: str, cost_usd: float) -> None:
        """Count an answer."""
        self._left[arm] -= 1
        self._answered[arm] += 1
        self._costs_usd[arm] += cost_usd
        self._bar.update()

    def fail(self, arm: str) -> None:
        """Count a question that has no answer."""
        self._left[arm] -= 1
        self.failed += 1
        self._show()

    def drop(self, arm: str) -> None:
        """Count nothing more of an arm that has been stopped."""
        self._left[arm] = 0

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line, file=sys.stderr)

    def _show(self) -> None:
        usd = f"{self._spent_usd:.4f} USD, ~{self.left_usd:.4f} to go"
        failed = f", {self.failed} failed" if self.failed else ""
        self._bar.set_postfix_str(usd + failed, refresh=False)
