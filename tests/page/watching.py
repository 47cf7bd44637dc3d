"""What a test watches in a page: problems, what is shown, and axe-core's rules."""

from __future__ import annotations

from collections.abc import Iterable

from playwright.sync_api import ConsoleMessage, Page, Response, expect

MAX_TABS = 60


class Problems:
    """Recorder of a tab's errors; violations of the page's policy are console messages."""

    def __init__(self, page: Page) -> None:
        """Listen to a tab."""
        self.found: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("requestfailed", lambda request: self.found.append(f"failed: {request.url}"))
        page.on("response", self._answered)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.found.append(f"{message.type}: {message.text}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.found.append(f"status {response.status}: {response.url}")


def open_playground(page: Page) -> None:
    """Open the page and wait until its first example is routed."""
    page.goto("/ui#playground")
    expect(page.locator(".chosen")).to_be_visible()


def choose_example(page: Page, name: str) -> None:
    """Click an example, and wait until it is routed."""
    with page.expect_response(lambda response: "/api/explain" in response.url):
        page.get_by_role("button", name=name).click()


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(MAX_TABS):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"{selector} is not reached by Tab")


WIDTHS = (360, 768, 1440)

OVERFLOWING = """() => [...document.querySelectorAll("html, #tabs, dialog[open]")]
    .filter(part => part.scrollWidth > part.clientWidth).map(part => part.id || part.tagName)"""

CONTRAST = "color-contrast"
"""The rule that takes most of axe's time. It depends on the scheme, and on what is visible."""


def check(page: Page, view: str, widths: Iterable[int] = WIDTHS) -> None:
    """Assert that axe-core, which the page has loaded, finds no fault, and nothing overflows.

    The page is as it is at each width, and in both schemes. Contrast is checked at the smallest and
    at the largest width, between which no part is visible that is hidden at both; and in the dark
    scheme at the largest one, because colours do not depend on the width.
    """
    page.emulate_media(color_scheme="light")
    widths = sorted(widths)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(OVERFLOWING) == [], (view, width)
        has_contrast = width in {widths[0], widths[-1]}
        options = {} if has_contrast else {"rules": {CONTRAST: {"enabled": False}}}
        assert faults(page, options) == [], (view, width)
    page.emulate_media(color_scheme="dark")
    assert faults(page, {"runOnly": [CONTRAST]}) == [], (view, "dark")


def faults(page: Page, options: object) -> list[str]:
    """Return the faults that axe-core finds with these options, each with its place."""
    found: list[str] = page.evaluate(
        """async (options) => (await axe.run(options)).violations.flatMap(({id, nodes}) =>
            nodes.map(node => `${id}: ${node.target} ${node.failureSummary}`))""",
        options,
    )
    return found
