"""A sweep's figures on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from switchcraft_training.sweep.summary import Spread, Summary


def print_table(summary: Summary, console: Console | None = None) -> None:
    """Print a row a run, and behind each encoder's runs their mean ± standard deviation."""
    names = list(next(iter(summary["encoders"].values()), ()))
    table = Table("encoder", "seed", *(name.replace("_", " ") for name in names))
    for encoder, spreads in summary["encoders"].items():
        for run in summary["runs"]:
            if run["encoder"] == encoder:
                values = (_number(run["metrics"][name]["value"]) for name in names)
                table.add_row(Path(encoder).name, str(run["seed"]), *values)
        table.add_row(
            Path(encoder).name, "mean", *(_with_deviation(spreads[name]) for name in names)
        )
        table.add_section()
    (console or Console()).print(table)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _with_deviation(spread: Spread) -> str:
    deviation = spread["standard_deviation"]
    return _number(spread["mean"]) + ("" if deviation is None else f" ± {deviation:.2g}")
