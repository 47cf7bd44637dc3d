"""`switchcraft onboard`: models that the router does not know join its pool, from their answers.

It gives the training package a function that asks the configuration's deployments.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from router_service.cli.asking_models import (
    agrees,
    ask_through_gateway,
    find_state_directory,
    show_progress,
    show_use,
)
from router_service.command_line import Count
from router_service.core.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from router_service.artifact import Artifact
    from router_service.settings import Model, Settings
    from switchcraft_training.onboarding.newcomers import Newcomer, NewcomerQueries

COMMAND: Final = "switchcraft onboard"
BUDGET_USD: Final = 2.0
"""The most that the answers of one model may cost, if the option does not say it."""
JOIN_MINUTES: Final = 1.5
"""What it takes on two cores to learn one model from its answers, and to measure it."""


def onboard(
    config: Path,
    models: Sequence[str] = (),
    /,
    *,
    answers: Count = 100,
    budget: Annotated[float | None, Parameter(validator=Number(gte=0), metavar="USD")] = None,
    yes: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    publish: Annotated[bool, Parameter(negative="")] = False,
    data: Path | None = None,
    out: Path | None = None,
) -> int:
    """Let models that the router has not measured join its pool, from 100 answers each.

    Asks the models of a configuration public test queries, through their own deployments, and
    judges the answers. The new artifact predicts these models like the others. Shows the cost
    first, and asks before it spends anything. An interrupted run continues if you repeat the
    command. Needs the extra `train`.

    Example: `switchcraft onboard gateway.yaml --dry-run`

    Args:
        config: the gateway's configuration
        models: names of models (default: all that the router has not measured)
        answers: how many queries to ask each model
        budget: stop before all answers together cost more (default: 2 USD for each model)
        yes: do not ask before sending requests
        dry_run: show the models, the number of queries and the expected cost, and end
        publish: publish the new artifact as a canary where the configuration's gateways look
        data: directory with the source of an artifact that was not trained on public queries
        out: directory of the new artifact (default: in the state directory)
    """
    try:
        from switchcraft_training.onboarding import newcomers as joining
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith(("router_service", "switchcraft_training")):
            raise
        raise ConfigError(COMMAND, "", missing_extra("train")) from exc
    from router_service.artifact import Artifact
    from router_service.runtime.engine import EngineBuilder
    from router_service.settings import read_settings

    settings = read_settings(config)
    router, _ = EngineBuilder().first_router(settings)
    # Without the arms that a gateway adds for models that are not measured.
    artifact = Artifact.load(router.artifact.directory)
    chosen = _choose_models(settings, artifact, models)
    if not chosen:
        print("The router knows all models of model_list; there is nothing to measure.")
        return 0
    found = [_newcomer(model, artifact) for model in chosen]
    state = find_state_directory()
    questions = joining.choose_questions(artifact, found, answers, data, state / "onboarding")
    budget_usd = BUDGET_USD * len(found) if budget is None else budget
    _show_plan(questions, budget_usd)
    if dry_run:
        return 0
    if publish and settings.router.publication is None:
        problem = "is not set; leave --publish out, and use `switchcraft-train publish`"
        raise settings.error("router.publication", problem)
    if not (yes or agrees(COMMAND)):
        return 1
    if not _are_reachable(chosen):
        print("Nothing was written. Correct what failed, and run the same command again.")
        return 1
    show_progress()
    status, advice = ask_through_gateway(
        settings, router, lambda post: joining.ask_newcomers(questions, post, budget_usd)
    )
    if status:
        print(f"{advice}\nNo artifact was written.", file=sys.stderr)
        return status
    created = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    directory = out or state / "artifacts" / f"{artifact.manifest.name}-{created}"
    manifest = joining.join_newcomers(artifact, questions, directory)
    for each in found:
        facts = manifest.onboarded[each.name]
        print(
            f"{each.name}: {facts.accuracy.value:.1%} ± {facts.accuracy.stderr:.1%} correct"
            f" (estimated from {facts.answers} answers),"
            f" {1000 * manifest.profile[each.name].cost_usd():.3g} USD per 1,000 requests"
        )
    show_use(settings, directory, publish=publish)
    return 0


def _choose_models(
    settings: Settings, artifact: Artifact, named: Sequence[str]
) -> tuple[Model, ...]:
    """Return the models that join: those `named`, or all that the artifact has not measured.

    Raises ConfigError if a model is not in the file, is measured, or has no price per token.
    """
    from router_service.measurement.unmeasured import can_join
    from router_service.requests.mapping import instead_of
    from router_service.requests.pool import UNPRICED, Pool

    allowing = settings.router.model_copy(update={"unknown_prices": "allow"})
    pool = Pool.build(settings.model_copy(update={"router": allowing}), artifact.manifest)
    unknown = [each.model for each in pool.mapping.unrouted if each.is_unknown]
    arm_of = {model.name: arm for arm, model in pool.by_arm.items()}
    for name in named:
        if name in arm_of:
            problem = f"{name!r} is measured already, as the arm {arm_of[name]}"
            raise ConfigError(COMMAND, "MODEL", problem)
        if name not in unknown:
            problem = f"there is no model {name!r} to measure in model_list"
            raise ConfigError(COMMAND, "MODEL", f"{problem}; {instead_of(name, unknown)}")
    chosen = tuple(pool.models[name] for name in named or unknown)
    for model in chosen:
        if not can_join(artifact, model.price):
            raise settings.error(f"model_list: {model.name}", UNPRICED)
    return chosen


def _newcomer(model: Model, artifact: Artifact) -> Newcomer:
    """Return a model as the training package sees it, with the ids that gateways know it by."""
    from router_service.requests.mapping import ArmIds, Basis, identify
    from switchcraft_training.onboarding.newcomers import Newcomer

    assert model.price is not None  # noqa: S101 - for types; `_choose_models` has checked it
    identity = identify(model, ArmIds(artifact.manifest.stands_for))
    is_known = identity.basis is Basis.ID and identity.obstacle is None
    ids = tuple(identity.text.split(", ")) if is_known else ()
    return Newcomer(model.name, model.deployments[0].base_url, model.price, ids)


def _show_plan(questions: NewcomerQueries, budget_usd: float) -> None:
    from router_service.core.text import aligned

    rows = [("model", "queries", "expected USD")]
    for each, cost_usd in zip(questions.newcomers, questions.cost_usd, strict=True):
        rows.append((each.name, f"{questions.count}", f"{cost_usd:.2f}"))
    print("\n".join(aligned(rows, left=1)))
    minutes = questions.minutes + JOIN_MINUTES * len(questions.newcomers)
    print(
        f"Together {sum(questions.cost_usd):.2f} USD, more if a model reasons at length, and at"
        f" most {budget_usd:.2f} USD (--budget); about {math.ceil(minutes)} minutes."
    )


def _are_reachable(models: Sequence[Model]) -> bool:
    """Ask each deployment one short question, and print what fails."""
    from router_service.check import Status, ask

    deployments = [(model, each) for model in models for each in model.deployments]
    failed = [each for each in asyncio.run(ask(deployments)) if each.status is not Status.OK]
    for each in failed:
        print(f"{each.status}  {each.subject}: {each.detail}", file=sys.stderr)
    return not failed
