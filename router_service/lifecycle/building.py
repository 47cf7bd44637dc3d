"""Settings and what is published -> an engine, verified whole or not made at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from router_service.core.artifact import MANIFEST, Artifact, sha256
from router_service.core.errors import ArtifactError
from router_service.core.releases import Canary, ExceededLimit, Publication, Release
from router_service.lifecycle.engine import Engine, make_planner
from router_service.lifecycle.trials import CanaryTrial, Shadow, Tallies, TrialPlanner
from router_service.requests.planning import Planner
from router_service.requests.pool import Pool, arm_prices
from router_service.router import Router
from router_service.settings import Settings
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers

OnExcess = Callable[[Canary, ExceededLimit], None]


class Shared(Protocol):
    """What engines share; `lifecycle.gateway.Gateway` has it."""

    metrics: Metrics
    breakers: CircuitBreakers


class EngineBuilder:
    """Makes engines; takes about a second for a new artifact, so call it off the event loop.

    Of the last engine it uses again the routers whose artifact, arms and prices are the same, for
    they are the bulk of the memory and of the time, and what was counted of the same canary.
    """

    def __init__(self) -> None:
        self._routers: dict[object, Router] = {}
        self._tallies: dict[object, Tallies] = {}

    def router(self, settings: Settings, publication: Publication | None) -> Router:
        """Return the stable release's router, or that of `router.artifact` without a publication.

        Raises ArtifactError, PublicationError or ConfigError.
        """
        build = _Build(settings, self._routers)
        router = build.stable(publication)
        self._routers = build.routers
        return router

    def engine(
        self,
        settings: Settings,
        publication: Publication | None,
        shared: Shared,
        on_excess: OnExcess,
    ) -> Engine:
        """Return an engine of all that is published; raises as `router`, and has then done nothing.

        `shared` outlives the engine; `on_excess` is called, on the event loop, where the canary
        exceeds a bound.
        """
        build = _Build(settings, self._routers)
        tallies: dict[object, Tallies] = {}

        def with_trials(stable: Planner) -> TrialPlanner:
            if publication is None:
                return TrialPlanner(stable)
            shadow, canary, trial = publication.shadow, publication.canary, None
            if canary is not None:
                compared = (publication.stable.key, canary)
                planner = build.planner(canary.release)
                trial = CanaryTrial(canary, planner, on_excess, self._tallies.get(compared))
                tallies[compared] = trial.tallies
            shadowing = Shadow(build.planner(shadow), shared.metrics) if shadow else None
            return TrialPlanner(stable, canary=trial, shadow=shadowing)

        engine = Engine(settings, build.stable(publication), shared.breakers, with_trials)
        self._routers, self._tallies = build.routers, tallies
        return engine


class _Build:
    """The routers of one engine, of which some may be there already."""

    def __init__(self, settings: Settings, present: dict[object, Router]) -> None:
        self._settings = settings
        self._present = present
        self.routers: dict[object, Router] = {}

    def stable(self, publication: Publication | None) -> Router:
        if publication is None:
            return self._load(self._settings.router.artifact)
        return self._release(publication.stable)

    def planner(self, release: Release) -> Planner:
        router = self._release(release)
        pool = Pool.build(self._settings, router.artifact.manifest)
        return make_planner(self._settings, router, pool)

    def _release(self, release: Release) -> Router:
        directory = release.directory(pointer_directory(self._settings))
        return self._load(directory, release.manifest_sha256)

    def _load(self, directory: Path, digest: str | None = None) -> Router:
        """Return a verified router of a directory whose manifest must have this hash, if any."""
        relatives = (*self.routers.values(), *self._present.values())
        artifact = Artifact.load(directory, [router.artifact for router in relatives])
        found = sha256(directory / MANIFEST)
        if digest not in {None, found}:
            problem = f"is another than was published: its SHA-256 is {found[:12]}..."
            raise ArtifactError(directory / MANIFEST, problem)
        pool = Pool.build(self._settings, artifact.manifest)
        # Another price of a model that is no arm changes nothing for the router.
        configured = arm_prices(self._settings)
        prices = {arm: configured[arm] for arm in pool.by_arm if arm in configured}
        device = self._settings.router.device
        key = (directory, found, device, frozenset(pool.by_arm), frozenset(prices.items()))
        router = self.routers.get(key) or self._present.get(key)
        if router is None:
            router = Router(
                artifact, device=device, prices=prices, arms=pool.by_arm, relatives=relatives
            )
            router.check_canaries()
        self.routers[key] = router
        return router


def pointer_directory(settings: Settings) -> Path | None:
    """Return where the pointer's file is; None where it is in Redis, or there is none."""
    place = settings.router.publication
    return place if isinstance(place, Path) else None
