"""`switchcraft check`: find what would stop or disturb a gateway, without serving.

Everything is checked with the code that serves: the configuration, the artifact with its canary
requests, the arms and their prices, keys, Redis, the database, the exporter of spans, the port, and
the folders that are written to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import orjson

from router_service.access.keyring import has_stored_keys, permitted_listen_host
from router_service.apis.api import Target
from router_service.apis.parts import Message, Request, Text
from router_service.artifact import MANIFEST, read_manifest
from router_service.core.errors import (
    ConfigError,
    CredentialsError,
    DatabaseError,
    StoreError,
    SwitchcraftError,
)
from router_service.core.keys import without_keys
from router_service.database.engine import SQLITE_PREFIX, Database
from router_service.database.migrating import newer_version_problem
from router_service.database.schema import REVISION
from router_service.requests.explain import Explainer
from router_service.requests.pool import Pool, pool_notes
from router_service.runtime.engine import EngineBuilder, make_planner
from router_service.serving.server import open_listeners
from router_service.settings import Deployment, Model, Settings, read_settings
from router_service.store.opening import log_warnings, open_store
from router_service.store.store import SETTING
from router_service.upstream.client import UpstreamClient
from router_service.upstream.connection import HttpRequest

QUESTION = Request("", (Message("user", (Text("Reply with the word OK."),)),))
"""The request that `--ask` sends to each deployment."""

MAX_ERROR_BYTES = 300
"""Bytes of an upstream's error that are shown."""


class Status(StrEnum):
    """Result of one check."""

    OK = "ok"
    NOTE = "note"
    """Something that has no effect or may surprise; the gateway serves."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, and what was found; a failure says what to do.

    What may be a key is hidden, because a person may have written one in the place of a name.
    """

    subject: str
    status: Status
    detail: str

    def __post_init__(self) -> None:
        """Hide what may be a key."""
        object.__setattr__(self, "subject", without_keys(self.subject))
        object.__setattr__(self, "detail", without_keys(self.detail))


def check(config: Path | None, *, asks: bool = False, changes: bool = False) -> Iterator[Finding]:
    """Yield the findings of every check, as they are made.

    `asks` sends one short request to each deployment, which costs money. `changes` adds what
    behaves differently from the previous version.
    """
    try:
        settings = read_settings(config)
    except ConfigError as exc:
        yield from _failures("configuration", exc)
        return
    deployments = [(model, each) for model in settings.models for each in model.deployments]
    found = "no models are configured; a sandbox would answer"
    if settings.has_models:
        patterns = ", ".join(wildcard.pattern for wildcard in settings.wildcards)
        found = f"{settings.source}: {len(settings.models)} models, {len(deployments)} deployments"
        found += f", and any model that matches {patterns}" if patterns else ""
    yield Finding("configuration", Status.OK, found)
    for setting in settings.unsupported:
        detail = str(ConfigError(settings.source, problems=[setting]))
        yield Finding("configuration", Status.NOTE, detail)
    if changes:
        for change in describe_changes(settings):
            yield Finding("changes", Status.NOTE, change)
    with _warnings() as warnings:
        is_stored = has_stored_keys(settings)
        yield from _checked(
            "keys",
            lambda: f"listens on {permitted_listen_host(settings, has_stored_keys=is_stored)}",
        )
        log_warnings(settings.server.shared_store)
    yield from _notes("keys", warnings)
    with _warnings() as warnings:
        yield from _checked("router", lambda: _check_router(settings))
    yield from _notes("router", warnings)
    store_url = settings.server.shared_store
    if store_url is not None:
        yield from _checked("redis", lambda: asyncio.run(_try_store(settings, store_url)))
    if settings.tracing.otlp_endpoint is not None:
        yield from _checked("tracing", _import_exporter)
    yield from _checked("port", lambda: _try_port(settings))
    folder = settings.decision_log.path
    if folder is not None:
        where = "decision_log.path"
        yield from _checked("decision log", lambda: _try_folder(settings, where, folder))
    yield from _check_database(settings)
    if asks:
        yield from asyncio.run(ask(deployments))


def _failures(subject: str, error: ConfigError) -> Iterator[Finding]:
    """Yield each problem of an error."""
    for problem in error.problems:
        shown = str(ConfigError(error.source, problems=[problem]))
        yield Finding(subject, Status.FAILED, shown)


def _checked(subject: str, attempt: Callable[[], str | Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the result of a check, which returns what it found or raises a SwitchcraftError."""
    try:
        found = attempt()
        yield from [Finding(subject, Status.OK, found)] if isinstance(found, str) else found
    except ConfigError as exc:
        yield from _failures(subject, exc)
    except SwitchcraftError as exc:
        yield Finding(subject, Status.FAILED, str(exc))


def _check_router(settings: Settings) -> Iterator[Finding]:
    """Load the router as a gateway does; yield what it can choose, and what it should reach."""
    if not settings.has_models:  # a sandbox answers for all arms
        all_arms = read_manifest(settings.router.artifact / MANIFEST).arms
        settings = Settings.sandbox("http://127.0.0.1", all_arms, server=settings.server)
    router, publication = EngineBuilder().first_router(settings)
    manifest = router.artifact.manifest
    pool = Pool.build(settings, manifest)
    planner = make_planner(settings, router, pool)
    served = ", ".join(
        arm if arm == pool.by_arm[arm].name else f"{arm} (served by {pool.by_arm[arm].name})"
        for arm in manifest.arms
        if arm in pool.by_arm
    )
    measured_arms = [arm for arm in manifest.arms if arm not in router.unmeasured]
    missing = ", ".join(arm for arm in measured_arms if arm not in pool.by_arm)
    place = "published" if publication else str(router.artifact.directory)
    without = f"; without a model, so never chosen: {missing}" if missing else ""
    measured = f". {str(manifest.knowledge).removesuffix('.')}" if manifest.knowledge else ""
    known = sum(arm in pool.by_arm for arm in measured_arms)
    count = f"{known} of {len(measured_arms)} arms"
    if router.unmeasured:
        models = "model" if len(router.unmeasured) == 1 else "models"
        count = f"{count} and {len(router.unmeasured)} unmeasured {models}"
    runs = f". Runs {router.execution}"
    detail = f"{place}: {count}: {served or 'none'}{without}{measured}{runs}"
    yield Finding("router", Status.OK, detail)
    if router.execution.warning:
        yield Finding("router", Status.NOTE, router.execution.warning)
    for note in pool_notes(pool, router.measured_prices):
        yield from _notes("router", note.lines)
    aliases = {**settings.aliases, **settings.router.known_aliases}
    answered = [
        f"; {name} means {target}" for name, target in aliases.items() if planner.has_name(target)
    ]
    names = [*planner.names, *(wildcard.pattern for wildcard in settings.wildcards)]
    named = f"clients may name {', '.join(names)}{''.join(answered)}"
    yield Finding("names", Status.OK, named)
    verified_goals = settings.router.verification.allows_goals
    router.reach_goals(verified_goals=verified_goals)
    explainer = Explainer(router, pool, planner, verified_goals=verified_goals)
    for line in explainer.expectation():
        yield Finding("expected", Status.OK, line)


def _import_exporter() -> str:
    # Imported here, because the exporter is an extra that is only needed if spans are exported.
    from router_service.telemetry import otlp  # noqa: F401, PLC0415

    return "the exporter is installed"


async def _try_store(settings: Settings, url: str) -> str:
    store = open_store(url, settings.server.store_limits)
    try:
        await store.cool_downs(())
    except StoreError as exc:
        problem = f"{exc.problem}; start Redis, or correct the address"
        raise ConfigError(settings.source, SETTING, problem) from exc
    finally:
        await store.aclose()
    return "answers"


def _try_port(settings: Settings) -> str:
    with open_listeners(settings, settings.server.host):
        return f"{settings.server.host}:{settings.server.port} is free"


def _try_folder(settings: Settings, where: str, folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".check-"):
            return f"{folder} can be written to"
    except OSError as exc:
        problem = f"{folder} cannot be written to: {exc.strerror}; choose another directory"
        raise settings.error(where, problem) from exc


async def ask(deployments: Sequence[tuple[Model, Deployment]]) -> list[Finding]:
    """Send the question to all deployments at once, and return how each answered."""
    client = UpstreamClient(max_connections=len(deployments) + 1)

    async def ask_one(model: Model, deployment: Deployment) -> Finding:
        subject = f"{model.name} ({deployment.id})"
        if not deployment.apis:
            return Finding(
                subject, Status.NOTE, "was not asked, because it answers no conversations"
            )
        api = deployment.apis[0]
        target = Target(api, deployment.upstream_model, deployment.provider)
        body = orjson.dumps(api.write_request(QUESTION, target))
        request = HttpRequest(
            model.name, api.path, deployment.url(api.path), body, deployment.timeouts
        )
        try:
            with await client.send(deployment, request) as answer:
                start = b""
                async for part in answer.chunks():
                    start += part[: MAX_ERROR_BYTES - len(start)]
        except SwitchcraftError as exc:
            detail = f"{_why_unanswered(exc)} Address: {deployment.base_url}"
            return Finding(subject, Status.FAILED, detail)
        if answer.status < 400:
            return Finding(subject, Status.OK, f"answered with status {answer.status}")
        said = " ".join(start.decode(errors="replace").split())
        detail = f"{deployment.base_url} answered with status {answer.status}: {said}"
        advice = _ADVICE.get(answer.status)
        detail += "" if advice is None else f". {advice}"
        return Finding(subject, Status.FAILED, detail)

    try:
        return list(await asyncio.gather(*(ask_one(*pair) for pair in deployments)))
    finally:
        await client.aclose()


_ADVICE = {
    401: "Check api_key: the server does not accept it",
    403: "Check api_key: the server does not allow it this model",
    404: "Check the model's name at the provider, and whether api_base ends as the provider says",
}
"""What to do after an error status."""


def _why_unanswered(error: SwitchcraftError) -> str:
    """Return why a deployment did not answer, and what to do."""
    cause: BaseException | None = error.__cause__
    while cause is not None and not isinstance(cause, (CredentialsError, OSError)):
        cause = cause.__cause__ or cause.__context__
    match cause:
        case socket.gaierror():
            text = "The name of the host is unknown. Check api_base, and the DNS of this machine."
        case ssl.SSLError():
            text = (
                f"TLS failed: {getattr(cause, 'verify_message', None) or cause.reason}. Check that"
                " the server speaks https, and that this machine trusts its certificate."
            )
        case ConnectionRefusedError():
            text = "Nothing listens there: the connection was refused. Start the server, or check"
            text += " api_base."
        case TimeoutError():
            text = f"{error} Its limit is in timeouts; a firewall may drop the packets."
        case OSError():
            text = f"The connection failed: {cause.strerror or cause}. Check api_base."
        case _:
            text = str(error if cause is None else cause)
    return text


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings that are logged within the block, instead of printing them."""
    lines: list[str] = []
    thread = threading.get_ident()

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:  # other threads may log what has nothing to do with it
                lines.append(record.getMessage())

    logger, collector = logging.getLogger("switchcraft"), Collector(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(collector)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagates


def _notes(subject: str, lines: Sequence[str]) -> Iterator[Finding]:
    yield from (Finding(subject, Status.NOTE, line) for line in lines)


def _check_database(settings: Settings) -> Iterator[Finding]:
    """Say what a gateway would do with the database, without changing it."""
    if settings.database.url is None:
        detail = "is in memory, and lost when the gateway ends; set database.url to keep it"
        yield Finding("database", Status.NOTE, detail)
        return
    url = settings.database.url.get_secret_value()
    yield from _checked("database", lambda: _describe_database(settings, url))
    if settings.server.redis_url is not None and url.startswith(SQLITE_PREFIX):
        detail = (
            "server.redis_url is set, but an SQLite file belongs to one machine: replicas on other "
            "machines have keys, budgets and usage of their own; set database.url to a PostgreSQL "
            "database"
        )
        yield Finding("replicas", Status.NOTE, detail)


def _describe_database(settings: Settings, url: str) -> str:
    database = Database(url)
    try:
        found = database.examine()
    except DatabaseError as exc:
        raise settings.error("database.url", str(exc)) from exc
    finally:
        database.close()
    path = database.path
    if path is not None:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        may_create = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        if not may_create or (path.exists() and not os.access(path, os.R_OK | os.W_OK)):
            problem = (
                f"{path} cannot be written to; choose a file on a local disk that this user may "
                "write to"
            )
            raise settings.error("database.url", problem)
    if found is None:
        return f"{database.place} will be created"
    if found == REVISION:
        return f"{database.place} has the version {found}"
    if found < REVISION:
        return f"{database.place} will be migrated from version {found} to {REVISION}"
    raise settings.error("database.url", newer_version_problem(found))


CHANGED_DEFAULTS: Mapping[str, tuple[str, str]] = {
    "router.default_policy": (
        (
            "the default is the cheapest measured policy that loses at most half a point against"
            " your best model (within=0.5), and not verified at its standard price"
        ),
        "verified",
    ),
    "router.unfamiliar": (
        (
            "requests unlike the training data, such as agents', get verified answers, and not the"
            " most accurate model's"
        ),
        "best",
    ),
    "router.conversations.enabled": (
        "inside a tool loop, the model that answered last is asked first",
        "false",
    ),
    "router.unknown_models": (
        "models that the artifact has not measured take part in verified answers",
        "name_only",
    ),
    "router.agents.within_points": (
        "one model answers the whole session of a coding agent",
        "null",
    ),
}
"""By setting, what its changed default means, and the value with which all is as before;
CHANGELOG.md has all changes."""


def describe_changes(settings: Settings) -> Iterator[str]:
    """Yield each change that affects this configuration, with the setting that undoes it."""
    for setting, (effect, kept_by) in CHANGED_DEFAULTS.items():
        if not _is_set(settings, setting):
            yield f"{effect}; `{setting}: {kept_by}` keeps the old behaviour"
    aliases = settings.router.aliases
    if "aliases" in settings.router.model_fields_set and "claude-*" not in aliases:
        yield (
            "router.aliases adds to the default `claude-*: switchcraft` instead of replacing it;"
            " `claude-*: null` in it keeps the old behaviour"
        )
    yield "metrics have other names; docs/upgrades.md has the ones to look for in dashboards"


def _is_set(settings: Settings, path: str) -> bool:
    """Return whether the configuration has a setting."""
    *sections, name = path.split(".")
    found = settings
    for section in sections:
        if section not in found.model_fields_set:
            return False
        found = getattr(found, section)
    return name in found.model_fields_set
