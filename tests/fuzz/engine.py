"""Fuzz one target with libFuzzer, guided by the coverage of the gateway's Python code.

`python -m tests.fuzz.engine NAME [OPTION...] [FOLDER...]`; libFuzzer ends the process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import atheris

from tests.fuzz.names import load
from tests.fuzz.target import Mutate

INSTRUMENTED = ["router_service", "uvicorn", "h11"]
"""Packages whose branches guide the fuzzer; h11 is the reference implementation of HTTP."""

FORMED_SHARE = 0.5
"""Share of the mutations that keep the input's form; the others change bytes and tokens."""


def main(name: str, arguments: list[str]) -> None:
    """Fuzz a target."""
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)
    atheris.Setup([name, *arguments], target.check, custom_mutator=_mutator(target.mutate))
    atheris.Fuzz()


def _mutator(mutate: Mutate) -> Callable[[bytes, int, int], bytes]:
    def changed(data: bytes, max_bytes: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < FORMED_SHARE:
            return mutate(data, rng)[:max_bytes]
        return bytes(atheris.Mutate(data, max_bytes))

    return changed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
