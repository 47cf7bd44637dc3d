"""A gateway with the shipped artifact, and a real browser that opens its page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.clients.installed import installed
from tests.page.watching import Problems
from tests.serving import Sandbox, served

MANIFEST = Path(__file__).parent / "node" / "package.json"
INSTALL = "npm install --no-save --no-audit --no-fund --no-package-lock".split()


@pytest.fixture(scope="package")
def origin(sandbox: Sandbox, shipped: Router) -> Iterator[str]:
    """Serve a gateway without keys that chooses once by default; yield http://HOST:PORT."""
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    router = settings.router.model_copy(update={"default_policy": "fast"})
    settings = settings.model_copy(update={"router": router})
    with served(create_app(settings, shipped)) as url:
        yield url


@pytest.fixture
def page(browser: Browser, origin: str) -> Iterator[Page]:
    """Yield a new tab, which must end without an error, a failed request or a policy violation."""
    with browser.new_context(base_url=origin, viewport={"width": 1440, "height": 900}) as context:
        tab = context.new_page()
        problems = Problems(tab)
        yield tab
        assert problems.found == []


@pytest.fixture(scope="package")
def node_modules(request: pytest.FixtureRequest) -> Path:
    """Return the installed packages of `package.json`; skip if npm is missing."""
    if shutil.which("npm") is None:
        pytest.skip("npm is absent: install Node.js 20 or newer to check the page's modules")
    assert request.config.cache is not None
    return installed(request.config.cache, MANIFEST, INSTALL) / "node_modules"


@pytest.fixture(scope="package")
def axe(node_modules: Path) -> str:
    """Return the source of axe-core, which checks accessibility."""
    return (node_modules / "axe-core/axe.min.js").read_text()
