"""Helpers that use the page like a person, and record its problems."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page, Response, expect

MAX_TABS = 60

expect.set_options(timeout=30_000)  # a busy machine may need more than the default of 5 s


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
