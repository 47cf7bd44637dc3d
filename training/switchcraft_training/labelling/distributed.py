"""Sending of a labelling run's requests from Ray workers on other machines.

Only the main process plans requests, applies rate limits, counts costs and saves answers. Workers
only send the requests that it passes to them, so an endpoint's limits apply to all workers
together. API keys are not transferred: each machine must have them in its environment.
"""

from __future__ import annotations

import os
from itertools import cycle
from typing import Any

import ray
from ray.exceptions import RayActorError

from switchcraft_training.cluster import connecting
from switchcraft_training.labelling.answers import (
    FailureCode,
    Remedy,
    RequestFailure,
    RequestResult,
)
from switchcraft_training.labelling.pool import Pool
from switchcraft_training.labelling.sender import EndpointClients, OutgoingRequest


class RayWorker:
    """Ray actor that sends requests with its own clients of the endpoints."""

    def __init__(self, pool: Pool) -> None:
        self._clients = EndpointClients(pool, os.environ)

    async def send(self, request: OutgoingRequest) -> RequestResult:
        """Send one request once."""
        return await self._clients.send(request)

    async def ready(self) -> None:
        """Return when the actor has started."""


class RayWorkers:
    """Request sender that passes requests to its Ray workers in turn."""

    def __init__(self, pool: Pool, address: str, workers: int | None) -> None:
        """Connect to a Ray cluster and start the workers in it.

        The address `local` starts a cluster on this machine. If `workers` is None, as many workers
        start as the cluster has machines. Raises ConfigError if the cluster or a worker does not
        start.
        """
        in_flight = sum(endpoint.max_concurrency for endpoint in pool.endpoints.values())
        with connecting(address):
            nodes = ray.nodes()
            actor = ray.remote(RayWorker).options(
                num_cpus=0,  # a worker only waits for endpoints
                max_restarts=-1,
                max_concurrency=in_flight,
                scheduling_strategy="SPREAD",
            )
            count = workers or sum(node["Alive"] for node in nodes)
            actors: list[Any] = [actor.remote(pool) for _ in range(count)]
            ray.get([worker.ready.remote() for worker in actors])
        self._next_worker = cycle(actors)

    async def send(self, request: OutgoingRequest) -> RequestResult:
        """Send one request once, from the next worker."""
        try:
            result: RequestResult = await next(self._next_worker).send.remote(request)
        except RayActorError as exc:
            code = FailureCode.WORKER_LOST
            return RequestFailure(code, str(exc), Remedy.RETRY, may_be_paid=True)
        return result

    async def aclose(self) -> None:
        """Leave the cluster, which ends the workers."""
        ray.shutdown()
