"""The compose file: by its schema, and by what its parts refer to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from router_service.core.artifact import SHIPPED, Artifact
from router_service.core.keys import is_weak
from router_service.serving.pool import Pool
from router_service.settings import Settings, load_settings
from tests.deploy.dockerfile import stages

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROFILES = ("live", "sandbox")
_DEFAULT = re.compile(r"\$\{(\w+):-([^}]*)\}")


def variables_of(service: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables, where nothing is set outside."""
    environment: dict[str, str] = service.get("environment", {})
    return {name: _DEFAULT.sub(r"\2", value) for name, value in environment.items()}


def settings_of(service: dict[str, Any], **given: str) -> Settings:
    """Return what a gateway of a service reads."""
    mounts = dict(mount.split(":")[1::-1] for mount in service["volumes"])
    config = ROOT / mounts[service["environment"]["SWITCHCRAFT_CONFIG"]]
    return load_settings(config, {**variables_of(service), **given})


def mounts() -> Iterator[str]:
    """Yield every mount's source."""
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            yield mount.split(":")[0]


def test_the_file_fits_its_schema() -> None:
    """Compose's own schema accepts it."""
    schema = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(COMPOSE, json.loads(schema.read_text()))


def test_what_is_mounted_exists() -> None:
    """Every folder, volume and network that is named is there."""
    for source in mounts():
        exists = (
            (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        )
        assert exists, source
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert {config["source"] for config in service.get("configs", ())} <= set(
            COMPOSE["configs"]
        )


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_is_complete(profile: str) -> None:
    """Each profile starts one gateway, under the name that Prometheus asks, and all it needs."""
    started = {n: s for n, s in SERVICES.items() if profile in s.get("profiles", PROFILES)}
    gateways = [name for name, service in started.items() if "SWITCHCRAFT_CONFIG" in str(service)]
    (gateway,) = gateways
    assert "gateway" in started[gateway]["networks"]["watch"]["aliases"]
    assert {"redis", "prometheus", "grafana"} <= set(started)
    for service in started.values():
        assert set(service.get("depends_on", ())) <= set(started)


def test_prometheus_reaches_the_gateway() -> None:
    """The address and the key's file are those that Prometheus' configuration has."""
    text = (ROOT / "deploy/prometheus/prometheus.yaml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert stages(ROOT / "Dockerfile")["runtime"].only("EXPOSE") == port
    for name in ("gateway", "sandbox-gateway"):
        assert host in SERVICES[name]["networks"]["watch"]["aliases"]
    (key,) = SERVICES["prometheus"]["configs"]
    assert key["target"] == job["authorization"]["credentials_file"]
    admin = variables_of(SERVICES["sandbox-gateway"])["SWITCHCRAFT_ADMIN_KEY"]
    assert _DEFAULT.sub(r"\2", COMPOSE["configs"]["admin_key"]["content"]) == admin


def test_nobody_else_reaches_it() -> None:
    """Ports are this machine's alone; nothing may write to its image or gain a privilege."""
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] or name == "prometheus", name
        assert service["deploy"]["resources"]["limits"]["memory"], name


def test_the_sandbox_needs_no_keys() -> None:
    """Its gateway's file is read with nothing set, has keys, and gives every arm a model."""
    settings = settings_of(SERVICES["sandbox-gateway"])
    manifest = Artifact.load(SHIPPED).manifest
    assert set(Pool.build(settings, manifest).by_arm) == set(manifest.arms)
    assert [where for where, key in settings.keys.by_path().items() if is_weak(key)] == []
    origins = {deployment.origin for model in settings.models for deployment in model.deployments}
    command = SERVICES["sandbox"]["command"]
    assert origins == {f"http://sandbox:{command[command.index('--port') + 1]}"}


def test_the_live_gateways_file_is_read() -> None:
    """With its keys set it is a configuration of the shipped artifact."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "SWITCHCRAFT_API_KEY"), "k" * 8)
    settings = settings_of(SERVICES["gateway"], SWITCHCRAFT_ADMIN_KEY="admin", **keys)
    assert set(Pool.build(settings, Artifact.load(SHIPPED).manifest).by_arm)


@pytest.mark.parametrize("name", ["gateway", "sandbox-gateway"])
def test_what_is_written_outlives_the_container(name: str) -> None:
    """The decision log and the published artifacts are on volumes that the image's user owns."""
    service = SERVICES[name]
    settings = settings_of(
        service, OPENAI_API_KEY="k", SWITCHCRAFT_API_KEY="k", SWITCHCRAFT_ADMIN_KEY="k"
    )
    targets = {mount.split(":")[1] for mount in service["volumes"]}
    written = {str(settings.decision_log.path), str(settings.router.publication)}
    assert written <= targets
    made = stages(ROOT / "Dockerfile")["runtime"].only("RUN")
    assert all(path in made for path in written)
    assert service["tmpfs"] == [stages(ROOT / "Dockerfile")["runtime"].variables()["HOME"]]
