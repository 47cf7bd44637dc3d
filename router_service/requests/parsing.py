"""Parse a request body once, for the router, all releases, upstreams and logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from router_service.apis.capabilities import Feature, Requirements, read_requirements
from router_service.apis.conversation import (
    ChatRequest,
    Conversation,
    Json,
    decode_object,
    parse_chat_request,
    read_model,
    read_stream,
)
from router_service.apis.messages.chat_form import parse_messages_request, to_chat_body
from router_service.apis.parts import Dialect
from router_service.apis.registry import obstacles, read_request
from router_service.apis.responses.chat_form import parse_responses_request
from router_service.core.errors import (
    InvalidRequestError,
)
from router_service.core.resources import (
    Cache,
    shared_cache,
    stop_if_abandoned,
)
from router_service.core.strict_json import loads, loads_exactly
from router_service.settings import Deployment
from router_service.upstream.bodies import BodyTemplate
from router_service.verifier.steps import (
    UnverifiedReason,
    why_unverifiable,
)

MAX_ID_CHARACTERS = 500
"""Longer session ids are ignored. Claude Code's user id, the longest one, has 150 characters."""

SESSION_HEADERS = (
    "x-switchcraft-session-id",
    "x-litellm-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "session_id",
)
"""Headers that name a conversation, the most specific one first: ours, LiteLLM's, Claude Code's,
and those of the Codex CLI, whose session may have several threads."""


def read_session_header(headers: Mapping[str, str]) -> str | None:
    """Return the name of the conversation in a request's headers, if there is one."""
    for header in SESSION_HEADERS:
        name = headers.get(header)
        if name and len(name) <= MAX_ID_CHARACTERS:
            return name
    return None


def read_session(body: Mapping[str, Json]) -> str | None:
    """Return the name of the conversation in a request's body, if there is one.

    These are LiteLLM's `litellm_session_id` and `metadata.session_id`, Anthropic's
    `metadata.user_id`, in which Claude Code sends its session, and OpenAI's `prompt_cache_key`.
    """
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    user_id = metadata.get("user_id")
    names = (
        body.get("litellm_session_id"),
        metadata.get("session_id"),
        user_id if isinstance(user_id, str) and "session" in user_id else None,
        body.get("prompt_cache_key"),
    )
    return next(
        (name for name in names if isinstance(name, str) and 0 < len(name) <= MAX_ID_CHARACTERS),
        None,
    )


MAX_NAMED_FIELDS = 8
"""Most fields of a request that an error names as reasons why a model cannot get the request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of the API; `path` is relative to `/v1` and to an upstream's base URL."""

    path: str
    parse: Callable[[Mapping[str, Json]], ChatRequest]
    """Parses a body that `read` returned; raises InvalidRequestError."""
    dialect: Dialect | None = None
    """The API, if requests can be translated to another one."""
    is_json: bool = True
    """Whether a successful answer is one JSON object or a stream of them; speech is neither."""

    @property
    def is_routed(self) -> bool:
        """Whether requests may name the router as their model. If not, they name a pool model."""
        return self.dialect is not None

    def read(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return a decoded body in the form that `core` reads: a chat or a Responses request.

        Raises InvalidRequestError.
        """
        return to_chat_body(body) if self.dialect is Dialect.MESSAGES else body


CHAT = Endpoint(Dialect.CHAT.path, parse_chat_request, Dialect.CHAT)
RESPONSES = Endpoint(Dialect.RESPONSES.path, parse_responses_request, Dialect.RESPONSES)
MESSAGES = Endpoint(Dialect.MESSAGES.path, parse_messages_request, Dialect.MESSAGES)
COUNT_TOKENS = Endpoint(f"{MESSAGES.path}/count_tokens", parse_chat_request, Dialect.MESSAGES)

API_NAMES = {
    Dialect.CHAT: Feature.CHAT,
    Dialect.RESPONSES: Feature.RESPONSES,
    Dialect.MESSAGES: Feature.MESSAGES,
}

_JSON_PATHS = {"/embeddings", "/completions"}


def parse_unrouted_request(body: Mapping[str, Json]) -> ChatRequest:
    """Parse only `model` and `stream`; raises InvalidRequestError."""
    return ChatRequest(read_model(body), read_stream(body), Conversation(turns=()))


def unrouted(path: str) -> Endpoint:
    """Return an endpoint whose requests must name a model of the pool."""
    return Endpoint(path, parse_unrouted_request, is_json=path in _JSON_PATHS)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request body, parsed once and then used by all releases and logs."""

    endpoint: Endpoint
    chat: ChatRequest
    requirements: Requirements
    body: BodyTemplate
    """The body as the client sent it; each deployment gets it with its own name of the model."""
    session: str | None
    """The name that the body gives to the conversation, if any."""
    _obstacles: dict[Dialect, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """Fields that each API cannot express; empty until a request has to be translated."""

    def obstacles(self, deployment: Deployment) -> tuple[str, ...]:
        """Return descriptions of what keeps the request from being sent to a deployment.

        Raises InvalidRequestError if it would have to be translated, but is malformed.
        """
        dialect = self.endpoint.dialect
        if dialect is None or self.target_of(deployment) is not None:
            return ()
        name = API_NAMES[dialect]
        lost = self._lost(deployment.dialects[0]) if deployment.dialects else ()
        shown = [f"the field {path!r} of {name}" for path in lost[:MAX_NAMED_FIELDS]]
        more = (f"{len(lost) - len(shown)} more fields",) if len(lost) > len(shown) else ()
        return (*shown, *more) or (name,)

    def target_of(self, deployment: Deployment) -> Dialect | None:
        """Return the API in which a deployment gets the request, or None if it cannot get it.

        That is the client's API, or else the first of the deployment's that can express it.
        """
        dialect = self.endpoint.dialect
        if dialect in deployment.dialects:
            return dialect
        return next((target for target in deployment.dialects if not self._lost(target)), None)

    def _lost(self, target: Dialect) -> tuple[str, ...]:
        """Return the fields that an API cannot express; reads the whole body at the first use."""
        if not self._obstacles and self.endpoint.dialect is not None:
            body = loads_exactly(self.body.with_model("-"))
            request = read_request(body, self.endpoint.dialect)
            if "thread" in request.lost:  # Anthropic's clients then send the whole conversation
                raise InvalidRequestError(
                    "Not every model that may answer keeps conversations ('thread'). Send the whole"
                    " conversation without 'thread'.",
                    param="thread",
                    code="thread_unsupported_request",
                )
            self._obstacles.update((other, obstacles(request, other)) for other in Dialect)
        return self._obstacles[target]

    def decoded(self) -> Mapping[str, Json]:
        """Decode the body again, and return it in the form that `core` reads."""
        return self.endpoint.read(loads(self.body.with_model("")))

    @property
    def unverifiable(self) -> UnverifiedReason | None:
        """Why the answer cannot be verified, or None if it can be; decodes the body again."""
        return why_unverifiable(
            self.decoded(),
            self.chat.conversation,
            self.requirements.features,
            is_continued=self.chat.continues is not None,
        )

    @property
    def sha256(self) -> str:
        """Hash of the body as the client sent it; not stored, because only logs need it."""
        return sha256(self.body.body).hexdigest()

    @property
    def has_cache_markers(self) -> bool:
        """Whether the body has `cache_control`, which some providers need to cache a prompt."""
        return b'"cache_control"' in self.body.body

    @property
    def conversation_id(self) -> str:
        """Hash of the conversation's opening: 32 hexadecimal digits, the same at every turn."""
        opening = "\0".join(self.chat.conversation.opening).encode(errors="surrogatepass")
        return sha256(opening).hexdigest()[:32]


_PARSED_BYTES = 2_000
"""Approximate memory of a parsed request without its body and texts. Tools are shared."""
_parsed: Cache[tuple[Endpoint, bytes], ParsedRequest] = shared_cache(
    "requests", max_bytes=6 * 2**20
)
"""Cache of parsed requests. A client that retries, or that samples several answers, sends the same
body again; parsing takes 0.15 ms."""


def parse_request(endpoint: Endpoint, body: bytes) -> ParsedRequest:
    """Return the parsed body, from the cache if it is there; raises InvalidRequestError."""
    request = _parsed.get((endpoint, body))
    if request is None:
        raw = decode_object(body)
        stop_if_abandoned()
        decoded = endpoint.read(raw)
        stop_if_abandoned()
        chat = endpoint.parse(decoded)
        stop_if_abandoned()
        requirements = read_requirements(decoded, chat.conversation, endpoint.path)
        template, session = BodyTemplate.of(body), read_session(raw)
        request = ParsedRequest(endpoint, chat, requirements, template, session)
        _parsed.put((endpoint, body), request, _PARSED_BYTES + len(body))
    return request
