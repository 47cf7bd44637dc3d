"""Ray, where a stage's work goes to other machines."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from router_service.core.errors import ConfigError

LOCAL: Final = "local"
"""Ray on this machine alone, started for the run."""


def require_ray() -> None:
    """Raise ConfigError where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("--ray", "", "Ray is not installed; install switchcraft-router[ray]")


@contextmanager
def connecting(address: str) -> Iterator[None]:
    """Join a cluster (`local` starts one), and do what must come up in it before work begins.

    Raises ConfigError, disconnected, where Ray is not installed or something does not come up.
    """
    require_ray()
    import ray  # noqa: PLC0415 - optional
    from ray.exceptions import RayError  # noqa: PLC0415

    try:
        _reach(address)
        ray.init(
            address=address,
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.WARNING,
        )
        yield
    except (RayError, ConnectionError, OSError, ValueError) as exc:
        ray.shutdown()
        raise ConfigError(f"--ray {address}", "", reason(exc)) from exc


def reason(exc: Exception) -> str:
    """Return what is wrong without Ray's traceback: a worker's own error, or that of connecting."""
    lines = str(exc.__cause__ or exc).strip().splitlines()
    return lines[-1] if lines else type(exc).__name__


def _reach(address: str) -> None:
    """Raise OSError where nobody listens: Ray itself goes on trying for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.rpartition("/")[2], int(port)), timeout=10).close()
