"""Requests sent from other machines, through Ray.

The process that was started stays the only one that plans, paces, pays and keeps: a worker sends
one request when it is told to, and hands back what came of it. The limits of an endpoint therefore
hold for all workers together. Keys are not handed around: each machine has them in its environment.
"""

from __future__ import annotations

import os
from itertools import cycle
from typing import Any

import ray
from ray.exceptions import RayActorError

from switchcraft_training.cluster import connecting
from switchcraft_training.labelling.answers import Code, Outcome, Refusal, Remedy
from switchcraft_training.labelling.pool import Pool
from switchcraft_training.labelling.sender import Clients, Order


class Worker:
    """An actor: clients of the endpoints, on whichever machine it runs."""

    def __init__(self, pool: Pool) -> None:
        self._clients = Clients(pool, os.environ)

    async def send(self, order: Order) -> Outcome:
        """Send one request once."""
        return await self._clients.send(order)

    async def ready(self) -> None:
        """Answer, which an actor does once it has been made."""


class Workers:
    """Sends requests from workers in turn."""

    def __init__(self, pool: Pool, address: str, workers: int | None) -> None:
        """Connect to a cluster (`local` starts one), and begin a worker a machine or so many.

        Raises ConfigError where the cluster or a worker does not come up.
        """
        with connecting(address):
            self._workers = _start(pool, workers or _machines())
        self._next = cycle(self._workers)

    async def send(self, order: Order) -> Outcome:
        """Send one request once, from the worker whose turn it is."""
        try:
            outcome: Outcome = await next(self._next).send.remote(order)
        except RayActorError as exc:
            return Refusal(Code.WORKER_LOST, str(exc), Remedy.RETRY, may_be_paid=True)
        return outcome

    async def aclose(self) -> None:
        """Leave the cluster; its workers end."""
        ray.shutdown()


def _machines() -> int:
    return sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]  # Ray's


def _start(pool: Pool, count: int) -> list[Any]:
    in_flight = sum(endpoint.max_concurrency for endpoint in pool.endpoints.values())
    actor = ray.remote(Worker).options(
        num_cpus=0,  # it waits for endpoints
        max_restarts=-1,
        max_concurrency=in_flight,
        scheduling_strategy="SPREAD",
    )
    workers: list[Any] = [actor.remote(pool) for _ in range(count)]
    ray.get([worker.ready.remote() for worker in workers])
    return workers
