"""Engines: everything that depends on the configuration and the artifact, replaced as a whole.

An engine plans requests with its stable release. In addition, a canary release may decide for a
share of the conversations.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Self

from router_service.access.key import Key
from router_service.access.keyring import KeyRing, StoredKeys
from router_service.apis.references import may_contain_references
from router_service.artifact import MANIFEST, Artifact, Manifest, sha256
from router_service.core.errors import (
    ArtifactError,
    ConfigErrors,
    InvalidRequestError,
    PolicyError,
    SwitchcraftError,
)
from router_service.core.releases import (
    CanaryTrial,
    OnExcess,
    Publication,
    Release,
    Tallies,
)
from router_service.core.resources import return_freed
from router_service.measurement.unmeasured import can_join, with_unmeasured
from router_service.policies.base import Policy
from router_service.policies.costs import Price
from router_service.policies.verified import VERIFIED, Verified
from router_service.predictor.familiarity import BEST, ROUTE
from router_service.requests.explain import Explainer
from router_service.requests.ownership import ObjectAccess
from router_service.requests.parsing import Endpoint
from router_service.requests.planning import Planner
from router_service.requests.pool import Pool, PoolNote, pool_notes
from router_service.requests.trials import Releases
from router_service.router import Router
from router_service.settings import Settings
from router_service.store.pointers import Pointer
from router_service.upstream.breaker import CircuitBreakers
from router_service.upstream.client import UpstreamClient
from router_service.upstream.retries import RetryBudget, RetryingClient

FREED_AFTER_S = 1.0
"""Time after which no reference to a retired engine is left, so that its memory can be freed."""

_startup_log = logging.getLogger("switchcraft.server")


class Engine:
    """Everything that answers a request: planner, upstream client, keys.

    Each request uses the engine as a context, which is a lease of its connections. A retired engine
    completes the requests that it began. It closes its connections to upstreams only after the last
    of these requests, because closing them earlier would break the answers.
    """

    def __init__(
        self,
        settings: Settings,
        router: Router,
        breakers: CircuitBreakers,
        stored_keys: StoredKeys | None = None,
        tried: Planner | None = None,
        trial: CanaryTrial | None = None,
    ) -> None:
        """Create the parts; raises ConfigError if the settings do not fit the artifact.

        `stored_keys` are the keys of the database. A canary's planner, `tried`, decides for its
        share in `trial`.
        """
        self.settings = settings
        self.keys = KeyRing.from_settings(settings.keys, stored_keys)
        self._router = router
        self.execution = router.execution
        self.pool = Pool.build(settings, self.manifest)
        stable = make_planner(settings, router, self.pool)
        self.releases = Releases(stable, tried, trial)
        verified_goals = settings.router.verification.allows_goals
        self.explainer = Explainer(router, self.pool, stable, verified_goals=verified_goals)
        self.client = UpstreamClient(
            max_connections=settings.upstreams.max_connections,
            forwarded=settings.router.forward_headers,
        )
        self.client.prepare(d for model in settings.models for d in model.deployments)
        retries = settings.upstreams.retries
        budget = RetryBudget(retries.budget_share, retries.budget_floor_per_s, time.monotonic)
        self.attempts = RetryingClient(self.client, breakers, budget, retries)
        self._is_shared = settings.router.pass_through_shared
        self.leases = 0
        self._is_retired = False

    @property
    def notes(self) -> tuple[PoolNote, ...]:
        """What operators should know about the pool."""
        return pool_notes(self.pool, self._router.measured_prices)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the stable release, with the figures of this pool."""
        return self._router.artifact.manifest

    def reach_goals(self) -> None:
        """Find the rules of policies with a goal, also verified ones; may take seconds."""
        if self.settings.router.verification.allows_goals:
            for router in self.releases.routers:
                router.reach_goals(verified_goals=True)

    @property
    def deployment_ids(self) -> frozenset[str]:
        """Ids of all deployments of the pool."""
        models = self.pool.models.used
        return frozenset(deployment.id for model in models for deployment in model.deployments)

    def viewer(self, key: Key) -> ObjectAccess:
        """Return the access of an API key to the objects that upstreams store."""
        sees_unowned = self._is_shared or key.is_admin or self.keys.callers <= 1
        return ObjectAccess(key.name, sees_unowned=sees_unowned, sees_all=key.is_admin)

    def access_to_check(self, key: Key, endpoint: Endpoint, body: bytes) -> ObjectAccess | None:
        """Return a key's access if a body may refer to an upstream's object, such as a file.

        None if there is nothing to check. The response or conversation that a request continues
        does not count: the planner checks it. Files and vector stores can only be created if
        requests are passed through.
        """
        is_read = endpoint.is_routed or endpoint.is_json
        if is_read and self.pool.pass_through is None:
            return None
        viewer = self.viewer(key)
        if viewer.sees_unowned or (is_read and not may_contain_references(body)):
            return None
        return viewer

    async def __aenter__(self) -> Self:
        """Return this engine, whose connections stay open until the block is left."""
        self.leases += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the lease; after a retired engine's last one, close the connections."""
        self.leases -= 1
        if self._is_retired and not self.leases:
            await self._close()

    async def retire(self) -> None:
        """Close the connections now, or after the last lease ends."""
        self._is_retired = True
        if not self.leases:
            await self._close()

    async def _close(self) -> None:
        await self.client.aclose()
        # Delayed because the caller still holds a reference to this engine; in a thread because
        # returning the memory takes some milliseconds.
        thread = threading.Thread(target=return_freed, name="return-freed", daemon=True)
        asyncio.get_running_loop().call_later(FREED_AFTER_S, thread.start)


def default_rule(settings: Settings, router: Router) -> Policy | Verified:
    """Return the policy of requests that do not select one; the first call may take seconds."""
    goals = settings.router.verification.allows_goals
    router.reach_goals(verified_goals=goals)
    return router.policy(
        settings.router.default_policy, param="router.default_policy", verified_goals=goals
    )


def make_planner(settings: Settings, router: Router, pool: Pool) -> Planner:
    """Create a planner; raises ConfigError if the settings name an unknown policy or model."""
    check_policies(settings, router)
    try:
        return Planner(router, pool, settings.router)
    except InvalidRequestError as exc:
        raise settings.error("router.aliases", exc.message) from exc


def check_policies(settings: Settings, router: Router) -> None:
    """Raise ConfigError with each setting that names an unknown policy."""
    named = settings.router
    policies = {
        "router.default_policy": named.default_policy,
        # Without a verifier, the planner replaces `verified` by `best`.
        "router.unfamiliar": (
            None if named.unfamiliar in {BEST, ROUTE, VERIFIED} else named.unfamiliar
        ),
        "router.risk.writing.policy": named.risk.writing.policy,
        "router.risk.destructive.policy": named.risk.destructive.policy,
    }
    problems: dict[str, str] = {}
    for where, policy in policies.items():
        # Only the default policy may be a goal that needs verified answers.
        is_default = where == "router.default_policy"
        verified_goals = is_default and named.verification.allows_goals
        try:
            if policy is not None:
                router.policy(policy, verified_goals=verified_goals)
        except PolicyError as exc:
            problems[where] = exc.problem
    if problems:
        raise settings.errors(problems)


class EngineBuilder:
    """Builds engines; takes about a second for a new artifact, so call it off the event loop.

    It reuses the routers of the last engine whose artifact, arms and prices have not changed,
    because routers take most of the memory and time. It also keeps the results of a canary release
    that continues.
    """

    def __init__(self) -> None:
        """Begin without routers."""
        self._routers: dict[object, Router] = {}
        self._tallies: dict[object, Tallies] = {}

    def first_router(self, settings: Settings) -> tuple[Router, Publication | None]:
        """Return the stable release's router and its publication, without the canary release.

        The gateway adds the canary release once it runs. If nothing usable is published, this
        returns the router of `router.artifact` and logs a warning. Raises ArtifactError and
        ConfigError.
        """
        directory = settings.router.publication
        if directory is None:
            return self._router(settings, None), None
        try:
            publication = Pointer(directory).read()
            if publication is not None:
                publication = publication.model_copy(update={"canary": None})
                return self._router(settings, publication), publication
            _startup_log.warning("nothing is published yet; router.artifact serves")
        except SwitchcraftError as exc:
            _startup_log.warning(
                "the publication cannot be used; router.artifact serves: cause=%s", exc
            )
        return self._router(settings, None), None

    def _router(self, settings: Settings, publication: Publication | None) -> Router:
        loader = _RouterLoader(settings, self._routers)
        router = loader.stable(publication)
        self._routers = loader.routers
        return router

    def engine(
        self,
        settings: Settings,
        publication: Publication | None,
        breakers: CircuitBreakers,
        stored_keys: StoredKeys,
        on_excess: OnExcess,
    ) -> Engine:
        """Return an engine for a publication, or without one for `router.artifact`.

        Raises ArtifactError or ConfigError; then the state of this object is unchanged.
        `on_excess` is called on the event loop if the canary release exceeds a limit.
        """
        loader = _RouterLoader(settings, self._routers)
        tallies: dict[object, Tallies] = {}
        router = loader.stable(publication)
        tried = trial = None
        if publication is not None and publication.canary is not None:
            compared = (publication.stable.key, publication.canary)
            trial = CanaryTrial(publication.canary, on_excess, self._tallies.get(compared))
            tallies[compared] = trial.tallies
            tried = loader.planner(publication.canary.release)
        engine = Engine(settings, router, breakers, stored_keys, tried, trial)
        self._routers, self._tallies = loader.routers, tallies
        return engine


class _RouterLoader:
    """Loads the routers of one engine, and reuses routers of the previous engine."""

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
        beside = self._settings.router.publication
        assert beside is not None  # noqa: S101 - for types; a release was published there
        return self._load(release.directory(beside), release.manifest_sha256)

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
        errors = ConfigErrors()
        with errors.collecting():
            pool = Pool.build(self._settings, artifact.manifest)
        if errors:
            with errors.collecting():
                check_policies(self._settings, Router(artifact, relatives=relatives))
            errors.raise_any()
        if self._settings.router.unknown_models == "verify":
            artifact, pool = self._with_unmeasured(artifact, pool)
        if expected_sha256 is not None and not pool.by_arm:
            problem = (
                "knows none of the models of model_list, so it could not route a request; publish "
                "an artifact with an arm for one of them"
            )
            raise ArtifactError(directory / MANIFEST, problem)
        device = self._settings.router.device
        key = (
            directory,
            found_sha256,
            device,
            frozenset(pool.by_arm),
            frozenset(pool.prices.items()),
            self._settings.router.last_resort,
            self._settings.router.verification.allows_goals,
        )
        router = self.routers.get(key) or self._reusable.get(key)
        if router is None:
            router = Router(
                artifact,
                device=device,
                prices=pool.prices,
                # A router needs an arm. Without any, the planner never asks it.
                arms=pool.by_arm or None,
                relatives=relatives,
            )
            router.check_canaries()
            if not self._settings.router.verification.allows_goals:
                router.reach_goals(verified_goals=False)
        self.routers[key] = router
        return router

    def _with_unmeasured(self, artifact: Artifact, pool: Pool) -> tuple[Artifact, Pool]:
        """Return an artifact and its pool with arms for the models that it has not measured."""
        prices: dict[str, Price] = {}
        for each in pool.mapping.unrouted:
            price = pool.models[each.model].price
            if each.is_unknown and price is not None and can_join(artifact, price):
                prices[each.model] = price
        if not prices:
            return artifact, pool
        artifact = with_unmeasured(artifact, prices, pool.prices, self._settings.router.last_resort)
        return artifact, Pool.build(self._settings, artifact.manifest)
