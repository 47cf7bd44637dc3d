"""Parse a request body once, for the router, all releases, upstreams and logs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from router_service.apis.api import Api, UpstreamApi
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
from router_service.apis.registry import APIS
from router_service.apis.request_translation import obstacles, read_request
from router_service.checker.usability import AnswerTerms
from router_service.core.errors import (
    InvalidRequestError,
)
from router_service.core.resources import (
    Cache,
    shared_cache,
    stop_if_abandoned,
)
from router_service.core.strict_json import loads, loads_exactly
from router_service.core.values import request_value
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


_MEDIA = frozenset({Feature.IMAGES, Feature.AUDIO, Feature.FILES})

MAX_NAMED_FIELDS = 8
"""Most fields of a request that an error names as reasons why a model cannot get the request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint; `path` is relative to `/v1` and to an upstream's base URL."""

    path: str
    api: Api | None = None
    """The API, if requests can be translated to another one."""
    is_json: bool = True
    """Whether a successful answer is one JSON object or a stream of them; speech is neither."""

    @classmethod
    def of(cls, api: Api) -> Endpoint:
        """Return the endpoint at which an API answers."""
        return cls(api.path, api)

    @classmethod
    def counting(cls, api: Api) -> Endpoint:
        """Return the endpoint at which an API counts the tokens of requests."""
        return cls(api.counting_path, api)

    @classmethod
    def compacting(cls, api: Api) -> Endpoint:
        """Return the endpoint at which an API summarizes conversations for its clients."""
        return cls(api.compacting_path, api)

    @property
    def compacts(self) -> bool:
        """Whether the answer is a summary of the conversation."""
        return self.api is not None and self.path == self.api.compacting_path

    @property
    def is_routed(self) -> bool:
        """True if a request may ask for the router; otherwise it must name a model of the pool."""
        return self.api is not None

    def read(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return a decoded body in the form that the router reads; raises InvalidRequestError."""
        if self.api is None:
            return body
        return self.api.to_chat(self.api.compacting(body) if self.compacts else body)

    def parse(self, body: Mapping[str, Json]) -> ChatRequest:
        """Parse a body that `read` returned; raises InvalidRequestError.

        What an API requires for an answer, such as its longest length, is not needed for a count.
        """
        if self.api is None:
            return ChatRequest(read_model(body), read_stream(body), Conversation(turns=()))
        if self.path == self.api.counting_path:
            return parse_chat_request(body)
        return self.api.parse(body)


_JSON_PATHS = {"/embeddings", "/completions"}

_OUTPUT_LIMITS = {
    "/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/completions": ("max_tokens",),
    "/messages": ("max_tokens",),
    "/responses": ("max_output_tokens",),
}
"""The fields that limit the length of an answer, by path. A field of another API limits nothing."""

MAX_COUNT = 10**9
"""Larger numbers in a request count as this one."""


def unrouted(path: str) -> Endpoint:
    """Return an endpoint whose requests must name a model of the pool."""
    return Endpoint(path, is_json=path in _JSON_PATHS)


@request_value(frozen=True, slots=True)
class ParsedRequest:
    """A request body, parsed once and then used by all releases and logs."""

    endpoint: Endpoint
    chat: ChatRequest
    requirements: Requirements
    body: BodyTemplate
    """The body as the client sent it; each deployment gets it with its own name of the model."""
    session: str | None
    """The name that the body gives to the conversation, if any."""
    unverifiable: UnverifiedReason | None
    """Why the answer cannot be verified, or None if it can be."""
    max_output_tokens: int | None
    """The longest answer that the request allows; None if it does not say so."""
    answers: int
    """How many answers the request asks for."""
    terms: AnswerTerms | None = None
    """What the answer may contain; None if it is not read, or is not the whole answer."""
    _obstacles: dict[UpstreamApi, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """Fields that each API cannot express; empty until a request has to be translated."""

    def obstacles(self, deployment: Deployment) -> tuple[str, ...]:
        """Return descriptions of what keeps the request from being sent to a deployment.

        Raises InvalidRequestError if it would have to be translated, but is malformed.
        """
        api = self.endpoint.api
        if api is None or self.target_of(deployment) is not None:
            return ()
        lost = self._lost(api, deployment.apis[0]) if deployment.apis else ()
        shown = [f"the field {path!r} of {api.title}" for path in lost[:MAX_NAMED_FIELDS]]
        more = (f"{len(lost) - len(shown)} more fields",) if len(lost) > len(shown) else ()
        return (*shown, *more) or (api.title,)

    def target_of(self, deployment: Deployment) -> UpstreamApi | None:
        """Return the API in which a deployment gets the request, or None if it cannot get it.

        That is the client's API, or else the first of the deployment's that can express it.
        """
        api = self.endpoint.api
        if api is None or api in deployment.apis:
            return api
        return next((target for target in deployment.apis if not self._lost(api, target)), None)

    def _lost(self, client: Api, target: UpstreamApi) -> tuple[str, ...]:
        """Return the fields that an API cannot express; reads the whole body at the first use."""
        if not self._obstacles:
            body = loads_exactly(self.body.with_model("-"))
            request = read_request(body, client, compacts=self.endpoint.compacts)
            if "thread" in request.lost:  # Anthropic's clients then send the whole conversation
                raise InvalidRequestError(
                    "Not every model that may answer keeps conversations ('thread'). Send the whole"
                    " conversation without 'thread'.",
                    param="thread",
                    code="thread_unsupported_request",
                )
            self._obstacles.update(
                (other, obstacles(request, client, other)) for other in APIS.of_upstreams
            )
        return self._obstacles[target]

    def decoded(self) -> Mapping[str, Json]:
        """Decode the body again, and return it in the form that `core` reads."""
        return self.endpoint.read(loads(self.body.with_model("")))

    @property
    def sha256(self) -> str:
        """Hash of the body as the client sent it; not stored, because only logs need it."""
        return sha256(self.body.body).hexdigest()

    @property
    def refers_to_more(self) -> bool:
        """Whether the prompt may have more tokens than the body has bytes.

        It may refer to an earlier answer, and to images and files.
        """
        features = self.requirements.features
        return self.chat.continues is not None or not features.isdisjoint(_MEDIA)

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
        api = endpoint.api
        is_answered = api is not None and endpoint.path == api.path  # instead of counted
        title = api.title if api is not None and is_answered else None
        requirements = read_requirements(decoded, chat.conversation, title)
        template, session = BodyTemplate.of(body), read_session(raw)
        unverifiable = why_unverifiable(
            decoded,
            chat.conversation,
            requirements.features,
            is_continued=chat.continues is not None,
            is_stored_by_default=api is not None and api.stores_answers,
        )
        terms: AnswerTerms | None = None
        is_partial = Feature.SEVERAL_CHOICES in requirements.features or decoded.get("background")
        if is_answered and not is_partial:
            terms = AnswerTerms.of(decoded, chat.conversation)
        request = ParsedRequest(
            endpoint,
            chat,
            requirements,
            template,
            session,
            unverifiable,
            max_output_tokens=_max_output_tokens(endpoint.path, raw),
            answers=_answers(raw),
            terms=terms,
        )
        _parsed.put((endpoint, body), request, _PARSED_BYTES + len(body))
    return request


def _max_output_tokens(path: str, body: Mapping[str, Json]) -> int | None:
    """Return the longest answer that a body allows, or None if it does not say so.

    Of two limits, an upstream may know only the larger one.
    """
    if path == "/embeddings":
        return 0
    limits = [body[name] for name in _OUTPUT_LIMITS.get(path, ()) if body.get(name) is not None]
    if not limits or not all(type(limit) is int and limit > 0 for limit in limits):
        return None
    return min(MAX_COUNT, max(limit for limit in limits if isinstance(limit, int)))


def _answers(body: Mapping[str, Json]) -> int:
    """Return how many answers a body asks for: `n` or `best_of` for each of its prompts.

    Some servers read numbers in strings, too.
    """
    counts = [1]
    for wanted in (body.get("n"), body.get("best_of")):
        if isinstance(wanted, int | float | str):
            with suppress(ValueError, OverflowError):
                counts.append(int(min(MAX_COUNT, float(wanted))))
    prompts = body.get("prompt")
    several = isinstance(prompts, list) and not all(type(each) is int for each in prompts)
    return max(counts) * (len(prompts) if isinstance(prompts, list) and several else 1)
