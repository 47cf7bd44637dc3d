"""Verification: ask arms for candidate answers, step by step, until one is accepted.

If the router expects text, the first answer is accepted without verification if it begins with
text, and it is relayed as it arrives if it is a stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from router_service.apis.conversation import as_list
from router_service.apis.registry import parse_answer
from router_service.core.decision_record import StopReason, VerificationStop
from router_service.core.errors import (
    DeadlineError,
    Failure,
    InvalidRequestError,
    OverloadedError,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.requests.call import Call
from router_service.requests.candidates import Candidate
from router_service.requests.deciding import AT_ONCE_BYTES
from router_service.requests.limits import DecisionQueue, Drain
from router_service.requests.planning import Plan
from router_service.settings import Model
from router_service.upstream.retries import RetryingClient
from router_service.upstream.streams import MAX_HELD_BYTES, StartedAnswer
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import (
    ArmAnswer,
    Step,
    UnverifiedReason,
    VerificationLimits,
    VerificationState,
)

DELIVERY_S = 0.1
"""Time before the client's deadline, or before the end of a graceful shutdown, at which the best
candidate so far is delivered."""

_log = logging.getLogger("switchcraft.verification")


def check_limits(plan: Plan, limits: VerificationLimits) -> None:
    """Raise InvalidRequestError if no arm may be asked within the limits."""
    if limits.max_cost_usd == math.inf:
        return
    costs_usd = plan.costs_usd()
    cheapest = min(costs_usd, key=costs_usd.__getitem__)
    if costs_usd[cheapest] > limits.max_cost_usd:
        raise InvalidRequestError(
            f"No model is expected to answer this request for {limits.max_cost_usd:g} USD or less: "
            f"the expected cost of the cheapest, {cheapest!r}, is {costs_usd[cheapest]:.3g} "
            "USD. Allow more with the header x-switchcraft-max-cost-usd, or ask the operator to "
            "raise router.verification.max_cost_usd.",
            param="x-switchcraft-max-cost-usd",
            code="cost_limit_too_low",
        )


class Verification:
    """Asks arms for candidates of one call, and decides which one is accepted.

    The router decides after each step. Limits end it with the best candidate so far.
    """

    def __init__(
        self,
        call: Call,
        upstreams: RetryingClient,
        decisions: DecisionQueue,
        drain: Drain,
        limits: VerificationLimits,
    ) -> None:
        """Verify the answer to a call whose plan has the policy `verified`."""
        plan = call.plan
        assert plan.verified is not None  # noqa: S101 - for types
        assert plan.decision is not None  # noqa: S101
        assert plan.prediction is not None  # noqa: S101
        self._call = call
        self._policy = plan.verified
        self._decision = plan.decision
        self._prediction = plan.prediction
        self._costs_usd = plan.costs_usd()
        self._models: Mapping[str, Model] = plan.planner.models_by_arm(plan.decision)
        self._upstreams = upstreams
        self._decisions = decisions
        self._drain = drain
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._ends_s = {arm: call.latest_end_s(model) for arm, model in self._models.items()}
        """When the time for each arm's answer is over, by the event loop's clock."""
        self._end_s = max(self._ends_s.values())
        parsed = call.request
        self._question = Question(
            parsed.conversation, lambda: as_list(parsed.decoded().get("tools"))
        )
        self._grounded_tools: frozenset[str] | None = None
        """The tools whose values must be explained; None before an answer has calls."""
        self._first_complete_s = math.inf
        """When the first candidate was complete, by the event loop's clock."""
        self.obstacle = UnverifiedReason.CANDIDATES_FAILED
        """Why the answer is not verified, if no candidate can be delivered."""

    async def run(self) -> Candidate | None:
        """Return the accepted candidate; None if no candidate can be delivered.

        Its answer is complete, or it is a stream of text, of which the rest has to be read. Raises
        the UpstreamError of a candidate after which no other model may be tried.
        """
        is_last = False
        while True:
            step = await self._next_step(is_last=is_last)
            arms = self._within_limits(step.ask) if step.accept is None else ()
            if arms and not self._call.asked and self._call.plan.first_arm is not None:
                arms = self._within_limits((self._call.plan.first_arm,)) or arms
            if not arms:
                return self._accepted_by(step)
            failed = await self._ask(arms, step)
            if self._call.accepted.arm is not None:
                return self._call.accepted  # a stream of text
            is_last = any(not self._may_ask_after(candidate) for candidate in failed)
            if is_last and not self._complete:
                raise self.first_error

    @property
    def _complete(self) -> Mapping[str, Candidate]:
        """The candidates that may be delivered, by arm."""
        return {arm: each for arm, each in self._call.asked.items() if each.is_complete}

    async def _next_step(self, *, is_last: bool = False) -> Step:
        """Return the router's decision; if it fails, accept a candidate without it."""
        complete = self._complete
        has_calls = any(each.answer is not None and each.answer.calls for each in complete.values())
        left, excluded = ({}, {}) if is_last else self._arms_left()
        state = VerificationState(
            policy=self._policy,
            arms=left.keys(),
            excluded=excluded,
            candidates=[ArmAnswer(arm, each.answer) for arm, each in complete.items()],
            failed=self._call.asked.keys() - complete.keys(),
            limits=self._limits,
            costs_usd=self._costs_usd,
            elapsed_s=max(0.0, self._loop.time() - self._first_complete_s),
        )

        def decide() -> Step:
            planner, known = self._call.plan.planner, state
            if has_calls:
                if self._grounded_tools is None:
                    tools = self._call.request.conversation.tools
                    self._grounded_tools = planner.risk.grounded_tools(tools)
                known = replace(state, grounded_tools=self._grounded_tools)
            return planner.router.next_step(self._question, self._prediction, known)

        key, size_bytes = self._call.key.name, self._call.request.body.size_bytes
        try:
            if not has_calls and size_bytes <= AT_ONCE_BYTES:
                # Without arguments to look up, the switch to a thread would take as long.
                step = decide()
            else:
                # After the limits, there is only a little time to judge the candidates in hand.
                left_s = min(self._time_left_s(), self._end_s - self._loop.time())
                async with asyncio.timeout(max(left_s, DELIVERY_S / 2)):
                    step = await self._decisions.run(key, size_bytes, decide)
        except (OverloadedError, TimeoutError):
            self.obstacle = UnverifiedReason.OVERLOADED
            return Step(None, (), {}, 0.0)
        except Exception:  # noqa: BLE001 - no failure of the router may fail the request
            _log.exception("verifier failed, delivering the best answer so far without it")
            self._call.verifier_failed = True
            self.obstacle = UnverifiedReason.ROUTER_FAILED
            return Step(None, (), {}, 0.0)
        for arm, candidate in complete.items():
            candidate.p_correct = step.p_correct.get(arm)
            candidate.ungrounded = step.ungrounded.get(arm, ())
            if candidate.first_p_correct is None:
                candidate.first_p_correct = candidate.p_correct
        return step

    def _accepted_by(self, step: Step) -> Candidate | None:
        """Return the candidate that a step accepts, or else the most probable one, if any."""
        complete = self._complete
        if not complete:
            return None

        def probability(arm: str) -> float:
            p_correct = complete[arm].p_correct
            return self._decision.probabilities[arm] if p_correct is None else p_correct

        self._call.added_s = self._loop.time() - self._first_complete_s
        best = max(complete, key=lambda arm: (not complete[arm].ungrounded, probability(arm)))
        accepted = complete.get(step.accept or best, complete[best])
        stop = step.stop
        if stop is None and step.ask:  # the candidates cost more than the router expected
            arm = step.ask[0]
            stop = VerificationStop(
                reason=self._arms_left()[1].get(arm, StopReason.MAX_COST),
                arm=arm,
                expected_gain=step.expected_gain,
                expected_cost_usd=self._costs_usd[arm],
            )
        self._call.stop = stop
        unverified = step.unverified
        if accepted.ungrounded:  # a limit ended the verification before another arm confirmed it
            unverified = UnverifiedReason.UNGROUNDED
        self._accept(accepted, unverified)
        return accepted

    def _accept(self, candidate: Candidate, unverified: UnverifiedReason | None) -> None:
        """Record the candidate that is delivered, and why its answer is not verified, if so."""
        self._call.accepted = candidate
        self._call.plan.unverified = unverified

    def _within_limits(self, arms: Sequence[str]) -> Sequence[str]:
        """Return the first of these arms that may be asked together."""
        left, _ = self._arms_left()
        left_usd, asks_left = self._cost_left_usd, self.asks_left
        allowed: list[str] = []
        for arm in arms:
            is_few = len(allowed) < asks_left
            if arm in left and is_few and self._costs_usd[arm] <= left_usd:
                allowed.append(arm)
                left_usd -= self._costs_usd[arm]
        return allowed

    @property
    def _cost_left_usd(self) -> float:
        asked = self._call.asked.values()
        return self._limits.max_cost_usd - sum([each.cost_usd or 0.0 for each in asked])

    @property
    def asks_left(self) -> int:
        """Number of further arms that may get the request, as candidates or as the fallback."""
        return self._limits.max_candidates - len(self._call.asked)

    @property
    def models_left(self) -> Mapping[str, Model]:
        """Models by arm that may be asked within the limits, in the order of the plan's policy."""
        return self._arms_left()[0]

    def _arms_left(self) -> tuple[Mapping[str, Model], Mapping[str, StopReason]]:
        """Return the arms that may be asked, and the others with the limit that forbids it.

        An arm is tried only once. Both are in the order of the plan's policy.
        """
        left_usd, now_s = self._cost_left_usd, self._loop.time()
        left_s, end = self._time_left()
        asks_left = self.asks_left
        tried = {candidate.arm for candidate in self._call.candidates}
        left: dict[str, Model] = {}
        excluded: dict[str, StopReason] = {}
        for arm, model in self._models.items():
            if arm in tried:
                continue
            if asks_left <= 0:
                excluded[arm] = StopReason.MAX_CANDIDATES
            elif left_s <= 0:
                excluded[arm] = end
            elif self._costs_usd[arm] > left_usd:
                excluded[arm] = StopReason.MAX_COST
            elif self._ends_s[arm] <= now_s:
                excluded[arm] = StopReason.DEADLINE
            else:
                left[arm] = model
        return left, excluded

    @property
    def first_error(self) -> UpstreamError:
        """The error that the client gets if no arm answers.

        It is that of the first arm that got the request, or else of the first that was tried.
        """
        asked, tried = self._call.asked.values(), self._call.candidates
        first = next((each.error for each in (*asked, *tried) if each.error is not None), None)
        if first is not None:
            return first
        name = next(iter(self._models.values())).name
        if self._call.deadline_s <= self._loop.time():
            return DeadlineError(name)
        return UpstreamError(name, "was not asked in time", Failure.TIMEOUT)

    @property
    def last_resort(self) -> Candidate | None:
        """The most probable of the answers that cannot be used, but are better than an error."""
        terms, probabilities = self._call.request.terms, self._decision.probabilities
        kept = {
            arm: each
            for arm, each in self._call.asked.items()
            if each.failure == Failure.UNUSABLE and each.is_better_than_error(terms)
        }
        return kept[max(kept, key=lambda arm: probabilities[arm])] if kept else None

    def _time_left_s(self) -> float:
        """Return the time until the best candidate must be delivered; infinite without one."""
        return self._time_left()[0]

    def _time_left(self) -> tuple[float, StopReason]:
        """Return the same time, and what limits it."""
        if self._first_complete_s == math.inf:
            return math.inf, StopReason.DEADLINE
        now_s = self._loop.time()
        added_s = self._first_complete_s + self._limits.max_added_latency_s - now_s
        ends = [
            (added_s, StopReason.MAX_ADDED_LATENCY),
            (self._end_s - DELIVERY_S - now_s, StopReason.DEADLINE),
        ]
        if self._drain.has_begun:
            ends.append((self._drain.remaining_s - DELIVERY_S, StopReason.SHUTDOWN))
        return min(ends)

    def _may_ask_after(self, candidate: Candidate) -> bool:
        """Return whether another arm may be asked after a candidate that was not delivered."""
        if candidate.error is None:
            return True
        is_refused = candidate.opened is not None and candidate.opened.status >= 400
        return not is_refused and self._upstreams.may_fall_back(candidate.error, self._call)

    async def _ask(self, arms: Sequence[str], step: Step) -> Sequence[Candidate]:
        """Ask arms of a step in parallel until all have answered or the time is over.

        Returns the candidates that failed.

        Arms that did not get the request are no candidates, and count towards no limit. If the
        router expects text, there is one arm, and its stream is accepted if it is text.
        """
        call = self._call
        call.verification_steps += 1
        gain = step.expected_gain if step.p_correct else None
        asked = {
            arm: Candidate(self._models[arm], arm, call.verification_steps, expected_gain=gain)
            for arm in arms
        }
        call.candidates += asked.values()
        if len(arms) == 1 and not self._complete:  # then nothing ends the wait for its answer
            await self._collect(arms[0], asked[arms[0]], expects_text=step.expects_text)
            return [candidate for candidate in asked.values() if not candidate.is_complete]
        answers = {
            asyncio.create_task(self._collect(arm, candidate, expects_text=step.expects_text))
            for arm, candidate in asked.items()
        }
        # A shutdown that begins meanwhile may shorten the time that is left.
        shutdown = asyncio.create_task(self._drain.begun.wait())
        pending: set[asyncio.Task[Any]] = {*answers, shutdown}
        try:
            while pending & answers and (left_s := self._time_left_s()) > 0:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=left_s if left_s < math.inf else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    task.result()
        finally:
            for task in (*answers, shutdown):
                task.cancel()
            await asyncio.gather(*answers, shutdown, return_exceptions=True)
        return [candidate for candidate in asked.values() if not candidate.is_complete]

    async def _collect(self, arm: str, candidate: Candidate, *, expects_text: bool) -> None:
        """Get one arm's complete answer, with the retries of its model only."""
        trace = self._call.trace.candidate_span(arm, candidate.model.name, candidate.step)
        with trace as candidate.trace:
            try:
                opened = await self._upstreams.start(self._call, candidate, (candidate.model,))
                try:
                    candidate.begin(opened)
                    await self._read(candidate, opened, expects_text=expects_text)
                except BaseException as exc:
                    if isinstance(exc, UpstreamError):
                        self._upstreams.record_break(opened, exc, self._call)
                    opened.close(exc)
                    raise
            except UpstreamError as exc:
                candidate.error = exc
            finally:
                if self._call.accepted is not candidate:  # else the relay reads the rest
                    if candidate.opened is not None:
                        candidate.opened.close()
                    self._call.settle(candidate)

    async def _read(
        self, candidate: Candidate, opened: StartedAnswer, *, expects_text: bool
    ) -> None:
        """Read an answer to its end, and parse it; raises UpstreamError if it is unusable.

        If the router expects text, a stream that has begun with text is accepted.
        """
        reader = opened.reader
        if opened.status >= 400:
            raise UpstreamRefusedError(
                opened.model.name,
                opened.status,
                headers=opened.headers,
                body=opened.body,
                failure=Failure.REFUSED,
            )
        if opened.rest is not None:
            raise _too_long(opened)
        if reader is None:
            candidate.answer = None if opened.is_skimmed else parse_answer(opened.value, opened.api)
        else:
            parts, size_bytes = [], 0
            events: bytes | None = opened.body
            while events is not None:
                parts.append(events)
                size_bytes += len(events)
                if size_bytes > MAX_HELD_BYTES:
                    raise _too_long(opened)
                self._reserve(opened, len(events))
                if reader.error is None and expects_text and reader.accumulator.is_text:
                    opened.body = b"".join(parts)
                    self._accept(candidate, UnverifiedReason.TEXT)
                    return
                events = await anext(reader.events, None)
            if reader.error is not None:
                raise reader.error
            opened.body = b"".join(parts)
            candidate.answer = reader.accumulator.answer()
        candidate.fail_if_unusable(self._call.terms_for(candidate))
        candidate.is_complete = True
        self._first_complete_s = min(self._first_complete_s, self._loop.time())

    def _reserve(self, opened: StartedAnswer, size_bytes: int) -> None:
        """Count bytes towards the request's memory; raises UpstreamError if it is exhausted."""
        try:
            self._call.hold_memory(size_bytes)
        except OverloadedError as exc:
            raise _too_long(opened) from exc


def _too_long(opened: StartedAnswer) -> UpstreamError:
    problem = f"answered with more than can be verified ({MAX_HELD_BYTES} bytes, or less memory)"
    return UpstreamError(opened.model.name, problem, Failure.UNFIT)
