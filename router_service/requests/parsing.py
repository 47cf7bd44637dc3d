"""Read a request body once, for the router, all releases, upstreams and logs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from router_service.apis.api import Api
from router_service.apis.capabilities import Feature, Requirements, read_requirements
from router_service.apis.conversation import (
    Conversation,
    Json,
    decode_object,
    parse_conversation,
    read_model,
    read_stream,
)
from router_service.checker.usability import AnswerTerms
from router_service.core.errors import InvalidRequestError
from router_service.core.resources import stop_if_abandoned
from router_service.core.values import request_value
from router_service.upstream.bodies import BodyTemplate
from router_service.upstream.translation import Translation
from router_service.verifier.steps import (
    UnverifiedReason,
    why_unverifiable,
)

MAX_ID_CHARACTERS = 500
"""Longer session ids are ignored. Claude Code's user id, the longest one, has 150 characters."""


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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint; `path` is relative to `/v1` and to an upstream's base URL."""

    path: str
    api: Api | None = None
    """The API, if requests can be translated to another one."""
    is_json: bool = True
    """Whether a successful answer is one JSON object or a stream of them; speech is neither."""
    compacts: bool = False
    """Whether the answer is a summary of the conversation."""

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
        return cls(api.compacting_path, api, compacts=True)

    @property
    def is_routed(self) -> bool:
        """True if a request may ask for the router; otherwise it must name a model of the pool."""
        return self.api is not None

    def read(self, body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return a decoded body in the form that the router reads; raises InvalidRequestError."""
        if self.api is None:
            return body
        return self.api.to_chat(self.api.compacting(body) if self.compacts else body)

    def parse(self, body: Mapping[str, Json]) -> Conversation:
        """Return the conversation of a body that `read` returned; raises InvalidRequestError.

        What an API requires for an answer, such as its longest length, is not needed for a count.
        """
        if self.api is None:
            return Conversation(turns=())
        if self.path == self.api.counting_path:
            return parse_conversation(body)
        return self.api.parse(body).conversation


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
class _Content:
    """What only the router, fallbacks and budgets need to know of a request."""

    conversation: Conversation
    requirements: Requirements
    unverifiable: UnverifiedReason | None
    terms: AnswerTerms | None


class ParsedRequest:
    """A request body, decoded once. What is not needed for every request is read when it is needed.

    Reading raises InvalidRequestError if the body is malformed. An upstream that speaks the
    client's API judges the rest itself, so what is not needed is not checked.
    """

    def __init__(self, endpoint: Endpoint, data: bytes) -> None:
        """Decode a body; read which model should answer, and how. Raises InvalidRequestError."""
        api, fields = endpoint.api, decode_object(data)
        stop_if_abandoned()
        self.endpoint = endpoint
        self.body = body = BodyTemplate.of(data, fields)
        """The body as the client sent it; each deployment gets it with its own name of the model.
        """
        try:
            self.model = read_model(fields)
            self.stream = read_stream(fields)
            self.continues = None if api is None else api.continued(fields)
        except InvalidRequestError:
            endpoint.parse(endpoint.read(fields))  # an API names another field first
            raise
        """The stored response or conversation that the request continues. Its turns are not in
        `conversation`."""
        self.translation = None if api is None else Translation(api, body, endpoint.compacts)
        """The request in the APIs of deployments; None if it cannot be translated."""

    @cached_property
    def session(self) -> str | None:
        """The name that the body gives to the conversation, if any."""
        return read_session(self.body.fields)

    @cached_property
    def max_output_tokens(self) -> int | None:
        """The longest answer that the request allows; None if it does not say so."""
        return _max_output_tokens(self.endpoint.path, self.body.fields)

    @cached_property
    def answers(self) -> int:
        """How many answers the request asks for."""
        return _answers(self.body.fields)

    def read_content(self) -> None:
        """Read now what is otherwise read at the first use."""
        _ = self._content, self.max_output_tokens, self.answers  # kept by the properties

    @cached_property
    def _content(self) -> _Content:
        endpoint, api = self.endpoint, self.endpoint.api
        decoded = endpoint.read(self.body.fields)
        stop_if_abandoned()
        conversation = endpoint.parse(decoded)
        stop_if_abandoned()
        is_answered = api is not None and endpoint.path == api.path  # instead of counted
        title = api.title if api is not None and is_answered else None
        requirements = read_requirements(decoded, conversation, title)
        unverifiable = why_unverifiable(
            decoded,
            conversation,
            requirements.features,
            is_continued=self.continues is not None,
            is_stored_by_default=api is not None and api.stores_answers,
        )
        is_partial = Feature.SEVERAL_CHOICES in requirements.features or decoded.get("background")
        has_terms = is_answered and not is_partial
        terms = AnswerTerms.of(decoded, conversation) if has_terms else None
        return _Content(conversation, requirements, unverifiable, terms)

    @property
    def conversation(self) -> Conversation:
        """The turns and tools."""
        return self._content.conversation

    @property
    def requirements(self) -> Requirements:
        """What a model must be able to do."""
        return self._content.requirements

    @property
    def unverifiable(self) -> UnverifiedReason | None:
        """Why the answer cannot be verified, or None if it can be."""
        return self._content.unverifiable

    @property
    def terms(self) -> AnswerTerms | None:
        """What the answer may contain; None if it is not read, or is not the whole answer."""
        return self._content.terms

    def decoded(self) -> Mapping[str, Json]:
        """Return the decoded body in the form that the router reads."""
        return self.endpoint.read(self.body.fields)

    @property
    def sha256(self) -> str:
        """Hash of the body as the client sent it; not stored, because only logs need it."""
        return sha256(self.body.body).hexdigest()

    @property
    def refers_to_more(self) -> bool:
        """Whether the prompt may have more tokens than the body has bytes.

        It may refer to an earlier answer, and to images and files.
        """
        return self.continues is not None or not self.requirements.features.isdisjoint(_MEDIA)

    @property
    def has_cache_markers(self) -> bool:
        """Whether the body has `cache_control`, which some providers need to cache a prompt."""
        return b'"cache_control"' in self.body.body

    @property
    def conversation_id(self) -> str:
        """Hash of the conversation's opening: 32 hexadecimal digits, the same at every turn."""
        opening = "\0".join(self.conversation.opening).encode(errors="surrogatepass")
        return sha256(opening).hexdigest()[:32]


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
