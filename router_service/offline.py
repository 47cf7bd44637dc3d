"""The commands `route`, `policies` and `advise`: decisions and figures without a gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import orjson

from router_service.apis.capabilities import read_requirements
from router_service.apis.conversation import (
    Json,
    as_list,
    decode_object,
    parse_conversation,
    wrong_type,
)
from router_service.apis.registry import parse_answer
from router_service.artifact import Artifact, FrontierPoint, Interval, Manifest, Measure
from router_service.checker.usability import AnswerTerms, why_unusable
from router_service.core.errors import InvalidRequestError, PolicyError
from router_service.core.text import aligned
from router_service.measurement.advice import Advice, PoolFigures
from router_service.measurement.agent_tasks import TaskAdvice
from router_service.measurement.goals import (
    goal_point,
    goal_policy,
    pareto_front,
    parse_goal,
    reach_goals,
)
from router_service.measurement.held_out import goal_points, served_points
from router_service.policies.base import Policy
from router_service.policies.verified import VERIFIED, Verified
from router_service.router import Decision, Router
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import ArmAnswer, VerificationState, why_unverifiable

CHAT_PATH = "/chat/completions"

_FIELDS = ("arm", "probabilities", "cost_usd", "policy", "reason", "packed_tokens")
"""The fields of an output line; they are a contract with users of `switchcraft route`."""

HEAD = ("policy", "accuracy, %", "points vs. best", "USD per 1,000", "cost, % of best")


def decide_lines(
    router: Router, policy: Policy | Verified, lines: Iterable[bytes]
) -> Iterator[bytes]:
    """Yield one JSON line per request, in order: the decision, or an `error` if it is invalid.

    With a verified policy, a line may also be `{"request": BODY, "answers": {ARM: MESSAGE}}`. The
    messages are those of chat completions, and are the candidates so far. The decision is then the
    next step: which arm to ask, or whose answer to accept.
    """
    for line in lines:
        result: dict[str, object]
        try:
            if isinstance(policy, Verified):
                result = _next_step(router, policy, line)
            else:
                decision = router.decide(line, policy)
                result = {name: getattr(decision, name) for name in _FIELDS}
                result |= _familiarity(decision)
        except InvalidRequestError as exc:
            result = {"error": exc.body()}
        yield orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE)


def _next_step(router: Router, policy: Verified, line: bytes) -> dict[str, object]:
    """Return the next step for a request and its candidates so far.

    A request that cannot be verified gets the arm of the policy that chooses once, and the field
    `unverified` says why. So does a first answer that is accepted because it is text.

    Raises InvalidRequestError, for example if `answers` names an unknown arm.
    """
    body = decode_object(line)
    answers: Json = {}
    if "request" in body:
        answers, body = body.get("answers", {}), body["request"]
        if not isinstance(body, dict):
            raise wrong_type("request", "an object", body)
    if not isinstance(answers, dict):
        raise wrong_type("answers", "an object of messages by arm", answers)
    unknown = [arm for arm in answers if arm not in router.arms]
    if unknown:
        raise InvalidRequestError(
            f"'answers' names {unknown[0][:200]!r}, but the artifact has only the arms"
            f" {', '.join(router.arms)}.",
            param="answers",
            code="unknown_arm",
        )
    conversation = parse_conversation(body)
    prediction = router.predict(conversation)
    features = read_requirements(body, conversation, CHAT_PATH).features
    unverified = why_unverifiable(body, conversation, features)
    decision = router.choose(conversation, prediction, policy.otherwise)
    if unverified is not None:
        return {
            "action": "accept" if decision.arm in answers else "ask",
            "arm": decision.arm,
            "p_correct": {},
            **{name: getattr(decision, name) for name in _FIELDS[1:]},
            **_familiarity(decision),
            "unverified": unverified,
        }
    terms = AnswerTerms.of(body, conversation)
    parsed = {
        arm: parse_answer({"choices": [{"message": message}]}) for arm, message in answers.items()
    }
    candidates = [
        ArmAnswer(arm, answer, is_usable=why_unusable(answer, terms) is None)
        for arm, answer in parsed.items()
    ]
    question = Question(conversation, as_list(body.get("tools")))
    state = VerificationState(policy, router.arms, candidates)
    step = router.next_step(question, prediction, state)
    if step.accept is None and not step.ask:
        raise InvalidRequestError(
            "None of the answers can be used, and no further arm may be asked. Leave one out.",
            param="answers",
            code="no_usable_answer",
        )
    return {
        "action": "ask" if step.accept is None else "accept",
        "arm": step.ask[0] if step.accept is None else step.accept,
        "p_correct": step.p_correct,
        "probabilities": decision.probabilities,
        "cost_usd": decision.cost_usd,
        "policy": str(policy),
        "reason": step.unverified or VERIFIED,
        "packed_tokens": decision.packed_tokens,
        **_familiarity(decision),
        **({} if step.unverified is None else {"unverified": step.unverified}),
    }


def _familiarity(decision: Decision) -> dict[str, object]:
    """Return the field `familiarity`, unless the artifact cannot tell it."""
    familiarity = decision.familiarity
    return {} if familiarity is None else {"familiarity": familiarity}


def list_policies(artifact: Artifact, *, every: bool = False) -> Iterator[str]:
    """Yield the policies as a table by increasing cost, then the best single model.

    A rule is left out if a cheaper one of its kind is as accurate, unless it has a name or `every`
    is set. The rules that choose once come first, and then the verified ones.
    """
    manifest = reach_goals(artifact.manifest, goal_points(artifact))
    verified = served_points(replace(artifact, manifest=manifest))
    if not manifest.frontier:
        yield "No policy was measured for these arms at these prices."
        return
    front = (*pareto_front(manifest.frontier), *pareto_front(verified))
    named = manifest.named_rules.values()
    shown = [
        point
        for points in (manifest.frontier, verified)
        for point in sorted(points, key=lambda point: point.cost_usd.value)
        if every or point in front or point.policy in named
    ]
    rows = [HEAD, *(_row(point, manifest, is_matched=point not in front) for point in shown)]
    accuracy = manifest.metrics.get("best_single_accuracy")
    cost = manifest.metrics.get("best_single_cost_usd")
    if accuracy is not None:
        paid = "" if cost is None else _with_error(cost, None, 1_000, ".3f")
        rows.append(("best single model", _with_error(accuracy, None, 100, ".1f"), "", paid, ""))
    yield from _aligned(rows)
    left_out = len(manifest.frontier) + len(verified) - len(shown)
    if left_out:
        yield f"{left_out} rules are left out: a cheaper rule is as accurate. --all shows them."
    if any(point not in front for point in shown):
        yield "*: a cheaper rule is as accurate."
    yield _legend(manifest)


def explain_goal(text: str, artifact: Artifact, *, verified_goals: bool = False) -> Iterator[str]:
    """Yield the rule that reaches a goal, and its measured results.

    With `verified_goals`, it may be a verified policy. Then the rule for requests that cannot be
    verified follows. Raises PolicyError if the text is not a goal, or if no rule reaches it.
    """
    manifest, verified = artifact.manifest, partial(goal_points, artifact)
    goal = parse_goal(text, param="--goal")
    if goal is None:
        problem = "write within=0.5, accuracy=best, accuracy=0.87 or usd_per_1k=0.5"
        raise PolicyError(text, problem, param="--goal")
    point = goal_point(goal, manifest, verified, param="--goal", verified_goals=verified_goals)
    cells = zip(HEAD, _row(point, manifest, is_matched=False), strict=True)
    rows = [("goal", str(goal)), *((name, cell) for name, cell in cells if cell)]
    policy = goal_policy(goal, manifest, verified, param="--goal", verified_goals=verified_goals)
    if isinstance(policy, Verified) and policy.otherwise is not None:
        rows.append(("if not verifiable", str(policy.otherwise)))
    yield from _aligned(rows)
    yield _legend(manifest)


ADVICE_HEAD = ("models", "pool", "rule", *HEAD[1:3], "USD per 1,000", "% of best")


def explain_advice(advice: Advice, *, every: bool = False) -> Iterator[str]:
    """Yield which pools to use for each number of models, and with `every` all efficient pools."""
    yield f"The most accurate of {len(advice.arms)} models alone is {advice.best_single}."
    limit = f"at no more than {advice.cost_share:.0%} of its cost"
    for heading, kind in (("Choosing once", "once"), ("Verified answers", "verified")):
        recommended = [each for each in advice.recommended if each.kind == kind]
        if not recommended:
            continue
        yield ""
        if every:
            efficient = [each for each in advice.efficient if each.kind == kind]
            yield f"{heading}, all efficient pools:"
            yield from _aligned(
                [ADVICE_HEAD, *(_pool_row(each, " + ".join(each.arms)) for each in efficient)]
            )
            yield ""
        yield f"{heading}, {limit}:"
        names = _added_arms([each.figures.arms for each in recommended])
        rows = (
            (*_pool_row(each.figures, name), f"{each.unseen_difference.value * 100:+.1f}")
            for each, name in zip(recommended, names, strict=True)
        )
        yield from _aligned([(*ADVICE_HEAD, "elsewhere"), *rows])
    yield ""
    yield f"Measured on {advice.queries} queries held out from training; brackets: 95% intervals."
    yield (
        f"{advice.pools} pools were compared, and rules picked, on {advice.searched} of these"
        " queries. Picking favours what was lucky there:"
    )
    yield "`elsewhere` has the points vs. best on the other queries."
    if not advice.has_verified:
        yield "The artifact has no judgements of a verifier, so verified answers have no figures."


def explain_task_advice(advice: TaskAdvice) -> Iterator[str]:
    """Yield what each model reached on whole tasks, which one is chosen, and what is not known."""
    if advice.models:
        head = ("model", "success, %", "USD per task", "tasks", "source")
        rows = (
            (
                f"{'> ' if each.model == advice.chosen else '  '}{each.model}",
                f"{each.success * 100:.1f}{_within((each.low, each.high), 100, '.1f')}",
                "unknown" if each.usd_per_task is None else f"{each.usd_per_task:.3f}",
                str(each.tasks),
                each.source,
            )
            for each in advice.models
        )
        yield from _aligned([head, *rows])
        yield ""
    yield advice.why
    if advice.unknown:
        yield f"Without figures for {advice.task} tasks: {', '.join(advice.unknown)}."
    yield "Brackets: 95% intervals. Figures are of the benchmark's tasks, not of yours."
    yield (
        "If several harnesses measured a model, one of them counts, and no mean is taken: OpenHands"
        " before mini-SWE-agent, and GPT-5.2 before GPT-4.1 as the user. Reasoning efforts differ."
    )


def _added_arms(pools: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a name for each pool: what it adds to the one before if it contains that, or all."""
    before: set[str] = set()
    for arms in pools:
        added = [arm for arm in arms if arm not in before]
        is_larger = bool(before) and before < set(arms)
        yield f"adding {', '.join(added)}" if is_larger else " + ".join(arms)
        before = set(arms)


def _pool_row(figures: PoolFigures, name: str) -> tuple[str, ...]:
    point = figures.point
    rule = "alone" if len(figures.arms) == 1 else point.policy
    _, accuracy, versus, _, _ = _cells(rule, point)
    share = point.versus_best.cost_share if point.versus_best else None
    return (
        str(len(figures.arms)),
        name,
        rule,
        accuracy,
        versus,
        f"{point.cost_usd.value * 1_000:.3f}",
        "" if share is None else f"{share:.1%}",
    )


def _row(point: FrontierPoint, manifest: Manifest, *, is_matched: bool) -> tuple[str, ...]:
    names = [name for name, rule in manifest.named_rules.items() if rule == point.policy]
    return _cells(f"{point.policy}{'*' if is_matched else ''} {', '.join(names)}".rstrip(), point)


def _cells(called: str, point: FrontierPoint) -> tuple[str, str, str, str, str]:
    """Return the cells of `HEAD` for a point."""
    versus = point.versus_best
    share = versus.cost_share if versus else None
    return (
        called,
        _with_error(point.accuracy, point.accuracy_interval, 100, ".1f"),
        f"{versus.difference * 100:+.1f}{_within(versus.difference_interval, 100, '+.1f')}"
        if versus
        else "",
        _with_error(point.cost_usd, point.cost_usd_interval, 1_000, ".3f"),
        ""
        if versus is None or share is None
        else f"{share * 100:.1f}{_within(versus.cost_share_interval, 100, '.1f')}",
    )


def _legend(manifest: Manifest) -> str:
    measured = {point.accuracy.n for point in manifest.frontier}
    how = "Measured"
    if manifest.estimated_arms:
        arms = ", ".join(manifest.estimated_arms)
        how = f"Estimated, because most answers of {arms} were not recorded,"
    on = f"{how} on {', '.join(map(str, sorted(measured)))} queries held out from training"
    if manifest.verifier is not None and manifest.verifier.floor:
        on += f"; verified rules with a name have a floor of {manifest.verifier.floor:.0%}"
    if all(point.versus_best for point in manifest.frontier):
        return f"{on}; brackets: 95% intervals, ±: standard errors."
    return f"{on}; ±: standard errors."


def _with_error(measure: Measure, interval: Interval | None, scale: float, form: str) -> str:
    value = format(measure.value * scale, form)
    if interval is None:
        return f"{value} ± {format(measure.stderr * scale, form)}"
    return value + _within(interval, scale, form)


def _within(interval: Interval | None, scale: float, form: str) -> str:
    if interval is None:
        return ""
    low, high = (format(bound * scale, form) for bound in interval)
    return f" [{low}, {high}]"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns; a column with only a heading is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return aligned([*zip(*columns, strict=True)])
