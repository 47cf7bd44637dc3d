"""The decorator of the values that every request creates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from dataclasses import dataclass as request_value
else:

    def request_value(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        """Return a decorator like `dataclass`, with fields that only the type checker freezes.

        A frozen dataclass takes three times as long to create, because it sets each field with
        `object.__setattr__`. A request that names its model sets 115 such fields, which took 3.4%
        of its processor time (`benchmarks/gateway.py`, pass-through at 8 connections).
        """
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["request_value"]
