"""Messages that are put together from facts: what was wrong, where, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from router_service.core import errors, refusals
from router_service.core.errors import Failure, SwitchcraftError, UpstreamError

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "router_service", ROOT / "training" / "switchcraft_training")

MESSAGES: dict[SwitchcraftError, str] = {
    refusals.BODY_TOO_LARGE.error(limit_bytes=1024): (
        "The request body is larger than the limit of 1024 bytes. Send a smaller request. If the "
        "limit is server.max_body_bytes, the operator can raise it."
    ),
    refusals.BODY_ENCODED.error(encoding="gzip"): (
        "The request body has the content encoding 'gzip', which is not supported. Send it "
        "uncompressed and without a content-encoding header."
    ),
    refusals.BODY_LATE.error(limit_s=60.0): (
        "The request body did not arrive within 60 s. Send it again over a faster connection, or "
        "ask the operator to raise server.body_timeout_s."
    ),
    refusals.KEY_MISSING.error(): (
        "The request has no API key. Send a key from the gateway's operator as 'Authorization: "
        "Bearer KEY'."
    ),
    refusals.KEY_INVALID.error(): (
        "The API key is not valid here. Send a key from the gateway's operator as 'Authorization: "
        "Bearer KEY'."
    ),
    refusals.NOTHING_TO_ROUTE.error(model="switchcraft", known="small, large"): (
        "The model 'switchcraft' chooses among the models that this gateway's router has measured, "
        "and none of the configured models is one of them. Name a model instead: small, large. "
        "`switchcraft check` tells the operator how a model joins."
    ),
    refusals.model_not_found("gpt-9", ("switchcraft", "small")): (
        "The model 'gpt-9' does not exist here. Use one of these: switchcraft, small."
    ),
    refusals.MODEL_UNPRICED.error(model="openai/gpt-9", pattern="openai/*"): (
        "The model 'openai/gpt-9' matches 'openai/*', but its price is unknown. Name another model,"
        " or ask the operator to list it in model_list with its price, or to set "
        "router.unknown_prices: allow."
    ),
    refusals.model_not_allowed("large", ("switchcraft", "small")): (
        "This API key may not use 'large'. It may use these: switchcraft, small. Name another "
        "model, or ask the operator to allow it."
    ),
    refusals.POLICY_NOT_ALLOWED.error(policy="quality", may_use=refusals.may_use(())): (
        "This API key may not use the policy 'quality'. It may use none. Name another policy, or "
        "ask the operator to allow it."
    ),
    refusals.no_capable_model(
        {"small": ("about 9000 tokens of input (limit: 8000)",), "large": ("images", "audio")}
    ): (
        "No available model can serve this request: 'small' does not support about 9000 tokens of "
        "input (limit: 8000); 'large' does not support images, audio. Remove what is not "
        "supported, or name another model."
    ),
    refusals.no_capable_model(
        {"small": ("about 9000 tokens of input (limit: 8000)",)}, excess_tokens=1000
    ): (
        "No available model can serve this request: 'small' does not support about 9000 tokens of "
        "input (limit: 8000). Shorten the input by about 1000 tokens, or name another model."
    ),
    refusals.response_not_found("resp_1", param="previous_response_id"): (
        "The previous response 'resp_1' was not found. This gateway has not relayed it for your "
        "API key, or it has expired. Send the whole conversation as 'input' instead."
    ),
    refusals.OBJECT_NOT_FOUND.error(identifier="file-1", param="file_id"): (
        "The object 'file-1' was not found for your API key. A key can only use objects that it "
        "has created through this gateway and that have not expired. Create it again, or ask the "
        "operator to set router.pass_through_shared."
    ),
    refusals.RESPONSE_ELSEWHERE.error(identifier="resp_1", model="small", holder="large"): (
        "The model 'small' cannot continue 'resp_1', because only an upstream of the model 'large' "
        "stores it. Name that model, or send the whole conversation as 'input'."
    ),
    refusals.not_served("POST", "/v1/files/file-1", {}): (
        "The Files API is not served by this gateway. To pass its requests through to an upstream, "
        "set router.pass_through to one of the configured models."
    ),
    refusals.not_served("POST", "/v1/nothing", {}): (
        "There is no endpoint /v1/nothing. The endpoints are in /openapi.json. To pass other "
        "requests through to an upstream, set router.pass_through."
    ),
    refusals.not_served("POST", "/v1/v1/chat/completions", {}): (
        "The path /v1/v1/chat/completions has /v1 twice. The client adds it too: remove /v1 from "
        "its base URL, or remove it from the path."
    ),
    refusals.not_served("GET", "/v1/responses", {"/v1/responses": {"POST"}}): (
        "/v1/responses does not support GET. Use POST."
    ),
    refusals.not_served("POST", "/v1/chat/completion", {"/v1/chat/completions": {"POST"}}): (
        "There is no endpoint /v1/chat/completion. Did you mean /v1/chat/completions?"
    ),
    errors.PolicyError("theta=2", "2.0 is outside 0 to 1"): (
        "The policy 'theta=2' cannot be used: 2.0 is outside 0 to 1."
    ),
    errors.PolicyError("economi", "did you mean 'economy'?"): (
        "The policy 'economi' cannot be used: did you mean 'economy'?"
    ),
    refusals.RECORD_NOT_FOUND.error(kind="decision", identifier="dec_1"): (
        "The decision 'dec_1' was not found. Check the id: it may be wrong, or the record may have "
        "expired."
    ),
    UpstreamError("small", "could not be reached", Failure.UNREACHABLE): (
        "The upstream of model 'small' could not be reached. Try again, or name another model."
    ),
    UpstreamError("small", "did not answer in time", Failure.TIMEOUT): (
        "The upstream of model 'small' did not answer in time. Try again, or name another model. "
        "The operator can raise upstreams.timeouts."
    ),
    UpstreamError("small", "broke the connection", Failure.BROKEN): (
        "The upstream of model 'small' broke the connection. Try again, or name another model."
    ),
    UpstreamError("small", "sent an error within its answer", Failure.ERROR_BODY): (
        "The upstream of model 'small' sent an error within its answer. Try again, or name another "
        "model."
    ),
    UpstreamError("small", "sent an event that cannot be read", Failure.MALFORMED): (
        "The upstream of model 'small' sent an event that cannot be read. Try again, or name "
        "another model."
    ),
    UpstreamError("small", "has no free connection", Failure.BUSY): (
        "The upstream of model 'small' has no free connection. Try again later, or ask the "
        "operator to raise upstreams.max_connections."
    ),
    UpstreamError("small", "is not tried", Failure.COOLING_DOWN): (
        "The upstream of model 'small' is not tried. Try again later, or name another model."
    ),
    UpstreamError("small", "blocked the content", Failure.REFUSED): (
        "The upstream of model 'small' blocked the content. Change the request, or name another "
        "model."
    ),
    UpstreamError("small", "has no credit left", Failure.QUOTA): (
        "The upstream of model 'small' has no credit left. Name another model, or ask the operator "
        "to add credit."
    ),
    UpstreamError("small", "gave neither text nor a call", Failure.UNUSABLE): (
        "The upstream of model 'small' gave neither text nor a call. Try again, or name another "
        "model."
    ),
    UpstreamError("small", "refused the request as too long", Failure.TOO_LONG): (
        "The upstream of model 'small' refused the request as too long. Shorten the request, or "
        "name a model with a larger context window."
    ),
    UpstreamError("small", "has a shorter context window", Failure.UNFIT): (
        "The upstream of model 'small' has a shorter context window. Change the request, or name "
        "another model."
    ),
    errors.UpstreamRefusedError("small", 500, headers=(), body=b""): (
        "The upstream of model 'small' answered with status 500. Try again, or name another model."
    ),
    errors.DeadlineError("small"): (
        "The upstream of model 'small' did not answer within the time that the request allows. "
        "Allow more seconds with the header x-request-timeout."
    ),
}


@pytest.mark.parametrize("error", MESSAGES, ids=lambda error: type(error).__name__)
def test_messages_say_what_where_and_what_to_do(error: SwitchcraftError) -> None:
    """Typical facts are rendered as exactly this text."""
    assert str(error) == MESSAGES[error]


def test_every_kind_of_upstream_failure_has_a_message_in_the_table() -> None:
    """Each kind has its own remedy."""
    shown = {error.failure for error in MESSAGES if isinstance(error, UpstreamError)}
    assert shown == set(Failure)
