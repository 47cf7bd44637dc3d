"""Endpoints that are not routed: to the model that a body names, else to one upstream."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from router_service.api.app import create_app
from router_service.api.paths import upstream_path
from router_service.core.errors import ConfigError, InvalidRequestError
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

KEY = "upstream-secret-key"


async def echo(request: Request) -> Response:
    """Tell what arrived."""
    body = await request.body()
    told = {
        "method": request.method,
        "target": request.scope["raw_path"].decode() + "?" + request.url.query,
        "headers": dict(request.headers),
        "body": body.decode("latin-1"),
    }
    headers = {"x-ratelimit-limit-requests": "7", "set-cookie": "a=b", "x-internal": "1"}
    return JSONResponse(told, status_code=201, headers=headers)


async def parts(_request: Request) -> Response:
    """Answer in parts."""

    async def body() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two ", b"three"):
            yield part

    return StreamingResponse(body(), media_type="audio/mpeg")


@contextmanager
def echoing() -> Iterator[str]:
    """Serve a gateway whose models are all at an upstream that tells what it gets."""
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    routes = [
        Route("/base/parts", parts),
        Route("/base/audio/speech", parts, methods=["POST"]),
        Route("/base/{path:path}", echo, methods=methods),
    ]
    with served(Starlette(routes=routes)) as upstream:
        deployment = Deployment(
            upstream_model="theirs",
            base_url=f"{upstream}/base",
            query="api-version=1",
            api_key=SecretStr(KEY),
        )
        arms = FakeRouter().probabilities
        models = tuple(Model(name=arm, deployments=(deployment,)) for arm in arms)
        settings = Settings(models=models, router=RouterSettings(pass_through="large"))
        with served(create_app(settings, FakeRouter())) as url:
            yield url


@pytest.fixture(scope="module")
def passing() -> Iterator[httpx.Client]:
    """Yield a client of a gateway that passes everything else to an echoing upstream."""
    with echoing() as url, httpx.Client(base_url=url) as client:
        yield client


def test_embeddings(client: openai.OpenAI) -> None:
    """The OpenAI client gets the embeddings of the model that it names, and their price."""
    raw = client.embeddings.with_raw_response.create(model="large", input=["a", "b"])
    answer = raw.parse()
    assert (answer.model, len(answer.data)) == ("large", 2)
    assert raw.headers["x-switchcraft-reason"] == "pinned"
    assert float(raw.headers["x-switchcraft-cost-usd"]) > 0


def test_completions(client: openai.OpenAI) -> None:
    """Completions go to the model that is named, whole and streamed."""
    whole = client.completions.create(model="small", prompt="Once")
    stream = client.completions.create(model="small", prompt="Once", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


@pytest.mark.parametrize("path", ["embeddings", "completions"])
@pytest.mark.parametrize("model", ["switchcraft", "unknown"])
def test_what_is_not_routed_needs_a_pool_models_name(
    http: httpx.Client, path: str, model: str
) -> None:
    """The router's own names are for chat and responses; the refusal tells the models."""
    response = http.post(f"/v1/{path}", json={"model": model, "input": "x", "prompt": "x"})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert "small, medium, large" in error["message"]
    assert "switchcraft:economy" not in error["message"]


def test_any_other_inference_goes_to_the_model_that_it_names(passing: httpx.Client) -> None:
    """A JSON body that names a pool model goes there, with only the name exchanged."""
    body = b'{ "query":"\\u00e9",\n "model" : "small", "n":1e0}'
    answer = passing.post("/v1/rerank", content=body)
    told = answer.json()
    assert told["body"] == body.decode().replace('"small"', '"theirs"')
    assert answer.headers["x-switchcraft-model"] == "small"


def test_an_answer_need_not_be_json(passing: httpx.Client) -> None:
    """Speech of a pool's model arrives as its upstream sent it, at the first try."""
    answer = passing.post("/v1/audio/speech", json={"model": "small", "input": "hi"})
    assert (answer.status_code, answer.content) == (200, b"one two three")
    assert answer.headers["content-type"] == "audio/mpeg"
    assert answer.headers["x-switchcraft-attempts"] == "1"


def test_everything_else_is_passed_on_as_it_is(passing: httpx.Client) -> None:
    """Method, path, query, content type and the body's bytes reach the upstream unchanged."""
    body = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nsmall\r\n--x--\r\n\xff'
    answer = passing.put(
        "/v1/files/file-1%3Ab?purpose=a%20b&limit=2",
        content=body,
        headers={"content-type": "multipart/form-data; boundary=x"},
    )
    told = answer.json()
    assert answer.status_code == 201
    assert told["method"] == "PUT"
    assert told["target"] == "/base/files/file-1%3Ab?purpose=a%20b&limit=2&api-version=1"
    assert told["headers"]["content-type"] == "multipart/form-data; boundary=x"
    assert told["body"].encode("latin-1") == body


def test_the_answer_is_passed_back(passing: httpx.Client) -> None:
    """Status and body are the upstream's, with the headers that clients need and no others."""
    answer = passing.get("/v1/files")
    assert answer.headers["x-ratelimit-limit-requests"] == "7"
    assert answer.headers["x-switchcraft-reason"] == "passed"
    assert "set-cookie" not in answer.headers
    assert "x-internal" not in answer.headers
    answer = passing.get("/v1/parts")
    assert (answer.content, answer.headers["content-type"]) == (b"one two three", "audio/mpeg")


def test_credentials_stay_on_their_side(passing: httpx.Client) -> None:
    """The upstream gets its own key and none of the client's credentials."""
    sent = {
        "authorization": "Bearer client-key",
        "api-key": "client-key",
        "x-api-key": "client-key",
        "cookie": "session=client-key",
        "openai-organization": "client-key",
    }
    told = passing.get("/v1/files", headers=sent).json()
    assert "client-key" not in json.dumps(told)
    assert told["headers"]["authorization"] == f"Bearer {KEY}"


def test_the_configurations_query_counts(passing: httpx.Client) -> None:
    """A client cannot replace what the configuration puts into the query."""
    told = passing.get("/v1/files?api-version=2&a=1").json()
    assert told["target"] == "/base/files?a=1&api-version=1"


def test_broken_json_is_refused(passing: httpx.Client) -> None:
    """A body that says that it is JSON is read before it is passed on."""
    answer = passing.post("/v1/rerank", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


def test_without_an_upstream_it_is_404(http: httpx.Client) -> None:
    """Nothing is passed on unless it is configured; the refusal says what to set."""
    for method, path in (("GET", "/v1/files"), ("POST", "/v1/audio/speech"), ("DELETE", "/v1/x/y")):
        response = http.request(method, path)
        assert response.status_code == 404
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "not_served")
        assert f"{method} {path}" in error["message"]
        assert "router.pass_through" in error["message"]


def test_an_unknown_model_to_pass_to_is_a_configuration_error(sandbox: Sandbox) -> None:
    """A name that is of no model is found at the start."""
    base = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    settings = base.model_copy(update={"router": RouterSettings(pass_through="none")})
    with pytest.raises(ConfigError, match=r"router\.pass_through"):
        create_app(settings, FakeRouter())


def raw_request(url: str, target: bytes) -> bytes:
    """Send a request line as it is; return the status line."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(
            b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        return connection.makefile("rb").readline()


HOSTILE = [
    b"/v1/../secret",
    b"/v1/files/..",
    b"/v1/files/./x",
    b"/v1/files//x",
    b"/v1//files",
    b"/v1/files/%2e%2e/x",
    b"/v1/files/%2E./x",
    b"/v1/files/a%2fb",
    b"/v1/files/a%5Cb",
    b"/v1/files/a\\b",
    b"/v1/files/%0d%0ax",
    b"/v1/files/%00",
    b"/v1/files/%252e%252e",
    b"/v1/files/",
    b"/v1/files?a=%0d\tb",
    b"/v1/fil\xc3\xa9s",
]


@pytest.mark.parametrize("target", HOSTILE)
def test_no_address_leaves_the_base_url(passing: httpx.Client, target: bytes) -> None:
    """Dots, double and encoded slashes, and control characters are refused, never passed on."""
    status = raw_request(str(passing.base_url).rstrip("/"), target)
    assert status.split()[1] in {b"400", b"404"}, status


@given(raw=st.binary(max_size=30), query=st.binary(max_size=20))
def test_what_is_passed_on_has_plain_segments(raw: bytes, query: bytes) -> None:
    """Whatever the path, what comes through has no dots, no empty segments and no controls."""
    scope = {"raw_path": b"/v1/" + raw, "query_string": query, "path": "/v1/x"}
    try:
        path, passed = upstream_path(scope)
    except InvalidRequestError:
        return
    assert path == "/" + raw.decode("latin-1")
    assert not {"", ".", ".."} & set(path.split("/")[1:])
    assert all(0x20 < ord(character) < 0x7F for character in path + passed)
    assert "#" not in passed


def test_a_client_that_leaves_cancels_the_upstream() -> None:
    """The upstream's connection is closed as soon as the client has gone."""
    closed = threading.Event()

    async def slow(_request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 1000
                    await anyio.sleep(0.01)
            finally:
                closed.set()

        return StreamingResponse(body())

    with served(Starlette(routes=[Route("/slow", slow)])) as upstream:
        base = Settings.sandbox(upstream, list(FakeRouter().probabilities))
        settings = base.model_copy(update={"router": RouterSettings(pass_through="small")})
        with served(create_app(settings, FakeRouter())) as url:
            with httpx.stream("GET", f"{url}/v1/slow") as response:
                parts = response.iter_raw()  # held: one that is dropped hangs up
                next(parts)
                assert not closed.is_set()
            assert closed.wait(5)


@pytest.mark.parametrize("status", [401, 403])
def test_what_an_upstream_says_of_its_key_stays_here(status: int) -> None:
    """A provider repeats parts of the key that it refuses: the client gets the status alone."""

    async def refuse(_request: Request) -> Response:
        return JSONResponse({"error": {"message": f"Incorrect API key: {KEY}"}}, status)

    with served(Starlette(routes=[Route("/files", refuse)])) as upstream:
        base = Settings.sandbox(upstream, list(FakeRouter().probabilities))
        settings = base.model_copy(update={"router": RouterSettings(pass_through="small")})
        with served(create_app(settings, FakeRouter())) as url:
            answer = httpx.get(f"{url}/v1/files")
    assert answer.status_code == status
    assert KEY not in answer.text
    assert answer.json()["error"]["code"] == "upstream_credentials"


def test_refusals_are_counted(http: httpx.Client) -> None:
    """A path that is not served, and a body that is broken, are in the metrics."""
    series = 'switchcraft_requests_total{model="none",policy="none",status='

    def count(status: int) -> float:
        lines = http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f'{series}"{status}"')]
        return float(found[0].split()[-1]) if found else 0

    before = count(404), count(400)
    http.get("/v1/files")
    http.post("/v1/rerank", content=b"{", headers={"content-type": "application/json"})
    assert (count(404), count(400)) == (before[0] + 1, before[1] + 1)


def test_an_unreachable_upstream_is_502() -> None:
    """A passed request that gets no answer has the gateway's own, without the address."""
    base = Settings.sandbox("http://127.0.0.1:9/v1", list(FakeRouter().probabilities))
    settings = base.model_copy(update={"router": RouterSettings(pass_through="small")})
    with served(create_app(settings, FakeRouter())) as url:
        response = httpx.get(f"{url}/v1/files")
        metrics = httpx.get(f"{url}/metrics").text
    assert response.status_code == 502
    assert "127.0.0.1" not in response.text
    assert 'switchcraft_requests_total{model="small",policy="none",status="502"} 1.0' in metrics
