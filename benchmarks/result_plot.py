"""Draw the README's plot: accuracy and cost of every single model, and of the shipped policies.

    python benchmarks/result_plot.py

All points and intervals are those of the shipped artifact, measured on queries whose tools the
router had not seen.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MultipleLocator

from router_service.artifact import SHIPPED, Artifact, FrontierPoint, Manifest
from router_service.measurement.goals import pareto_front
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.policies.verified import VERIFIED

OUT = Path(__file__).parents[1] / "docs" / "images" / "accuracy-and-cost.svg"
NAMES = {
    "claude-opus-4.5": "Claude Opus 4.5",
    "claude-sonnet-4.5": "Claude Sonnet 4.5",
    "claude-haiku-4.5": "Claude Haiku 4.5",
    "gpt-5.2": "GPT-5.2",
    "gpt-5-mini": "GPT-5 mini",
    "gpt-4.1-mini": "GPT-4.1 mini",
    "gemini-2.5-flash-lite": "Gemini 2.5 Flash-Lite",
    "grok-4.1-fast": "Grok 4.1 Fast",
}
GREY, BLUE, GREEN = "#6b7280", "#2563eb", "#047857"


def main() -> None:
    """Draw and save the plot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    plt.rcParams.update({"svg.hashsalt": "switchcraft", "font.size": 10.5})
    figure, axes = plt.subplots(figsize=(6.2, 4.4), layout="constrained")
    axes.set_ylim(0.76, 0.985)
    artifact = Artifact.load(SHIPPED)
    draw_models(axes, artifact)
    draw_policies(axes, artifact.manifest)
    axes.set_xscale("log")
    axes.set_xlim(0.05, 60)
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    axes.set_xlabel("cost, USD per 1,000 requests")
    axes.set_ylabel("correct answers")
    axes.set_title(
        "2,297 queries with unseen tools, BFCL v4, December 2025", loc="left", fontsize=11
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"${value:g}"))
    axes.grid(visible=True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(arguments.out, metadata={"Date": None}, facecolor="white")


def draw_models(axes: Axes, artifact: Artifact) -> None:
    """Draw a grey point for each model, used for every query."""
    arms, held_out = artifact.manifest.arms, HeldOut.read(artifact.directory / HELD_OUT)
    prices = [artifact.manifest.profile[arm].price for arm in arms]
    accuracy = held_out.correct.mean(axis=0)
    cost_usd_per_1k = 1000 * held_out.recorded_costs_usd(prices).mean(axis=0)
    axes.scatter(cost_usd_per_1k, accuracy, color=GREY, s=36, zorder=3)
    for arm, x, y in zip(arms, cost_usd_per_1k, accuracy, strict=True):
        lowest = axes.get_ylim()[0]
        text = NAMES[arm] if y > lowest else f"{NAMES[arm]}: {y:.0%}, below the plot"
        place = (x, max(y, lowest + 0.005))
        # These names would reach the next point.
        below = {"gemini-2.5-flash-lite": (2, -20), "claude-haiku-4.5": (-18, -16)}
        offset = below.get(arm, (7, -4))
        axes.annotate(text, place, offset, textcoords="offset points", color=GREY)


def draw_policies(axes: Axes, manifest: Manifest) -> None:
    """Draw both frontiers as lines, and the named policies with their intervals."""
    draw_frontier(
        axes, pareto_front(manifest.frontier), BLUE, "Switchcraft, one model for each request"
    )
    draw_frontier(axes, manifest.verified_frontier, GREEN, "Switchcraft, verified answers")
    points = (*manifest.frontier, *manifest.verified_frontier, *manifest.named_frontier)
    by_policy = {point.policy: point for point in points}
    operating = manifest.named_rules[VERIFIED]
    named = {"fast": (BLUE, (18, -14)), "economy": (GREEN, (-12, 24)), "quality": (GREEN, (-30, 8))}
    for name, (color, place) in named.items():
        draw_point(axes, by_policy[manifest.named_rules[name]], name, color, place)
    draw_point(axes, by_policy[operating], "switchcraft", GREEN, (14, 28))
    axes.plot([], [], color=GREY, marker="o", linestyle="", label="one model for every query")
    axes.legend(frameon=False, loc="upper right")


def draw_frontier(axes: Axes, points: Sequence[FrontierPoint], color: str, label: str) -> None:
    """Draw measured points as a line by increasing cost, up to the most accurate one."""
    if not points:
        return
    points = sorted(points, key=lambda point: point.cost_usd.value)
    best = max(points, key=lambda point: point.accuracy.value)
    shown = points[: points.index(best) + 1]  # higher costs bring no accuracy
    axes.plot(
        [1000 * point.cost_usd.value for point in shown],
        [point.accuracy.value for point in shown],
        color=color,
        linewidth=1.6,
        label=label,
        zorder=4,
    )


def draw_point(
    axes: Axes, point: FrontierPoint, text: str, color: str, offset: tuple[float, float]
) -> None:
    """Draw a policy with its 95% interval and its name, which is `offset` points away."""
    x, y = 1000 * point.cost_usd.value, point.accuracy.value
    low, high = point.accuracy_interval or (y, y)
    axes.errorbar(
        x, y, [[y - low], [high - y]], fmt="o", color=color, capsize=3, markersize=6, zorder=5
    )
    axes.annotate(
        text,
        (x, y),
        offset,
        textcoords="offset points",
        ha="center",
        color=color,
        fontweight="bold",
    )


if __name__ == "__main__":
    main()
