"""The files shipped for Prometheus, and a server that runs them on a shorter time scale."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.drills.processes import free_port
from tests.serving import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
CONFIG = DEPLOY / "prometheus" / "prometheus.yaml"

# An hour lasts ten seconds here and a week ten minutes, so that earlier values exist when a query
# needs them. Gateways are scraped twice a second.
WINDOWS = {
    "2m": "3s", "5m": "3s", "10m": "3s", "30m": "10s",
    "1h": "10s", "6h": "20s", "1d": "20s", "3d": "10m", "1w": "10m",
}  # fmt: skip
STEP = "500ms"


def run(*command: str | Path, text: str = "") -> None:
    """Run a program on a text; fail with its output if it reports an error."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str

    def ask(self, expr: str) -> dict[str, float]:
        """Return values by their labels, written `name=value,...` without job and instance."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr})
        assert answer.status_code == 200, (expr, answer.text)
        samples = answer.json()["data"]["result"]
        return {_label(sample["metric"]): float(sample["value"][1]) for sample in samples}


@contextmanager
def running(binary: Path, folder: Path, target: str, key: str) -> Iterator[Prometheus]:
    """Run the shipped configuration against one gateway until the block ends."""
    port = free_port()
    config = _in_its_own_time(folder, target, key)
    command = [str(binary), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    log = folder / "prometheus.log"
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: _is_ready(url), f"Prometheus is ready: {log.read_text()}")
            yield Prometheus(url)
        finally:
            process.terminate()


def _in_its_own_time(folder: Path, target: str, key: str) -> Path:
    """Write the shipped files for this gateway and key; return the configuration's path."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": STEP, "scrape_timeout": STEP}
    config["global"]["evaluation_interval"] = STEP
    (scraped,) = config["scrape_configs"]
    (folder / "key").write_text(key)
    scraped["authorization"]["credentials_file"] = str(folder / "key")
    scraped["static_configs"] = [{"targets": [target]}]
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = STEP
        for rule in group["rules"]:
            rule["expr"] = re.sub(r"\b\d+[mhdw]\b", lambda found: WINDOWS[found[0]], rule["expr"])
            if "for" in rule:
                rule["for"] = STEP
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yaml"


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def _label(metric: Mapping[str, str]) -> str:
    told = {name: metric[name] for name in metric.keys() - {"__name__", "job", "instance"}}
    return ",".join(f"{name}={told[name]}" for name in sorted(told))
