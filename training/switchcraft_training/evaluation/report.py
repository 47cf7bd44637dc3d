"""Evaluation report, written as `report.json` and as a self-contained `report.html`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup
from pydantic import BaseModel

from router_service.core.artifact import Provenance
from switchcraft_training.evaluation import plots
from switchcraft_training.evaluation.evaluate import Evaluation
from switchcraft_training.evaluation.sections import Sections
from switchcraft_training.models.checkpoints import Epoch
from switchcraft_training.records import Json


@dataclass(frozen=True, slots=True)
class Report:
    """All results for a router; values that are None or empty have no section.

    `test` and `sections` describe the same queries, held out in `folds` if they are the run's own.
    Only the run that trained the router has training data: `teaching` (rows of other recordings),
    `label_rates`, `epochs` and `parity`.
    """

    name: str
    test: Evaluation
    provenance: Provenance
    sections: Sections | None = None
    folds: int | None = None
    teaching: int = 0
    label_rates: Mapping[str, Mapping[str, float]] | None = None
    epochs: tuple[Epoch, ...] = ()
    parity: Mapping[str, float] | None = None


def write_report(report: Report, directory: Path) -> None:
    """Write `report.json` and `report.html` into a directory."""
    text = json.dumps(_plain(asdict(report)), indent=2, allow_nan=False)
    (directory / "report.json").write_text(text + "\n")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(form=_form, interval=_interval)
    page = environment.get_template("report.html.j2").render(report=report, plots=_draw(report))
    (directory / "report.html").write_text(page)


def _draw(report: Report) -> dict[str, Markup]:
    """Draw every plot whose data the report contains."""
    drawn = {"pareto": plots.pareto_svg(report.test), "sweep": plots.sweep_svg(report.test)}
    if report.sections is not None:
        drawn |= _draw_sections(report.sections)
    if report.epochs:
        drawn["curves"] = plots.curves_svg(report.epochs)
    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704 - our own drawings


def _draw_sections(sections: Sections) -> dict[str, str]:
    drawn = {
        "categories": plots.categories_svg(sections.categories),
        "differences": plots.differences_svg(sections.categories),
        "routing": plots.routing_svg(sections.routing),
        "misroutes": plots.misroutes_svg(sections.misroutes),
        "confusion": plots.confusion_svg(sections.confusion),
        "calibration": plots.calibration_svg(sections.calibration),
    }
    if sections.tokens:
        drawn["tokens"] = plots.tokens_svg(sections.tokens)
    if sections.parts:
        drawn["parts"] = plots.parts_svg(sections.parts)
    for name, runs in (("folds", sections.folds), ("seeds", sections.seeds)):
        if runs is not None:
            drawn[name] = plots.stability_svg(runs)
    return drawn


def _plain(value: Json) -> Json:
    """Return values that JSON can represent; NaN and infinity become null."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMS: Mapping[str, Callable[[float], str]] = {
    "percent": lambda share: f"{share * 100:.1f}",
    "points": lambda share: f"{share * 100:+.1f}",
    "dollars": lambda usd: f"{usd * 1000:.3f}",  # a thousand requests
    "ratio": lambda value: f"{value:.3f}",
    "loss": lambda nats: f"{nats:.4f}",
    "count": lambda value: f"{value:,.0f}",
}


def _form(value: float, form: str) -> str:
    return FORMS[form](value)


def _interval(bounds: tuple[float, float] | None, form: str) -> str:
    return "" if bounds is None else f"[{FORMS[form](bounds[0])}, {FORMS[form](bounds[1])}]"
