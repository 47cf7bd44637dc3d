"""How answers end: with a reason, with calls, without credit, and for clients that leave early."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai
import pytest

from router_service.serving.app import create_app
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests import apis
from tests.apis import APIS, Api
from tests.fakes import FakeRouter
from tests.gateways import NO_RETRIES, record_of
from tests.serving import WAIT_S, served

HEAD = b"HTTP/1.1 %d OK\r\ncontent-type: %b\r\n"
STREAM, JSON = b"text/event-stream", b"application/json"

Answer = Callable[[], Iterator[bytes]]


@dataclass
class Upstream:
    """Upstream that gives each request one answer, whose parts may wait for the test."""

    answer: Answer
    requests: list[bytes] = field(default_factory=list)
    """Head and body of each request."""
    connections: int = 0
    url: str = ""

    @contextmanager
    def serve(self) -> Iterator[Upstream]:
        """Serve connections until the block is left."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(WAIT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._play, args=(connection,), daemon=True).start()

    def _play(self, connection: socket.socket) -> None:
        # The gateway closes connections whose answers it does not read to their end.
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                length, head = 0, first
                for line in iter(lines.readline, b"\r\n"):
                    head += line
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                self.requests.append(head + lines.read(length))
                for part in self.answer():
                    connection.sendall(part)


def stream(*parts: bytes, wait: threading.Event | None = None, status: int = 200) -> Answer:
    """Return a chunked stream, which waits before its last part and its end if `wait` is given."""

    def answer() -> Iterator[bytes]:
        yield HEAD % (status, STREAM) + b"transfer-encoding: chunked\r\n\r\n"
        for number, part in enumerate(parts):
            if wait is not None and number == len(parts) - 1:
                assert wait.wait(WAIT_S)
            if part:
                yield b"%x\r\n%b\r\n" % (len(part), part)
        yield b"0\r\n\r\n"

    return answer


def whole(body: bytes, status: int = 200) -> Answer:
    """Return a whole answer."""
    head = HEAD % (status, JSON) + b"content-length: %d\r\n\r\n" % len(body)
    return lambda: iter([head + body])


def data(*values: object) -> bytes:
    """Return events without names."""
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def named(*values: dict[str, Any]) -> bytes:
    """Return events whose names are their types."""
    return b"".join(f"event: {value['type']}\n".encode() + data(value) for value in values)


def chat(reason: str | None = None, **delta: object) -> dict[str, Any]:
    """Return an event of Chat Completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "in_progress",
    "output": [],
}
CALL_ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f"}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
TEXT_BLOCK = (
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
)
BEGINNINGS = {
    apis.CHAT: data(chat(role="assistant", content="Hi")),
    apis.RESPONSES: named(
        {"type": "response.created", "response": RESPONSE},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**CALL_ITEM, "arguments": ""},
        },
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 0,
            "item_id": "fc_1",
            "delta": '{"city":',
        },
    ),
    apis.MESSAGES: named({"type": "message_start", "message": MESSAGE}, *TEXT_BLOCK),
}
"""Streams with output, and without an end."""
UNREASONED = {
    apis.CHAT: DONE,
    apis.RESPONSES: DONE,
    apis.MESSAGES: named({"type": "message_stop"}),
}
"""Ends without a reason."""
ENDS = {
    apis.CHAT: data(chat("stop")) + DONE,
    apis.RESPONSES: named(
        {
            "type": "response.completed",
            "response": {**RESPONSE, "status": "completed", "output": []},
        }
    ),
    apis.MESSAGES: named(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ),
}
BODIES: dict[Api, dict[str, Any]] = {
    apis.CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    apis.RESPONSES: {"input": "Hi", "store": False},
    apis.MESSAGES: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100},
}
GOOD = stream(data(chat(role="assistant", content="good")), data(chat("stop")) + DONE)
PAIRS = [(client, upstream) for client in APIS for upstream in APIS]


@contextmanager
def gateway(*deployments: Deployment) -> Iterator[httpx.Client]:
    """Serve a gateway whose model `m` has these deployments; the first one is asked first."""
    weighted = [
        each.model_copy(update={"weight": float(not number)})
        for number, each in enumerate(deployments)
    ]
    retries = NO_RETRIES.retries.model_copy(update={"max_retries": 2, "backoff_s": 0.001})
    upstreams = NO_RETRIES.model_copy(update={"retries": retries})
    settings = Settings.sandbox(deployments[0].base_url, ["small"], upstreams=upstreams)
    settings = settings.model_copy(
        update={
            "models": (Model(name="m", deployments=tuple(weighted)), *settings.models),
            "router": RouterSettings(unknown_prices="allow"),
        }
    )
    with (
        served(create_app(settings, FakeRouter())) as url,
        httpx.Client(base_url=url, timeout=WAIT_S) as http,
    ):
        yield http


def at(upstream: Upstream, api: Api, **more: Any) -> Deployment:  # noqa: ANN401 - of any field
    """Return a deployment of an upstream that speaks one API."""
    return Deployment(upstream_model="m", base_url=upstream.url, apis=(api,), **more)


def ask(http: httpx.Client, api: Api, **more: object) -> httpx.Response:
    """Ask the model `m` for a stream, if nothing else is said."""
    body = {"model": "m", "stream": True, **BODIES[api], **more}
    return http.post(f"/v1{api.path}", json=body)


def events(text: str) -> list[dict[str, Any]]:
    """Return the decoded events of a stream."""
    found = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in found if each != "[DONE]"]


def reports_error(text: str) -> bool:
    """Return whether a stream ends with an error, and does not say that it is complete."""
    last = events(text)[-1]
    is_error = "error" in last or last.get("type") in ("error", "response.failed")
    ends = ("[DONE]", "message_stop", "response.completed")
    return is_error and not any(end in text for end in ends)


@pytest.mark.parametrize(("client", "api"), PAIRS)
def test_end_without_a_reason_is_an_error_after_the_output(client: Api, api: Api) -> None:
    """The client gets an error event instead of the end, and the request counts as broken."""
    proceed = threading.Event()
    upstream = Upstream(stream(BEGINNINGS[api], UNREASONED[api], wait=proceed))
    with upstream.serve(), gateway(at(upstream, api)) as http:
        body = {"model": "m", "stream": True, **BODIES[client]}
        text = b""
        with http.stream("POST", f"/v1{client.path}", json=body) as response:
            for part in response.iter_raw():
                text += part
                proceed.set()
        assert reports_error(text.decode()), text
        assert record_of(http, response)["ending"] == "broken"


@pytest.mark.parametrize(("client", "api"), PAIRS)
def test_end_without_a_reason_leads_to_the_next_deployment(client: Api, api: Api) -> None:
    """If nothing has been sent, another deployment answers, or the client gets an error status."""
    beginnings = {api: (b"", BEGINNINGS[api]) for api in APIS}
    for beginning in beginnings[api]:
        first, second = Upstream(stream(beginning + UNREASONED[api])), Upstream(GOOD)
        with first.serve(), second.serve():
            with gateway(at(first, api), at(second, apis.CHAT)) as http:
                response = ask(http, client)
                assert "good" in response.text
                assert not reports_error(response.text)
                assert record_of(http, response)["ending"] == "complete"
            with gateway(at(first, api)) as http:
                assert ask(http, client).status_code == 502


@pytest.mark.parametrize(("client", "api"), PAIRS)
def test_deployment_may_never_send_reasons(client: Api, api: Api) -> None:
    """If the deployment says so, its last event completes an answer; a cut stream does not."""
    upstream = Upstream(stream(BEGINNINGS[api], UNREASONED[api]))
    marked = {"sends_finish_reason": False}
    with upstream.serve(), gateway(at(upstream, api, **marked)) as http:
        response = ask(http, client)
        assert not reports_error(response.text)
        assert record_of(http, response)["ending"] == "complete"
        upstream.answer = stream(BEGINNINGS[api])
        cut = ask(http, client)
        assert cut.status_code == 502 or reports_error(cut.text)


@pytest.mark.parametrize("client", APIS)
def test_choice_may_be_repeated_after_its_reason(client: Api) -> None:
    """OpenRouter's last event has the usage and the first choice again, without its reason."""
    repeated = {**chat(role="assistant", content=""), "usage": USAGE}
    upstream = Upstream(stream(data(chat(content="Hi"), chat("stop"), repeated) + DONE))
    with upstream.serve(), gateway(at(upstream, apis.CHAT)) as http:
        response = ask(http, client)
        record = record_of(http, response)
    assert not reports_error(response.text)
    assert (record["ending"], record["prompt_tokens"]) == ("complete", 1)


@pytest.mark.parametrize("reason", ["", None])
@pytest.mark.parametrize("client", APIS)
def test_empty_reason_is_none(client: Api, reason: str | None) -> None:
    """Some servers write an empty reason into each event, which ends neither parts nor answers."""
    deltas = [chat(reason, content=text) for text in ("a", "b")]
    upstream = Upstream(stream(data(*deltas) + DONE))
    with upstream.serve(), gateway(at(upstream, apis.CHAT)) as http:
        assert ask(http, client).status_code == 502
        upstream.answer = stream(data(*deltas, chat("stop")) + DONE)
        response = ask(http, client)
        assert record_of(http, response)["ending"] == "complete"
        assert response.text.count("content_block_start") <= 2  # of one block


@pytest.mark.parametrize(("client", "api"), PAIRS)
def test_client_that_leaves_at_the_last_event_has_a_complete_answer(client: Api, api: Api) -> None:
    """OpenAI's client closes its connection at `[DONE]`; the upstream's body may end later.

    The upstream's connection is used again, and the answer is recorded as a complete one.
    """
    proceed = threading.Event()
    upstream = Upstream(stream(BEGINNINGS[api] + ENDS[api], b"", wait=proceed))
    marks = {
        apis.CHAT: b"[DONE]",
        apis.RESPONSES: b"response.completed",
        apis.MESSAGES: b"message_stop",
    }
    body = {"model": "m", "stream": True, **BODIES[client]}
    with upstream.serve(), gateway(at(upstream, api)) as http:
        before = _disconnects(http)
        with http.stream("POST", f"/v1{client.path}", json=body) as response:
            text = b""
            for part in response.iter_raw():
                text += part
                if marks[client] in text and text.endswith(b"\n\n"):
                    break
        proceed.set()
        record = record_of(http, response)
        assert (record["status"], record["ending"]) == (200, "complete")
        assert _disconnects(http) == before
        assert ask(http, client).status_code == 200
    assert (len(upstream.requests), upstream.connections) == (2, 1)


def _disconnects(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    (line,) = [x for x in lines if x.startswith("switchcraft_client_disconnects_total ")]
    return float(line.split()[1])


def test_client_that_leaves_before_the_last_event_has_left() -> None:
    """Usage comes after the reason and before `[DONE]`, so such an answer is not complete."""
    proceed = threading.Event()
    sent = data(chat(content="Hi"), chat("stop"))
    upstream = Upstream(stream(sent, DONE, wait=proceed))
    with upstream.serve(), gateway(at(upstream, apis.CHAT)) as http:
        body = {"model": "m", "stream": True, **BODIES[apis.CHAT]}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            text = b""
            for part in response.iter_raw():
                text += part
                if text == sent:
                    break
        record = record_of(http, response)
        proceed.set()
    assert (record["status"], record["ending"]) == (499, "client_left")


WITHOUT_CALLS: dict[tuple[Api, bool], list[bytes]] = {
    (apis.CHAT, False): [
        json.dumps(
            {
                "id": "c",
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": USAGE,
            }
        ).encode()
        for reason in ("tool_calls", "function_call")
        for message in (
            {"role": "assistant", "content": 'I say "finish_reason": "tool_calls".'},
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "assistant", "content": None, "tool_calls": None},
        )
    ],
    (apis.CHAT, True): [
        data(chat(role="assistant", content='A "finish_reason": "tool_calls".'), chat("tool_calls"))
        + DONE,
        data(chat("tool_calls", role="assistant", content="", tool_calls=[])) + DONE,
        data(chat(role="assistant"), {**chat("function_call"), "usage": USAGE}) + DONE,
    ],
    (apis.MESSAGES, False): [
        json.dumps({**MESSAGE, "content": content, "stop_reason": "tool_use"}).encode()
        for content in ([], [{"type": "text", "text": 'I say "stop_reason":"tool_use".'}])
    ],
    (apis.MESSAGES, True): [
        named(
            {"type": "message_start", "message": MESSAGE},
            *blocks,
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
            {"type": "message_stop"},
        )
        for blocks in ((), TEXT_BLOCK)
    ],
}


@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize(("api", "is_stream"), WITHOUT_CALLS)
def test_answer_without_calls_does_not_say_that_it_calls(
    client: Api, api: Api, is_stream: bool
) -> None:
    """The reason becomes that of a text, and nothing else of an answer changes."""
    upstream = Upstream(GOOD)
    with upstream.serve(), gateway(at(upstream, api)) as http:
        for sent in WITHOUT_CALLS[api, is_stream]:
            upstream.answer = stream(sent) if is_stream else whole(sent)
            response = ask(http, client, stream=is_stream)
            assert response.status_code == 200, response.text
            values = events(response.text) if is_stream else [response.json()]
            reasons = _reasons(values)
            assert reasons - {None} <= {"stop", "end_turn"}
            assert reasons or client is apis.RESPONSES
            if client is api:
                kept = [json.dumps(value).replace("end_turn", "tool_use") for value in values]
                upstreams = events(sent.decode()) if is_stream else [json.loads(sent)]
                for value, text in zip(upstreams, kept, strict=True):
                    said = json.dumps(value).replace("function_call", "tool_calls")
                    assert text.replace('"stop"', '"tool_calls"') == said


def _reasons(values: Sequence[dict[str, Any]]) -> set[str | None]:
    found: set[str | None] = set()
    for value in values:
        found |= {choice["finish_reason"] for choice in value.get("choices", ())}
        for place in (value, value.get("delta", {})):
            found |= {place["stop_reason"]} if "stop_reason" in place else set()
    return found


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (
            apis.CHAT,
            {
                "id": "c",
                "choices": [
                    {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"},
                    {
                        "index": 1,
                        "message": {"content": None, "tool_calls": [CALL]},
                        "finish_reason": "tool_calls",
                    },
                ],
            },
        ),
        (
            apis.CHAT,
            {
                "id": "c",
                "choices": [
                    {
                        "message": {"content": None, "function_call": CALL["function"]},
                        "finish_reason": "function_call",
                    }
                ],
            },
        ),
        (apis.MESSAGES, {**MESSAGE, "content": [TOOL_USE], "stop_reason": "tool_use"}),
        (
            apis.MESSAGES,
            {
                **MESSAGE,
                "content": [{**TOOL_USE, "type": "server_tool_use"}],
                "stop_reason": "tool_use",
            },
        ),
    ],
)
def test_answer_with_calls_is_relayed_byte_for_byte(api: Api, body: dict[str, Any]) -> None:
    """The reason stays if there is any call, even in another choice or of another kind."""
    sent = json.dumps(body, indent=1).encode()
    upstream = Upstream(whole(sent))
    with upstream.serve(), gateway(at(upstream, api)) as http:
        assert ask(http, api, stream=False).content == sent


def test_events_with_empty_data_are_not_relayed() -> None:
    """OpenAI's client fails to decode them; all other bytes of the stream stay as they are."""
    first, second = data(chat(content="a")), data(chat("stop", content="b"))
    kept = [b": wait\n\n", first, b": ok\r\n\r\n", second, DONE]
    empty = [
        b"data:\n\n",
        b"data: \r\n\r\nretry: 5\n\n",
        b"event: ping\ndata:\n\n",
        b"data:\ndata: \n\nid: 7\n\n",
        b"event: ping\n\n",
    ]
    mixed = b"".join(part for both in zip(kept, empty, strict=True) for part in both)
    upstream = Upstream(stream(mixed))
    with upstream.serve(), gateway(at(upstream, apis.CHAT)) as http:
        assert ask(http, apis.CHAT).content == b"".join(kept)
        for size in (1, 7):
            pieces = [mixed[start : start + size] for start in range(0, len(mixed), size)]
            upstream.answer = stream(*pieces)
            assert ask(http, apis.CHAT).content == b"".join(kept)
        client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="k", max_retries=0)
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == "ab"


NO_CREDITS = {"code": "insufficient_quota", "message": "No credits left"}
CODE_402 = {**NO_CREDITS, "code": 402}
BILLING = {"type": "error", "error": {"type": "billing_error", "message": "No credits left"}}
LOW_BALANCE = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "Your credit balance is too low to access the Anthropic API. No credits left",
    },
}
FAILED_RESPONSE = {
    "type": "response.failed",
    "response": {**RESPONSE, "status": "failed", "error": NO_CREDITS},
}
QUOTA: dict[str, tuple[Api, Answer]] = {
    "chat, whole": (apis.CHAT, whole(json.dumps({"error": NO_CREDITS}).encode())),
    "chat, first event": (apis.CHAT, stream(data({"error": NO_CREDITS}))),
    "chat, event and end": (apis.CHAT, stream(data({"error": NO_CREDITS}) + DONE)),
    "chat, after the beginning": (
        apis.CHAT,
        stream(data(chat(role="assistant"), {"error": NO_CREDITS})),
    ),
    "chat, type": (
        apis.CHAT,
        whole(
            json.dumps(
                {"error": {**NO_CREDITS, "code": None, "type": "insufficient_quota"}}
            ).encode(),
            429,
        ),
    ),
    "chat, OpenRouter, whole": (apis.CHAT, whole(json.dumps({"error": CODE_402}).encode())),
    "chat, OpenRouter, first event": (apis.CHAT, stream(b": wait\n\n" + data({"error": CODE_402}))),
    "chat, 400": (
        apis.CHAT,
        whole(json.dumps({"error": {**NO_CREDITS, "code": "Arrearage"}}).encode(), 400),
    ),
    "chat, 403": (
        apis.CHAT,
        whole(
            json.dumps({"error": {**NO_CREDITS, "code": "insufficient_user_quota"}}).encode(), 403
        ),
    ),
    "chat, fields on top": (apis.CHAT, whole(json.dumps(NO_CREDITS).encode(), 429)),
    "chat, 429": (apis.CHAT, whole(json.dumps({"error": NO_CREDITS}).encode(), 429)),
    "responses, whole": (
        apis.RESPONSES,
        whole(json.dumps({**RESPONSE, "status": "failed", "error": NO_CREDITS}).encode()),
    ),
    "responses, error": (apis.RESPONSES, stream(named({"type": "error", **NO_CREDITS}))),
    "responses, failed": (
        apis.RESPONSES,
        stream(named({"type": "response.created", "response": RESPONSE}, FAILED_RESPONSE)),
    ),
    "responses, 429": (apis.RESPONSES, whole(json.dumps({"error": NO_CREDITS}).encode(), 429)),
    "messages, whole": (apis.MESSAGES, whole(json.dumps(BILLING).encode())),
    "messages, first event": (apis.MESSAGES, stream(named(BILLING))),
    "messages, 400": (apis.MESSAGES, whole(json.dumps(BILLING).encode(), 400)),
    "messages, 402": (apis.MESSAGES, whole(json.dumps(BILLING).encode(), 402)),
    "messages, low balance": (apis.MESSAGES, whole(json.dumps(LOW_BALANCE).encode(), 400)),
}


@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize("kind", QUOTA)
def test_account_without_credit_is_asked_once(client: Api, kind: str) -> None:
    """Another deployment answers; without one, the client gets 429 and the provider's message."""
    api, answer = QUOTA[kind]
    empty, good = Upstream(answer), Upstream(GOOD)
    with empty.serve(), good.serve():
        with gateway(at(empty, api)) as http:
            response = ask(http, client)
            assert (response.status_code, len(empty.requests)) == (429, 1)
            assert "No credits left" in response.json()["error"]["message"]
            assert response.headers["content-type"] == "application/json"
            assert response.headers["x-should-retry"] == "false"
            assert record_of(http, response)["status"] == 429
            with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as refused:
                _ask_by_sdk(http, client)
            assert "No credits left" in str(refused.value)
            assert len(empty.requests) == 2
        with gateway(at(empty, api), at(good, apis.CHAT)) as http:
            assert "good" in ask(http, client).text
        assert (len(empty.requests), len(good.requests)) == (3, 1)


def _ask_by_sdk(http: httpx.Client, client: Api) -> None:
    body: Any = {"model": "m", "stream": True, **BODIES[client]}
    if client is apis.MESSAGES:
        anthropic.Anthropic(base_url=str(http.base_url), api_key="k").messages.create(**body)
    else:
        sdk: Any = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="k")
        place = sdk.responses if client is apis.RESPONSES else sdk.chat.completions
        place.create(**body)


@pytest.mark.parametrize("named_flags", [True, False])
def test_refused_beta_is_left_out_and_remembered(named_flags: bool) -> None:
    """After a 400 about a beta, one request without it follows, and later ones do not send it."""
    headers = {"anthropic-beta": "files-api-2025-04-14,context-1m-2025-08-07"}
    message = "Unexpected value(s) `context-1m-2025-08-07` for the `anthropic-beta` header."
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    if not named_flags:
        error = {"error": {"message": "invalid beta flag", "type": "ValidationException"}}
    good = {**MESSAGE, "content": [{"type": "text", "text": "good"}], "stop_reason": "end_turn"}
    answers = [whole(json.dumps(good).encode())] * 2 + [whole(json.dumps(error).encode(), 400)]

    def answer() -> Iterator[bytes]:
        return answers.pop()()

    upstream = Upstream(answer)
    with upstream.serve(), gateway(at(upstream, apis.MESSAGES)) as http:
        body = {"model": "m", **BODIES[apis.MESSAGES]}
        for _ in range(2):
            response = http.post("/v1/messages", json=body, headers=headers)
            assert (response.status_code, "good" in response.text) == (200, True)
    refused, *accepted = upstream.requests
    assert [b"context-1m" in sent for sent in (refused, *accepted)] == [True, False, False]
    assert [b"files-api" in sent for sent in accepted] == [named_flags] * 2
