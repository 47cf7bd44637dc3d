"""The types of the page's JavaScript modules, as their JSDoc declares them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from router_service.ui.pages import FOLDER
from tests.clients.installed import INSTALL_S

OPTIONS = (
    "--noEmit --allowJs --checkJs --strict --target es2022 --module es2022 "
    "--moduleResolution bundler --lib es2022,dom,dom.iterable"
).split()


@pytest.mark.timeout(INSTALL_S)
def test_javascript_modules_type_check(node_modules: Path) -> None:
    """TypeScript finds no error in the JavaScript and its JSDoc."""
    compiler = node_modules / "typescript/bin/tsc"
    modules = sorted(map(str, (FOLDER / "static").glob("*.js")))
    command = ["node", str(compiler), *OPTIONS, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert modules
