"""Faults that a request asks for, as a client meets them."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest

from router_service.core.errors import InvalidRequestError
from router_service.sandbox.provider import create_sandbox, run_in_thread
from router_service.sandbox.sending import Faults

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
STREAM = BODY | {"stream": True, "stream_options": {"include_usage": True}}


def faulty(header: str) -> dict[str, str]:
    """Return the headers that ask for faults."""
    return {"x-sandbox": header}


def stats(http: httpx.Client) -> dict[str, Any]:
    """Return what the sandbox has counted."""
    counted: dict[str, Any] = http.get("/sandbox/stats").json()
    return counted


def wait_until_cancelled(http: httpx.Client, count: int) -> dict[str, Any]:
    """Return the counts as soon as so many requests are cancelled, or after two seconds."""
    deadline = time.monotonic() + 2
    while (counted := stats(http))["cancelled"] < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return counted


def test_every_field_is_parsed() -> None:
    """Each field of the header sets the attribute of its name."""
    assert Faults.parse("") == Faults()
    assert Faults.parse(" delay_s=0.2, chunk_delay_s=1 ,usage=none, cut_after=3") == Faults(
        delay_s=0.2, chunk_delay_s=1.0, no_usage=True, cut_after=3
    )
    assert Faults.parse("status=503").status == 503
    assert Faults.parse("hang").hang
    assert Faults.parse("malformed").malformed
    assert Faults.parse("status=429,retry_after_s=0.5,times=2") == Faults(
        status=429, retry_after_s=0.5, times=2
    )
    assert Faults.parse("error_in_body").error_in_body
    assert Faults.parse("error_after=2,keep_alives,multi_line,reject_stream_options") == Faults(
        error_after=2, keep_alives=True, multi_line=True, reject_stream_options=True
    )
    assert Faults.parse("hang_after=1").hang_after == 1


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("dely_s=1", "dely_s"),
        ("delay_s", "delay_s"),
        ("delay_s=-1", "delay_s"),
        ("delay_s=nan", "delay_s"),
        ("delay_s=1e9", "delay_s"),
        ("chunk_delay_s=soon", "chunk_delay_s"),
        ("status=200", "status"),
        ("status=", "status"),
        ("hang=1", "hang"),
        ("cut_after=-1", "cut_after"),
        ("cut_after=\u00b2", "cut_after"),
        ("malformed=yes", "malformed"),
        ("usage=all", "usage"),
        ("hang,hang", "hang"),
        ("status=500,hang", "hang"),
        ("error_after=1,hang_after=1", "hang_after"),
        ("retry_after_s=1", "retry_after_s"),
    ],
)
def test_invalid_fields_are_refused(header: str, named: str) -> None:
    """The error names the unknown, unreadable, repeated or conflicting field."""
    with pytest.raises(InvalidRequestError, match=f"'{named}'") as caught:
        Faults.parse(header)
    assert caught.value.param == "x-sandbox"


def test_invalid_header_gets_status_400(http: httpx.Client) -> None:
    """A typing error is not ignored."""
    response = http.post(CHAT, json=BODY, headers=faulty("delay=1"))
    assert response.status_code == 400
    assert "'delay'" in response.json()["error"]["message"]


def test_delay_precedes_the_first_byte(http: httpx.Client) -> None:
    """`delay_s` delays answers and errors, including their status."""
    for header in ("delay_s=0.1", "delay_s=0.1,status=500"):
        started = time.monotonic()
        with http.stream("POST", CHAT, json=STREAM, headers=faulty(header)):
            assert time.monotonic() - started >= 0.1


def test_chunk_delay_separates_events(http: httpx.Client) -> None:
    """`chunk_delay_s` delays each event except the first."""
    with http.stream("POST", CHAT, json=STREAM, headers=faulty("chunk_delay_s=0.02")) as response:
        arrivals = [time.monotonic() for line in response.iter_lines() if line]
    assert len(arrivals) > 4
    assert arrivals[-1] - arrivals[0] >= 0.018 * (len(arrivals) - 1)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_status_raises_the_clients_error(
    sandbox_url: str, status: int, error: type[openai.APIStatusError]
) -> None:
    """The OpenAI client raises the error of the real status, with a readable body."""
    client = openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0)
    headers = faulty(f"status={status}")
    with client, pytest.raises(error) as caught:
        client.chat.completions.create(model="m", messages=BODY["messages"], extra_headers=headers)
    assert caught.value.status_code == status
    assert str(status) in caught.value.message
    assert caught.value.response.headers["x-sandbox"] == "true"
    assert caught.value.response.headers.get("retry-after") == ("1" if status == 429 else None)


@pytest.mark.parametrize("count", [0, 3, 1000])
def test_cut_stream_is_a_protocol_error(http: httpx.Client, count: int) -> None:
    """The connection breaks after the requested number of events."""
    seen: list[str] = []
    with http.stream("POST", CHAT, json=STREAM, headers=faulty(f"cut_after={count}")) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            seen.extend(line for line in response.iter_lines() if line)
    assert len(seen) == count or (count == 1000 and seen[-1] == "data: [DONE]")


def test_cut_body_is_a_protocol_error(http: httpx.Client) -> None:
    """Half of the promised length arrives."""
    whole = len(http.post(CHAT, json=BODY).content)
    with http.stream("POST", CHAT, json=BODY, headers=faulty("cut_after=1")) as response:
        assert int(response.headers["content-length"]) == whole
        received: list[bytes] = []
        with pytest.raises(httpx.RemoteProtocolError):
            received.extend(response.iter_raw())
    assert len(b"".join(received)) == whole // 2


def test_malformed_body_is_not_json(http: httpx.Client) -> None:
    """The status is 200."""
    response = http.post(CHAT, json=BODY, headers=faulty("malformed"))
    assert response.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        response.json()


def test_malformed_stream_has_a_broken_line(http: httpx.Client) -> None:
    """The other events are valid, and the stream ends with `[DONE]`."""
    first, broken, done = http.post(CHAT, json=STREAM, headers=faulty("malformed")).text.split(
        "\n\n"
    )[:-1]
    assert json.loads(first.removeprefix("data: "))["object"] == "chat.completion.chunk"
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken.removeprefix("data: "))
    assert done == "data: [DONE]"


def test_usage_none_omits_the_usage(http: httpx.Client) -> None:
    """This applies to bodies, and to streams that request the usage."""
    headers = faulty("usage=none")
    assert "usage" not in http.post(CHAT, json=BODY, headers=headers).json()
    assert "usage" not in http.post(CHAT, json=STREAM, headers=headers).text


@pytest.mark.parametrize(
    ("header", "body"), [("hang", BODY), ("delay_s=60", BODY), ("chunk_delay_s=60", STREAM)]
)
def test_disconnected_client_is_counted_as_cancelled(header: str, body: dict[str, Any]) -> None:
    """The sandbox notices it during every kind of wait."""
    with run_in_thread() as url, httpx.Client(base_url=url.removesuffix("/v1")) as http:
        with httpx.Client(timeout=0.1) as leaver, pytest.raises(httpx.ReadTimeout):
            leaver.post(f"{url}/chat/completions", json=body, headers=faulty(header))
        counted = wait_until_cancelled(http, 1)
    assert (counted["requests"], counted["cancelled"], counted["completed"]) == (1, 1, 0)
    assert counted["in_flight"] == 0


def test_each_request_is_counted_once_by_its_ending() -> None:
    """Until then it is in flight."""
    with run_in_thread() as url, httpx.Client(base_url=url.removesuffix("/v1")) as http:
        http.post(CHAT, json=BODY)
        http.post(CHAT, json=STREAM)
        http.post(CHAT, json=BODY, headers=faulty("status=500"))
        http.post(CHAT, content=b"{")
        with pytest.raises(httpx.RemoteProtocolError):
            http.post(CHAT, json=STREAM, headers=faulty("cut_after=1"))
        with http.stream("POST", CHAT, json=STREAM, headers=faulty("chunk_delay_s=60")):
            counted = stats(http)
    expected = {"completed": 2, "cut": 1, "cancelled": 0, "in_flight": 1}
    assert counted.pop("by_model") == {"m": expected | {"requests": 5, "failed": 1}}
    assert counted == expected | {"requests": 6, "failed": 2}


def test_hanging_requests_do_not_delay_the_stop() -> None:
    """The server stops within its drain time."""

    def hang(url: str) -> None:
        with suppress(httpx.HTTPError):
            httpx.post(f"{url}/chat/completions", json=BODY, headers=faulty("hang"), timeout=10)

    with ThreadPoolExecutor() as pool:
        with run_in_thread() as url, httpx.Client(base_url=url.removesuffix("/v1")) as http:
            hanging = pool.submit(hang, url)
            while stats(http)["in_flight"] == 0:
                time.sleep(0.01)
            started = time.monotonic()
        hanging.result()
    assert time.monotonic() - started < 4


def test_cancelled_task_is_counted() -> None:
    """In process, a disconnect is a cancellation."""
    app = create_sandbox()

    async def leave() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://sandbox") as client:
            async with asyncio.timeout(0.05):
                await client.post(CHAT, json=BODY, headers=faulty("hang"))

    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    assert app.state.sandbox.total.endings["cancelled"] == 1


def data_of(events: str) -> list[str]:
    """Return the data of each event, by the rules of the standard for any line end."""
    blocks = events.replace("\r\n", "\n").split("\n\n")
    found = [
        [line[6:] for line in block.split("\n") if line.startswith("data: ")] for block in blocks
    ]
    return ["\n".join(lines) for lines in found if lines]


def decoded(events: str) -> list[Any]:
    """Return the JSON of each event, and the last one's `[DONE]` as it is."""
    return [each if each == "[DONE]" else json.loads(each) for each in data_of(events)]


def test_retry_after_has_seconds_and_milliseconds(http: httpx.Client) -> None:
    """Seconds are rounded up, milliseconds are exact."""
    for status in (429, 503):
        asked = faulty(f"status={status},retry_after_s=1.25")
        response = http.post(CHAT, json=BODY, headers=asked)
        assert response.status_code == status
        assert response.headers["retry-after"] == "2"
        assert response.headers["retry-after-ms"] == "1250"


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_error_in_body_has_status_200(http: httpx.Client, body: dict[str, Any]) -> None:
    """Streamed requests get the same JSON error."""
    response = http.post(CHAT, json=body, headers=faulty("error_in_body"))
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.json()["error"]["type"] == "server_error"


def test_error_after_ends_the_stream_with_an_error_event(http: httpx.Client) -> None:
    """There is no `[DONE]`."""
    first, second, last = decoded(
        http.post(CHAT, json=STREAM, headers=faulty("error_after=2")).text
    )
    assert "error" not in first
    assert "error" not in second
    assert last["error"]["code"] == "server_error"


def test_client_raises_the_error_event(sandbox_url: str) -> None:
    """The OpenAI client raises it while it reads the stream."""
    with openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="m", messages=BODY["messages"], stream=True, extra_headers=faulty("error_after=1")
        )
        with pytest.raises(openai.APIError, match="mid-stream"):
            list(stream)


@pytest.mark.parametrize(("body", "least"), [(STREAM, 2), (BODY, 1)])
def test_hang_after_stops_in_the_middle(
    http: httpx.Client, body: dict[str, Any], least: int
) -> None:
    """The connection stays open without further data."""
    parts: list[bytes] = []
    asked = faulty("hang_after=2")
    with (
        pytest.raises(httpx.ReadTimeout),
        http.stream("POST", CHAT, json=body, headers=asked, timeout=0.3) as response,
    ):
        parts.extend(response.iter_raw())
    sent = b"".join(parts)
    assert sent
    assert b"[DONE]" not in sent
    assert sent.count(b"\n\n") in {0, least}


def test_keep_alives_precede_events(http: httpx.Client) -> None:
    """The events themselves are unchanged."""
    text = http.post(CHAT, json=STREAM, headers=faulty("keep_alives")).text
    blocks = text.split("\n\n")[:-1]
    assert blocks[::2] == [": keep-alive"] * (len(blocks) // 2)
    assert len(decoded(text)) == len(blocks) // 2


def test_multi_line_keeps_the_events(http: httpx.Client) -> None:
    """The data is on several lines with CRLF, and its JSON is the same."""
    plain = http.post(CHAT, json=STREAM).text
    odd = http.post(CHAT, json=STREAM, headers=faulty("multi_line")).text
    assert "\r\n\r\n" in odd
    assert max(block.count("data: ") for block in odd.split("\n\n")) > 1
    told = [
        [each if each == "[DONE]" else each["choices"] for each in decoded(text)]
        for text in (plain, odd)
    ]
    assert told[0] == told[1]


def test_client_reads_odd_streams(sandbox_url: str) -> None:
    """The OpenAI client reads the same of a stream with comments, several lines and CRLF."""
    with openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0) as client:
        texts = {
            "".join(
                chunk.choices[0].delta.content or ""
                for chunk in client.chat.completions.create(
                    model="m", messages=BODY["messages"], stream=True, extra_headers=faulty(header)
                )
            )
            for header in ("", "keep_alives", "multi_line", "keep_alives,multi_line")
        }
    assert len(texts) == 1
    assert "sandbox" in texts.pop()


def test_reject_stream_options(http: httpx.Client) -> None:
    """`reject_stream_options` refuses such bodies by 400, and answers all others."""
    asked = faulty("reject_stream_options")
    refused = http.post(CHAT, json=STREAM, headers=asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options"
    assert http.post(CHAT, json=BODY, headers=asked).status_code == 200


@pytest.fixture
def model(http: httpx.Client) -> Iterator[str]:
    """Yield a model with a slash in its name, whose faults are cleared afterwards."""
    yield "team/m-1"
    http.put("/sandbox/faults/team/m-1")


def ask(http: httpx.Client, model: str, header: str | None = None) -> int:
    """Return the status of a request for a model."""
    headers = {} if header is None else faulty(header)
    return http.post(CHAT, json=BODY | {"model": model}, headers=headers).status_code


def test_faults_of_a_model(http: httpx.Client, model: str) -> None:
    """Faults that are set for a model affect only its requests, until they are cleared."""
    told = http.put(f"/sandbox/faults/{model}", content="status=503").json()
    assert told == http.get("/sandbox/faults").json() == {model: {"status": 503}}
    assert [ask(http, model), ask(http, model), ask(http, "another")] == [503, 503, 200]
    assert http.put(f"/sandbox/faults/{model}", content="").json() == {}
    assert ask(http, model) == 200


def test_a_requests_own_faults_win(http: httpx.Client, model: str) -> None:
    """A request's header replaces the faults of its model, an empty one by none."""
    http.put(f"/sandbox/faults/{model}", content="status=503")
    assert [ask(http, model, "status=429"), ask(http, model, "")] == [429, 200]


def test_faults_of_the_next_requests(http: httpx.Client, model: str) -> None:
    """With `times=N` the next N requests for the model meet the faults, and no later one."""
    http.put(f"/sandbox/faults/{model}", content="status=500,times=2")
    assert [ask(http, model) for _ in range(3)] == [500, 500, 200]
    assert http.get("/sandbox/faults").json() == {}


def test_unreadable_faults_of_a_model(http: httpx.Client, model: str) -> None:
    """What cannot be read is refused, and what was set stays; `times` is not for one request."""
    http.put(f"/sandbox/faults/{model}", content="status=503")
    refused = http.put(f"/sandbox/faults/{model}", content="statis=500")
    assert refused.status_code == 400
    assert "'statis'" in refused.json()["error"]["message"]
    assert [ask(http, model), ask(http, model, "times=1")] == [503, 400]
