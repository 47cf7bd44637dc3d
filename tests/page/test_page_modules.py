"""The types of the page's JavaScript modules, as their JSDoc declares them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from router_service.ui.pages import FOLDER
from tests.clients.installed import INSTALL_S
from tests.page import declarations


@pytest.mark.timeout(INSTALL_S)
def test_javascript_modules_type_check(node_modules: Path) -> None:
    """TypeScript finds no error in the JavaScript, its JSDoc and the types of the JSON API."""
    compiler = node_modules / "typescript/bin/tsc"
    command = ["node", str(compiler), "--project", str(FOLDER / "jsconfig.json"), "--listFiles"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for module in (FOLDER / "static").glob("*.js"):
        assert str(module) in done.stdout.splitlines()


def test_type_declarations_are_up_to_date() -> None:
    """The file is the one that `python -m tests.page.declarations` writes."""
    assert declarations.FILE.read_text() == declarations.declarations()
