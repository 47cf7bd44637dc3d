"""Rate limits of keys and teams: refusals, headers and what is given back, in all APIs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import httpx
import openai
import pytest

from router_service.settings import Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import PROBABILITIES
from tests.gateways import sandbox_settings
from tests.keyed_gateways import KeyedGateway, keyed_gateway, open_stream
from tests.serving import ONE_TRY, Sandbox, scripted, wait_for
from tests.stored_keys import bearer, change_key

MESSAGES = "/v1/messages"
TOKENS_LEFT = "x-ratelimit-remaining-tokens"
BODIES = {
    CHAT: BODY,
    MESSAGES: {"model": "switchcraft", "max_tokens": 9, "messages": ASK},
    "/v1/responses": {"model": "switchcraft", "input": "Hi"},
}


@pytest.fixture(scope="module")
def gateway(sandbox: Sandbox) -> Iterator[KeyedGateway]:
    """Yield a gateway."""
    with keyed_gateway(sandbox) as it:
        yield it


def ask(gateway: KeyedGateway, secret: str, path: str = CHAT, **headers: str) -> httpx.Response:
    """Send the usual request of an API."""
    return gateway.post(secret, path, BODIES[path], **headers)


@pytest.mark.parametrize("path", BODIES)
def test_requests_beyond_the_limit_are_refused_in_each_api(
    gateway: KeyedGateway, sandbox: Sandbox, path: str
) -> None:
    """The refusal names the limit, its key and the time to wait; no upstream is asked."""
    secret = gateway.add_key(f"two{path}", requests_per_minute=2)
    assert [ask(gateway, secret, path).status_code for _ in range(2)] == [200, 200]
    before = sandbox.stats()["requests"]
    refused = ask(gateway, secret, path)
    assert sandbox.stats()["requests"] == before
    assert refused.status_code == 429
    error = refused.json()["error"]
    begin = f"Rate limit reached: the key 'two{path}' may send 2 requests a minute, and has sent"
    assert error["message"].startswith(begin)
    wait_s = float(error["message"].rpartition(" in ")[2].removesuffix(" s."))
    assert 20 < wait_s <= 30
    assert abs(int(refused.headers["retry-after-ms"]) - wait_s * 1000) <= 1
    assert 0 <= int(refused.headers["retry-after"]) - wait_s < 1
    if path == MESSAGES:
        assert (refused.json()["type"], error["type"]) == ("error", "rate_limit_error")
        assert refused.headers["anthropic-ratelimit-requests-remaining"] == "0"
    else:
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize("stream", [False, True])
def test_openai_client_reads_what_is_left(gateway: KeyedGateway, stream: bool) -> None:
    """Whole answers and streams have OpenAI's headers."""
    secret = gateway.add_key(
        f"openai{stream}", requests_per_minute=120, tokens_per_minute=60_000, parallel_requests=3
    )
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        raw = client.chat.completions.with_raw_response
        headers = raw.create(model="small", messages=ASK, stream=stream).headers
        assert headers["x-ratelimit-limit-requests"] == "120"
        assert headers["x-ratelimit-remaining-requests"] == "119"
        assert headers["x-ratelimit-reset-requests"] == "500ms"
        assert headers["x-ratelimit-limit-tokens"] == "60000"
        estimate = 60_000 - int(headers[TOKENS_LEFT])
        assert 256 < estimate < 350, "the tokens of the body, and of a usual answer"
        assert headers["x-ratelimit-reset-tokens"] == f"{estimate}ms"


def test_the_tighter_limit_of_key_and_team_is_shown(gateway: KeyedGateway) -> None:
    """A request counts towards both; a refusal names the one for which it has to wait longest."""
    gateway.add_team("search", requests_per_minute=3)
    first = gateway.add_key("search-1", team="search", requests_per_minute=100)
    second = gateway.add_key("search-2", team="search", requests_per_minute=1)
    assert ask(gateway, first).headers["x-ratelimit-limit-requests"] == "3"
    assert ask(gateway, second).headers["x-ratelimit-limit-requests"] == "1"
    assert ask(gateway, first).headers["x-ratelimit-remaining-requests"] == "0"
    assert "the team 'search' may send 3 requests" in ask(gateway, first).text
    assert "the key 'search-2' may send 1 requests" in ask(gateway, second).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_tokens_are_corrected_when_the_answer_has_ended(
    gateway: KeyedGateway, path: str, stream: bool
) -> None:
    """After an answer, only the tokens that it has used count, which are less than estimated.

    With the estimate of the first request, the second one would have to wait for ten seconds.
    """
    secret = gateway.add_key(f"corrected{path}{stream}", tokens_per_minute=500)
    body = {**BODIES[path], "stream": stream}
    first = gateway.post(secret, path, body)
    name = "anthropic-ratelimit-tokens-remaining" if path == MESSAGES else TOKENS_LEFT
    left = first.headers[name]
    assert 150 < int(left) < 250
    wait_for(lambda: gateway.post(secret, path, body).status_code == 200, "it is corrected", 2)


def test_tokens_beyond_the_limit_are_refused(gateway: KeyedGateway) -> None:
    """The refusal has OpenAI's type, and says how many tokens are expected and left."""
    secret = gateway.add_key("few-tokens", tokens_per_minute=300)
    with open_stream(gateway.url, secret, CHAT, BODY):
        refused = ask(gateway, secret)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("tokens", "rate_limit_exceeded")
    pattern = (
        r"the key 'few-tokens' may use 300 tokens a minute, of which \d+ are left. This request is "
        r"expected to use 3\d\d. Try again in [\d.]+ s."
    )
    assert re.search(pattern, error["message"])


def test_requests_that_fail_give_their_tokens_back(gateway: KeyedGateway) -> None:
    """Requests that cannot be planned, and those without an answer, have used no tokens."""
    secret = gateway.add_key("failing", tokens_per_minute=500)
    statuses: list[int] = []

    def has_failed(unknown: bool) -> bool:
        body = BODY | ({"model": "unknown"} if unknown else {})
        answer = gateway.post(secret, CHAT, body, x_sandbox="cut_after=0")
        statuses.append(answer.status_code)
        return statuses[-1] == (404 if unknown else 502)

    for unknown in (True, False) * 2:
        wait_for(partial(has_failed, unknown), "the request is admitted", 2)
    assert set(statuses) <= {404, 502, 429}


@pytest.mark.parametrize("path", BODIES)
def test_slots_of_streams_are_free_when_their_clients_leave(
    gateway: KeyedGateway, path: str
) -> None:
    """Two streams are allowed at a time; further requests succeed once a client has left."""
    name = f"parallel{path}"
    secret = gateway.add_key(name, parallel_requests=2)
    for _ in range(2):  # no slot is lost
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(open_stream(gateway.url, secret, path, BODIES[path]))
            refused = ask(gateway, secret, path)
            assert refused.status_code == 429
            assert refused.json()["error"]["message"].endswith(
                f"the key {name!r} may have 2 requests at the same time, and has them. Try again "
                "when one of them has ended."
            )
            assert refused.headers["retry-after"] == "1"
            if path == CHAT:
                assert refused.json()["error"]["type"] == "requests"
        wait_for(lambda: ask(gateway, secret, path).status_code == 200, "a slot is free")


def test_counts_of_tokens_are_requests(gateway: KeyedGateway) -> None:
    """They count as requests, and use no tokens; lists of models count as nothing."""
    secret = gateway.add_key("counting", requests_per_minute=2, tokens_per_minute=1)
    path = "/v1/messages/count_tokens"
    body = {"model": "small", "messages": ASK}
    first = gateway.post(secret, path, body)
    assert first.headers["anthropic-ratelimit-requests-remaining"] == "1"
    assert "anthropic-ratelimit-tokens-remaining" not in first.headers
    listed = gateway.http.get("/v1/models", headers=bearer(secret))
    assert (listed.status_code, "x-ratelimit-limit-requests" in listed.headers) == (200, False)
    assert [gateway.post(secret, path, body).status_code for _ in range(2)] == [200, 429]


def test_requests_that_are_passed_through_count(sandbox: Sandbox) -> None:
    """They count as requests; their tokens are not known."""
    settings = sandbox_settings(sandbox.base_url, pass_through="large")
    with keyed_gateway(sandbox, settings) as gateway:
        secret = gateway.add_key("passing", requests_per_minute=1, tokens_per_minute=1)
        path, body = "/v1/images/generations", {"prompt": "a cat"}
        first = gateway.post(secret, path, body)
        assert first.headers["x-switchcraft-reason"] == "passed"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        assert TOKENS_LEFT not in first.headers
        assert gateway.post(secret, path, body).status_code == 429


def test_changed_limits_apply_at_once(gateway: KeyedGateway) -> None:
    """A higher limit admits what the lower one refuses, and no limit admits everything."""
    secret = gateway.add_key("changing", requests_per_minute=1)
    database = gateway.state.database.database
    assert [ask(gateway, secret).status_code for _ in range(2)] == [200, 429]
    change_key(database, "changing", requests_per_minute=6000)
    wait_for(lambda: ask(gateway, secret).status_code == 200, "the higher limit applies", 10)
    change_key(database, "changing", requests_per_minute=None)
    name = "x-ratelimit-limit-requests"
    wait_for(lambda: name not in ask(gateway, secret).headers, "no limit applies")


def test_headers_of_the_upstream_are_replaced() -> None:
    """A key with limits sees its own, and one without sees those of the gateway's account."""
    body = b'{"choices": [{"message": {"role": "assistant", "content": "Hi"}}]}'
    names = ("x-ratelimit-remaining-requests", "anthropic-ratelimit-tokens-limit")
    lines = b"".join(f"{name}: 7777\r\n".encode() for name in names)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    with scripted(head % len(body) + lines + b"\r\n" + body) as upstream:
        settings = Settings.sandbox(upstream, list(PROBABILITIES), upstreams=ONE_TRY)
        with keyed_gateway(Sandbox(upstream), settings) as gateway:
            limited = gateway.add_key("limited", requests_per_minute=5)
            unlimited = gateway.add_key("unlimited")
            own, foreign = ask(gateway, limited).headers, ask(gateway, unlimited).headers
    assert own.get_list(names[0]) == ["4"]
    assert own.get_list(names[1]) == []
    assert [foreign.get_list(name) for name in names] == [["7777"], ["7777"]]
