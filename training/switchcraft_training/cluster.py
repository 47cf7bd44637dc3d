"""Connection to a Ray cluster, for stages that can distribute their work."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from router_service.core.errors import ConfigError, MissingExtraError

LOCAL: Final = "local"
"""Address of a Ray instance that is started on this machine for the run."""


def require_ray() -> None:
    """Raise MissingExtraError if Ray is not installed."""
    if find_spec("ray") is None:
        raise MissingExtraError("--ray", "", "ray")


@contextmanager
def connecting(address: str) -> Iterator[None]:
    """Connect to a Ray cluster, and run the block, which starts the workers.

    The address `local` starts a cluster on this machine. Raises ConfigError if Ray is not
    installed. If the cluster or the block fails, disconnects and raises ConfigError.
    """
    require_ray()
    import ray  # noqa: PLC0415 - optional
    from ray.exceptions import RayError  # noqa: PLC0415

    try:
        host, _, port = address.rpartition(":")
        if port.isdigit():
            # Ray itself would retry for minutes if nothing listens at the address.
            server = (host.rpartition("/")[2], int(port))
            socket.create_connection(server, timeout=10).close()
        ray.init(
            address=address,
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.WARNING,
        )
        yield
    except (RayError, ConnectionError, OSError, ValueError) as exc:
        ray.shutdown()
        raise ConfigError(f"--ray {address}", "", describe_ray_error(exc)) from exc


def describe_ray_error(exc: Exception) -> str:
    """Return the last line of a worker or connection error, without Ray's traceback."""
    lines = str(exc.__cause__ or exc).strip().splitlines()
    return lines[-1] if lines else type(exc).__name__
