"""The message of every error class: what was wrong, where, and what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.apis.answer_errors import ForeignAnswerError
from router_service.apis.encoding import UnwritableError
from router_service.core import errors, refusals
from router_service.core.errors import Failure, SwitchcraftError, UpstreamError
from tests import apis

ROOT = Path(__file__).parents[3]
PACKAGES = (ROOT / "router_service", ROOT / "training" / "switchcraft_training")

MESSAGES: dict[SwitchcraftError, str] = {
    errors.InvalidRequestError("Give 'tools' as a list.", param="tools"): (
        "Give 'tools' as a list."
    ),
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
    errors.KeysUnavailableError(): (
        "The API key cannot be checked, because the gateway's database of keys cannot be read yet. "
        "Try again later."
    ),
    errors.UnknownAccountError("team", "search"): (
        "There is no team with the name 'search' in the database. List the names with GET "
        "/admin/teams or `switchcraft teams list`."
    ),
    errors.AdmissionError("The budget of this key is spent. It begins anew on 1 December."): (
        "The budget of this key is spent. It begins anew on 1 December."
    ),
    errors.OverloadedError("overloaded", "Too many requests are in flight."): (
        "Too many requests are in flight. Try again in 1 s."
    ),
    refusals.NOTHING_TO_ROUTE.error(model="switchcraft", known="small, large"): (
        "The model 'switchcraft' chooses among the models that this gateway's router has measured, "
        "and none of the configured models is one of them. Name a model instead: small, large. "
        "`switchcraft check` tells the operator how a model joins."
    ),
    errors.MissingExtraError("gateway.yaml", "server.redis_url", "redis"): (
        "gateway.yaml: server.redis_url: needs packages that are not installed; run pip install "
        "'switchcraft-router[redis]'"
    ),
    errors.FetchError("https://example.com/data.git", "does not answer; try again later"): (
        "https://example.com/data.git does not answer; try again later"
    ),
    refusals.model_not_found("gpt-9", ("switchcraft", "small")): (
        "The model 'gpt-9' does not exist here. Use one of these: switchcraft, small."
    ),
    errors.UnpricedModelError("openai/gpt-9", "openai/*"): (
        "The model 'openai/gpt-9' matches 'openai/*', but its price is unknown. Name another model,"
        " or ask the operator to list it in model_list with its price, or to set "
        "router.unknown_prices: allow."
    ),
    errors.CredentialsError("Amazon Bedrock", "Unable to locate credentials.", "Set a profile"): (
        "No credentials for Amazon Bedrock: Unable to locate credentials. Set a profile."
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
    errors.DatabaseError("read", "postgresql://db/switchcraft", "the server is shutting down"): (
        "cannot read the database postgresql://db/switchcraft: the server is shutting down"
    ),
    errors.UsageDisabledError(): (
        "Usage is not recorded. Ask the operator to set usage.enabled: true."
    ),
    errors.ArtifactError(Path("a/manifest.json"), "cannot be read: no such file"): (
        "a/manifest.json: cannot be read: no such file"
    ),
    errors.PublicationError("releases/current.json", "is not a publication; publish again"): (
        "releases/current.json: is not a publication; publish again"
    ),
    errors.ReloadRefusedError("config.yaml: server.port: must be a number"): (
        "Nothing was changed: config.yaml: server.port: must be a number"
    ),
    errors.ConfigError("config.yaml", "server.port", "must be a number"): (
        "config.yaml: server.port: must be a number"
    ),
    errors.ConfigError("config.yaml", "", "must be a mapping"): "config.yaml: must be a mapping",
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
    errors.StoreError("keep a decision", "Redis is unreachable (ConnectionError)"): (
        "The store could not keep a decision: Redis is unreachable (ConnectionError). Try again "
        "later."
    ),
    errors.DataError(Path("rows.jsonl"), 7, "is not JSON"): "rows.jsonl:7: is not JSON",
    errors.DataError(Path("rows.jsonl"), None, "has no rows"): "rows.jsonl: has no rows",
    errors.UnbalancedFoldsError((70, 10, 10), 60, "I have updated some more functions"): (
        "The 90 measured queries cannot be divided into 3 folds of nearly equal size: the folds "
        "would have 70, 10, 10 queries. The largest group of near-duplicates or of turns of one "
        "conversation, which must stay in one fold, has 60 queries (67%), for example 'I have "
        "updated some more functions'. Remove most of these queries, add other queries, or lower "
        "evaluation.folds."
    ),
    errors.StorageError("No space left on device", {Path("runs"): 2_000_000}): (
        "a file cannot be opened or written: No space left on device. Free space of the folders "
        "that this command writes to: runs (2 MB). Free some space or give other folders, and run "
        "the same command again. It reuses what is already there."
    ),
    errors.RowError(
        Path("xlam.json"),
        7,
        "row 7 of the array: ValueError: the expected answer calls 'f', which is not offered",
        reason="the expected answer calls …, which is not offered",
    ): (
        "xlam.json:7: row 7 of the array: ValueError: the expected answer calls 'f', which is not "
        "offered"
    ),
    ForeignAnswerError(apis.CHAT.name, "has no choices"): (
        "An answer of the chat API has no choices."
    ),
    UnwritableError(TypeError("Recursion limit reached")): (
        "The value cannot be written as JSON: Recursion limit reached."
    ),
    errors.SchemaError("$ref '#/x' points at nothing"): (
        "The tool's schema cannot be interpreted: $ref '#/x' points at nothing. Correct the tool's "
        "'parameters'."
    ),
}


@pytest.mark.parametrize("error", MESSAGES, ids=lambda error: type(error).__name__)
def test_messages_say_what_where_and_what_to_do(error: SwitchcraftError) -> None:
    """Each class renders typical facts as exactly this text."""
    assert str(error) == MESSAGES[error]


def error_classes() -> Iterator[str]:
    """Yield the names of all error classes in the source files of both packages."""
    bases = {
        node.name: {
            base.attr if isinstance(base, ast.Attribute) else ast.unparse(base)
            for base in node.bases
        }
        for package in PACKAGES
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    found = {"SwitchcraftError"}
    while new := {name for name, above in bases.items() if above & found} - found:
        yield from new
        found |= new


def test_every_error_class_has_a_message_in_the_table() -> None:
    """A new error class must be added to the table, so that its wording is reviewed."""
    assert set(error_classes()) == {type(error).__name__ for error in MESSAGES}


def test_every_kind_of_upstream_failure_has_a_message_in_the_table() -> None:
    """Each kind has its own remedy."""
    shown = {error.failure for error in MESSAGES if isinstance(error, UpstreamError)}
    assert shown == set(Failure)
