"""The error classes of the service, and the root of those of training.

Each error has its facts as attributes. Only `http.error_responses` turns errors into responses.
`core.refusals` has the reasons to refuse a request that are the same wherever they are found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from router_service.core.keys import without_keys


class SwitchcraftError(Exception):
    """Base class of all errors that this project raises on purpose.

    The attributes say what a client gets. An error without a code is an internal one, whose message
    only operators read.
    """

    status: int = 500
    """The HTTP status."""
    code: str | None = None
    """OpenAI's machine-readable code, or our own if OpenAI has none."""
    kind: str = "server_error"
    """OpenAI's type of the error."""
    retry_after_s: float | None = None
    """When the request may be sent again."""


class InvalidRequestError(SwitchcraftError):
    """A client's request that cannot be served.

    `param` is the path of the offending field in OpenAI's notation (`tools[0].function.name`).
    `allow` has the methods of a path that does not support the request's.
    """

    kind = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.allow = allow

    def body(self) -> dict[str, str | None]:
        """Return the error in OpenAI's format (OpenAI's API reference: "Error codes")."""
        return {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }


class OverloadedError(SwitchcraftError):
    """A request that exceeds the gateway's capacity.

    `reason` is a label of metrics. `is_callers` is true if the caller's own limit is reached, and
    false if the gateway's is.
    """

    retry_after_s = 1.0

    def __init__(self, reason: str, problem: str, *, is_callers: bool = False) -> None:
        super().__init__(f"{problem} Try again in 1 s.")
        self.reason = self.code = reason
        self.status, self.kind = (429, "requests") if is_callers else (503, "server_error")


class AdmissionError(SwitchcraftError):
    """A request that its key's limits or budgets do not admit."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "insufficient_quota",
        kind: str = "insufficient_quota",
        status: int = 429,
        retry_after_s: float | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Take the HTTP status, OpenAI's code and type, and the time after which to retry.

        `headers` are further headers of the response, such as those about rate limits.
        """
        super().__init__(message)
        self.code = code
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.headers = tuple(headers)
        self.should_retry = code != "insufficient_quota"
        """Whether clients should repeat the request by themselves; no repetition fills a budget."""


class PolicyError(InvalidRequestError):
    """A routing policy that cannot be parsed, or that the artifact does not define."""

    def __init__(self, policy: str, problem: str, *, param: str = "model") -> None:
        super().__init__(
            f"The policy {policy[:80]!r} cannot be used: {problem[:400]}"
            f"{'' if problem.endswith('?') else '.'}",
            param=param,
            code="invalid_policy",
        )
        self.policy = policy
        self.problem = problem


class ArtifactError(SwitchcraftError):
    """An artifact, or the publication of one, that is missing, damaged or cannot be changed."""

    def __init__(self, source: Path | str, problem: str) -> None:
        """Create the message; `source` is the file or folder, or what else is wrong."""
        super().__init__(f"{source}: {problem}")
        self.source = source
        self.problem = problem


class DatabaseError(SwitchcraftError):
    """A database that cannot be used. `place` must contain no password."""

    status, code, retry_after_s = 503, "database_unavailable", 1.0

    def __init__(self, operation: str, place: str, problem: str) -> None:
        super().__init__(f"cannot {operation} the database {place}: {problem}")
        self.operation = operation
        self.place = place
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration."""

    where: str
    """The setting's dotted path; empty if the mistake is not in one setting."""
    problem: str
    """What is wrong, and what to do."""
    line: int | None = None
    """The setting's line in the file, from 1, if it is known."""

    def without_keys(self) -> ConfigProblem:
        """Return the problem without anything that may be a key.

        A person may have written a key where a name belongs.
        """
        return replace(self, where=without_keys(self.where), problem=without_keys(self.problem))


class ConfigError(SwitchcraftError):
    """A configuration that cannot be used: one problem in `source`, or all that were found."""

    def __init__(
        self,
        source: str,
        where: str = "",
        problem: str = "",
        *,
        problems: Sequence[ConfigProblem] = (),
    ) -> None:
        """Take the dotted path of one setting and its problem, or several problems."""
        problems = tuple(each.without_keys() for each in problems) or (
            ConfigProblem(where, problem).without_keys(),
        )
        lines = [
            ": ".join(
                filter(None, (f"{source}:{p.line}" if p.line else source, p.where, p.problem))
            )
            for p in problems
        ]
        head = [] if len(lines) == 1 else [f"{len(lines)} problems:"]
        super().__init__("\n  ".join([*head, *lines]))
        self.source = source
        self.problems = problems
        self.where = problems[0].where
        self.problem = problems[0].problem


class ConfigErrors:
    """Collector of ConfigErrors, so that people see all mistakes at once."""

    def __init__(self) -> None:
        self._errors: list[ConfigError] = []

    def __bool__(self) -> bool:
        """Return whether any error was collected."""
        return bool(self._errors)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect a ConfigError that the block raises, and go on after the block."""
        try:
            yield
        except ConfigError as exc:
            self._errors.append(exc)

    def raise_any(self) -> None:
        """Raise one error with all problems, if there are any."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            problems = [problem for error in self._errors for problem in error.problems]
            raise ConfigError(self._errors[0].source, problems=problems)


def missing_extra(extra: str) -> str:
    """Return what is wrong if an extra of this package is not installed, and what to do."""
    remedy = f"run pip install 'switchcraft-router[{extra}]'"
    return f"needs packages that are not installed; {remedy}"


class CredentialsError(SwitchcraftError):
    """Credentials of the gateway at a platform that cannot be fetched; for operators only."""

    def __init__(self, platform: str, problem: str, remedy: str) -> None:
        self.reason = f"{problem.rstrip('.')}. {remedy}"
        super().__init__(f"No credentials for {platform}: {self.reason}.")


class Failure(StrEnum):
    """Kind of an upstream's failure."""

    UNREACHABLE = "unreachable"
    """The upstream did not get the request."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """The connection broke during the request or its answer."""
    STATUS = "status"
    """The upstream answered with an error status that the client did not cause."""
    ERROR_BODY = "error_body"
    """The upstream answered with a success status, but with an error in the body."""
    MALFORMED = "malformed"
    """The upstream's answer cannot be read."""
    QUOTA = "quota"
    """The operator's account at the upstream has no credit left, so a retry there is in vain."""
    REFUSED = "refused"
    """The upstream refused this request, perhaps because of the client. Another may accept it."""
    UNFIT = "unfit"
    """The model cannot serve this request, but another model may."""
    TOO_LONG = "too_long"
    """The request is longer than the model's context window; a model with a larger one may serve
    it."""
    UNUSABLE = "unusable"
    """The model's answer is complete, but no client can use it; another model may answer better."""
    BUSY = "busy"
    """The upstream was not tried, because all of its connections are in use."""
    COOLING_DOWN = "cooling_down"
    """The upstream was not tried: its circuit is open after failures or a request to wait."""


_RETRY = "Try again, or name another model."
_CHANGE = "Change the request, or name another model."
_REMEDIES = {
    Failure.TIMEOUT: f"{_RETRY} The operator can raise upstreams.timeouts.",
    Failure.BUSY: "Try again later, or ask the operator to raise upstreams.max_connections.",
    Failure.COOLING_DOWN: "Try again later, or name another model.",
    Failure.QUOTA: "Name another model, or ask the operator to add credit.",
    Failure.REFUSED: _CHANGE,
    Failure.UNFIT: _CHANGE,
    Failure.TOO_LONG: "Shorten the request, or name a model with a larger context window.",
}
_PERHAPS_OF_CLIENTS = frozenset(
    {Failure.REFUSED, Failure.UNFIT, Failure.TOO_LONG, Failure.UNUSABLE}
)


class UpstreamError(SwitchcraftError):
    """A failure of an upstream to give a usable answer."""

    code, kind = "upstream_unavailable", "upstream_error"
    error_status: int | None = None
    """The status by which the upstream gave no answer; None without one, or for a success."""

    def __init__(
        self,
        model: str,
        problem: str,
        failure: Failure = Failure.BROKEN,
        *,
        remedy: str | None = None,
        retry_after_s: float | None = None,
        may_be_client_fault: bool = False,
    ) -> None:
        """Create the message; `problem` is a verb phrase after "The upstream of model X".

        `may_be_client_fault` says that the client may have caused the failure, which some kinds of
        failures imply: what an answer contains depends on the request, and its limit on length may
        have cut it off. No upstream is blamed for it.
        """
        remedy = remedy or _REMEDIES.get(failure, _RETRY)
        super().__init__(f"The upstream of model {model!r} {problem}. {remedy}")
        self.model = model
        self.problem = problem
        self.failure = failure
        if failure is Failure.TIMEOUT:
            self.code = "upstream_timeout"
        self.retry_after_s = retry_after_s
        """How long the upstream asks to wait before a retry, if it says so."""
        self.may_be_client_fault = may_be_client_fault or failure in _PERHAPS_OF_CLIENTS

    @property
    def cause(self) -> str:
        """The problem, with its reason if one is known; for operators only."""
        exc = self.__cause__
        while exc is not None and not isinstance(exc, OSError | CredentialsError):
            exc = exc.__cause__
        reason = exc.reason if isinstance(exc, CredentialsError) else ""
        if isinstance(exc, OSError):
            reason = str(exc.strerror or exc)
        return f"{self.problem}: {reason}" if reason else self.problem


class UpstreamRefusedError(UpstreamError):
    """An error response of an upstream, which can be passed on to the client."""

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
        self.status = self.error_status = status
        self.headers = tuple(headers)
        self.body = body


class DeadlineError(UpstreamError):
    """A request that exceeded the time limit that its client set."""

    def __init__(self, model: str) -> None:
        problem = "did not answer within the time that the request allows"
        remedy = "Allow more seconds with the header x-request-timeout."
        super().__init__(model, problem, Failure.TIMEOUT, remedy=remedy, may_be_client_fault=True)
        self.code = "deadline_exceeded"


class StoreError(SwitchcraftError):
    """Shared state that is unreachable. Requests are served without it."""

    status, code = 503, "store_unavailable"

    def __init__(self, operation: str, problem: str) -> None:
        """Create the message; `operation` is a verb phrase after "The store could not"."""
        super().__init__(f"The store could not {operation}: {problem}. Try again later.")
        self.operation = operation
        self.problem = problem


class SchemaError(SwitchcraftError):
    """A tool's schema that cannot be interpreted, so that calls cannot be checked against it."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"The tool's schema cannot be interpreted: {problem}. Correct the tool's 'parameters'."
        )
        self.problem = problem
