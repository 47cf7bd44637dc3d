"""Installation, configuration and startup of each measured gateway.

Each runs as its own documentation recommends for speed: one worker, no database, no request log
beyond the default, and no rate limit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import yaml

from benchmarks.load.bodies import MODEL, ROUTED
from benchmarks.load.processes import Program, free_port
from router_service.artifact import SHIPPED, Artifact

KEY = "sk-none"


@dataclass(frozen=True, slots=True)
class Contender:
    """A program in front of the upstream, with the headers and model that its requests need."""

    name: str
    version: str
    program: Program
    headers: Mapping[str, str] = field(default_factory=dict)
    routed_model: str = MODEL
    """Model of the requests that a router would route."""


@dataclass(frozen=True, slots=True)
class Place:
    """Folders of the contenders' programs and files, and their upstream's port."""

    peers: Path
    folder: Path
    upstream_port: int

    @property
    def upstream(self) -> str:
        """Return the upstream's base URL."""
        return f"http://127.0.0.1:{self.upstream_port}/v1"

    def write(self, name: str, content: object) -> str:
        """Write a contender's configuration and return its path."""
        path = self.folder / name
        path.write_text(yaml.safe_dump(content))
        return str(path)

    def program(self, name: str, port: int, *command: str, **environment: str) -> Program:
        """Return a command that serves a port and writes its output to a log file."""
        return Program(command, port, self.folder / f"{name}.log", environment)


def direct(place: Place) -> Contender:
    """Return the upstream itself, without a gateway."""
    module = (sys.executable, "-m", "benchmarks.load.upstream", str(place.upstream_port))
    return Contender("direct", "", place.program("direct", place.upstream_port, *module))


def switchcraft(place: Place, **sections: Mapping[str, object]) -> Contender:
    """Return this gateway: the shipped artifact, defaults for everything else.

    `sections` are further sections of its configuration.
    """
    return _switchcraft(place, "switchcraft", Path(__file__).parents[2], **sections)


def before(place: Place) -> Contender | None:
    """Return another version of this gateway, from a checkout among the peers."""
    tree = place.peers.resolve() / "before"
    return _switchcraft(place, "before", tree) if tree.exists() else None


def _switchcraft(
    place: Place, name: str, tree: Path, **sections: Mapping[str, object]
) -> Contender:
    port = free_port()
    models = [_entry(arm, place.upstream) for arm in Artifact.load(SHIPPED).manifest.arms]
    server = {"port": port, **sections.get("server", {})}
    # An alias, because a model that the artifact does not know would change the default policy.
    aliases = {"model_group_alias": {MODEL: "gpt-4.1-mini"}}
    content = {"model_list": models, "router_settings": aliases, **sections, "server": server}
    path = place.write(f"{name}.yaml", content)
    # -P: the working directory must not shadow the tree.
    command = (sys.executable, "-P", "-m", "router_service.cli", "serve", "--config", path)
    program = place.program(
        name, port, *command, PYTHONPATH=str(tree), XDG_STATE_HOME=str(place.folder / name)
    )
    revision = _output_of("git", "-C", str(tree), "describe", "--always", "--dirty")
    return Contender(name, revision, program, routed_model=ROUTED)


def portkey(place: Place) -> Contender | None:
    """Return Portkey's gateway with its image's options: no console and no log stream."""
    package = place.peers / "portkey/node_modules/@portkey-ai/gateway"
    if not package.exists():
        return None
    port = free_port()
    command = ("node", str(package / "build/start-server.js"), "--headless", f"--port={port}")
    headers = {
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": place.upstream,
        "authorization": f"Bearer {KEY}",
    }
    version = orjson.loads((package / "package.json").read_bytes())["version"]
    program = place.program("portkey", port, *command, NODE_ENV="production")
    return Contender(
        "portkey", f"{version}, node {_output_of('node', '--version')}", program, headers
    )


def litellm(place: Place) -> Contender | None:
    """Return LiteLLM's proxy, with the settings that its guide to production recommends."""
    binaries = place.peers / "litellm/bin"
    if not binaries.exists():
        return None
    port = free_port()
    path = place.write("litellm.yaml", {"model_list": [_entry(MODEL, place.upstream)]})
    command = (str(binaries / "litellm"), "--config", path, "--host", "127.0.0.1")
    program = place.program(
        "litellm",
        port,
        *(*command, "--port", str(port), "--num_workers", "1"),
        LITELLM_MODE="PRODUCTION",
        LITELLM_LOG="ERROR",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true",
    )
    return Contender("litellm", _installed(binaries, "litellm"), program)


def ferrogw(place: Place) -> Contender | None:
    """Return Ferro Labs' gateway, with its default limit of 20 requests a second lifted."""
    binaries = place.peers / "ferrogw/bin"
    if not binaries.exists():
        return None
    port = free_port()
    config = {"strategy": {"mode": "single"}, "targets": [{"virtual_key": "openai"}]}
    program = place.program(
        "ferrogw",
        port,
        *(str(binaries / "ferrogw"), "serve"),
        GATEWAY_CONFIG=place.write("ferrogw.yaml", config),
        PORT=str(port),
        OPENAI_API_KEY=KEY,
        OPENAI_BASE_URL=place.upstream,
        ALLOW_UNAUTHENTICATED_PROXY="true",
        FERRO_MODEL_CATALOG_TIMEOUT="0",
        RATE_LIMIT_RPS="1000000",
        RATE_LIMIT_BURST="1000000",
    )
    return Contender("ferrogw", _installed(binaries, "ferrogw"), program)


def switchyard(place: Place) -> Contender | None:
    """Return NVIDIA's Switchyard, with a route that passes requests through."""
    folder = place.peers.resolve() / "switchyard"
    if not folder.exists():
        return None
    port = free_port()
    path = place.folder / "switchyard.toml"
    path.write_text(SWITCHYARD.format(upstream=place.upstream, model=MODEL))
    script = (
        "import signal, sys; from switchyard_rust.server import Server; "
        "server = Server(sys.argv[1], int(sys.argv[2])); signal.pause()"
    )
    command = (sys.executable, "-P", "-c", script, str(path), str(port))
    program = place.program("switchyard", port, *command, PYTHONPATH=str(folder))
    (info,) = folder.glob("nemo_switchyard-*.dist-info")
    return Contender("switchyard", info.name.split("-")[1].removesuffix(".dist"), program)


SWITCHYARD = """
schema_version = 1
[llm_clients.upstream]
format = "openai_chat"
base_url = "{upstream}"
[targets.upstream]
id = "{model}"
llm_client = "upstream"
[routes.upstream]
id = "{model}"
type = "passthrough"
target = "upstream"
"""
"""Configuration of Switchyard (TOML)."""


GATEWAYS: Mapping[str, Callable[[Place], Contender | None]] = {
    "switchcraft": switchcraft,
    "before": before,
    "portkey": portkey,
    "litellm": litellm,
    "ferrogw": ferrogw,
    "switchyard": switchyard,
}


def _entry(name: str, upstream: str) -> Mapping[str, object]:
    params = {"model": f"openai/{name}", "api_base": upstream, "api_key": KEY}
    return {"model_name": name, "litellm_params": params}


def _installed(binaries: Path, package: str) -> str:
    """Return the version of a package in another virtual environment."""
    script = f"import importlib.metadata as m; print(m.version({package!r}))"
    return _output_of(str(binaries / "python"), "-c", script)


def _output_of(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    return run.stdout.strip()
