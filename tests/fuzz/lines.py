"""Print the lines of a target's files that its inputs run.

`python -m tests.fuzz.lines NAME [DIR]`. Only lines of functions count; those of modules and classes
run when they are imported.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz import entries
from tests.fuzz.names import load

ROOT = Path(__file__).parents[2]


def main(name: str, folders: list[str]) -> None:
    """Run all inputs of a target, and print for each file its lines: run, total and missed."""
    target = load(name)
    lines = {str(ROOT / file): set(_lines_of(ROOT / file)) for file in target.measured}
    run: dict[str, set[int]] = {file: set() for file in lines}

    def trace(frame: FrameType, event: str, _: Any) -> Any:  # noqa: ANN401 - as sys.settrace has it
        file = frame.f_code.co_filename
        if file not in run:
            return None
        if event == "line":
            run[file].add(frame.f_lineno)
        return trace

    inputs = [entry.data for entry in entries.read(name)]
    for folder in folders:
        inputs += [path.read_bytes() for path in Path(folder).glob("*")]
    for data in inputs:
        sys.settrace(trace)  # again, because an error within `trace` ends the tracing
        with contextlib.suppress(Exception):
            target.check(data)
    sys.settrace(None)
    result = {
        str(Path(file).relative_to(ROOT)): (
            len(run[file] & found),
            len(found),
            sorted(found - run[file]),
        )
        for file, found in lines.items()
    }
    print(json.dumps(result))  # noqa: T201


def _lines_of(path: Path) -> Iterator[int]:
    def walk(code: CodeType, *, is_function: bool) -> Iterator[int]:
        if is_function:
            numbers = {line for _, _, line in code.co_lines() if line is not None}
            yield from numbers - {code.co_firstlineno}
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                # A class body's code has no fast locals (CO_OPTIMIZED).
                yield from walk(constant, is_function=bool(constant.co_flags & 1))

    yield from walk(compile(path.read_text(), str(path), "exec"), is_function=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
