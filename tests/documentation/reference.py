"""Write the pages of `docs/reference/` that are generated from the code.

python -m tests.documentation.reference
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from cyclopts import App

from router_service.cli.commands import app as switchcraft
from router_service.telemetry.metrics import Metrics
from switchcraft_training.cli import app as training
from tests.documentation.documents import ROOT
from tests.documentation.settings_reference import PAGE, SCHEMA, schema_text, settings_page

_COMMANDS_HEAD = """\
# Commands

<!-- Written by `python -m tests.documentation.reference`, from the commands' help. -->

`switchcraft` runs the gateway, and `switchcraft-train` trains its router. `--help` after a command
prints the same text.
"""


_METRICS_HEAD = """\
# Metrics

This page lists every series that `GET /metrics` returns. Send the metrics key or the admin key.
`python -m tests.documentation.reference` writes this page. Label values come from the
configuration and the artifact, never from a client. A histogram has the series `_bucket` (with the
label `le`), `_sum` and `_count`.

| series | type | labels | meaning |
|---|---|---|---|"""


@cache
def pages() -> Mapping[str, str]:
    """Return the text of each generated file of `docs/`, by its path there."""
    return {
        PAGE: settings_page(),
        SCHEMA: schema_text(),
        "reference/metrics.md": "\n".join(_metrics_page()) + "\n",
        "reference/commands.md": _commands_page(),
    }


def _metrics_page() -> Iterator[str]:
    """Yield the lines of `docs/reference/metrics.md`."""
    yield _METRICS_HEAD
    for series in Metrics.series().values():
        labels = ", ".join(f"`{label}`" for label in series.labels)
        yield f"| `{series.name}` | {series.kind} | {labels} | {series.text} |"


def _commands_page() -> str:
    return "\n".join((_COMMANDS_HEAD, _help_of(switchcraft), _help_of(training)))


def _help_of(app: App) -> str:
    """Return the help of all commands, one level of headings lower, with examples as code."""
    text = app.generate_docs(heading_level=2, max_heading_level=4, usage_name=app.name[0])
    text = re.sub(r"#+ Table of Contents\n.*?(?=^\*\*)", "", text, flags=re.DOTALL | re.MULTILINE)
    text = text.replace("```console", "```text")
    text = re.sub(
        r"^(switchcraft[a-z -]*) -m [\w.]+", r"\1", text, flags=re.MULTILINE
    )  # this program
    # Neither negative options nor these defaults exist (see `create_command_line`).
    text = re.sub(r", --(no|empty)-[\w-]+(?=`)", "", text)
    text = re.sub(r" \*\[default: (False|\(\))\]\*", "", text)
    # A block whose language is named is not taken for commands to run.
    return re.sub(
        r"(?<=\n\n)(?:    [^\n]*\n)+",
        lambda example: f"```text\n{re.sub('^    ', '', example[0], flags=re.MULTILINE)}```\n",
        text.strip() + "\n",
    )


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text)


if __name__ == "__main__":
    main()
