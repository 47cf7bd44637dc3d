"""Decide how a request is answered: parse it, predict, and choose the models that may answer it.

`plan_request` performs all steps.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

from router_service.access.key import NO_KEY, Key
from router_service.apis.conversation import decode_object
from router_service.apis.references import find_references
from router_service.core.resources import StageName, Timer
from router_service.requests.conversations import Conversations
from router_service.requests.limits import DecisionQueue
from router_service.requests.ownership import ObjectAccess, Ownership
from router_service.requests.parsing import Endpoint, parse_request
from router_service.requests.planning import NO_HEADERS, Plan, PolicyHeaders
from router_service.requests.trials import Releases
from router_service.requests.turns import conversation_key
from router_service.router import Prediction
from router_service.settings import Settings
from router_service.telemetry.metrics import Metrics
from router_service.verifier.steps import UnverifiedReason


class DecidingEngine(Protocol):
    """What decides: one configuration with its releases; `runtime.engine.Engine` provides it."""

    settings: Settings
    releases: Releases

    def viewer(self, key: Key) -> ObjectAccess:
        """Return the access of an API key to the objects that upstreams store."""

    def may_name_objects(self, endpoint: Endpoint, body: bytes) -> bool:
        """Return quickly whether a body may refer to an object stored by an upstream."""


class DecisionResources(Protocol):
    """What all decisions share; `runtime.gateway.Gateway` provides it."""

    metrics: Metrics
    decisions: DecisionQueue
    ownership: Ownership
    conversations: Conversations


AT_ONCE_BYTES = 16 * 1024
"""Largest body that is parsed on the event loop; larger ones are parsed in a thread. Parsing this
much takes 0.2 ms. A thread would not help: the switch to it takes as long, and so does the event
loop's wait for the interpreter lock while the thread parses."""


async def plan_request(  # noqa: PLR0913
    resources: DecisionResources,
    engine: DecidingEngine,
    endpoint: Endpoint,
    body: bytes,
    *,
    key: Key = NO_KEY,
    headers: PolicyHeaders = NO_HEADERS,
    session: str | None = None,
    timer: Timer | None = None,
) -> Plan:
    """Parse a request body, predict, choose, and return the plan.

    Only the model's prediction and the parsing of large bodies run in a thread. So a small request
    that names its model, or whose prediction is cached, needs no thread. `key` is the client's API
    key, `headers` say which policy it wants, and `session` names the conversation. `timer` gets
    the duration of each step.

    Raises InvalidRequestError (or a subclass, such as ModelNotFoundError, ModelNotAllowedError,
    PolicyError, PolicyNotAllowedError, NoCapableModelError, ResponseNotFoundError or
    ResponseElsewhereError), OverloadedError and StoreError.
    """
    started_s = time.perf_counter()
    timer = timer or Timer(time.perf_counter)
    releases, viewer, caller = engine.releases, engine.viewer(key), key.name
    if key.is_restricted:
        headers = replace(headers, key=key)

    def prepare() -> tuple[Plan, Prediction | None]:
        request = parse_request(endpoint, body)
        plan = releases.prepare(request, headers)
        if key.has_budget:  # it reserves what the request may cost
            request.read_content()
        timer.end(StageName.PARSE)
        router = plan.planner.router
        return plan, router.cached(request.conversation) if plan.arms else None

    def prepare_and_predict() -> tuple[Plan, Prediction | None]:
        timer.end(StageName.QUEUE)
        plan, prediction = prepare()
        if plan.arms and prediction is None:
            return releases.predict(plan, timer)
        return plan, prediction

    def predict() -> tuple[Plan, Prediction | None]:
        timer.end(StageName.QUEUE)
        return releases.predict(plan, timer)

    if not viewer.sees_unowned and engine.may_name_objects(endpoint, body):
        references = await resources.decisions.run(
            caller, len(body), lambda: find_references(decode_object(body))
        )
        await resources.ownership.check_references(viewer, references)
    if len(body) > AT_ONCE_BYTES:
        plan, prediction = await resources.decisions.run(caller, len(body), prepare_and_predict)
    else:
        plan, prediction = prepare()
        if plan.arms and prediction is None:
            plan, prediction = await resources.decisions.run(caller, len(body), predict)
    if plan.request.continues is not None:
        held = await resources.ownership.holder(viewer, plan.request.continues)
        plan.planner.continued(plan, held)
    elif plan.arms and prediction is not None:
        plan.planner.adapt(plan, prediction)
        if engine.settings.router.conversations.enabled:
            request = plan.request
            if plan.verified is None:
                plan.conversation = await resources.conversations.begin(request, session, caller)
            plan.conversation_id = conversation_key(request, session, caller)
        plan.planner.choose(plan, prediction)
        plan.planner.explore(plan)
        timer.end(StageName.SELECT)
    elif plan.verified is not None:
        plan.leave_unverified(UnverifiedReason.ROUTER_FAILED)
    plan.request.body.release()
    seconds = time.perf_counter() - started_s
    resources.metrics.decision_seconds.observe(seconds)
    if seconds > engine.settings.router.latency_budget_s:
        resources.metrics.decisions_over_budget.inc()
    return plan
