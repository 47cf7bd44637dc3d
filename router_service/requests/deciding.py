"""Decide how a request is answered: parse it, predict, and choose the models that may answer it.

`plan_request` performs all steps.
"""

from __future__ import annotations

import time
from contextlib import suppress

from router_service.apis.conversation import decode_object
from router_service.apis.references import find_references
from router_service.core.errors import InvalidRequestError
from router_service.core.resources import StageName, Timer
from router_service.requests.parsing import Endpoint, ParsedRequest
from router_service.requests.planning import Plan
from router_service.requests.policy_headers import NO_HEADERS, PolicyHeaders
from router_service.requests.turns import conversation_key
from router_service.runtime.engine import Engine
from router_service.runtime.gateway import Gateway
from router_service.verifier.steps import UnverifiedReason

AT_ONCE_BYTES = 16 * 1024
"""Largest body that is parsed on the event loop; larger ones are parsed in a thread. Parsing this
much takes 0.2 ms. A thread would not help: the switch to it takes as long, and so does the event
loop's wait for the interpreter lock while the thread parses."""


async def plan_request(
    gateway: Gateway,
    engine: Engine,
    endpoint: Endpoint,
    body: bytes,
    *,
    headers: PolicyHeaders = NO_HEADERS,
    timer: Timer | None = None,
) -> Plan:
    """Parse a request body, predict, choose, and return the plan.

    Only the model's prediction and the parsing of large bodies run in a thread. So a small request
    that names its model, or whose prediction is cached, needs no thread. `headers` say which policy
    the client wants, and have its API key. `timer` gets the duration of each step.

    Raises InvalidRequestError, OverloadedError and StoreError.
    """
    timer = timer or Timer(time.perf_counter)
    releases, key = engine.releases, headers.key
    follows = engine.settings.router.conversations.enabled

    def prepare(*, in_thread: bool) -> Plan:
        """Return the plan with its prediction, which is computed only in a thread."""
        if in_thread:
            timer.end(StageName.QUEUE)
        plan = releases.prepare(ParsedRequest(endpoint, body), headers)
        if key.has_budget:  # it reserves what the request may cost
            plan.request.read_content()
        plan.conversation_id = _conversation_id(plan, follows=follows)
        timer.end(StageName.PARSE)
        if plan.arms:
            plan.prediction = plan.planner.router.cached(plan.request.conversation)
            if plan.prediction is None and in_thread:
                plan = releases.predict(plan, timer)
        return plan

    def predict(plan: Plan) -> Plan:
        timer.end(StageName.QUEUE)
        return releases.predict(plan, timer)

    size_bytes, run = len(body), gateway.decisions.run
    if (access := engine.access_to_check(key, endpoint, body)) is not None:
        references = await run(key.name, size_bytes, lambda: find_references(decode_object(body)))
        await gateway.ownership.check_references(access, references)
    if size_bytes > AT_ONCE_BYTES:
        plan = await run(key.name, size_bytes, prepare, in_thread=True)
    else:
        plan = prepare(in_thread=False)
        if plan.arms and plan.prediction is None:
            plan = await run(key.name, size_bytes, predict, plan)
    request = plan.request
    if request.continues is not None:
        held = await gateway.ownership.holder(engine.viewer(key), request.continues)
        plan.planner.continued(plan, held)
    elif plan.prediction is not None:
        plan.planner.adapt(plan, plan.prediction)
        if follows and plan.conversation_id is not None:
            plan.conversation = await gateway.conversations.begin(request, plan.conversation_id)
        plan.planner.choose(plan, plan.prediction)
        plan.planner.explore(plan)
        timer.end(StageName.SELECT)
    elif plan.verified is not None:
        plan.leave_unverified(UnverifiedReason.ROUTER_FAILED)
    request.body.release()
    return plan


def _conversation_id(plan: Plan, *, follows: bool) -> str | None:
    """Return the id of a request's conversation, or None if no choice depends on it.

    A routed request's arm depends on it if conversations are followed, and the deployment of a
    model if it has several. Nothing else is read of a request that names its model, so a body that
    cannot be read is left for the upstream to judge.
    """
    if plan.request.endpoint.api is None:
        return None
    is_followed = bool(plan.arms) and follows
    if not (is_followed or any(model.is_balanced for model in plan.models)):
        return None
    with suppress(InvalidRequestError):
        headers = plan.policy_headers
        return conversation_key(plan.request, headers.session, headers.key.name)
    return None
