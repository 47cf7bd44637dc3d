"""The format of the page's files, and the types of its JavaScript modules."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from router_service.ui.pages import FOLDER
from tests.clients.installed import INSTALL_S
from tests.page import declarations

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(INSTALL_S)
def test_javascript_modules_type_check(node_modules: Path) -> None:
    """TypeScript finds no error in the JavaScript, its JSDoc and the types of the JSON API."""
    compiler = node_modules / "typescript/bin/tsc"
    command = ["node", str(compiler), "--project", str(FOLDER / "jsconfig.json"), "--listFiles"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for module in (FOLDER / "static").glob("*.js"):
        assert str(module) in done.stdout.splitlines()


@pytest.mark.timeout(INSTALL_S)
def test_page_is_formatted(node_modules: Path) -> None:
    """Biome would change no file of the page; `make format` runs it."""
    command = [str(node_modules / ".bin/biome"), "format", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_declarations_are_up_to_date() -> None:
    """The file is the one that `python -m tests.page.declarations` writes."""
    assert declarations.FILE.read_text() == declarations.declarations()
