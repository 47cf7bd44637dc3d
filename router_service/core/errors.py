"""The one error tree of the service and of training.

Each class carries its facts as attributes; `api.errors` alone turns them into HTTP answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path


class SwitchcraftError(Exception):
    """Base of every error that this project raises on purpose."""


class InvalidRequestError(SwitchcraftError):
    """A client's request that cannot be served as it is.

    `param` is the path of the offending field as OpenAI writes it (`tools[0].function.name`),
    `code` is OpenAI's machine-readable code, or ours where they have none.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, str | None]:
        """Return the error as OpenAI writes it (API reference: "Error codes")."""
        return {
            "message": self.message,
            "type": "invalid_request_error",
            "param": self.param,
            "code": self.code,
        }


class BodyTooLargeError(InvalidRequestError):
    """A request body over the configured limit, in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than the limit of {limit_bytes} bytes. Send a smaller "
            "request. If the limit is server.max_body_bytes, the operator can raise it.",
            code="request_too_large",
        )
        self.limit_bytes = limit_bytes


class UnsupportedEncodingError(InvalidRequestError):
    """A compressed request body."""

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"Request bodies in the encoding {encoding!r} are not read here. Send it as it is, "
            "without a content-encoding header.",
            code="unsupported_content_encoding",
        )
        self.encoding = encoding


class BodyTimeoutError(InvalidRequestError):
    """A request body that came too slowly; `limit_s` is the bound that it missed."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"The request body did not arrive within {limit_s:g} s. Send it again, faster, or ask "
            "the operator to raise server.body_timeout_s.",
            code="request_timeout",
        )
        self.limit_s = limit_s


class UnauthorizedError(InvalidRequestError):
    """A request without a key that is known here; the key itself is never kept."""

    def __init__(self, *, is_missing: bool, asks_browser: bool = False) -> None:
        """Say what is missing or wrong; `asks_browser` where a person may be asked for it."""
        problem = "No API key was sent" if is_missing else "The API key is not one of this gateway"
        super().__init__(
            f"{problem}. Send one that its operator gave you, as 'Authorization: Bearer KEY'.",
            code="missing_api_key" if is_missing else "invalid_api_key",
        )
        self.is_missing = is_missing
        self.asks_browser = asks_browser


class ForbiddenError(InvalidRequestError):
    """A request that is not allowed, whoever makes it or with this key."""


class OverloadedError(SwitchcraftError):
    """A request beyond what the gateway does at a time; `retry_after_s` says when to come again.

    `reason` is one word for metrics; `is_callers` where it is the caller's own share that is used.
    """

    def __init__(
        self, reason: str, problem: str, *, retry_after_s: int = 1, is_callers: bool = False
    ) -> None:
        super().__init__(f"{problem} Try again after {retry_after_s} s.")
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.is_callers = is_callers


class ModelNotFoundError(InvalidRequestError):
    """A request for a model that the configuration does not name."""

    def __init__(self, model: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"The model {model!r} does not exist here. Known models: {', '.join(known)}.",
            param="model",
            code="model_not_found",
        )
        self.model = model
        self.known = known


class NoCapableModelError(InvalidRequestError):
    """A request that none of the models can serve; `lacks` says by model what is missing.

    `is_too_long`: a shorter input would be served.
    """

    def __init__(self, lacks: Mapping[str, tuple[str, ...]], *, is_too_long: bool) -> None:
        told = "; ".join(f"{model!r} lacks {', '.join(words)}" for model, words in lacks.items())
        cure = "Shorten the input" if is_too_long else "Leave out what is not supported"
        super().__init__(
            f"No model here can serve this request: {told}. {cure}, or name another model.",
            code="context_length_exceeded" if is_too_long else "unsupported_feature",
        )
        self.lacks = lacks
        self.is_too_long = is_too_long


class ResponseNotFoundError(InvalidRequestError):
    """A stored response or conversation that is not known here, or is another key's."""

    def __init__(self, identifier: str, *, param: str | None = None) -> None:
        """`param` is the field that names it, and None where it is in the path."""
        what = (param or "response").removesuffix("_id")
        super().__init__(
            f"The {what.replace('_', ' ')} {identifier!r} was not found: this gateway has not "
            "relayed it for this key, or too long ago. Send the whole conversation as 'input'.",
            param=param,
            code=f"{what}_not_found",
        )
        self.identifier = identifier


class ObjectNotFoundError(InvalidRequestError):
    """A stored object, such as a file, that is not known to be of the key that names it."""

    def __init__(self, identifier: str, *, param: str | None = None) -> None:
        """`param` is the field that names it, and None if it is in the path."""
        super().__init__(
            f"No object {identifier[:200]!r} of this key was found. A key can use what it has "
            "created through this gateway, until that is forgotten. Create it again, or ask the "
            "operator to set router.pass_through_shared.",
            param=param,
            code="object_not_found",
        )
        self.identifier = identifier


class ResponseElsewhereError(InvalidRequestError):
    """A request that names a model, and goes on from a response that its upstreams do not hold."""

    def __init__(self, identifier: str, model: str, holder: str) -> None:
        super().__init__(
            f"The model {model!r} cannot go on from {identifier!r}, which is held by an upstream "
            f"of the model {holder!r}. Name that model, or send the whole conversation as 'input'.",
            param="model",
            code="response_held_elsewhere",
        )
        self.identifier = identifier
        self.model = model
        self.holder = holder


class NotServedError(InvalidRequestError):
    """A path of the API that the gateway neither serves itself nor passes on."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(
            f"{method} {path} is not served here. To have an upstream answer it, set "
            "router.pass_through to one of the models in the configuration.",
            code="not_served",
        )
        self.method = method
        self.path = path


class PolicyError(InvalidRequestError):
    """A routing policy that does not parse, or that the artifact does not define."""

    def __init__(self, policy: str, problem: str, *, param: str = "model") -> None:
        super().__init__(
            f"The policy {policy[:80]!r} is not usable: {problem[:400]}.",
            param=param,
            code="invalid_policy",
        )
        self.policy = policy
        self.problem = problem


class NotFoundError(SwitchcraftError):
    """Something asked for by its identifier is not here (any more)."""

    def __init__(self, kind: str, identifier: str) -> None:
        super().__init__(f"No {kind} {identifier!r} is known here; it may have expired.")
        self.kind = kind
        self.identifier = identifier


class ArtifactError(SwitchcraftError):
    """An artifact that is missing, damaged or of another schema version."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class PublicationError(SwitchcraftError):
    """A publication that cannot be read, changed or taken up; `source` names no password."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.source = source
        self.problem = problem


class ReloadRefusedError(SwitchcraftError):
    """A reload that changed nothing; `reason` says what was wrong with the new state."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Nothing was changed: {reason}")
        self.reason = reason


class ConfigError(SwitchcraftError):
    """A configuration that cannot be used; `where` is the dotted path inside the file."""

    def __init__(self, source: str, where: str, problem: str) -> None:
        super().__init__(f"{source}: {where}: {problem}" if where else f"{source}: {problem}")
        self.source = source
        self.where = where
        self.problem = problem


class Failure(StrEnum):
    """How an upstream failed."""

    UNREACHABLE = "unreachable"
    """It never got the request."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """The connection broke under the request or its answer."""
    STATUS = "status"
    """It answered with an error status that is not the client's fault."""
    ERROR_BODY = "error_body"
    """It answered well by its status, and with an error inside."""
    MALFORMED = "malformed"
    """It answered what cannot be read."""
    REFUSED = "refused"
    """It refused this request for a reason that may be the client's, and another may take it."""
    UNFIT = "unfit"
    """The model cannot take this request, and another may."""
    BUSY = "busy"
    """It was not asked: all connections that may be open to it are in use."""
    COOLING_DOWN = "cooling_down"
    """It was not asked: it has failed too often just now, or said when to come back."""


class UpstreamError(SwitchcraftError):
    """An upstream that gave no usable answer."""

    def __init__(
        self,
        model: str,
        problem: str,
        failure: Failure = Failure.BROKEN,
        *,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"The upstream of model {model!r} {problem}.")
        self.model = model
        self.problem = problem
        self.failure = failure
        self.retry_after_s = retry_after_s
        """When it wants to be asked again; None where it does not say."""

    @property
    def timed_out(self) -> bool:
        """Whether it said nothing in time."""
        return self.failure is Failure.TIMEOUT

    @property
    def may_be_clients(self) -> bool:
        """Whether the client may have caused it, so that it tells nothing about the upstream."""
        return self.failure in {Failure.REFUSED, Failure.UNFIT}


class UpstreamRefusedError(UpstreamError):
    """An upstream's own answer with an error status, whole, so that a client can be given it."""

    def __init__(
        self,
        model: str,
        status: int,
        *,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        failure: Failure = Failure.STATUS,
        retry_after_s: float | None = None,
    ) -> None:
        problem = f"answered with status {status}"
        super().__init__(model, problem, failure, retry_after_s=retry_after_s)
        self.status = status
        self.headers = tuple(headers)
        self.body = body


class DeadlineError(UpstreamError):
    """The time that the client gave its request is over."""

    def __init__(self, model: str) -> None:
        problem = "did not answer within the request's own time; ask for more by x-request-timeout"
        super().__init__(model, problem, Failure.TIMEOUT)

    @property
    def may_be_clients(self) -> bool:
        """It is: the client chose the time."""
        return True


class OverlongError(UpstreamError):
    """An answer that was still coming when the time for the whole of it was over.

    The client may have asked for so much, or have read it so slowly.
    """

    def __init__(self, model: str) -> None:
        super().__init__(model, "did not end its answer in time", Failure.TIMEOUT)

    @property
    def may_be_clients(self) -> bool:
        """It may."""
        return True


class StoreError(SwitchcraftError):
    """Shared state that cannot be reached; requests go on without it."""

    def __init__(self, operation: str, problem: str) -> None:
        super().__init__(f"The store could not {operation}: {problem}.")
        self.operation = operation
        self.problem = problem


class DataError(SwitchcraftError):
    """A row of training data that does not parse: its file, its line, and the reason."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class SchemaError(SwitchcraftError):
    """A tool's schema that cannot be interpreted, so that no answer can be judged by it."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"The tool's schema cannot be interpreted: {problem}.")
        self.problem = problem
