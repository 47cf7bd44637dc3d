"""Draw the README's plot of the gateway benchmark: answers per second and waiting times.

    python -m benchmarks.gateway_plot runs/gateway.json

The file is the benchmark's `--out`, with the mode `delayed`, in which the upstream takes 20 ms.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import orjson
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.load.figures import DIRECT

OUT = Path(__file__).parent / "plots" / "gateway.svg"
MODE = "delayed"
LINES = {
    DIRECT: ("upstream itself", "#9ca3af"),
    "switchcraft": ("Switchcraft (Python)", "#2563eb"),
    "switchyard": ("Switchyard (Rust)", "#b45309"),
    "ferrogw": ("ferrogw (Go)", "#047857"),
    "portkey": ("Portkey (Node)", "#7c3aed"),
    "litellm": ("LiteLLM (Python)", "#be123c"),
}
"""Text and color of each gateway's line."""


def main() -> None:
    """Draw and save the plot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    settings = orjson.loads(arguments.figures.read_bytes())["settings"]
    settings = [it for it in settings if it["mode"] == MODE]
    plt.rcParams.update({"svg.hashsalt": "switchcraft", "font.size": 10})
    figure, (rates, waits) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    draw(rates, settings, "rate_per_s", "answers per second")
    draw(waits, settings, "p99_ms", "waiting time, P99, ms")
    handles, labels = rates.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Pass-through of small requests; the upstream takes 20 ms", x=0.01, ha="left")
    figure.savefig(arguments.out, metadata={"Date": None}, facecolor="white")


def draw(axes: Axes, settings: Sequence[Mapping[str, Any]], figure: str, label: str) -> None:
    """Draw a line for each gateway: a figure's median over the rounds, by connections."""
    connections = [setting["connections"] for setting in settings]
    for name, (text, color) in LINES.items():
        if name not in settings[0]["rounds"]:
            continue
        values = [
            statistics.median(it[figure] for it in setting["rounds"][name]) for setting in settings
        ]
        is_ours = name == "switchcraft"
        axes.plot(
            connections,
            values,
            color=color,
            label=text,
            linewidth=2.4 if is_ours else 1.4,
            linestyle=":" if name == DIRECT else "-",
            marker="o",
            markersize=4,
            zorder=3 if is_ours else 2,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(connections, [str(count) for count in connections])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("connections")
    axes.set_title(label, loc="left", fontsize=10)
    axes.grid(visible=True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
