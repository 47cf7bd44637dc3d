"""Checks of what a page shows: axe-core's rules, and nothing that scrolls sideways."""

from __future__ import annotations

from collections.abc import Iterable

from playwright.sync_api import Page

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
