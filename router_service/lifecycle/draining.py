"""How the gateway ends: readiness goes red first, then new requests are refused, then it stops."""

from __future__ import annotations

from collections.abc import Callable

from router_service.core.errors import OverloadedError

REASON = "shutting_down"


class Drain:
    """Where the process is on its way out.

    For `delay_s` after the signal requests are served as before, while probes say that none should
    come: load balancers take some seconds to see it. Then new ones are refused, and those in
    flight have `timeout_s` to end.
    """

    def __init__(
        self, *, delay_s: float, timeout_s: float, clock: Callable[[], float],
        in_flight: Callable[[], int],
    ) -> None:  # fmt: skip
        """Serve until `begin`; `clock` returns seconds and never goes back."""
        self._delay_s = delay_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._count = in_flight
        self._begun_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the process was asked to stop: probes are to say so."""
        return self._begun_s is not None

    @property
    def is_refusing(self) -> bool:
        """Whether new requests are refused."""
        return self._begun_s is not None and self._clock() >= self._begun_s + self._delay_s

    @property
    def in_flight(self) -> int:
        """How many requests are not answered to their end."""
        return self._count()

    @property
    def remaining_s(self) -> float:
        """How long answers may still go on."""
        begun_s = self._clock() if self._begun_s is None else self._begun_s
        return max(0.0, begun_s + self._delay_s + self._timeout_s - self._clock())

    @property
    def is_over(self) -> bool:
        """Whether nothing is in flight any more, or its time is up."""
        return self.is_refusing and (self.in_flight == 0 or self.remaining_s == 0)

    def begin(self) -> None:
        """Ask to stop; again changes nothing."""
        if self._begun_s is None:
            self._begun_s = self._clock()

    def check(self) -> None:
        """Raise OverloadedError where new requests are refused."""
        if self.is_refusing:
            raise OverloadedError(REASON, "This gateway is shutting down; another one may answer.")
