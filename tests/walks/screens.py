"""Pictures of what a user sees on a walk: pages, and terminals with commands and their output."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.text import Text

from tests.drills.processes import install_programs

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


class Terminal:
    """A terminal in a folder beside an installed checkout, whose commands become pictures."""

    def __init__(self, screens: Screens, folder: Path, **variables: str) -> None:
        self.screens, self.folder = screens, folder
        programs = install_programs(folder)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "SWITCHCRAFT" not in name},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": str(TERMINAL_COLUMNS - 2),
            **variables,
        }

    def run(self, command: str, *, shown: str = "", status: int = 0) -> str:
        """Run a command, and return what it prints; `shown` replaces it in the picture."""
        done = subprocess.run(
            ["bash", "-uo", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        self.screens.terminal(shown or command, output)
        assert done.returncode == status, output
        return output
