"""Under load, configurations and artifacts are exchanged completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import redis
import yaml

from router_service.core.releases import Release
from router_service.store.pointers import POINTER_FILE, Pointer
from router_service.store.redis import REJECTIONS_KEY
from switchcraft_training.cli import main
from switchcraft_training.publishing.releases import make_release, put_stable
from tests.bodies import BODY, CHAT
from tests.drills.processes import (
    GatewayProcess,
    Load,
    RedisServer,
    gateway,
    write_config,
)
from tests.publishing import flip, make_artifact
from tests.serving import Sandbox

CONFIG_TAKEN = 'switchcraft_reloads_total{kind="config",outcome="taken"}'


def test_open_stream_completes_across_a_reload(tmp_path: Path, upstream: Sandbox) -> None:
    """A stream that is open during a reload completes."""
    config = write_config(tmp_path / "config.yaml", upstream.base_url)
    with gateway(config, tmp_path) as served:
        slow = {"x-sandbox": "chunk_delay_s=3"}
        with served.http.stream("POST", CHAT, json=BODY | {"stream": True}, headers=slow) as answer:
            parts = answer.iter_bytes()
            text = next(parts)
            write_config(config, upstream.base_url, router={"model_name": "other"})
            served.send_sighup()
            served.wait_for_metric(CONFIG_TAKEN, 1)
            assert upstream.stats()["completed"] == 0
            text += b"".join(parts)
        assert text.endswith(b"data: [DONE]\n\n")
        assert b"error" not in text
    assert upstream.stats()["completed"] == 1


def test_reload_reports_changes_and_settings_that_need_a_restart(
    tmp_path: Path, upstream: Sandbox
) -> None:
    """The answer names the changed settings and those that need a restart, but no values."""
    config = write_config(tmp_path / "config.yaml", upstream.base_url)
    with gateway(config, tmp_path) as served:
        router = {"model_name": "other", "publication": str(tmp_path)}
        bound: dict[str, Mapping[str, object]] = {
            "server": {"max_decisions": 5},
            "decision_log": {"content": True},
            "usage": {"retention_days": 7},
            "logging": {"level": "debug"},
        }
        write_config(config, upstream.base_url, router=router, **bound)
        tree = yaml.safe_load(config.read_text())
        tree["model_list"][0]["litellm_params"]["api_key"] = "planted-secret"
        free = {"input_cost_per_token": 0, "output_cost_per_token": 0}
        added = {"model_name": "added", "model_info": free}
        tree["model_list"].append({**tree["model_list"][1], **added})
        config.write_text(yaml.safe_dump(tree))
        answer = served.http.post("/admin/reload")
        assert answer.status_code == 200, answer.text
        report = answer.json()
        first = tree["model_list"][0]["model_name"]
        assert set(report["changed"]) == {
            f"model_list.{first}", "model_list.added", "router.model_name",
        }  # fmt: skip
        assert set(report["needs_restart"]) == {
            "router.publication", "server.max_decisions", "decision_log.content",
            "usage.retention_days", "logging.level",
        }  # fmt: skip
        assert "planted-secret" not in answer.text + served.log.read_text()
        names = [m["id"] for m in served.http.get("/v1/models").json()["data"]]
        assert {"other", "added"} <= set(names)
        assert "switchcraft" not in names


REFUSED = 'switchcraft_reloads_total{kind="artifact",outcome="refused"}'
TAKEN = 'switchcraft_reloads_total{kind="artifact",outcome="taken"}'


def publish(artifact: Path, place: object, *options: object) -> None:
    """Publish an artifact with the command, as an operator does."""
    assert main(["publish", str(artifact), "--to", str(place), *map(str, options)]) == 0


def move(place: Path, release: Release) -> None:
    """Move only the pointer, as on a volume where the release's files arrive later."""
    Pointer(place).move(lambda published: put_stable(published, release))


def cut(path: Path) -> None:
    """Truncate a file to its first half."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


DAMAGES: tuple[tuple[Callable[[Path], None], str], ...] = (
    (flip, "model.int8.onnx"),
    (cut, "model.int8.onnx"),
    (Path.unlink, "tokenizer.json"),
    (flip, "manifest.json"),
)


@pytest.mark.slow
def test_damaged_publication_is_refused_and_the_old_artifact_serves(
    tmp_path: Path, upstream: Sandbox, artifacts: dict[str, Path]
) -> None:
    """A flipped, truncated, missing or invalid file is refused with metric and reason.

    The old artifact keeps serving, and the next intact publication is loaded.
    """
    place = tmp_path / "published"
    publish(artifacts["one"], place)
    router = {"publication": str(place)}
    config = write_config(tmp_path / "config.yaml", upstream.base_url, router=router)
    with gateway(config, tmp_path) as served, Load((served.url,)) as load:
        for taken, (damage, file) in enumerate(DAMAGES, start=1):
            release = make_release(artifacts["two"], place)
            damage(release.directory(place) / file)
            _is_refused(served, partial(move, place, release))
            publish(artifacts["one"], place)
            served.wait_for_metric(TAKEN, taken)
            shutil.rmtree(release.directory(place))
        text = (place / POINTER_FILE).read_bytes()
        _is_refused(served, partial(write_pointer, place, text[: len(text) // 2]))
        write_pointer(place, text)
        publish(artifacts["two"], place)
        served.wait_for_artifact("two")
    load.check(upstream.stats()["completed"])


def write_pointer(place: Path, text: bytes) -> None:
    """Replace the pointer by these bytes."""
    partial = place / "partial"
    partial.write_bytes(text)
    partial.replace(place / POINTER_FILE)


def _is_refused(served: GatewayProcess, publish_it: Callable[[], None]) -> None:
    before = served.metric(REFUSED)
    publish_it()
    served.wait_for_metric(REFUSED, before + 1)
    assert served.artifact() == "one"
    refusal = served.status()["last_refusal"]
    assert isinstance(refusal, dict)
    assert refusal["kind"] == "artifact"


@pytest.fixture(scope="session")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that chooses the cheapest arm."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "cheap", "theta=0")


@pytest.fixture(scope="session")
def dear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that chooses the most probable arm at any price."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "dear", "theta=1")


def test_expensive_canary_is_rolled_back_on_all_gateways(
    tmp_path: Path, upstream: Sandbox, cheap: Path, dear: Path, redis_server: RedisServer
) -> None:
    """One gateway sees the canary's cost; both return to the stable release and stay there."""
    where = ["--to", str(tmp_path / "releases")]
    assert main(["publish", str(cheap), *where]) == 0
    config = write_config(
        tmp_path / "config.yaml",
        upstream.base_url,
        router={"publication": str(tmp_path / "releases")},
        server={"redis_url": redis_server.url},
    )
    canary = ["--as", "canary", "--share", "0.5", "--min-requests", "20"]
    withdrawn = 'switchcraft_canary_withdrawals_total{bound="cost"}'
    with gateway(config, tmp_path) as one, gateway(config, tmp_path) as other:
        assert main(["publish", str(dear), *where, *canary]) == 0
        for served in (one, other):
            served.wait_for_canary(canary=True)
        with Load((one.url,)) as load:
            one.wait_for_metric(withdrawn, 1)
            for served in (one, other):
                served.wait_for_canary(canary=False)
            assert len(load.models) == 2
            load.models.clear()
            load.wait_for_answers(50)
            assert len(load.models) == 1
        load.check(upstream.stats()["completed"])
        assert "cause='a request cost" in one.log.read_text()
        assert other.metric(withdrawn) == 0
        with redis.Redis.from_url(redis_server.url) as server:
            assert server.hlen(REJECTIONS_KEY) == 1
        # If it is published again, it runs again.
        assert main(["publish", str(dear), *where, *canary]) == 0
        other.wait_for_canary(canary=True)
