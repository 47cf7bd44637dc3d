"""Every client reaches every upstream, whatever values requests and answers have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from openai.types.responses import ResponseCreatedEvent

from router_service.serving.app import create_app
from router_service.settings import VerificationSettings
from tests import apis
from tests.answering import MODELS, Peers, settings_of
from tests.apis import APIS, Api
from tests.bodies import ASK, TOOLS
from tests.dialect_answers import CASES, events, whole
from tests.fakes import VerifyingRouter
from tests.gateways import VERIFIED
from tests.router_service.http import scripted
from tests.router_service.http.scripted import DONE
from tests.serving import Sandbox, served

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES
PAIRS = [(client, source) for client in APIS for source in APIS if client is not source]
FUNCTION = TOOLS[0]["function"]


def body_of(client: Api, *items: Any, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a request with a tool, and with further messages or items."""
    messages = [*ASK, *items]
    own: dict[Api, dict[str, Any]] = {
        CHAT: {"messages": messages, "tools": TOOLS},
        RESPONSES: {"input": messages, "tools": [{"type": "function", **FUNCTION}], "store": False},
        MESSAGES: {
            "messages": messages,
            "tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
            "max_tokens": 99,
        },
    }
    return {"model": "switchcraft", **own[client], **fields}


def ask(
    it: Peers,
    client: Api,
    source: Api,
    answer: bytes,
    *,
    stream: bool = False,
    body: dict[str, Any] | None = None,
) -> httpx.Response:
    """Ask the model that speaks an API, which gives this answer."""
    sent = (body or body_of(client)) | {"model": MODELS[source], "stream": stream}
    return it.ask(client, json.dumps(sent).encode(), answer, stream=stream)


def stream_of(sent: list[dict[str, Any]], api: Api) -> bytes:
    """Return events as an upstream sends them."""
    return scripted.data(*sent) + (DONE if api is CHAT else b"")


@pytest.fixture(scope="module", params=[CHAT, MESSAGES])
def slow(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway that waits for verified answers; yield its address.

    It asks `small`, which is slow, and then `large`, which speaks one of the APIs.
    """
    speakers = {"small": CHAT, "medium": CHAT, "large": request.param}
    settings = settings_of(sandbox.base_url, speakers)
    verification = VerificationSettings(keep_alive_s=0.05)
    router = settings.router.model_copy(update={"verification": verification})
    asking = VerifyingRouter(groups=(("small",), ("large",)))
    sandbox.set_faults("small", "delay_s=1")
    with served(create_app(settings.model_copy(update={"router": router}), asking)) as url:
        yield url
    sandbox.set_faults("small", "")


@pytest.mark.parametrize("fails", [False, True])
def test_responses_client_sees_that_it_must_wait(slow: str, fails: bool) -> None:
    """A verified stream begins with one `response.created`, whose id and numbers are continued."""
    body = body_of(RESPONSES)
    headers = VERIFIED | ({"x-sandbox": "delay_s=0.3,status=500"} if fails else {})
    url = f"{slow}/v1/responses"
    response = httpx.post(url, json=body | {"stream": True}, headers=headers)
    sent = [json.loads(line[6:]) for line in response.text.splitlines() if line[:5] == "data:"]
    kinds = [event["type"] for event in sent]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert len({event["response"]["id"] for event in sent if "response" in event}) == 1
    assert kinds[-1] == ("error" if fails else "response.completed")
    client = openai.OpenAI(base_url=f"{slow}/v1", api_key="k", max_retries=0)
    with client.responses.stream(**body, extra_headers=headers) as found:
        if fails:
            with pytest.raises(openai.APIError):
                found.get_final_response()
            return
        seen = list(found)
        final: Any = found.get_final_response()
    assert isinstance(seen[0], ResponseCreatedEvent)
    assert final.id == seen[0].response.id
    assert json.loads(final.output[0].arguments) == {"city": "Oslo"}


def test_messages_client_sees_that_it_must_wait(slow: str) -> None:
    """A verified stream begins with pings, which Anthropic's client accepts at any place."""
    body = body_of(MESSAGES)
    sent = body | {"stream": True}
    response = httpx.post(f"{slow}/v1/messages", json=sent, headers=VERIFIED)
    ping = 'event: ping\ndata: {"type":"ping"}\n\n'
    assert response.text.startswith(f"{ping}{ping}")
    assert response.text.count("event: message_start") == 1
    client = anthropic.Anthropic(base_url=slow, api_key="k", max_retries=0)
    with client.messages.stream(**body, extra_headers=VERIFIED) as found:
        final: Any = found.get_final_message()
    assert final.content[0].input == {"city": "Oslo"}


WIDE, LONG = 2**64 + 1, 10**400


@pytest.mark.parametrize("source", APIS)
@pytest.mark.parametrize("client", [CHAT, MESSAGES])
def test_integers_beyond_64_bits_are_not_rounded(it: Peers, client: Api, source: Api) -> None:
    """The upstream gets those of a schema and of arguments, and the client those of an answer."""
    schema = {"type": "object", "properties": {"a": {"enum": [WIDE, -WIDE, LONG]}}}
    arguments = {"a": WIDE, "b": LONG}
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    if client is MESSAGES:
        use = {"type": "tool_use", "id": "c", "name": "get_weather", "input": arguments}
        result: Any = {"type": "tool_result", "tool_use_id": "c", "content": "a"}
        items: list[Any] = [{"role": "assistant", "content": [use]}]
        items += [{"role": "user", "content": [result]}]
        tools: list[Any] = [{"name": "get_weather", "input_schema": schema}]
    else:
        calls = [{"id": "c", "type": "function", "function": function}]
        items = [{"role": "assistant", "tool_calls": calls}]
        items += [{"role": "tool", "tool_call_id": "c", "content": "a"}]
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
    body = body_of(client, *items, tools=tools)
    text = f'{{"a":{WIDE},"b":-{WIDE},"c":1e400}}'
    answer = with_arguments(source, text if source is not MESSAGES else None)
    response = ask(it, client, source, answer.replace(b'"ARGUMENTS"', text.encode()), body=body)
    assert response.status_code == 200, response.text
    sent = it.upstream.bodies[-1]
    assert min(sent.count(b"%d" % number) for number in (WIDE, LONG)) >= 2
    if source is MESSAGES or client is not MESSAGES:
        assert str(WIDE) in response.text
        assert "1e400" in response.text
    assert "1.8446744073709552e" not in sent.decode() + response.text


def with_arguments(source: Api, text: str | None) -> bytes:
    """Return a whole answer with one call, whose arguments are a text or the value "ARGUMENTS"."""
    answer = whole(CASES["one call"], source)
    said = "ARGUMENTS" if text is None else text
    if source is CHAT:
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = said
    elif source is RESPONSES:
        answer["output"][-1]["arguments"] = said
    else:
        answer["content"][-1]["input"] = said
    return json.dumps(answer).encode()


@pytest.mark.parametrize(("client", "source"), PAIRS)
def test_surrogates_in_answers(it: Peers, client: Api, source: Api) -> None:
    """Text gets a question mark. The name, the id or the arguments of a call are refused."""
    text, call = (json.dumps(whole(CASES[name], source)) for name in ("text", "one call"))
    for piece, answer, status in (
        ("Oslo", text, 200),
        ('"m"', text, 200),
        ("get_weather", call, 502),
        ("toolu_01A", call, 502),
        *((("Oslo", call, 502),) if source is not MESSAGES else ()),
    ):
        spelled = '"\\ud83d"' if piece == '"m"' else "\\ud83d"
        response = ask(it, client, source, answer.replace(piece, spelled).encode())
        assert response.status_code == status, response.text
    sent = stream_of(events(CASES["one call"], source, size=1000), source)
    for piece in (b"get_weather", b"toolu_01A", b"Oslo"):
        response = ask(it, client, source, sent.replace(piece, b"\\ud83d"), stream=True)
        assert response.status_code == 502 or "error" in response.text
    assert it.problems == []
