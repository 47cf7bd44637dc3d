"""Startup: the first router of a gateway, whatever state the publication is in."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from router_service.artifact import SHIPPED, Artifact
from router_service.core.errors import ConfigError
from router_service.runtime.engine import EngineBuilder
from router_service.runtime.reloading import load_first_router
from router_service.settings import RouterSettings, ServerSettings, Settings
from router_service.store.pointers import POINTER_FILE
from router_service.store.redis import POINTER_KEY
from switchcraft_training.cli import main
from tests.publishing import flip, make_artifact

ARMS = Artifact.load(SHIPPED).manifest.arms


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that differs from the shipped one."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "other")


def settings(publication: object, redis_url: str | None = None) -> Settings:
    """Return settings with a publication."""
    base = Settings.sandbox("http://127.0.0.1:9/v1", ARMS)
    router = RouterSettings.model_validate({"publication": publication})
    server = ServerSettings(redis_url=SecretStr(redis_url) if redis_url else None)
    return base.model_copy(update={"router": router, "server": server})


def started(configured: Settings) -> tuple[str, int | None]:
    """Return the name of the artifact and the serial of the publication at startup."""
    router, publication = load_first_router(configured, EngineBuilder())
    return router.artifact.manifest.name, publication.serial if publication else None


@pytest.mark.parametrize("damage", ["nothing", "pointer", "release", "redis"])
def test_unusable_publication_falls_back_to_artifact(
    damage: str, tmp_path: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No pointer, a damaged pointer or release, no Redis: the artifact serves, with a warning."""
    if damage == "release":
        main(["publish", "--to", str(tmp_path), str(other)])
        (release,) = (path for path in tmp_path.iterdir() if path.is_dir())
        flip(release / "tokenizer.json")
    elif damage == "pointer":
        (tmp_path / POINTER_FILE).write_bytes(b"{")
    place = "redis" if damage == "redis" else tmp_path
    assert started(settings(place, "redis://:planted@127.0.0.1:9/0")) == (SHIPPED.name, None)
    assert "router.artifact serves" in caplog.text
    assert "planted" not in caplog.text


def test_redis_publication_needs_redis_url() -> None:
    """A pointer in Redis without `server.redis_url` is a configuration error."""
    problem = r"router\.publication: a publication in Redis needs server\.redis_url"
    with pytest.raises(ConfigError, match=problem):
        started(settings("redis"))


def test_stable_release_serves_from_directory(tmp_path: Path, other: Path) -> None:
    """The stable release serves from the first request; the canary is added later."""
    publish = ["publish", "--to", str(tmp_path)]
    main([*publish, str(other)])
    main([*publish, str(SHIPPED), "--as", "canary"])
    router, publication = load_first_router(settings(tmp_path), EngineBuilder())
    assert router.artifact.manifest.name == "other"
    assert publication is not None
    assert (publication.serial, publication.canary) == (2, None)


def test_stable_release_serves_from_redis(redis_url: str, tmp_path: Path, other: Path) -> None:
    """A pointer in Redis works like one in a directory."""
    main(["publish", "--to", redis_url, "--store", str(tmp_path), str(other)])
    assert started(settings("redis", redis_url)) == ("other", 1)
    with redis.Redis.from_url(redis_url) as server:
        server.delete(POINTER_KEY)
