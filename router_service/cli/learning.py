"""`switchcraft learn`: learn to route one's own requests from what the dearest model did.

It gives the training package a function that asks the configuration's deployments.
"""

from __future__ import annotations

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
from router_service.command_line import SEVERAL, Count
from router_service.core.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from router_service.router import Router
    from router_service.settings import Settings
    from switchcraft_training.learning.questions import Questions
    from switchcraft_training.learning.sampling import Member

COMMAND: Final = "switchcraft learn"


def learn(
    log: Path,
    /,
    *,
    config: Path,
    teacher: str | None = None,
    ask: Annotated[Sequence[str] | None, SEVERAL] = None,
    sample: Count = 300,
    budget: Annotated[float, Parameter(validator=Number(gte=0), metavar="USD")] = 5.0,
    yes: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    publish: Annotated[bool, Parameter(negative="")] = False,
    out: Path | None = None,
) -> int:
    """Learn to route your own requests from what the most expensive model does.

    Draws requests from a decision log with content, asks the models what the log does not know,
    and compares their calls with the teacher's. Fits the verifier to them, chooses the cheapest
    rule that agrees with the teacher as often as today's default, and reports what each rule does
    with sessions that were held back. Shows the cost first, and asks before it spends anything.
    An interrupted run continues if you repeat the command. Nothing leaves the machine but requests
    to the configured models. Needs the extra `train`.

    Example: `switchcraft learn /var/log/switchcraft --config gateway.yaml --dry-run`

    Args:
        log: the decision log: its folder, or one of its files
        config: the gateway's configuration
        teacher: the model whose answers count as right (default: the most expensive one)
        ask: models to learn about (default: all models that the router can choose)
        sample: how many requests to learn from
        budget: stop before all answers together cost more
        yes: do not ask before sending requests
        dry_run: show the sample, the models and the expected cost, and end
        publish: publish the new artifact as a canary where the configuration's gateways look
        out: directory of the new artifact (default: in the state directory)
    """
    try:
        from switchcraft_training.learning import judging, learned, questions
    except ModuleNotFoundError as exc:
        if exc.name == "router_service":
            raise
        raise ConfigError(COMMAND, "", missing_extra("train")) from exc
    from router_service.runtime.engine import EngineBuilder, default_rule
    from router_service.settings import read_settings

    settings = read_settings(config)
    router, _ = EngineBuilder().first_router(settings)
    members, chosen_teacher = _members(settings, router, ask, teacher)
    if publish and settings.router.publication is None:
        problem = "is not set; leave --publish out, and use `switchcraft-train publish`"
        raise settings.error("router.publication", problem)
    state = find_state_directory()
    prepared = questions.prepare_questions(log, members, chosen_teacher, sample, state / "learning")
    _show_plan(prepared, budget)
    if dry_run:
        return 0
    show_progress()
    if any(prepared.unanswered):
        if not (yes or agrees(COMMAND)):
            return 1
        status, advice = ask_through_gateway(
            settings, router, lambda post: questions.ask_questions(prepared, post, budget)
        )
        if status and advice:
            print(advice, file=sys.stderr)
        if status > 1:  # the budget is spent, or somebody has interrupted the run
            return status
    try:
        found = learned.learn(
            prepared.requests,
            questions.read_answers(prepared),
            members,
            chosen_teacher,
            router,
            default_rule(settings, router),
        )
    except judging.NoLessonsError as exc:
        print(f"Nothing can be learned: {exc}.", file=sys.stderr)
        return 1
    print("\n".join(["", *learned.report_lines(found), ""]))
    created = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
    name = f"{router.artifact.manifest.name}-learned-{created}"
    directory = out or state / "artifacts" / name
    learned.write_artifact(found.fit.lines, found.rule, router, directory)
    learned.write_report(found, prepared.folder)
    print(f"The figures are in {prepared.folder / learned.REPORT}")
    if settings.router.default_policy is not None:
        print("router.default_policy is set; without it, the learned rule is the default.")
    show_use(settings, directory, publish=publish)
    return 0


def _members(
    settings: Settings, router: Router, ask: Sequence[str] | None, teacher: str | None
) -> tuple[Sequence[Member], str]:
    """Return the models to learn about, and the teacher, which is one of them.

    Raises ConfigError if a model is no arm's, or if there is nothing to learn.
    """
    from router_service.measurement.unmeasured import can_join
    from router_service.requests.mapping import instead_of
    from router_service.requests.pool import Pool
    from switchcraft_training.learning.sampling import Member

    manifest = router.artifact.manifest
    pool = Pool.build(settings, manifest)
    costs_usd = dict(zip(manifest.arms, manifest.costs_usd(pool.prices), strict=True))
    known: dict[str, Member] = {}
    for arm, model in pool.by_arm.items():
        if can_join(router.artifact, model.price) and model.price is not None:
            known[model.name] = Member(model.name, arm, model.price)
    for name in (*(ask or ()), *((teacher,) if teacher else ())):
        if name not in known:
            problem = f"the router cannot choose {name!r}; {instead_of(name, known)}"
            raise ConfigError(COMMAND, "--ask or --teacher", problem)
    if not known:
        problem = "the router cannot choose any of its models; `switchcraft check` says why"
        raise settings.error("model_list", problem)
    dearest = max(known, key=lambda name: costs_usd[known[name].arm])
    chosen = teacher or dearest
    names = dict.fromkeys([*(known if ask is None else ask), chosen])
    if len(names) < 2:
        problem = f"has no model besides the teacher {chosen!r}; add a cheaper one"
        raise settings.error("model_list", problem)
    return [member for name, member in known.items() if name in names], chosen


def _show_plan(prepared: Questions, budget_usd: float) -> None:
    from router_service.core.text import aligned
    from switchcraft_training.learning.questions import count_sessions

    sessions = count_sessions(prepared.requests)
    drawn = "drawn by an earlier run, which goes on" if prepared.is_continued else "drawn"
    print(f"{len(prepared.requests):,} requests of {sessions:,} sessions are {drawn}.")
    rows = [("model", "in the log", "to ask", "expected USD")]
    for member, left, usd in zip(
        prepared.members, prepared.unanswered, prepared.cost_usd, strict=True
    ):
        name = f"{member.model} (teacher)" if member.model == prepared.teacher else member.model
        rows.append((name, f"{len(prepared.requests) - left:,}", f"{left:,}", f"{usd:.2f}"))
    print("\n".join(aligned(rows, left=1)))
    total_usd = sum(prepared.cost_usd)
    print(
        f"Together {total_usd:.2f} USD, more if a model reasons at length, and at most"
        f" {budget_usd:.2f} USD (--budget). The rest is computed here and costs nothing."
    )
