"""The spending cap: what may cost money is reserved before it is sent."""

from __future__ import annotations

import asyncio


class Budget:
    """USD spent and reserved, against a cap; for the tasks of one event loop."""

    def __init__(self, cap_usd: float | None, spent_usd: float) -> None:
        self._cap_usd = cap_usd
        self._spent_usd = spent_usd
        self._reserved_usd = 0.0
        self._in_flight = 0
        self._settled = asyncio.Condition()
        self.refused_usd: float | None = None
        """What was asked for and left no room; from then on everything is refused."""

    @property
    def is_exhausted(self) -> bool:
        """Whether something was refused."""
        return self.refused_usd is not None

    @property
    def spent_usd(self) -> float:
        """What was spent."""
        return self._spent_usd

    async def reserve(self, usd: float) -> bool:
        """Reserve what a request may cost at most; False where the cap leaves no room.

        Waits while requests in flight may still cost less than was reserved for them.
        """
        async with self._settled:
            while not self._fits(usd) and self._in_flight and not self.is_exhausted:
                await self._settled.wait()
            if self.is_exhausted or not self._fits(usd):
                self.refused_usd = usd if self.refused_usd is None else self.refused_usd
                self._settled.notify_all()
                return False
            self._reserved_usd += usd
            self._in_flight += 1
            return True

    async def settle(self, reserved_usd: float, spent_usd: float) -> None:
        """Put what a request cost in the place of what was reserved for it."""
        async with self._settled:
            self._reserved_usd -= reserved_usd
            self._spent_usd += spent_usd
            self._in_flight -= 1
            self._settled.notify_all()

    def _fits(self, usd: float) -> bool:
        if self._cap_usd is None:
            return True
        return self._spent_usd + self._reserved_usd + usd <= self._cap_usd
