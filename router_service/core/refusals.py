"""Why the gateway refuses a client's request: one row for each reason, with status and remedy."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from router_service.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason: what the client gets, and what it can do."""

    status: int
    code: str | None
    """OpenAI's code, or our own if OpenAI has none."""
    message: str
    """The message, with the names of the facts in braces."""
    param: str | None = None
    """The field that is at fault, if it is always the same."""
    retry_after_s: float | None = None
    """When the request may be sent again, if the gateway is at fault and not the request."""

    def error(self, *, param: str | None = None, **facts: object) -> InvalidRequestError:
        """Return the error for these facts; `param` is the field that is at fault."""
        error = InvalidRequestError(
            self.message.format(**facts),
            param=param or self.param,
            code=self.code,
            status=self.status,
        )
        if self.retry_after_s is not None:
            error.kind, error.retry_after_s = "server_error", self.retry_after_s
        return error


# The body.
BODY_TOO_LARGE = Refusal(
    413,
    "request_too_large",
    "The request body is larger than the limit of {limit_bytes} bytes. Send a smaller request. If "
    "the limit is server.max_body_bytes, the operator can raise it.",
)
BODY_ENCODED = Refusal(
    415,
    "unsupported_content_encoding",
    "The request body has the content encoding {encoding!r}, which is not supported. Send it "
    "uncompressed and without a content-encoding header.",
)
BODY_LATE = Refusal(
    408,
    "request_timeout",
    "The request body did not arrive within {limit_s:g} s. Send it again over a faster connection, "
    "or ask the operator to raise server.body_timeout_s.",
)

# The key, and what it may use.
_SEND_A_KEY = "Send a key from the gateway's operator as 'Authorization: Bearer KEY'."
KEY_MISSING = Refusal(401, "missing_api_key", f"The request has no API key. {_SEND_A_KEY}")
KEY_INVALID = Refusal(401, "invalid_api_key", f"The API key is not valid here. {_SEND_A_KEY}")
KEYS_UNAVAILABLE = Refusal(
    503,
    "database_unavailable",
    "The API key cannot be checked, because the gateway's database of keys cannot be read yet. Try "
    "again later.",
    retry_after_s=1.0,
)
MODEL_NOT_ALLOWED = Refusal(
    403,
    "model_not_allowed",
    "This API key may not use {model!r}. {may_use}. Name another model, or ask the operator to "
    "allow it.",
    "model",
)
POLICY_NOT_ALLOWED = Refusal(
    403,
    "policy_not_allowed",
    "This API key may not use the policy {policy!r}. {may_use}. Name another policy, or ask the "
    "operator to allow it.",
)

# The model.
MODEL_NOT_FOUND = Refusal(
    404,
    "model_not_found",
    "The model {model!r} does not exist here. Use one of these: {known}.",
    "model",
)
MODEL_UNPRICED = Refusal(
    400,
    "model_not_found",
    "The model {model!r} matches {pattern!r}, but its price is unknown. Name another model, or ask "
    "the operator to list it in model_list with its price, or to set router.unknown_prices: allow.",
    "model",
)
NOTHING_TO_ROUTE = Refusal(
    404,
    "no_routed_model",
    "The model {model!r} chooses among the models that this gateway's router has measured, and "
    "none of the configured models is one of them. Name a model instead: {known}. `switchcraft "
    "check` tells the operator how a model joins.",
    "model",
)

# Changes of the gateway.
RELOAD_REFUSED = Refusal(409, "reload_refused", "Nothing was changed: {reason}")

# Usage, and the list of requests.
USAGE_NOT_RECORDED = Refusal(
    404,
    "usage_disabled",
    "Usage is not recorded. Ask the operator to set usage.enabled: true.",
)
REQUESTS_NOT_LISTED = Refusal(
    404,
    "usage_disabled",
    "Requests are not listed. Ask the operator to set usage.recent_requests to a positive number.",
)

# Stored objects.
RECORD_NOT_FOUND = Refusal(
    404,
    "not_found",
    "The {kind} {identifier!r} was not found. Check the id: it may be wrong, or the record may "
    "have expired.",
)
OBJECT_NOT_FOUND = Refusal(
    404,
    "object_not_found",
    "The object {identifier!r} was not found for your API key. A key can only use objects that it "
    "has created through this gateway and that have not expired. Create it again, or ask the "
    "operator to set router.pass_through_shared.",
)
RESPONSE_ELSEWHERE = Refusal(
    409,
    "response_held_elsewhere",
    "The model {model!r} cannot continue {identifier!r}, because only an upstream of the model "
    "{holder!r} stores it. Name that model, or send the whole conversation as 'input'.",
    "model",
)


def may_use(allowed: Collection[str]) -> str:
    """Return a sentence about the models or policies that a key may use."""
    return f"It may use these: {', '.join(allowed)}" if allowed else "It may use none"


def model_not_found(model: str, known: Collection[str]) -> InvalidRequestError:
    """Return the error of a request for a model that is not configured."""
    return MODEL_NOT_FOUND.error(model=model, known=", ".join(known))


def model_not_allowed(model: str, allowed: Collection[str]) -> InvalidRequestError:
    """Return the error of a request for a model that its API key may not use."""
    return MODEL_NOT_ALLOWED.error(model=model, may_use=may_use(allowed))


def account_not_found(kind: str, name: str) -> InvalidRequestError:
    """Return the error of a key or a team that does not exist; `kind` is `key` or `team`."""
    return InvalidRequestError(
        f"There is no {kind} with the name {name[:200]!r} in the database. List the names with "
        f"GET /admin/{kind}s or `switchcraft {kind}s list`.",
        param="name",
        code=f"{kind}_not_found",
        status=404,
    )


def response_not_found(identifier: str, *, param: str | None = None) -> InvalidRequestError:
    """Return the error of a stored response or conversation that a key does not have.

    `param` is the field with the id, or None if the id is in the path.
    """
    kind = (param or "response").removesuffix("_id")
    return InvalidRequestError(
        f"The {kind.replace('_', ' ')} {identifier!r} was not found. This gateway has not relayed "
        "it for your API key, or it has expired. Send the whole conversation as 'input' instead.",
        param=param,
        code=f"{kind}_not_found",
        status=404,
    )


def no_capable_model(
    lacks: Mapping[str, Collection[str]], excess_tokens: int | None = None
) -> InvalidRequestError:
    """Return the error of a request that no model can serve.

    `lacks` has, by model, the requirements that the model does not meet. `excess_tokens` is by how
    many tokens, at the least, the input has to be shortened so that a model can serve it; None if
    no shorter input could be served.
    """
    details = "; ".join(
        f"{model!r} does not support {', '.join(words)}" for model, words in lacks.items()
    )
    remedy, code = "Remove what is not supported", "unsupported_feature"
    if excess_tokens is not None:
        remedy = f"Shorten the input by about {excess_tokens} tokens"
        code = "context_length_exceeded"
    return InvalidRequestError(
        f"No available model can serve this request: {details}. {remedy}, or name another model.",
        code=code,
    )


def not_served(
    method: str, path: str, served: Mapping[str, Collection[str]]
) -> InvalidRequestError:
    """Return the error of a path that the gateway neither serves nor passes through.

    `served` has the paths that it serves, with their methods.
    """
    allowed = sorted(served.get(path, ()))
    segments = path.split("/")
    nearest = difflib.get_close_matches(path, served, n=1, cutoff=0.9)
    if segments[:3] == ["", "v1", "v1"]:
        problem = (
            f"The path {path} has /v1 twice. The client adds it too: remove /v1 from its base "
            "URL, or remove it from the path."
        )
    elif allowed:
        problem = f"{path} does not support {method}. Use {' or '.join(allowed)}."
    elif len(segments) > 2 and segments[2] in _OTHER_APIS:
        problem = (
            f"The {_OTHER_APIS[segments[2]]} API is not served by this gateway. To pass its "
            "requests through to an upstream, set router.pass_through to one of the configured "
            "models."
        )
    elif nearest:
        problem = f"There is no endpoint {path}. Did you mean {nearest[0]}?"
    else:
        problem = (
            f"There is no endpoint {path}. The endpoints are in /openapi.json. To pass other "
            "requests through to an upstream, set router.pass_through."
        )
    if not allowed:
        return InvalidRequestError(problem, code="not_served", status=404)
    return InvalidRequestError(
        problem, code="method_not_allowed", status=405, allow=", ".join(allowed)
    )


_OTHER_APIS = {
    "assistants": "Assistants",
    "audio": "Audio",
    "batches": "Batch",
    "containers": "Containers",
    "conversations": "Conversations",
    "evals": "Evals",
    "files": "Files",
    "fine_tuning": "Fine-tuning",
    "images": "Images",
    "moderations": "Moderations",
    "realtime": "Realtime",
    "threads": "Assistants",
    "uploads": "Uploads",
    "vector_stores": "Vector stores",
    "videos": "Videos",
}
"""OpenAI's APIs by the first segment of their paths."""
