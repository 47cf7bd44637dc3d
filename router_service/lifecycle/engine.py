"""Engines: everything that depends on the configuration and the artifact, replaced as a whole."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from router_service.access import Access
from router_service.core.artifact import MANIFEST, Artifact, sha256
from router_service.core.errors import ArtifactError, ConfigError, PolicyError
from router_service.core.releases import Canary, ExceededLimit, Publication, Release
from router_service.core.resources import return_freed
from router_service.core.responses import may_contain_references
from router_service.lifecycle.trials import CanaryTrial, Releases, Shadow, Tallies
from router_service.requests.explain import Explainer
from router_service.requests.parsing import Endpoint
from router_service.requests.planning import DecidingRouter, Planner
from router_service.requests.pool import Pool, arm_prices
from router_service.router import Router
from router_service.settings import ADMIN, Settings
from router_service.store.upstream_objects import ObjectAccess
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.client import UpstreamClient
from router_service.upstream.retries import RetryBudget, RetryingClient

FREED_AFTER_S = 1.0
"""Time until the last references to a retired engine are gone."""

OnExcess = Callable[[Canary, ExceededLimit], None]


class Engine:
    """Everything that answers a request: planner, upstream client, keys.

    A retired engine serves the requests that it began. It closes its connections after the last of
    them, because closing the client during a request would break the answer.
    """

    def __init__(
        self,
        settings: Settings,
        router: DecidingRouter,
        breakers: CircuitBreakers,
        with_trials: Callable[[Planner], Releases] = Releases,
    ) -> None:
        """Create the parts; raises ConfigError if the settings do not fit the artifact.

        `with_trials` adds a canary or shadow release to the planner.
        """
        self.settings = settings
        self.access = Access.from_settings(settings.keys)
        self.manifest = router.artifact.manifest
        self.pool = Pool.build(settings, self.manifest)
        stable = make_planner(settings, router, self.pool)
        self.releases = with_trials(stable)
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
        self._viewers: dict[str | None, ObjectAccess] = {}
        self._leases = 0
        self._is_retired = False

    @property
    def deployment_ids(self) -> frozenset[str]:
        """Ids of all deployments of the pool."""
        models = self.pool.models.values()
        return frozenset(deployment.id for model in models for deployment in model.deployments)

    def viewer(self, caller: str | None) -> ObjectAccess:
        """Return which objects stored by upstreams an API key may see."""
        viewer = self._viewers.get(caller)
        if viewer is None:
            viewer = ObjectAccess(caller, sees_unowned=self._is_shared or caller == ADMIN)
            self._viewers[caller] = viewer
        return viewer

    def may_name_objects(self, endpoint: Endpoint, body: bytes) -> bool:
        """Return quickly whether a body may refer to an object stored by an upstream, e.g. a file.

        The response or conversation that a request continues does not count: the planner checks
        it. Files and vector stores can only be created if requests are passed through.
        """
        if not (endpoint.is_routed or endpoint.is_json):
            return True
        return self.pool.pass_through is not None and may_contain_references(body)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Engine]:
        """Keep the connections open while the block runs."""
        self._leases += 1
        try:
            yield self
        finally:
            self._leases -= 1
            await self._close_if_unused()

    async def retire(self) -> None:
        """Close the connections now, or after the last lease ends."""
        self._is_retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_retired and self._leases == 0:
            await self.client.aclose()
            # Delayed because the caller still holds a reference to this engine; in a thread because
            # returning the memory takes some milliseconds.
            thread = threading.Thread(target=return_freed, name="return-freed", daemon=True)
            asyncio.get_running_loop().call_later(FREED_AFTER_S, thread.start)


def make_planner(settings: Settings, router: DecidingRouter, pool: Pool) -> Planner:
    """Create a planner; raises ConfigError if the router lacks the default policy."""
    try:
        default_policy = router.policy(settings.router.default_policy)
    except PolicyError as exc:
        raise ConfigError(settings.source, "router.default_policy", exc.problem) from exc
    return Planner(
        router,
        pool,
        model_name=settings.router.model_name,
        default_policy=default_policy,
        exploration_share=settings.router.exploration_share,
    )


class EngineResources(Protocol):
    """Resources that outlive an engine; `lifecycle.gateway.Gateway` provides them."""

    metrics: Metrics
    breakers: CircuitBreakers


class EngineBuilder:
    """Builds engines; takes about a second for a new artifact, so call it off the event loop.

    It reuses the routers of the last engine whose artifact, arms and prices have not changed,
    because routers take most of the memory and time. It also keeps the tallies of a canary release
    that continues.
    """

    def __init__(self) -> None:
        self._routers: dict[object, Router] = {}
        self._tallies: dict[object, Tallies] = {}

    def router(self, settings: Settings, publication: Publication | None) -> Router:
        """Return the router of the stable release, or of `router.artifact` without a publication.

        Raises ArtifactError, PublicationError or ConfigError.
        """
        loader = _RouterLoader(settings, self._routers)
        router = loader.stable(publication)
        self._routers = loader.routers
        return router

    def engine(
        self,
        settings: Settings,
        publication: Publication | None,
        resources: EngineResources,
        on_excess: OnExcess,
    ) -> Engine:
        """Return an engine for a publication; if it raises, as `router` does, nothing has changed.

        `on_excess` is called on the event loop if the canary release exceeds a limit.
        """
        loader = _RouterLoader(settings, self._routers)
        tallies: dict[object, Tallies] = {}

        def with_trials(stable: Planner) -> Releases:
            if publication is None:
                return Releases(stable)
            shadow, canary, trial = publication.shadow, publication.canary, None
            if canary is not None:
                compared = (publication.stable.key, canary)
                planner = loader.planner(canary.release)
                trial = CanaryTrial(canary, planner, on_excess, self._tallies.get(compared))
                tallies[compared] = trial.tallies
            shadowing = Shadow(loader.planner(shadow), resources.metrics) if shadow else None
            return Releases(stable, canary=trial, shadow=shadowing)

        engine = Engine(settings, loader.stable(publication), resources.breakers, with_trials)
        self._routers, self._tallies = loader.routers, tallies
        return engine


class _RouterLoader:
    """Loads the routers of one engine, reusing those of the engine before it."""

    def __init__(self, settings: Settings, reusable: dict[object, Router]) -> None:
        self._settings = settings
        self._reusable = reusable
        self.routers: dict[object, Router] = {}

    def stable(self, publication: Publication | None) -> Router:
        if publication is None:
            return self._load(self._settings.router.artifact)
        return self._load_release(publication.stable)

    def planner(self, release: Release) -> Planner:
        router = self._load_release(release)
        pool = Pool.build(self._settings, router.artifact.manifest)
        return make_planner(self._settings, router, pool)

    def _load_release(self, release: Release) -> Router:
        directory = release.directory(pointer_directory(self._settings))
        return self._load(directory, release.manifest_sha256)

    def _load(self, directory: Path, expected_sha256: str | None = None) -> Router:
        """Return a verified router; checks the manifest's hash if one is expected."""
        relatives = (*self.routers.values(), *self._reusable.values())
        artifact = Artifact.load(directory, [router.artifact for router in relatives])
        found_sha256 = sha256(directory / MANIFEST)
        if expected_sha256 not in {None, found_sha256}:
            problem = (
                f"has the SHA-256 {found_sha256[:12]}..., which differs from the published one; "
                "publish the artifact again"
            )
            raise ArtifactError(directory / MANIFEST, problem)
        pool = Pool.build(self._settings, artifact.manifest)
        # Prices of models that are not arms do not affect the router.
        configured = arm_prices(self._settings)
        prices = {arm: configured[arm] for arm in pool.by_arm if arm in configured}
        device = self._settings.router.device
        key = (directory, found_sha256, device, frozenset(pool.by_arm), frozenset(prices.items()))
        router = self.routers.get(key) or self._reusable.get(key)
        if router is None:
            router = Router(
                artifact, device=device, prices=prices, arms=pool.by_arm, relatives=relatives
            )
            router.check_canaries()
        self.routers[key] = router
        return router


def pointer_directory(settings: Settings) -> Path | None:
    """Return the directory of the pointer file, or None if it is in Redis or not configured."""
    place = settings.router.publication
    return place if isinstance(place, Path) else None
