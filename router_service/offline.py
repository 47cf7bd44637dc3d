"""The commands `switchcraft route` and `switchcraft policies`: decisions without a gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import orjson

from router_service.core.answer_features import Question
from router_service.core.answers import parse_answer
from router_service.core.artifact import FrontierPoint, Interval, Manifest, Measure
from router_service.core.capabilities import read_requirements
from router_service.core.errors import InvalidRequestError, PolicyError
from router_service.core.goals import goal_point, goal_policy, pareto_front, parse_goal
from router_service.core.messages import (
    Json,
    as_list,
    decode_object,
    parse_conversation,
    wrong_type,
)
from router_service.core.selection import VERIFIED, Policy, Verified
from router_service.core.verification import Candidate, VerificationState, why_unverifiable
from router_service.router import Router

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
            "unverified": unverified,
        }
    candidates = [
        Candidate(arm, parse_answer({"choices": [{"message": message}]}))
        for arm, message in answers.items()
    ]
    question = Question(conversation, as_list(body.get("tools")))
    state = VerificationState(policy, router.arms, candidates)
    step = router.next_step(question, prediction, state)
    return {
        "action": "ask" if step.accept is None else "accept",
        "arm": step.ask[0] if step.accept is None else step.accept,
        "p_correct": step.p_correct,
        "probabilities": decision.probabilities,
        "cost_usd": decision.cost_usd,
        "policy": str(policy),
        "reason": step.unverified or VERIFIED,
        "packed_tokens": decision.packed_tokens,
        **({} if step.unverified is None else {"unverified": step.unverified}),
    }


def list_policies(manifest: Manifest, *, every: bool = False) -> Iterator[str]:
    """Yield the frontier as a table by increasing cost, then the best single model.

    A rule is left out if a cheaper one is as accurate, unless it has a name or `every` is set.
    """
    if not manifest.frontier:
        yield "No policy was measured for these arms at these prices."
        return
    front = pareto_front(manifest.frontier)
    named = set(manifest.policies.values())
    shown = [
        point
        for point in sorted(manifest.frontier, key=lambda point: point.cost_usd.value)
        if every or point in front or point.policy in named
    ]
    rows = [HEAD, *(_row(point, manifest, is_matched=point not in front) for point in shown)]
    accuracy = manifest.metrics.get("best_single_accuracy")
    cost = manifest.metrics.get("best_single_cost_usd")
    if accuracy is not None:
        paid = "" if cost is None else _with_error(cost, None, 1_000, ".3f")
        rows.append(("best single model", _with_error(accuracy, None, 100, ".1f"), "", paid, ""))
    yield from _aligned(rows)
    left_out = len(manifest.frontier) - len(shown)
    if left_out:
        yield f"{left_out} rules are left out: a cheaper rule is as accurate. --all shows them."
    if any(point not in front for point in shown):
        yield "*: a cheaper rule is as accurate."
    yield _legend(manifest)


def explain_goal(text: str, manifest: Manifest, *, verified_goals: bool = False) -> Iterator[str]:
    """Yield the rule that reaches a goal, and its measured results.

    With `verified_goals`, it may be a verified policy. Then the rule for requests that cannot be
    verified follows. Raises PolicyError if the text is not a goal, or if no rule reaches it.
    """
    goal = parse_goal(text, param="--goal")
    if goal is None:
        problem = "write accuracy=best, accuracy=0.87 or usd_per_1k=0.5; @95 may be appended"
        raise PolicyError(text, problem, param="--goal")
    point = goal_point(goal, manifest, param="--goal", verified_goals=verified_goals)
    cells = zip(HEAD, _row(point, manifest, is_matched=False), strict=True)
    rows = [("goal", str(goal)), *((name, cell) for name, cell in cells if cell)]
    policy = goal_policy(goal, manifest, param="--goal", verified_goals=verified_goals)
    if isinstance(policy, Verified) and policy.otherwise is not None:
        rows.append(("if not verifiable", str(policy.otherwise)))
    yield from _aligned(rows)
    yield _legend(manifest)


def _row(point: FrontierPoint, manifest: Manifest, *, is_matched: bool) -> tuple[str, ...]:
    names = [name for name, rule in manifest.policies.items() if rule == point.policy]
    called = f"{point.policy}{'*' if is_matched else ''} {', '.join(names)}".rstrip()
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
    """Yield rows in columns, two spaces apart; a column with only a heading is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
