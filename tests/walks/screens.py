"""Pictures of what a user sees on a walk: pages, and terminals with commands and their output."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.text import Text

TERMINAL_COLUMNS = 120


class Screens:
    """Numbered PNG files of one walk."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        """Write to `folder`, which is created."""
        self._browser = browser
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def page(self, tab: Page, title: str, *, is_full: bool = False) -> Path:
        """Save what a tab shows, or the whole page if `is_full`."""
        path = self._next(title)
        tab.screenshot(path=path, full_page=is_full)
        return path

    def terminal(self, command: str, output: str) -> Path:
        """Save a terminal with a command and its output, whose ANSI colours are kept."""
        with Path("/dev/null").open("w") as nowhere:
            console = Console(width=TERMINAL_COLUMNS, record=True, file=nowhere)
            console.print(Text(f"$ {command}", style="bold"))
            console.print(Text.from_ansi(output))
        html = console.export_html(inline_styles=True)
        path = self._next(command)
        with self._browser.new_context(viewport={"width": 1000, "height": 200}) as context:
            tab = context.new_page()
            tab.set_content(html)
            tab.screenshot(path=path, full_page=True)
        return path

    def _next(self, title: str) -> Path:
        self._count += 1
        words = "-".join(re.findall(r"\w+", title.lower()))[:60]
        return self._folder / f"{self._count:02}-{words}.png"
