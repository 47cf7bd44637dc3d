"""The datasets by name, each read by one function of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias, cast

from router_service.core.errors import DataError
from switchcraft_training.datasets.lines import OnFault
from switchcraft_training.records import Judged

Reader: TypeAlias = Callable[[Path, OnFault], Iterator[Judged]]

_MODULES: Final[Mapping[str, str]] = {
    "bfcl": "switchcraft_training.datasets.bfcl",
    "confetti": "switchcraft_training.datasets.confetti",
    "glaive": "switchcraft_training.datasets.glaive",
    "hermes": "switchcraft_training.datasets.hermes",
    "xlam": "switchcraft_training.datasets.xlam",
}
"""Where each dataset's `read_source` is; imported when it is asked for."""

SOURCES: Final = tuple(_MODULES)


def read_source(source: str, path: Path, on_fault: OnFault) -> Iterator[Judged]:
    """Stream a dataset's rows; what cannot be read goes to `on_fault`.

    Raises DataError where a file is missing, or where nothing was found, not even a bad row.
    """
    is_empty = True

    def noted(fault: DataError, raw: bytes) -> None:
        nonlocal is_empty
        is_empty = False
        on_fault(fault, raw)

    reader = cast("Reader", import_module(_MODULES[source]).read_source)
    for judged in reader(path, noted):
        is_empty = False
        yield judged
    if is_empty:
        raise DataError(path, None, f"holds no row of {source}; is it another dataset's?")
