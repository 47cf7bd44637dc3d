"""`switchcraft onboard`: models that the router does not know join its pool, from their answers.

This is the only part of the service that uses the training package, which an extra installs. That
package chooses the questions, judges the answers and writes the artifact; it gets the answers
through a function, which asks the configuration's deployments as a gateway does.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from router_service.command_line import Count
from router_service.core.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import httpx

    from router_service.apis.conversation import Json
    from router_service.artifact import Artifact
    from router_service.router import Router
    from router_service.settings import Model, Settings
    from switchcraft_training.onboarding.newcomers import Newcomer, Questions

COMMAND: Final = "switchcraft onboard"
CAP_USD: Final = 2.0
"""The most that the answers of one model may cost, if the option does not say it."""
JOIN_MINUTES: Final = 1.5
"""What it takes on two cores to learn one model from its answers, and to measure it."""
_SHARED: Final = ("keys", "server", "tracing", "decision_log", "database", "usage", "budgets")
"""Sections whose defaults hold while models are asked: nobody else uses this gateway, and what it
does is no traffic."""


def onboard(
    config: Path,
    models: Sequence[str] = (),
    /,
    *,
    answers: Count = 100,
    spending_cap_usd: Annotated[float | None, Parameter(metavar="USD")] = None,
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
        spending_cap_usd: stop before all answers together cost more (default: 2 USD for each model)
        yes: do not ask before sending requests
        dry_run: show the models, the number of queries and the expected cost, and end
        publish: publish the new artifact as a canary where the configuration's gateways look
        data: directory with the source of an artifact that was not trained on public queries
        out: directory of the new artifact (default: in the state directory)
    """
    try:
        from switchcraft_training.onboarding import newcomers as joining
    except ModuleNotFoundError as exc:
        if exc.name == "router_service":
            raise
        raise MissingExtraError(COMMAND, "", "train") from exc
    from router_service.artifact import Artifact
    from router_service.runtime.engine import EngineBuilder
    from router_service.runtime.reloading import load_first_router
    from router_service.settings import read_settings

    settings = read_settings(config)
    router, _ = load_first_router(settings, EngineBuilder(announces=False))
    # Without the arms that a gateway adds for models that are not measured.
    artifact = Artifact.load(router.artifact.directory)
    chosen = _choose_models(settings, artifact, models)
    if not chosen:
        print("The router knows all models of model_list; there is nothing to measure.")
        return 0
    found = [_newcomer(model, artifact) for model in chosen]
    state = _state_directory()
    questions = joining.choose_questions(artifact, found, answers, data, state / "onboarding")
    cap_usd = CAP_USD * len(found) if spending_cap_usd is None else spending_cap_usd
    _show_plan(questions, cap_usd)
    if dry_run:
        return 0
    if publish and not isinstance(settings.router.publication, Path):
        problem = "is no directory; leave --publish out, and use `switchcraft-train publish`"
        raise settings.error("router.publication", problem)
    if not (yes or _agrees()):
        return 1
    if not _are_reachable(chosen):
        print("Nothing was written. Correct what failed, and run the same command again.")
        return 1
    status, advice = asyncio.run(_ask(questions, settings, router, cap_usd))
    if status:
        print(f"{advice}\nNo artifact was written.", file=sys.stderr)
        return status
    created = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    directory = out or state / "artifacts" / f"{artifact.manifest.name}-{created}"
    logging.basicConfig(format="%(message)s")
    logging.getLogger("switchcraft_training").setLevel(logging.INFO)
    manifest = joining.join_newcomers(artifact, questions, directory)
    for each in found:
        facts = manifest.onboarded[each.name]
        print(
            f"{each.name}: {facts.accuracy.value:.1%} ± {facts.accuracy.stderr:.1%} correct"
            f" (estimated from {facts.answers} answers),"
            f" {1000 * manifest.profile[each.name].cost_usd():.3g} USD per 1,000 requests"
        )
    _show_use(settings, directory, publish=publish)
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


def _state_directory() -> Path:
    from router_service.settings.reading import state_directory

    found = state_directory(os.environ)
    if found is None:
        problem = "is not set, and the user has no home directory; set it to a directory"
        raise ConfigError("the environment", "XDG_STATE_HOME", problem)
    return found


def _show_plan(questions: Questions, cap_usd: float) -> None:
    from router_service.core.text import aligned

    rows = [("model", "queries", "expected USD")]
    for each, cost_usd in zip(questions.newcomers, questions.cost_usd, strict=True):
        rows.append((each.name, f"{questions.count}", f"{cost_usd:.2f}"))
    print("\n".join(aligned(rows, left=1)))
    minutes = questions.minutes + JOIN_MINUTES * len(questions.newcomers)
    print(
        f"Together {sum(questions.cost_usd):.2f} USD, more if a model reasons at length, and at"
        f" most {cap_usd:.2f} USD (--spending-cap-usd); about {math.ceil(minutes)} minutes."
    )


def _agrees() -> bool:
    """Ask on the terminal whether to send the requests; raises ConfigError without a terminal."""
    if not sys.stdin.isatty():
        problem = "is needed where nobody can be asked; add it to send the requests"
        raise ConfigError(COMMAND, "--yes", problem)
    return input("Ask these models? [y/N] ").strip().lower() in {"y", "yes"}


def _are_reachable(models: Sequence[Model]) -> bool:
    """Ask each deployment one short question, and print what fails."""
    from router_service.check import Status, ask

    deployments = [(model, each) for model in models for each in model.deployments]
    failed = [each for each in asyncio.run(ask(deployments)) if each.status is not Status.OK]
    for each in failed:
        print(f"{each.status}  {each.subject}: {each.detail}", file=sys.stderr)
    return not failed


async def _ask(
    questions: Questions, settings: Settings, router: Router, cap_usd: float
) -> tuple[int, str]:
    """Ask the questions through a gateway in this process, which nobody else reaches."""
    from switchcraft_training.labelling.sender import Response
    from switchcraft_training.onboarding.newcomers import ask_newcomers

    async with _own_gateway(settings, router) as client:

        async def post(body: Mapping[str, Json]) -> Response:
            answer = await client.post("/v1/chat/completions", json=body)
            return Response(answer.status_code, answer.headers.get("retry-after", ""), answer.text)

        return await ask_newcomers(questions, post, cap_usd)


@asynccontextmanager
async def _own_gateway(settings: Settings, router: Router) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway for these models without keys, limits, fallbacks and logs."""
    import httpx

    from router_service.serving.app import create_app
    from router_service.settings import Settings as DefaultSettings

    defaults = DefaultSettings()
    models = tuple(each.model_copy(update={"fallbacks": ()}) for each in settings.models)
    changes = {name: getattr(defaults, name) for name in _SHARED} | {
        "models": models,
        "router": settings.router.model_copy(update={"publication": None}),
    }
    app = create_app(settings.model_copy(update=changes), router)
    transport = httpx.ASGITransport(app)
    async with app.state.gateway.running():
        # The deployments' own time limits hold.
        no_limit = httpx.Timeout(None)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", timeout=no_limit
        ) as client:
            yield client


def _show_use(settings: Settings, directory: Path, *, publish: bool) -> None:
    """Print how to use the new artifact, or publish it as a canary."""
    place = settings.router.publication
    if publish and isinstance(place, Path):
        from switchcraft_training.publishing.command import publish as publish_artifact

        publish_artifact(directory, to=str(place), role="canary")
        return
    print(
        f"The new artifact is {directory}\nTo use it, set `artifact: {directory}` in the section"
        f" `router` of {settings.source}, and reload or restart the gateway. `switchcraft policies"
        " --config` then shows its figures."
    )
