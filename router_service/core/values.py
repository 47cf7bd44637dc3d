"""Bases of values: a decorator for those that every request creates, and pydantic models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict

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


class Strict(BaseModel):
    """A value that never changes, and in which an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tolerant(BaseModel):
    """A value that never changes, and in which unknown fields are ignored.

    Processes of two versions share such values, for example in a store or a log.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")


__all__ = ["Strict", "Tolerant", "request_value"]
