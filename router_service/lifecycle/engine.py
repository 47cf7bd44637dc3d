"""One configuration and one artifact, ready to serve; replaced whole where either changes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from router_service.accounts.access import Access
from router_service.core.errors import ConfigError, PolicyError
from router_service.core.memory import return_freed
from router_service.core.messages import may_contain_references
from router_service.core.selection import Policy
from router_service.lifecycle.trials import TrialPlanner
from router_service.requests.endpoints import Endpoint
from router_service.requests.explaining import Explainer
from router_service.requests.planning import DecidingRouter, Planner
from router_service.requests.pool import Pool
from router_service.settings import ADMIN, Settings
from router_service.store.upstream_objects import Viewer
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.client import UpstreamClient
from router_service.upstream.retries import RetryBudget, RetryingClient

FREED_AFTER_S = 1.0
"""Time for the last references to a retired engine to go away."""


class Engine:
    """What a request is answered with, from its arrival to its end.

    A retired engine serves the requests that it began, and lets go of its connections with the
    last of them: a client that is closed under a request would break its answer.
    """

    def __init__(
        self,
        settings: Settings,
        router: DecidingRouter,
        breakers: CircuitBreakers,
        with_trials: Callable[[Planner], TrialPlanner] = TrialPlanner,
    ) -> None:
        """Put the parts together; raises ConfigError where settings and artifact differ.

        `with_trials` adds what is tried beside the router.
        """
        self.settings = settings
        self.access = Access.of(settings.keys)
        self.manifest = router.artifact.manifest
        self.pool = Pool.build(settings, self.manifest)
        stable = make_planner(settings, router, self.pool)
        self.planner = with_trials(stable)
        self.explainer = Explainer(router, self.pool, stable)
        self.client = UpstreamClient(
            max_connections=settings.upstreams.max_connections,
            forwarded=settings.router.forward_headers,
        )
        retries = settings.upstreams.retries
        budget = RetryBudget(retries.budget_share, retries.budget_floor_per_s, time.monotonic)
        self.attempts = RetryingClient(self.client, breakers, budget, retries)
        has_one_key = len(self.access.api) <= 1
        self._is_shared = has_one_key or settings.router.pass_through_shared
        self._viewers: dict[str | None, Viewer] = {}
        self._leases = 0
        self._is_retired = False

    @property
    def deployment_ids(self) -> frozenset[str]:
        """Every deployment of the pool."""
        models = self.pool.models.values()
        return frozenset(deployment.id for model in models for deployment in model.deployments)

    def viewer(self, caller: str | None) -> Viewer:
        """Return what a key may see of what upstreams store."""
        viewer = self._viewers.get(caller)
        if viewer is None:
            viewer = Viewer(caller, sees_unowned=self._is_shared or caller == ADMIN)
            self._viewers[caller] = viewer
        return viewer

    def may_name_objects(self, endpoint: Endpoint, body: bytes) -> bool:
        """Tell at once whether a body may name what an upstream stores, such as a file.

        The response or conversation that a request continues does not count: the planner checks
        it. Files and vector stores can only be created if requests are passed through.
        """
        if not (endpoint.is_routed or endpoint.is_json):
            return True
        return self.pool.pass_through is not None and may_contain_references(body)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Engine]:
        """Keep the connections open for as long as the block runs."""
        self._leases += 1
        try:
            yield self
        finally:
            self._leases -= 1
            await self._close_if_unused()

    async def retire(self) -> None:
        """Close with the last lease, or now where there is none."""
        self._is_retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_retired and self._leases == 0:
            await self.client.aclose()
            # Later, for whoever called this still holds the engine.
            asyncio.get_running_loop().call_later(FREED_AFTER_S, _return_freed)


def _return_freed() -> None:
    """Return what a retired engine held, in a thread: it takes some milliseconds."""
    threading.Thread(target=return_freed, name="return-freed", daemon=True).start()


def make_planner(settings: Settings, router: DecidingRouter, pool: Pool) -> Planner:
    """Return a planner by the settings; raises ConfigError for a policy that the router lacks."""
    return Planner(
        router,
        pool,
        model_name=settings.router.model_name,
        default_policy=_default_policy(settings, router),
        exploration_share=settings.router.exploration_share,
    )


def _default_policy(settings: Settings, router: DecidingRouter) -> Policy:
    try:
        return router.policy(settings.router.default_policy)
    except PolicyError as exc:
        raise ConfigError(settings.source, "router.default_policy", exc.problem) from exc
