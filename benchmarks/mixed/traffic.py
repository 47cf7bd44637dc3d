"""Requests of a soak's clients, and the checks of their answers."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson

from benchmarks.load import bodies
from benchmarks.mixed.client import Answer, Manner, frame, frame_chunked
from router_service.apis.conversation import Json

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PINNED, EMBEDDER, RESCUED = "pinned", "embedder", "rescued"
FOREIGN = "foreign"
"""Model that only speaks Anthropic's Messages API; `PINNED` and the routed ones do not."""
VERIFIED = f"{bodies.ROUTED}:verified"
FAULTY: Mapping[str, str] = {
    "fails": "status=500",
    "limited": "status=429,retry_after_s=1",
    "breaks": "cut_after=3",
    "stops": "hang_after=2",
    "silent": "hang",
    "malformed": "malformed",
    "errors-within": "error_after=2",
    RESCUED: "status=503",
}
"""Faults of the models that always fail, by model; `RESCUED` has a working fallback."""

STORED = ("decision", "feedback")
"""Kinds of requests that need a stored decision."""
REPEATED = 64
MAX_BODY_BYTES = 2**20
"""The gateway's limit in a soak, small so that oversized requests are cheap."""
_OUTAGE = frozenset({429, 500, 502, 503, 504})
_MEMORY = 200
_USABLE_AFTER_S = 1.0
_LONG_TURNS = 60
_SESSIONS = 40
_SESSION_TURNS = 15


class Outcome(StrEnum):
    """Outcome of a request for its client."""

    COMPLETE = "complete"
    EXPLAINED = "explained error"
    """A well-formed error that the client's mistake or an injected fault explains."""
    LEFT = "left"
    """The client disconnected before the end."""
    LOST = "lost"
    """Everything else: no answer, a wrong answer, or an unexplained error."""


_Memory = deque[tuple[float, str, str]]
"""Monotonic time when an id was received, the id, and its API key."""

Check = Callable[[Answer], str]
"""Returns the problem with an answer of status 200; an empty string if it is complete."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request and its acceptable outcomes."""

    kind: str
    data: bytes
    check: Check
    request_id: str
    key: str = ""
    manner: Manner = Manner.PATIENT
    errors: frozenset[int] = frozenset()
    """Error statuses that count as explained."""
    may_break: bool = False
    """Whether a stream may end with an error event."""
    about_s: float = 0.0
    """Monotonic time when the requested record was written."""
    is_inference: bool = True
    """Whether the gateway counts it in `switchcraft_requests_total`."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Injected faults that may affect a request."""

    upstreams: bool = False
    """Faults of routed models, or circuit breakers that these faults opened."""
    store: bool = False
    """Redis was down or lost its data since the requested record was written."""


def judge(request: Request, answer: Answer, trouble: Trouble) -> tuple[Outcome, str]:
    """Return a request's outcome, with the reason if it is lost."""
    if not answer.is_complete:
        return Outcome.LEFT, ""
    if answer.status == 200:
        problem, good = request.check(answer), Outcome.COMPLETE
        if problem == _BROKEN and (request.may_break or trouble.upstreams):
            problem, good = "", Outcome.EXPLAINED
    else:
        problem, good = _check_error(request, answer, trouble), Outcome.EXPLAINED
    if answer.headers.get("x-request-id") != request.request_id:
        problem = f"x-request-id is {answer.headers.get('x-request-id')!r}"
    return (Outcome.LOST, problem) if problem else (good, "")


def _check_error(request: Request, answer: Answer, trouble: Trouble) -> str:
    """Return the problem with an error answer; empty if it is well-formed and explained."""
    explained = request.errors | (_OUTAGE if trouble.upstreams else frozenset())
    if trouble.store and request.kind in STORED:
        explained |= {404, 503}
    text = answer.body[:300].decode(errors="replace")
    if not _is_error(answer.body):
        return f"status {answer.status} without an error object: {text}"
    if answer.status not in explained or "internal_error" in text:
        return f"unexplained status {answer.status}: {text}"
    return ""


class Mix:
    """Seeded generator of requests of all kinds, in fixed shares."""

    def __init__(self, keys: Sequence[str], admin_key: str, seed: int = 7) -> None:
        """Prepare requests with these keys."""
        self._random = random.Random(seed)  # noqa: S311
        self._keys = keys
        self._admin = admin_key
        self._number = itertools.count(1)
        real = bodies.real()
        self._repeated = itertools.cycle(real[:REPEATED])
        self._first_seen = bodies.once(real[REPEATED:])
        self._decisions: _Memory = deque(maxlen=_MEMORY)
        self._responses: _Memory = deque(maxlen=_MEMORY)
        self._sessions: dict[str, tuple[str, dict[str, Any]]] = {}
        """Conversations that go on: the key and the next request by session id."""
        self._kinds = self._makers()
        self._weights = [weight for weight, _ in self._kinds.values()]

    def next(self) -> Request:
        """Return the next request."""
        (kind,) = self._random.choices(list(self._kinds), self._weights)
        return replace(self._kinds[kind][1](), kind=kind)

    def remember(self, request: Request, answer: Answer) -> None:
        """Note the ids of a complete answer for later requests."""
        decision_id = answer.headers.get("x-switchcraft-decision-id")
        if decision_id and answer.headers.get("x-switchcraft-reason") != "passed":
            self._decisions.append((time.monotonic(), decision_id, request.key))
        if request.kind == "response":
            response_id = orjson.loads(answer.body)["id"]
            self._responses.append((time.monotonic(), response_id, request.key))

    def _makers(self) -> dict[str, tuple[float, Callable[[], Request]]]:
        return {
            "pinned": (14, self._pinned),
            "pinned stream": (12, lambda: self._pinned(stream=True)),
            "repeated": (12, lambda: self._routed(next(self._repeated))),
            "repeated stream": (8, lambda: self._routed(next(self._repeated), stream=True)),
            "first seen": (8, lambda: self._routed(next(self._first_seen))),
            "first seen stream": (6, lambda: self._routed(next(self._first_seen), stream=True)),
            "long conversation": (3, lambda: self._routed(self._long())),
            "verified": (5, lambda: self._routed(next(self._first_seen), model=VERIFIED)),
            "verified stream": (
                4,
                lambda: self._routed(next(self._first_seen), stream=True, model=VERIFIED),
            ),
            "session": (8, self._session),
            "message to chat": (4, self._message),
            "message to chat, stream": (4, lambda: self._message(stream=True)),
            "routed message": (3, self._routed_message),
            "chat to message": (3, lambda: self._pinned(model=FOREIGN)),
            "chat to message, stream": (3, lambda: self._pinned(model=FOREIGN, stream=True)),
            "response to message": (2, lambda: self._response(model=FOREIGN)),
            "response to message, stream": (2, lambda: self._response(model=FOREIGN, stream=True)),
            "response": (5, self._response),
            "response stream": (4, lambda: self._response(stream=True)),
            "continued response": (3, self._continued),
            "embeddings": (
                4,
                lambda: self._other("embeddings", "data", EMBEDDER, input=["first", self._id()]),
            ),
            "completions": (
                1,
                lambda: self._other("completions", "choices", PINNED, prompt=self._id()),
            ),
            "decision": (4, self._decision),
            "feedback": (3, self._feedback),
            "metrics": (0.5, self._metrics),
            "models": (0.5, lambda: self._get("/v1/models", _json_with("data"))),
            "leaves halfway": (0.7, lambda: self._leaving(Manner.LEAVES_HALFWAY, "")),
            "leaves before": (0.7, lambda: self._leaving(Manner.LEAVES_BEFORE, "delay_s=0.3")),
            "leaves within": (0.7, lambda: self._leaving(Manner.LEAVES_WITHIN, "")),
            "slow reader": (0.7, self._slow_reader),
            "bad request": (2.5, self._bad),
            "no key": (0.5, self._no_key),
            "too large": (0.4, self._too_large),
            "faulty": (3, self._faulty),
            "faulty stream": (3, lambda: self._faulty(stream=True)),
            "rescued": (1, lambda: self._pinned(model=RESCUED)),
        }

    def _post(
        self,
        path: str,
        body: Mapping[str, Json],
        check: Check,
        *,
        faults: str = "",
        key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Request:
        request_id, key = self._id(), key or self._random.choice(self._keys)
        own = {"authorization": f"Bearer {key}", "x-request-id": request_id}
        headers = {**own, **(headers or {}), **({"x-sandbox": faults} if faults else {})}
        data = frame("POST", path, headers, orjson.dumps(body))
        return Request("", data, check, request_id, key)

    def _session(self) -> Request:
        """Return the next request of a conversation, or the first one of a new conversation."""
        session = f"session-{self._random.randrange(_SESSIONS)}"
        key, body = self._sessions.get(session, ("", {}))
        if not body or len(body["messages"]) > 2 * _SESSION_TURNS:
            key, body = self._random.choice(self._keys), dict(next(self._first_seen))
        said = {"role": "assistant", "content": f"Done with {self._id()}."}
        asked = {"role": "user", "content": f"And now {self._id()}, please."}
        following = body | {"messages": [*body["messages"], said, asked]}
        self._sessions[session] = key, following
        sent = {"model": bodies.ROUTED, **body}
        headers = {"x-switchcraft-session-id": session}
        return self._post(CHAT, sent, _completion(), key=key, headers=headers)

    def _message(self, *, stream: bool = False) -> Request:
        """Return a request of the Messages API whose answer must repeat the request's text."""
        words = f"Repeat: {self._id()}."
        messages = [{"role": "user", "content": words}]
        body = {"model": PINNED, "max_tokens": 500, "messages": messages, "stream": stream}
        return self._post(MESSAGES, body, _message_events(words) if stream else _message(words))

    def _routed_message(self) -> Request:
        request = next(self._first_seen)
        tools = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"].get("description", ""),
                "input_schema": tool["function"].get("parameters") or {"type": "object"},
            }
            for tool in request["tools"]
        ]
        asked = [m for m in request["messages"] if m["role"] == "user"][-1:]
        body = {"model": bodies.ROUTED, "max_tokens": 500, "messages": asked, "tools": tools}
        return self._post(MESSAGES, body, _message())

    def _get(self, path: str, check: Check, *, key: str = "") -> Request:
        request_id, key = self._id(), key or self._random.choice(self._keys)
        headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
        data = frame("GET", path, headers)
        return Request("", data, check, request_id, key, is_inference=False)

    def _id(self) -> str:
        return f"soak-{next(self._number)}"

    def _pinned(self, *, stream: bool = False, model: str = PINNED) -> Request:
        """Return a request whose answer must repeat the request's text."""
        words = f"Repeat: {self._id()}."
        messages = [{"role": "user", "content": words}]
        body = {"model": model, "messages": messages, "stream": stream}
        return self._post(CHAT, body, _events(words) if stream else _completion(words))

    def _routed(
        self, request: Mapping[str, Any], *, stream: bool = False, model: str = bodies.ROUTED
    ) -> Request:
        body = {**request, "model": model, "stream": stream}
        return self._post(CHAT, body, _events() if stream else _completion())

    def _long(self) -> Mapping[str, Any]:
        """Return an agent's conversation: a question and many calls with results of 1 KB."""
        request = next(self._first_seen)
        turns: list[Json] = []
        for number in range(self._random.randrange(4, _LONG_TURNS)):
            call_id = f"call_{number}"
            call = {"name": "lookup", "arguments": f'{{"page": {number}}}'}
            made = {"id": call_id, "type": "function", "function": call}
            turns.append({"role": "assistant", "content": None, "tool_calls": [made]})
            result = f"page {number} of {self._id()}: " + "all is well; " * 75
            turns.append({"role": "tool", "tool_call_id": call_id, "content": result})
        return {**request, "messages": [*request["messages"], *turns]}

    def _response(self, *, stream: bool = False, model: str = bodies.ROUTED) -> Request:
        body = {"model": model, "input": f"Repeat: {self._id()}.", "stream": stream}
        return self._post(RESPONSES, body, _response_events if stream else _response)

    def _continued(self) -> Request:
        found = self._known(self._responses)
        if found is None:
            return self._response()
        _, response_id, key = found
        body = {"model": bodies.ROUTED, "input": "Go on.", "previous_response_id": response_id}
        return self._post(RESPONSES, body, _response, key=key)

    def _other(self, path: str, answered: str, model: str, **fields: Json) -> Request:
        """Return a request of another API, whose answer must have a field."""
        return self._post(f"/v1/{path}", {"model": model, **fields}, _json_with(answered))

    def _decision(self) -> Request:
        found = self._known(self._decisions)
        if found is None:
            return self._get("/v1/models", _json_with("data"))
        written_s, decision_id, key = found
        made = self._get(f"/v1/decisions/{decision_id}", _json_with("latency_s"), key=key)
        return replace(made, about_s=written_s)

    def _feedback(self) -> Request:
        found = self._known(self._decisions)
        if found is None:
            return self._get("/v1/models", _json_with("data"))
        written_s, decision_id, key = found
        body = {"decision_id": decision_id, "correct": self._random.random() < 0.8}
        made = self._post("/v1/feedback", body, _json_with("verdict"), key=key)
        return replace(made, about_s=written_s, is_inference=False)

    def _metrics(self) -> Request:
        def check(answer: Answer) -> str:
            series = b"switchcraft_requests_total"
            return "" if series in answer.body else f"no {series!r}"

        return self._get("/metrics", check, key=self._admin)

    def _leaving(self, manner: Manner, faults: str) -> Request:
        stream = manner is Manner.LEAVES_WITHIN or self._random.random() < 0.5
        faults = faults or ("chunk_delay_s=0.05" if stream else "")
        messages = [{"role": "user", "content": "A long answer. " * 20}]
        body = {"model": PINNED, "messages": messages, "stream": stream}
        check = _events() if stream else _completion()
        return replace(self._post(CHAT, body, check, faults=faults), manner=manner)

    def _slow_reader(self) -> Request:
        messages = [{"role": "user", "content": "Many copies. " * 5}]
        body = {"model": PINNED, "messages": messages, "stream": True, "n": 96}
        return replace(self._post(CHAT, body, _events()), manner=Manner.READS_SLOWLY)

    def _bad(self) -> Request:
        """Return a request that must be refused."""
        path, body, status = self._random.choice(_BAD)
        request_id, key = self._id(), self._random.choice(self._keys)
        headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
        data = frame("POST", path, headers, body)
        return Request("", data, _must_fail, request_id, key, errors=frozenset({status}))

    def _no_key(self) -> Request:
        request_id = self._id()
        body = orjson.dumps({"model": PINNED, "messages": []})
        data = frame("POST", CHAT, {"x-request-id": request_id}, body)
        return Request("", data, _must_fail, request_id, errors=frozenset({401}))

    def _too_large(self) -> Request:
        """Return a body above the limit, with or without a content length."""
        request_id, key = self._id(), self._random.choice(self._keys)
        headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
        part = b" " * 65536
        parts = [part] * (MAX_BODY_BYTES // len(part) + 2)
        is_announced = self._random.random() < 0.5
        data = (
            frame("POST", CHAT, headers, b"".join(parts))
            if is_announced
            else frame_chunked(CHAT, headers, parts)
        )
        return Request("", data, _must_fail, request_id, key, errors=frozenset({413}))

    def _faulty(self, *, stream: bool = False) -> Request:
        model = self._random.choice([name for name in FAULTY if name != RESCUED])
        made = self._pinned(stream=stream, model=model)
        return replace(made, errors=_OUTAGE, may_break=True)

    def _known(self, memory: _Memory) -> tuple[float, str, str] | None:
        """Return an id that is old enough to be stored, or None."""
        limit_s = time.monotonic() - _USABLE_AFTER_S
        old = [entry for entry in memory if entry[0] < limit_s]
        return self._random.choice(old) if old else None


_BROKEN = "the stream ends with an error event"
_BAD: Sequence[tuple[str, bytes, int]] = (
    (CHAT, b'{"model": "pinned", "messages": [', 400),
    (CHAT, b'{"model": "pinned", "model": "other", "messages": []}', 400),
    (CHAT, b'{"model": "pinned", "messages": "hello"}', 400),
    (CHAT, b'{"model": "no-such-model", "messages": [{"role": "user", "content": "hi"}]}', 404),
    (CHAT, b'{"model": "switchcraft:theta=2", "messages": []}', 400),
    (CHAT, b"\xff\xfe", 400),
    (RESPONSES, b'{"model": "switchcraft", "input": "hi", "previous_response_id": "none"}', 404),
    ("/v1/embeddings", b'{"model": "switchcraft", "input": "hi"}', 404),
    ("/v1/feedback", b'{"decision_id": "none", "correct": "perhaps"}', 400),
    ("/v1/no/such/endpoint", b"{}", 404),
)


def _must_fail(answer: Answer) -> str:
    return f"status {answer.status} for a request that must be refused"


def _completion(words: str = "") -> Check:
    def check(answer: Answer) -> str:
        try:
            value = orjson.loads(answer.body)
            message = value["choices"][0]["message"]
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError) as exc:
            return f"not a completion: {exc!r}"
        is_other = words and words not in (message["content"] or "")
        return f"another request's answer: {message}" if is_other else ""

    return check


def _events(words: str = "") -> Check:
    def check(answer: Answer) -> str:
        events = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
        if not events:
            return f"no events: {answer.body[:200]!r}"
        if b'"error":{' in events[-1]:
            return _BROKEN
        if events.count(b"[DONE]") != 1 or events[-1] != b"[DONE]":
            return f"not exactly one [DONE] at the end: {events[-1][:200]!r}"
        try:
            deltas = [orjson.loads(event) for event in events[:-1]]
        except orjson.JSONDecodeError as exc:
            return f"an event is not JSON: {exc}"
        text = "".join(
            choice["delta"].get("content") or ""
            for delta in deltas
            for choice in delta["choices"][:1]
        )
        return f"another request's answer: {text[:200]}" if words not in text else ""

    return check


def _message(words: str = "") -> Check:
    def check(answer: Answer) -> str:
        try:
            value = orjson.loads(answer.body)
            text = "".join(block.get("text", "") for block in value["content"])
            is_complete = value["type"] == "message" and bool(value["stop_reason"])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as exc:
            return f"not a message: {exc!r}"
        if not is_complete:
            return f"not a complete message: {answer.body[:200]!r}"
        return f"another request's answer: {text[:200]}" if words not in text else ""

    return check


def _message_events(words: str) -> Check:
    def check(answer: Answer) -> str:
        events = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
        try:
            values = [orjson.loads(event) for event in events]
        except orjson.JSONDecodeError as exc:
            return f"an event is not JSON: {exc}"
        kinds = [value["type"] for value in values]
        if kinds[-1:] == ["error"]:
            return _BROKEN
        if kinds.count("message_stop") != 1 or kinds[-1] != "message_stop":
            return f"not exactly one message_stop at the end: {kinds[-3:]}"
        deltas = [value["delta"] for value in values if value["type"] == "content_block_delta"]
        text = "".join(delta.get("text", "") for delta in deltas)
        return f"another request's answer: {text[:200]}" if words not in text else ""

    return check


def _response(answer: Answer) -> str:
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError as exc:
        return f"not JSON: {exc}"
    is_complete = value.get("object") == "response" and value.get("status") == "completed"
    return "" if is_complete else f"not a completed response: {answer.body[:200]!r}"


def _response_events(answer: Answer) -> str:
    names = [line[7:] for line in answer.body.split(b"\n") if line.startswith(b"event: ")]
    if names and names[-1] == b"error":
        return _BROKEN
    is_complete = bool(names) and names[-1] == b"response.completed"
    return "" if is_complete else f"does not end with response.completed: {names[-1:]}"


def _json_with(field: str) -> Check:
    def check(answer: Answer) -> str:
        try:
            value = orjson.loads(answer.body)
        except orjson.JSONDecodeError as exc:
            return f"not JSON: {exc}"
        return "" if field in value else f"no {field!r}: {answer.body[:200]!r}"

    return check


def _is_error(body: bytes) -> bool:
    try:
        error = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False
    return isinstance(error, dict) and bool(error.get("message"))
