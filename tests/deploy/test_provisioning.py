"""Prometheus and Grafana find their configured files and services in their containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.programs import CONFIG, DEPLOY

PROVISIONING = DEPLOY / "grafana" / "provisioning"


def _services() -> dict[str, Any]:
    tree = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    services: dict[str, Any] = tree["services"]
    return services


def _mounts(service: str) -> dict[str, Path]:
    """Return the source of each path in a container."""
    parts = [volume.split(":") for volume in _services()[service]["volumes"]]
    return {part[1]: (DEPLOY.parent / part[0]).resolve() for part in parts}


def test_grafana_finds_the_dashboards() -> None:
    """The provisioned folder is the mounted one, and the provisioning is mounted, too."""
    path = PROVISIONING / "dashboards" / "switchcraft.yaml"
    (provider,) = yaml.safe_load(path.read_text())["providers"]
    mounts = _mounts("grafana")
    assert mounts[provider["options"]["path"]] == DEPLOY / "grafana" / "dashboards"
    assert mounts["/etc/grafana/provisioning"] == PROVISIONING


def test_grafana_finds_prometheus() -> None:
    """The data source is the Prometheus service, with the configured scrape interval."""
    path = PROVISIONING / "datasources" / "prometheus.yaml"
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert any(port.endswith(":9090") for port in _services()["prometheus"]["ports"])
    scraped = yaml.safe_load(CONFIG.read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped


def test_prometheus_finds_its_rules_and_its_key() -> None:
    """The files that the configuration names are mounted, and the key is a separate secret."""
    prometheus = _services()["prometheus"]
    assert _mounts("prometheus")["/etc/prometheus"] == CONFIG.parent
    config = yaml.safe_load(CONFIG.read_text())
    assert all((CONFIG.parent / name).is_file() for name in config["rule_files"])
    (scraped,) = config["scrape_configs"]
    targets = {mounted["target"] for mounted in prometheus["configs"]}
    assert scraped["authorization"]["credentials_file"] in targets
