"""Evaluation report: its sections, and the files `report.json` and `report.html`."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup
from pydantic import BaseModel

import router_service
from router_service.apis.conversation import Json, parse_conversation
from router_service.artifact import Provenance
from router_service.core.errors import ConfigError
from router_service.measurement.goals import parse_goal
from router_service.measurement.rules import Entry
from router_service.policies.verified import VERIFIED
from router_service.router import Router
from switchcraft_training.config import Grouping, RunConfig
from switchcraft_training.data.learned import TrainingOverlap, digests_of
from switchcraft_training.data.table import Table, concatenate
from switchcraft_training.dataset import load_dataset
from switchcraft_training.errors import DataError
from switchcraft_training.evaluation import plots
from switchcraft_training.evaluation.breakdowns import (
    Category,
    Routing,
    by_category,
    dataset_oracle,
    routing,
)
from switchcraft_training.evaluation.calibration import (
    CalibrationFigures,
    CalibrationStudy,
    calibration_figures,
)
from switchcraft_training.evaluation.evaluate import (
    Evaluation,
    Experiment,
    Variant,
    compare_variants,
    evaluate,
)
from switchcraft_training.evaluation.frontier import GoalResult, validate_goals
from switchcraft_training.evaluation.verified import VerifiedFigures
from switchcraft_training.models.checkpoints import Epoch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sections:
    """The report's sections after the main table; a section that is None or empty is omitted.

    `promises` contains the measured results of goals, and `parts` the variants of the router.
    """

    categories: tuple[Category, ...]
    routing: Routing
    calibration: CalibrationFigures
    calibrating: CalibrationStudy | None
    promises: tuple[GoalResult, ...]
    parts: tuple[Variant, ...]


def main_figures(experiment: Experiment) -> Evaluation:
    """Return the main table and the sweep, with the dataset oracle and all entrants."""
    table = experiment.table
    return evaluate(
        table,
        experiment.probabilities,
        experiment.expected_costs_usd,
        experiment.policies,
        (dataset_oracle(table, experiment.categories()), *experiment.entrants),
    )


def all_sections(experiment: Experiment) -> Sections:
    """Return the report's sections; those for which the experiment has no data are empty."""
    table, chosen = experiment.table, experiment.chosen()
    return Sections(
        categories=by_category(table, chosen, experiment.categories()),
        routing=routing(table, chosen),
        calibration=calibration_figures(table, experiment.probabilities),
        calibrating=experiment.calibrating,
        promises=validate_goals(experiment),
        parts=compare_variants(experiment),
    )


@dataclass(frozen=True, slots=True)
class KnownTools:
    """Results with folds in which a query's tools may have been learned from with other queries.

    `verified` is None if the run trained no verifier.
    """

    test: Evaluation
    verified: VerifiedFigures | None


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """Results of one rule on unseen tools, and on tools that the router may know."""

    unseen: Entry
    known: Entry


@dataclass(frozen=True, slots=True)
class Report:
    """All results for a router; values that are None or empty have no section.

    `test` and `sections` describe the same queries, and `overlap` says how many of them the router
    has learned from. If these are the queries of the training run, they were held out in `folds`
    folds; otherwise it is None. Only a report of the training run has `teaching` (the number of
    training rows from other recordings), `epochs`, `parity` and `verified`, which is
    the reason if verified answers were not measured. With folds that are `grouped_by` tools,
    `known_tools` may have the results with known tools.
    """

    name: str
    test: Evaluation
    provenance: Provenance
    overlap: TrainingOverlap
    sections: Sections | None = None
    folds: int | None = None
    teaching: int = 0
    epochs: tuple[Epoch, ...] = ()
    parity: Mapping[str, float] | None = None
    verified: VerifiedFigures | str | None = None
    grouped_by: Grouping = "queries"
    known_tools: KnownTools | None = None

    @property
    def protocols(self) -> tuple[ProtocolRow, ...]:
        """The measured rules of both protocols: those that choose once, and the verified ones."""
        if self.known_tools is None:
            return ()
        unseen, known = [*self.test.sweep], [*self.known_tools.test.sweep]
        if isinstance(self.verified, VerifiedFigures) and self.known_tools.verified is not None:
            unseen += [row.entry for row in self.verified.frontier]
            known += [row.entry for row in self.known_tools.verified.frontier]
        by_name = {entry.name: entry for entry in known}
        return tuple(
            ProtocolRow(entry, by_name[entry.name]) for entry in unseen if entry.name in by_name
        )


def write_report(report: Report, directory: Path) -> None:
    """Write `report.json` and `report.html` into a directory."""
    _write_json(asdict(report), directory / "report.json")
    write_page("report.html.j2", directory / "report.html", draw_plots(report), report=report)


def write_verification(figures: VerifiedFigures, artifact: Path) -> Path:
    """Write `ARTIFACT-verification.html` and `.json` beside an artifact; return the page's path."""
    page = artifact.with_name(f"{artifact.name}-verification.html")
    _write_json(asdict(figures), page.with_suffix(".json"))
    drawings = {"verified": plots.verified_svg(figures)}
    write_page("verification.html.j2", page, drawings, verified=figures, name=artifact.name)
    return page


def _write_json(values: Json, path: Path) -> None:
    path.write_text(json.dumps(_plain(values), indent=2, allow_nan=False) + "\n")


def write_page(template: str, path: Path, drawings: Mapping[str, str], **values: object) -> None:
    """Write a page from a template, which gets the plots as `plots`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(form=format_value, interval=format_interval, goal=describe_goal)
    safe = {name: Markup(svg) for name, svg in drawings.items()}  # noqa: S704 - our own
    page = environment.get_template(template)
    path.write_text(page.render(plots=safe, page_colours=gateway_colours(), **values))


def gateway_colours() -> Markup:
    """Return the rule with the colours and fonts of the gateway's page, light and dark."""
    sheet = (Path(router_service.__file__).parent / "ui/web/static/base.css").read_text()
    start = sheet.index(":root {")
    return Markup(sheet[start : sheet.index("}", start) + 1])  # noqa: S704 - our own


def draw_plots(report: Report) -> dict[str, str]:
    """Draw every plot whose data the report contains; return SVG elements by name."""
    drawn = {"pareto": plots.pareto_svg(report.test)}
    if isinstance(report.verified, VerifiedFigures):
        drawn["verified"] = plots.verified_svg(report.verified)
    sections = report.sections
    if sections is None:
        return drawn
    drawn["differences"] = plots.differences_svg(sections.categories)
    drawn["calibration"] = plots.calibration_svg(sections.calibration)
    return drawn


def _plain(value: Json) -> Json:
    """Return a value converted to JSON's types; NaN and infinity become null."""
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMS: Mapping[str, Callable[[float], str]] = {
    "percent": lambda share: f"{share * 100:.1f}",
    "points": lambda share: f"{share * 100:+.1f}",
    "dollars": lambda usd: f"{usd * 1000:.3f}",  # per 1,000 requests
    "ratio": lambda value: f"{value:.3f}",
    "loss": lambda nats: f"{nats:.4f}",
    "count": lambda value: f"{value:,.0f}",
}


def format_value(value: float, form: str) -> str:
    """Format a number in one of `FORMS`."""
    return FORMS[form](value)


def format_interval(bounds: tuple[float, float] | None, form: str) -> str:
    """Format an interval in one of `FORMS`; None gives an empty text."""
    return "" if bounds is None else f"[{FORMS[form](bounds[0])}, {FORMS[form](bounds[1])}]"


def describe_goal(text: str) -> str:
    """Return what a goal such as `accuracy=best@95` means; empty for a rule."""
    goal = parse_goal(text, param="goal")
    if goal is None:
        return ""
    number = abs(goal.number)
    points = f"{number:g} point{'' if number == 1 else 's'}"
    match goal.kind:
        case "accuracy":
            words = f"at least {number:.4g} of the answers correct"
        case "best":
            words = "as many correct answers as the best single model"
            more = "more" if goal.number > 0 else "fewer"
            words += f", or {points} {more}" if number else ""
        case "usd_per_1k":
            words = f"at most {number:g} USD per 1,000 requests"
        case "within":
            words = f"at most {points} fewer correct answers than the best single model"
            words += f", and no fewer than with `{VERIFIED}`"
    return words + (", at the worse end of the 95% interval" if goal.uses_interval else "")


def report_on(router: Router, config: RunConfig, data: Sequence[Path]) -> Report:
    """Return a report on an artifact, measured on all queries in several data folders.

    `config` names the source and the pool. Raises ConfigError if the pool differs from the
    artifact's arms, and DataError if a row cannot be parsed or a folder has no usable row.
    """
    manifest = router.artifact.manifest
    if set(config.arms) != set(manifest.arms):
        only_one = ", ".join(sorted(set(config.arms) ^ set(manifest.arms)))
        problem = (
            f"differs from the artifact's arms: only one of the two has {only_one};"
            " give the configuration that the artifact was trained with"
        )
        raise ConfigError(config.name, "pool", problem)
    # Measure only the main source, with the pool in the order of the artifact's arms.
    entries = {entry.arm: entry for entry in config.pool}
    pool = tuple(entries[arm] for arm in manifest.arms)
    config = config.model_copy(update={"pool": pool, "also": (), "auxiliary_arms": "none"})
    table = concatenate([read_table(config, folder) for folder in data])
    overlap = TrainingOverlap.of_artifact(router.artifact, digests_of(table.examples))
    if overlap.learned:
        log.warning(
            "the artifact has learned from %s of these %s queries, so its results are better than"
            " on new ones; for held-out results, see its manifest",
            f"{overlap.learned:,}",
            f"{overlap.queries:,}",
        )
    conversations = [parse_conversation(e.request) for e in table.examples]
    experiment = Experiment(
        table=table,
        probabilities=np.array(router.predict_batch(conversations), dtype=np.float64),
        expected_costs_usd=manifest.costs_usd(),
        policies=manifest.policies,
    )
    figures = main_figures(experiment)
    return Report(
        name=manifest.name,
        test=figures,
        provenance=manifest.provenance,
        overlap=overlap,
        sections=all_sections(experiment),
    )


def read_table(config: RunConfig, data: Path) -> Table:
    """Return the measured rows of one folder, with the pool's arms; raises DataError if none."""
    table = load_dataset(config, data).measured(config.arms)
    if not len(table):
        problem = "has no query that was put to every arm of the pool; add the missing outcomes"
        raise DataError(data / config.source.path, None, problem)
    return table
