"""The interface of a platform: how its requests are addressed and authenticated, and answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from router_service.apis.conversation import Json
from router_service.core.errors import Failure, InvalidRequestError, UpstreamError
from router_service.settings import Deployment
from router_service.upstream.bodies import find_field, with_fields, without_field
from router_service.upstream.connection import HttpRequest, HttpResponse, RawHeaders
from router_service.upstream.platforms.credentials import CredentialSource
from router_service.upstream.redaction import Secrets

OF_THE_ACCOUNT = frozenset({401, 403})
"""Statuses that say that the gateway's account may not do this. No client can cause them here: on
these platforms, moderated content has other statuses."""


class PlatformClient(ABC):
    """How requests of one account of a platform are sent; shared by all of its deployments."""

    title: ClassVar[str]
    """Name in messages, such as `Amazon Bedrock`."""
    credentials: CredentialSource[Any] | None
    """What authenticates requests; None if the deployment's key does."""

    @abstractmethod
    def prepare(self, deployment: Deployment, request: HttpRequest) -> None:
        """Give a request its final address, headers and body.

        There are valid credentials if they are needed. Raises UpstreamError if the platform does
        not have the endpoint.
        """

    def read(self, response: HttpResponse, request: HttpRequest) -> HttpResponse:
        """Return the response to a request in the form that the rest of the gateway reads."""
        if response.status in OF_THE_ACCOUNT:
            self.note_refusal()
            return AdaptedResponse(401, response.headers, response)
        return response

    @property
    def secrets(self) -> Secrets | None:
        """The secrets that are removed from answers, besides the deployment's key."""
        return None if self.credentials is None else self.credentials.secrets

    def note_refusal(self) -> None:
        """Renew credentials that the platform has refused; they may have been revoked."""
        if self.credentials is not None:
            self.credentials.refuse()

    def lacks(self, request: HttpRequest) -> UpstreamError:
        """Return the error for an endpoint that the platform does not have."""
        problem = f"was not asked, because {self.title} does not have the endpoint {request.path}"
        return UpstreamError(request.model, problem, Failure.UNFIT)


@dataclass(slots=True)
class AdaptedResponse:
    """A response with another status or other headers."""

    status: int
    headers: RawHeaders
    response: HttpResponse

    async def read(self) -> bytes:
        """Return the next part of the body."""
        return await self.response.read()


def messages_body(
    request: HttpRequest, version: str, *, keeps_stream: bool, betas: Sequence[str] = ()
) -> tuple[bytes, bool]:
    """Return a Messages request as a platform takes it, and whether its answer is streamed.

    The model is in the address, and the version and the betas are in the body.
    """
    names = ("model", "anthropic_version", *(() if keeps_stream else ("stream",)))
    body, is_streamed = without_fields(request, *names)
    added: dict[str, Json] = {"anthropic_version": version}
    if betas and find_field("anthropic_beta", body) is None:
        added["anthropic_beta"] = list(betas)
    return with_fields(body, added), is_streamed


def without_fields(request: HttpRequest, *names: str) -> tuple[bytes, bool]:
    """Return a request's body without some fields, and whether its answer is streamed."""
    body = request.body
    try:
        stream = find_field("stream", body)
        is_streamed = stream is not None and body[slice(*stream)] == b"true"
        for name in names:
            body = without_field(name, body)
    except InvalidRequestError as exc:
        raise UpstreamError(
            request.model, f"was not asked, because {exc.message}", Failure.UNFIT
        ) from exc
    return body, is_streamed


def known_betas(headers: RawHeaders, known: Mapping[str, str]) -> tuple[str, ...]:
    """Return the betas that a client asks for and a platform knows, by the platform's names.

    A platform refuses requests with unknown ones, and coding agents send all that Anthropic has.
    """
    asked = (value.decode("latin-1") for name, value in headers if name == b"anthropic-beta")
    names = (beta.strip() for value in asked for beta in value.split(","))
    return tuple(dict.fromkeys(known[name] for name in names if name in known))


def without_headers(headers: RawHeaders, *names: bytes) -> RawHeaders:
    """Return headers without some of them."""
    return [header for header in headers if header[0] not in names]
