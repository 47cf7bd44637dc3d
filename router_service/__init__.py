"""The Switchcraft gateway: routes each tool-calling request to the cheapest adequate model.

`Router` is the Python API: `Router.load().decide(request_body)` returns a `Decision`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.router import Decision, Router

__all__ = ["Decision", "Router", "__version__"]

__version__ = "0.1.0"

# Otherwise, ONNX Runtime stores an id of the machine and sends it to Microsoft, with what it runs.
# It reads the variable when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> object:
    """Import the router when it is first used: loading ONNX Runtime takes 0.1 s."""
    if name in {"Decision", "Router"}:
        return getattr(import_module("router_service.router"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
