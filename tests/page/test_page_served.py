"""The page's files, and the page behind a key and a prefix, at every width."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect
from pydantic import SecretStr
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.core.keys import new_key
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import KeySettings, Settings
from router_service.ui.pages import FOLDER
from tests.bodies import BODY
from tests.page import declarations
from tests.page.watching import WIDTHS, Problems, check
from tests.serving import Sandbox, served

ADMIN = new_key()
PREFIX = "/behind/a/proxy"
VIEWS = {
    "overview": "#overview .tiles",
    "playground": ".chosen",
    "live": "#log",
    "router": "#router .frontier",
    "api": "#api .operation",
}


def without_prefix(app: ASGIApp) -> ASGIApp:
    """Return the app behind a proxy that removes a prefix."""

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(PREFIX)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await app(scope, receive, send)

    return ask


@pytest.fixture(scope="module")
def guarded(sandbox: Sandbox, shipped: Router) -> Iterator[str]:
    """Serve a gateway with an admin key behind a prefix; yield its address."""
    keys = KeySettings(admin=SecretStr(ADMIN))
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    app = create_app(settings.model_copy(update={"keys": keys}), shipped)
    with served(without_prefix(app), has_lifespan=True) as url:
        yield url + PREFIX


def test_key_opens_the_page_below_a_prefix(browser: Browser, guarded: str) -> None:
    """Page, files and JSON open below a prefix that the gateway does not know."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{guarded}/ui/")
        assert page.url == f"{guarded}/ui"
        page.get_by_label("Key of this gateway").fill(ADMIN)
        problems = Problems(page)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Sign out (admin)")).to_be_visible()
        page.get_by_role("tab", name="Playground").click()
        expect(page.locator(".chosen")).to_be_visible()
        page.get_by_role("tab", name="API").click()
        expect(page.locator("#api table").first).to_contain_text(f"{guarded}/v1")
        page.get_by_role("tab", name="Live traffic").click()
        expect(page.locator("#live .empty, #log").locator("visible=true").first).to_be_visible()
        assert problems.found == []


def test_page_is_accessible_and_fits_every_width(browser: Browser, origin: str, axe: str) -> None:
    """axe-core finds no fault in any view (including contrast), and no view scrolls sideways."""
    # The page's policy would block axe itself.
    httpx.post(f"{origin}/v1/chat/completions", json=BODY)
    with browser.new_context(base_url=origin, bypass_csp=True) as context:
        page = context.new_page()
        page.goto("/ui")
        page.evaluate(axe)
        for view, selector in VIEWS.items():
            page.set_viewport_size({"width": WIDTHS[0], "height": 900})
            page.locator(f"#tab-{view}").click()
            expect(page.locator(selector).first).to_be_visible()
            # All operations of the API look like the first ones.
            for fold in page.locator("summary:visible").all()[:3]:
                fold.click()
            check(page, view)


ROOT = Path(__file__).parents[2]


def test_javascript_modules_type_check(node_modules: Path) -> None:
    """TypeScript finds no error in the JavaScript, its JSDoc and the types of the JSON API."""
    compiler = node_modules / "typescript/bin/tsc"
    command = ["node", str(compiler), "--project", str(FOLDER / "jsconfig.json"), "--listFiles"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for module in (FOLDER / "static").glob("*.js"):
        assert str(module) in done.stdout.splitlines()


def test_page_is_formatted(node_modules: Path) -> None:
    """Biome would change no file of the page; `make format` runs it."""
    command = [str(node_modules / ".bin/biome"), "format", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_type_declarations_are_up_to_date() -> None:
    """The file is the one that `python -m tests.page.declarations` writes."""
    assert declarations.FILE.read_text() == declarations.declarations()
