"""What was learned from a sample: the report, and the artifact that serves it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from router_service.artifact import (
    MANIFEST,
    Artifact,
    FrontierPoint,
    Manifest,
    file_hashes,
    read_manifest,
    save_manifest,
)
from router_service.core.text import aligned
from router_service.measurement.held_out import HELD_OUT, HeldOut, both_points, read_judgements
from router_service.policies.base import Policy
from router_service.policies.registry import DEFAULT
from router_service.policies.verified import Verified
from router_service.router import Router
from router_service.verifier.graphs import VerifierSpec
from switchcraft_training.learning.fitting import (
    FOLDS,
    UNCHANGED,
    WANTED_HALF_WIDTH,
    Effect,
    Figures,
    Fit,
    Line,
    Lines,
    apply_lines,
    figures_of,
    fit,
    simulate_rule,
)
from switchcraft_training.learning.judging import (
    FAMILIAR,
    UNFAMILIAR,
    Answers,
    Lessons,
    Unusable,
    read_lessons,
)
from switchcraft_training.learning.sampling import Member, SampledRequest
from switchcraft_training.storage import changed_copy

REPORT: Final = "report.json"
LOST_ACCURACY: Final = 0.002
"""How much accuracy the shipped queries may lose at the same cost by a new calibration, on average.
Otherwise half of the change is made, or a quarter, or none."""


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What was learned, and what it does with held-back sessions."""

    lessons: Lessons
    unusable: Unusable
    fit: Fit
    present: Effect
    """What the gateway's default rule does today."""
    rule: str
    """The rule that the new artifact has as its default."""

    def rows(self) -> Iterator[tuple[str, Figures]]:
        """Yield the figures of the rules that are compared."""
        lessons, n = self.lessons, len(self.lessons)
        for column, member in enumerate(lessons.members):
            name = f"{member.model} alone" + (" (teacher)" if column == lessons.teacher else "")
            yield name, figures_of(lessons, Effect.of_column(lessons, np.full(n, column)))
        yield "choosing once", figures_of(lessons, Effect.of_column(lessons, lessons.chosen_once))
        yield "today's default", figures_of(lessons, self.present)
        for price, outcome in self.fit.by_price.items():
            yield f"verified={price:g}", figures_of(lessons, outcome)
        yield "learned", figures_of(lessons, self.fit.learned)


def learn(
    requests: Sequence[SampledRequest],
    answers: Answers,
    members: Sequence[Member],
    teacher: str,
    router: Router,
    default: Policy | Verified,
) -> Learned:
    """Fit a router's verifiers to a sample, of which all members have answered most requests.

    `default` is the gateway's default rule. Raises NoLessonsError.
    """
    manifest = router.artifact.manifest
    spec = manifest.verifier
    assert spec is not None  # noqa: S101 - for types; the caller has checked it
    lessons, unusable = read_lessons(requests, answers, members, teacher, router)
    prices = {member.arm: member.price for member in members}
    costs_usd = manifest.costs_usd(prices)
    present = _present(lessons, spec, costs_usd, default)
    found = fit(lessons, spec, costs_usd, present)
    return Learned(lessons, unusable, found, present, str(Verified(found.price_usd)))


def _present(
    lessons: Lessons, spec: VerifierSpec, costs_usd: Sequence[float], default: Policy | Verified
) -> Effect:
    """Return what the default rule does: unfamiliar requests are verified in any case."""
    if isinstance(default, Verified):
        return simulate_rule(lessons, spec, costs_usd, default)
    verified = Verified(spec.price_usd, floor=spec.floor)
    unfamiliar = np.flatnonzero(lessons.judged.folds == UNFAMILIAR)
    chosen = Effect.of_column(lessons, lessons.chosen_once)
    return chosen.take(unfamiliar, simulate_rule(lessons, spec, costs_usd, verified))


def write_artifact(lines: Lines, rule: str, router: Router, out: Path) -> Manifest:
    """Write a router's artifact with new calibrations and default rule to the new directory `out`.

    Arms that the gateway has added for models that nobody has measured are kept, with what is
    assumed of them. Raises ArtifactError if `out` exists or cannot be written.
    """
    artifact = router.artifact
    if not router.unmeasured:  # else its manifest describes only a part of its pool
        manifest = read_manifest(artifact.directory / MANIFEST)
        artifact = replace(artifact, manifest=manifest, pool=None)
    with changed_copy(artifact, out) as copy:
        manifest, line = artifact.manifest, lines[UNFAMILIAR]
        spec = manifest.verifier
        assert spec is not None  # noqa: S101 - for types
        own = spec.unfamiliar
        if own is not None and line != UNCHANGED:
            own = own.model_copy(update={"calibration": line.after(own.calibration)})
            spec = spec.model_copy(update={"unfamiliar": own})
        goals = manifest.policy_goals.items()
        manifest = manifest.model_copy(
            update={
                "verifier": spec,
                "name": f"{manifest.name}-learned",
                "policies": {**manifest.policies, DEFAULT: rule},
                "policy_goals": {name: goal for name, goal in goals if name != DEFAULT},
            }
        )
        manifest = _with_familiar(artifact, manifest, lines[FAMILIAR], copy)
        return save_manifest(copy, manifest)


def _with_familiar(artifact: Artifact, manifest: Manifest, line: Line, copy: Path) -> Manifest:
    """Return the manifest with a line for familiar requests, as far as its own queries allow.

    The artifact's figures are computed again from its held-out judgements. Without these, nobody
    can tell what a new calibration would do to its own queries, so that it stays as it is.
    """
    spec = manifest.verifier
    assert spec is not None  # noqa: S101 - for types
    path = artifact.directory / HELD_OUT
    judged = read_judgements(path) if HELD_OUT in manifest.files else None
    if line == UNCHANGED or judged is None:
        return manifest
    whole = replace(artifact, pool=manifest.measured_arms)
    _, before = both_points(whole)
    for share in (1.0, 0.5, 0.25):
        part = Line(line.slope**share, line.shift * share)
        changed_spec = spec.model_copy(update={"calibration": part.after(spec.calibration)})
        rows = np.arange(len(judged.folds))
        # Each held-out judgement is of the familiar verifier, whichever fold's it is.
        moved = replace(judged, folds=np.full(len(rows), FAMILIAR))
        moved = replace(apply_lines(moved, rows, {FAMILIAR: part}), folds=judged.folds)
        HeldOut.read(path).write(copy, moved)
        changed = manifest.model_copy(update={"verifier": changed_spec, "files": file_hashes(copy)})
        described = replace(whole, directory=copy, manifest=changed)
        by_price, floored = both_points(described)
        if lost_accuracy(before, floored) <= LOST_ACCURACY:
            figures = {"verified_frontier": by_price, "named_frontier": floored}
            return changed.model_copy(update=figures)
    (copy / HELD_OUT).write_bytes(path.read_bytes())
    return manifest


def lost_accuracy(before: Sequence[FrontierPoint], after: Sequence[FrontierPoint]) -> float:
    """Return the mean accuracy that is lost at the same cost, over the costs that both reach."""

    def curve(points: Sequence[FrontierPoint]) -> tuple[list[float], list[float]]:
        ordered = sorted(points, key=lambda point: point.cost_usd.value)
        costs = [math.log(point.cost_usd.value) for point in ordered]
        return costs, [point.accuracy.value for point in ordered]

    old_costs, old = curve(before)
    new_costs, new = curve(after)
    low, high = max(old_costs[0], new_costs[0]), min(old_costs[-1], new_costs[-1])
    grid = np.linspace(low, high, 50)
    lost = np.interp(grid, old_costs, old) - np.interp(grid, new_costs, new)
    return float(lost.mean())


def report_lines(learned: Learned) -> list[str]:
    """Return the report as lines of text."""
    lessons = learned.lessons
    sessions = int(lessons.sessions.max()) + 1
    teacher = lessons.members[lessons.teacher].model
    unfamiliar = int(np.sum(lessons.judged.folds == UNFAMILIAR))
    lines = [f"{len(lessons):,} requests of {sessions:,} sessions. The teacher is {teacher}."]
    lines.append(f"{unfamiliar:,} of the requests are unlike the router's training data.")
    left_out = learned.unusable
    if left_out.unanswered:
        lines.append(f"{left_out.unanswered:,} requests are left out: a model gave no answer.")
    if left_out.far_off:
        lines.append(
            f"{left_out.far_off:,} requests are left out: they are unlike all that the verifier was"
            " measured with, so the most accurate model answers them."
        )
    lines += ["", "Same calls as the teacher, by model and kind of step:", ""]
    lines += aligned(_kind_table(lessons), left=1)
    lines += ["", "On held-back sessions, with 95% intervals:", ""]
    head = ("rule", "agreement", "", "USD per 1,000", "of the teacher's cost", "", "seconds")
    rows: list[tuple[str, ...]] = [head]
    for name, figures in learned.rows():
        low, high = figures.agreement_interval
        cheap, dear = figures.cost_share_interval
        agreement = (f"{figures.agreement:.1%}", f"{low:.1%}-{high:.1%}")
        cost_share = (f"{figures.cost_share:.1%}", f"{cheap:.1%}-{dear:.1%}")
        per_1k = f"{figures.cost_usd * 1000:.3f}"
        rows.append((name, *agreement, per_1k, *cost_share, f"{figures.seconds:.1f}"))
    lines += aligned(rows, left=1)
    figures = figures_of(lessons, learned.fit.learned)
    lines += ["", *_conclusion(learned, figures, sessions)]
    return lines


def _conclusion(learned: Learned, figures: Figures, sessions: int) -> Iterator[str]:
    low, high = figures.agreement_interval
    yield (
        f"The learned rule ({learned.rule}) makes the teacher's calls for {figures.agreement:.1%}"
        f" ({low:.1%} to {high:.1%}) of the requests, at {figures.cost_share:.0%} of its cost."
    )
    yield (
        "Agreement is no accuracy: where two models differed on recorded queries, the better one"
        " was right in 50 to 77% of the cases (docs/own-traffic.md)."
    )
    before, after = learned.fit.log_loss
    kept = "" if after < before else ", so the calibration stays as it is"
    yield (
        f"Log loss of the verifier on held-back sessions: {before:.3f} as it is, {after:.3f} with a"
        f" calibration of its own{kept}."
    )
    needed = math.ceil(sessions * (figures.half_width / WANTED_HALF_WIDTH) ** 2)
    if needed > sessions:
        yield (
            f"The interval is ±{figures.half_width:.1%}. About {needed - sessions:,} sessions more"
            f" would make it ±{WANTED_HALF_WIDTH:.0%}."
        )
    if sessions < 2 * FOLDS:
        yield f"With {sessions} sessions, these figures say little."


def _kind_table(lessons: Lessons) -> list[tuple[str, ...]]:
    """Return how often each model makes the teacher's calls, by kind of step."""
    names, kinds = _kinds(lessons)
    head = ("kind of step", "requests", *(member.model for member in lessons.members))
    rows: list[tuple[str, ...]] = [head]
    for kind, name in enumerate(names):
        members = np.flatnonzero(kinds == kind)
        if len(members):
            shares = lessons.is_teachers[members].mean(axis=0)
            rows.append((name, f"{len(members):,}", *(f"{share:.1%}" for share in shares)))
    shares = lessons.is_teachers.mean(axis=0)
    rows.append(("all", f"{len(lessons):,}", *(f"{share:.1%}" for share in shares)))
    return rows


def _kinds(lessons: Lessons) -> tuple[list[str], np.ndarray]:
    """Return the names of the kinds of step, and the kind of each request, (requests,)."""
    names = [
        f"{request.position}: {'a call' if calls else 'words'}"
        for request, calls in zip(lessons.requests, lessons.teacher_calls, strict=True)
    ]
    found = sorted(set(names))
    return found, np.array([found.index(name) for name in names])


def write_report(learned: Learned, folder: Path) -> None:
    """Write the report's figures as JSON."""
    lessons = learned.lessons
    names, kinds = _kinds(lessons)
    models = [member.model for member in lessons.members]

    def by_model(rows: np.ndarray) -> Mapping[str, float]:
        shares = lessons.is_teachers[rows].mean(axis=0)
        return dict(zip(models, map(float, shares), strict=True))

    report = {
        "teacher": models[lessons.teacher],
        "requests": len(lessons),
        "sessions": int(lessons.sessions.max()) + 1,
        "left_out": {
            "unanswered": learned.unusable.unanswered,
            "far_off": learned.unusable.far_off,
        },
        "agreement": {name: by_model(kinds == kind) for kind, name in enumerate(names)},
        "rule": learned.rule,
        "rules": {name: figures._asdict() for name, figures in learned.rows()},
        "lines": {
            name: learned.fit.lines[kind]._asdict()
            for kind, name in ((FAMILIAR, "familiar"), (UNFAMILIAR, "unfamiliar"))
        },
        "log_loss": dict(zip(("shipped", "learned"), learned.fit.log_loss, strict=True)),
    }
    (folder / REPORT).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
