"""The wheel of a release, installed into an empty environment, away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from deploy.release import build_packages, copy_sources
from router_service import __version__
from tests.clients.installed import ENVIRONMENT
from tests.drills.processes import START_TIMEOUT_S, free_port, wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:8080"
EXTRAS = "cpu,redis,postgres,aws,google,azure,otlp"
"""All extras but those with large libraries for training: `train`, `gpu`."""
CONFIG = """\
model_list:
  - model_name: gpt-4.1-mini
    litellm_params: {model: openai/gpt-4.1-mini, api_key: sk-any}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Installed:
    """The environment with the wheel, and a folder in which its programs run."""

    def __init__(self, folder: Path) -> None:
        self.environment, self.folder = folder / "environment", folder / "elsewhere"
        self.folder.mkdir()
        # What this process has set for tests, such as PYTHONPATH, would hide what the wheel lacks.
        self.variables = {
            name: value for name, value in ENVIRONMENT.items() if not name.startswith("PYTHON")
        }
        self.variables |= {"HOME": str(self.folder), "NO_COLOR": "1", "COLUMNS": "200"}
        self.variables |= {"XDG_STATE_HOME": str(self.folder / "state")}

    def program(self, name: str) -> Path:
        """Return the path of a program of the environment."""
        return self.environment / "bin" / name

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment."""
        return subprocess.run(
            [self.program(name), *arguments],
            cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it, as a release does; return their folder."""
    sources, dist = (tmp_path_factory.mktemp(name) for name in ("sources", "dist"))
    copy_sources(ROOT, sources)
    build_packages(sources, dist)
    return dist


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel with its extras, in the locked versions, and nothing else."""
    made = Installed(tmp_path_factory.mktemp("installed"))
    (wheel,) = dist.glob("*.whl")
    uv = Path(sys.executable).with_name("uv")
    for command in (
        ("venv", "--quiet", "--python", sys.executable, made.environment),
        ("pip", "install", "--quiet", "--python", made.program("python"), f"{wheel}[{EXTRAS}]",
         "--constraint", ROOT / "requirements" / "dev.lock"),
    ):  # fmt: skip
        done = subprocess.run(
            [uv, *command], env=made.variables | {"HOME": os.environ["HOME"]},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def gateway(installed: Installed) -> Iterator[str]:
    """Run `switchcraft serve`, and yield its address once it says that it serves."""
    address = f"127.0.0.1:{free_port()}"
    log = installed.folder / "gateway.log"
    port = address.partition(":")[2]
    command = [str(installed.program("switchcraft")), "serve", "--port", port]
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, cwd=installed.folder, env=installed.variables, stderr=file
        ) as process,
    ):
        try:
            wait_until(
                lambda: f"http://{address}/v1" in log.read_text(),
                "the gateway serves",
                START_TIMEOUT_S,
            )
            yield address
        finally:
            process.terminate()


def test_wheel_holds_what_a_gateway_reads(dist: Path) -> None:
    """The artifact, the page and the migrations are in it; tests and tools are not."""
    (path,) = dist.glob("*.whl")
    with ZipFile(path) as wheel:
        names = set(wheel.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert tops == {
        "router_service", "switchcraft_training", f"switchcraft_router-{__version__}.dist-info",
    }  # fmt: skip
    package = ROOT / "router_service"
    for folder in ("artifacts", "ui/web", "database/migrations"):
        files = [path for path in (package / folder).rglob("*") if path.is_file()]
        read = {f.relative_to(ROOT).as_posix() for f in files if "__pycache__" not in f.parts}
        assert read
        assert read <= names


def test_nothing_is_imported_from_the_checkout(installed: Installed) -> None:
    """Both packages, and all that they import, are in the environment."""
    code = """
        import importlib, pkgutil, sys
        import router_service, switchcraft_training
        import router_service.cli, router_service.serving.app, switchcraft_training.cli
        print(router_service.__file__, switchcraft_training.__file__, *sys.path, sep="\\n")
        """
    done = installed.run("python", "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    service, training, *places = done.stdout.splitlines()
    assert service.startswith(str(installed.environment))
    assert training.startswith(str(installed.environment))
    assert not [place for place in places if place.startswith(str(ROOT))]


def test_first_example_of_readme_runs(installed: Installed, gateway: str) -> None:
    """README's first program gets a tool call through the gateway, and prints what README shows."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    program = next(text for language, text in blocks if language == "python")
    shown = next(text for _, text in blocks if text.startswith("get_forecast"))
    done = installed.run("python", "-c", program.replace(ADDRESS, gateway))
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_check_accepts_a_configuration(installed: Installed) -> None:
    """`switchcraft check` verifies the shipped artifact for it; no extra is missing."""
    config = installed.folder / "gateway.yaml"
    config.write_text(CONFIG)
    done = installed.run("switchcraft", "check", config.name)
    assert done.returncode == 0, done.stdout + done.stderr
    config.write_text(f"{CONFIG}router:\n  chatmodel: gpt-4.1-mini\n")
    assert installed.run("switchcraft", "check", config.name).returncode == 1
