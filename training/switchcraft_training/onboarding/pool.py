"""Changes of an artifact's pool: add, remove or replace an arm, or change its price.

None of them retrains the router, and the probabilities of all other arms stay the same bit for bit.
The artifact's figures are computed again from its held-out predictions. Those of an arm that joins
are estimated, and the manifest says so (`estimated_arms`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson

from router_service.apis.conversation import parse_conversation
from router_service.artifact import (
    CANARIES,
    Artifact,
    Manifest,
    Measure,
    Onboarding,
    file_hashes,
    save_manifest,
)
from router_service.core.errors import ArtifactError, ConfigError
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    both_points,
    describe_pool,
    read_judgements,
)
from router_service.measurement.simulation import JudgedAnswers
from router_service.policies.costs import ArmProfile, Price
from router_service.predictor.model import Calibration, logit, sigmoid
from router_service.predictor.packing import Packer
from router_service.router import Router
from switchcraft_training.data.table import Floats, profile_arms
from switchcraft_training.errors import DataError
from switchcraft_training.models.export import Line, export_onnx, record_canaries
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.training import Demand, fit_demand_branch, predict
from switchcraft_training.onboarding.graphs import append_arm, select_arms
from switchcraft_training.onboarding.judgements import draw_labels, join_judgements, rank_stand_ins
from switchcraft_training.onboarding.positions import AnsweredQueries, ask_recorded
from switchcraft_training.onboarding.predictor import (
    extend_calibration,
    fit_line,
    fit_predictor,
    predict_unseen,
    select_calibration,
)
from switchcraft_training.onboarding.recording import NewAnswers, Recorded
from switchcraft_training.storage import changed_copy

log = logging.getLogger(__name__)

MIN_ANSWERS = 20
"""With 25 answers, the estimated accuracy is off by 4 points (RMS); with fewer it says little."""

CHANGED_RESULTS: Mapping[str, object] = {
    "frontier": (),
    "verified_frontier": (),
    "named_frontier": (),
    "metrics": {},
    "estimated_arms": (),
}
"""Measured results that no longer hold if the pool or a price changes."""


@dataclass(frozen=True, slots=True)
class Joining:
    """An arm that joins: its name and price, and how many of its answers to learn from.

    It takes the place of the arm `replaces`, or else the last place. `stands_for` are its model's
    ids, as providers and LiteLLM write them.
    """

    arm: str
    price: Price
    answers: int
    replaces: str | None = None
    stands_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LearnedArm:
    """What was learned about an arm that joins.

    `targets` are the labels that its predictor learned, (recorded queries,): recorded answers, and
    probabilities of the other queries. `line` calibrates the logits of the predictor `model`.
    """

    facts: Onboarding
    targets: Floats
    profile: ArmProfile
    model: RouterModel
    line: Line


def learn_arm(
    recorded: Recorded, demand: Demand | None, new: NewAnswers, joining: Joining, pool: Calibration
) -> LearnedArm:
    """Learn an arm from some of its answers to packed recorded queries.

    `demand` was fitted to all recorded queries, and `pool` calibrates the other arms. Raises
    DataError if usage counts are missing.
    """
    models, asked = recorded.models, new.asked()
    if joining.answers < len(asked.rows):
        asked = ask_recorded(models, asked.rows, new.correct, joining.answers, recorded.config.seed)
    position = models.place(asked)
    accuracy, stderr = models.accuracy(position)
    targets = models.probabilities(position)
    targets[asked.rows] = asked.correct
    facts = Onboarding(
        answers=len(asked.rows),
        models=len(models.positions),
        accuracy=Measure(value=accuracy, stderr=stderr, n=len(targets)),
        probability_stderr=float(models.stderrs(position).mean()),
    )
    profile = profile_answers(recorded, new, asked, joining)
    table = recorded.labelled(joining.arm, targets)
    log.info("training the predictor of %s on %d queries", joining.arm, len(targets))
    model = fit_predictor(recorded.config, table, demand, joining.arm, joining.price)
    logits = logit(predict(model, table)[:, 0])
    return LearnedArm(facts, targets, profile, model, fit_line(logits, accuracy, pool))


def estimate_held_out(
    recorded: Recorded,
    demand: Demand | None,
    learned: LearnedArm,
    joining: Joining,
    pool: Calibration,
    held_out: HeldOut,
) -> HeldOut:
    """Return the held-out predictions of an arm that joins, as one column.

    Its predictor is fitted again without each of the folds of `held_out`. Most queries have no
    recorded answer, so `correct` is drawn from the learned labels, and the usage is the profile's,
    in the proportions of the pool's usage. Single precision keeps the file small.
    """
    profile = learned.profile
    table = replace(recorded.labelled(joining.arm, learned.targets), folds=held_out.folds)
    logits = predict_unseen(recorded.config, table, demand, joining.arm, joining.price)
    slope, shift = fit_line(logits, learned.facts.accuracy.value, pool)
    used = recorded.table.select_arms(recorded.config.arms)

    def spread(mean: float, layer: Floats) -> Floats:
        usage = complete_columns(layer)
        if not usage.sum():
            return np.full((len(table), 1), mean)
        spread: Floats = mean * usage.mean(axis=1, keepdims=True) / usage.mean()
        return spread.astype(np.float32)  # pyrefly: ignore[bad-return]  # small

    means = (profile.input_tokens, profile.output_tokens, profile.seconds)
    return HeldOut(
        probabilities=sigmoid(slope * logits + shift)[:, None].astype(np.float32),  # pyrefly: ignore[bad-argument-type]  # as above
        correct=draw_labels(learned.targets, recorded.config.seed)[:, None],
        input_tokens=spread(profile.input_tokens, used.input_tokens),
        output_tokens=spread(profile.output_tokens, used.output_tokens),
        seconds=spread(profile.seconds, used.seconds),
        folds=held_out.folds,
        usage=np.broadcast_to(means, (len(held_out.usage), 1, 3)),
    )


def onboard(
    artifact: Artifact, recorded: Recorded, joining: Mapping[Joining, NewAnswers], out: Path
) -> Manifest:
    """Add arms to an artifact, and write the result to the new directory `out`.

    `joining` has their answers. Raises ConfigError if an arm is there already or its price is zero,
    DataError if there are too few answers or no usage counts, and ArtifactError if `out` exists.
    """
    manifest = artifact.manifest
    for arm, new in joining.items():
        check_joining(manifest, arm)
        if not MIN_ANSWERS <= arm.answers <= len(new.rows):
            problem = (
                f"{len(new.rows)} answers of {arm.arm!r} are to queries that the recorded models"
                f" answered, and {arm.answers} are wanted, at least {MIN_ANSWERS}. Ask more queries"
                " (`switchcraft-train onboard ARTIFACT --choose N` chooses them), or set --answers"
                " to a smaller number"
            )
            raise DataError(artifact.directory, None, problem)
    packed = recorded.packed(Packer(manifest.packing, artifact.tokenizer))
    config, pool = packed.config, manifest.calibration
    demand = fit_demand_branch(config, packed.table) if config.packing.features else None
    learned = {arm: learn_arm(packed, demand, new, arm, pool) for arm, new in joining.items()}
    held_out = measured = packed.read_held_out(artifact)
    judged: JudgedAnswers | None = None
    if held_out is not None and measured is not None:
        own = np.array([manifest.arms.index(each) for each in packed.own])
        judged = read_judgements(artifact.directory / HELD_OUT)
        for arm, each in learned.items():
            estimated = estimate_held_out(packed, demand, each, arm, pool, measured)
            held_out = held_out.join_arms(estimated)
            if judged is not None:
                ranked = rank_stand_ins(estimated.correct[:, 0], measured.correct[:, own])
                probabilities, accuracy = estimated.probabilities[:, 0], each.facts.accuracy.value
                judged = join_judgements(judged, own[ranked], probabilities, accuracy)
    with changed_copy(artifact, out) as copy:
        changed = manifest
        for arm, each in learned.items():
            changed = _append_arm(copy, changed, arm, each)
        (copy / HELD_OUT).unlink(missing_ok=True)
        if held_out is not None:
            held_out.write(copy, judged)
        for arm in joining:
            if arm.replaces is not None:
                others = [other for other in changed.arms if other not in {arm.replaces, arm.arm}]
                others.insert(changed.arms.index(arm.replaces), arm.arm)
                changed = keep_arms(copy, changed, others)
        return finish(copy, artifact, changed)


def _append_arm(copy: Path, manifest: Manifest, joining: Joining, learned: LearnedArm) -> Manifest:
    """Add an arm to the graphs of an artifact's copy, and return its manifest with the arm."""
    calibration, own = extend_calibration(manifest.calibration, learned.line)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "arm.onnx"
        export_onnx(learned.model, len(manifest.packing.features), path, own)
        for name in set(manifest.models.values()):
            append_arm(copy / name, path)
    verifier = manifest.verifier
    if verifier is not None:
        shares = (*verifier.reliabilities, learned.facts.accuracy.value)
        verifier = verifier.model_copy(update={"reliabilities": shares})
    own_ids = {joining.arm: joining.stands_for} if joining.stands_for else {}
    return manifest.model_copy(
        update={
            **CHANGED_RESULTS,
            "arms": (*manifest.arms, joining.arm),
            "stands_for": dict(manifest.stands_for) | own_ids,
            "profile": {**manifest.profile, joining.arm: learned.profile},
            "calibration": calibration,
            "verifier": verifier,
            "onboarded": {**manifest.onboarded, joining.arm: learned.facts},
        }
    )


def check_joining(manifest: Manifest, joining: Joining) -> None:
    """Raise ConfigError if an arm cannot join: its name, its price, or the arm that it replaces."""
    if joining.arm in manifest.arms:
        problem = (
            f"{joining.arm!r} is in the pool already; remove it first with `switchcraft-train pool"
            " remove`, or choose another name"
        )
        raise ConfigError(manifest.name, "--arm", problem)
    if joining.replaces is not None:
        column_of(manifest, joining.replaces)
    for arm, ids in manifest.stands_for.items():
        if arm != joining.replaces and (same := set(ids) & set(joining.stands_for)):
            problem = (
                f"the arm {arm!r} stands for {', '.join(sorted(same))}; to measure this model"
                f" again, add --replaces {arm}"
            )
            raise ConfigError(manifest.name, "--model", problem)
    price = joining.price
    if 0 in {price.input_usd_per_mtok, price.output_usd_per_mtok, price.usd_per_hour}:
        problem = (
            "a price of 0 makes the arm the cheapest for every query. Give the price that you pay;"
            " for your own machine, use --price-per-hour"
        )
        raise ConfigError(manifest.name, "--price", problem)


def column_of(manifest: Manifest, arm: str) -> int:
    """Return the column of an arm; raises ConfigError if the pool does not have it."""
    if arm not in manifest.arms:
        problem = f"the pool has no arm {arm!r}, but {', '.join(manifest.arms)}"
        raise ConfigError(manifest.name, "arm", problem)
    return manifest.arms.index(arm)


def remove_arm(artifact: Artifact, arm: str, out: Path) -> Manifest:
    """Remove an arm from an artifact, and write the result to the new directory `out`.

    Raises ConfigError if the pool does not have the arm or has no other.
    """
    manifest = artifact.manifest
    column_of(manifest, arm)
    others = [other for other in manifest.arms if other != arm]
    if not others:
        raise ConfigError(manifest.name, "arm", f"{arm!r} is the only arm and cannot be removed")
    with changed_copy(artifact, out) as copy:
        return finish(copy, artifact, keep_arms(copy, manifest, others))


def reprice_arm(artifact: Artifact, arm: str, price: Price, out: Path) -> Manifest:
    """Change the price of an arm, and write the result to the new directory `out`.

    Raises ConfigError if the pool does not have the arm, if the price is zero, or if the profile
    lacks what the price is for.
    """
    manifest = artifact.manifest
    column_of(manifest, arm)
    others = [other for other in manifest.arms if other != arm]
    check_joining(manifest.model_copy(update={"arms": tuple(others)}), Joining(arm, price, 0))
    profile = manifest.profile[arm]
    if (price.has_token_prices and not profile.output_tokens) or (
        price.has_hourly_price and not profile.seconds
    ):
        wanted = "tokens" if price.has_token_prices else "seconds"
        problem = (
            f"the profile of {arm!r} has no {wanted}, so its cost at this price is unknown; record"
            " answers with them, and add the arm again with `switchcraft-train onboard`"
        )
        raise ConfigError(manifest.name, "--price", problem)
    with changed_copy(artifact, out) as copy:
        profiles = {**manifest.profile, arm: profile.model_copy(update={"price": price})}
        changed = manifest.model_copy(update={**CHANGED_RESULTS, "profile": profiles})
        return finish(copy, artifact, changed)


def keep_arms(copy: Path, manifest: Manifest, arms: Sequence[str]) -> Manifest:
    """Reduce the graphs and the manifest to some of the arms, in this order."""
    columns = [manifest.arms.index(arm) for arm in arms]
    for name in set(manifest.models.values()):
        select_arms(copy / name, columns)
    if (copy / HELD_OUT).exists():
        HeldOut.read(copy / HELD_OUT).select_arms(columns).write(copy)
    verifier = manifest.verifier
    if verifier is not None:
        shares = tuple(verifier.reliabilities[column] for column in columns)
        verifier = verifier.model_copy(update={"reliabilities": shares})
    return manifest.model_copy(
        update={
            **CHANGED_RESULTS,
            "arms": tuple(arms),
            "stands_for": {k: v for k, v in manifest.stands_for.items() if k in arms},
            "profile": {arm: manifest.profile[arm] for arm in arms},
            "calibration": select_calibration(manifest.calibration, columns),
            "verifier": verifier,
            "onboarded": {k: v for k, v in manifest.onboarded.items() if k in arms},
        }
    )


def finish(copy: Path, artifact: Artifact, manifest: Manifest) -> Manifest:
    """Record the canary requests and the figures, write the manifest, and load the result.

    Raises ArtifactError if a probability of an arm that was there before has changed.
    """
    requests = [
        orjson.loads(line)["request"]
        for line in (artifact.directory / CANARIES).read_bytes().splitlines()
    ]
    packer = Packer(manifest.packing, artifact.tokenizer)
    record_canaries(copy, manifest.models, manifest.arms, requests, packer, manifest.calibration)
    if (copy / HELD_OUT).exists():
        manifest = manifest.model_copy(update={"files": file_hashes(copy)})
        predicted = replace(artifact, directory=copy, manifest=manifest)
        described = describe_pool(predicted, manifest.arms, {})
        by_price, floored = both_points(described)
        frontiers = {"verified_frontier": by_price, "named_frontier": floored}
        manifest = described.manifest.model_copy(update=frontiers)
    changed = save_manifest(copy, manifest)
    after = Router.load(copy)
    conversations = [parse_conversation(request) for request in requests]
    for old, new in zip(
        Router(artifact).predict_batch(conversations),
        after.predict_batch(conversations),
        strict=True,
    ):
        new_of = dict(zip(changed.arms, new, strict=True))
        for arm, p in zip(artifact.manifest.arms, old, strict=True):
            if new_of.get(arm, p) != p:
                raise ArtifactError(copy, f"the probability of {arm!r} is no longer {p}")
    return changed


def profile_answers(
    recorded: Recorded, new: NewAnswers, asked: AnsweredQueries, joining: Joining
) -> ArmProfile:
    """Return the new arm's profile for all recorded queries.

    The asked queries are not typical ones. A mean is therefore scaled by what the pool's arms used
    for all queries, relative to the asked ones. Raises DataError if a needed count is missing.
    """
    answers = new.table.take(asked.rows)
    try:
        profile = profile_arms(answers, {joining.arm: joining.price})[joining.arm]
    except ValueError as exc:
        problem = (
            f"{exc}. Record the usage of every answer, as `switchcraft-train label` does, because a"
            " cost cannot be estimated without it"
        )
        raise DataError(recorded.config.source.path, None, problem) from exc
    pool = recorded.table.select_arms(recorded.config.arms)

    def scaled(mean: float, layer: Floats) -> float:
        usage = complete_columns(layer)
        if not usage[asked.rows].sum():
            return mean
        return mean * float(usage.mean() / usage[asked.rows].mean())

    return profile.model_copy(
        update={
            "input_tokens": scaled(profile.input_tokens, pool.input_tokens),
            "output_tokens": scaled(profile.output_tokens, pool.output_tokens),
            "seconds": scaled(profile.seconds, pool.seconds),
        }
    )


def complete_columns(layer: Floats) -> Floats:
    """Return the columns of a layer, (queries, arms), without missing values."""
    return layer[:, ~np.isnan(layer).any(axis=0)]
