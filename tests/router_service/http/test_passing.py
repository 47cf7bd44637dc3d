"""Unrouted endpoints: relayed to the model that a body names, or to the pass-through upstream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from router_service.serving.app import create_app
from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.attacks import PATHS
from tests.fakes import FakeRouter
from tests.router_service.http.scripted import Script, whole
from tests.serving import connected, served

KEY = "upstream-secret-key"


async def echo(request: Request) -> Response:
    """Describe the received request."""
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
    """Serve a gateway whose models share an upstream that describes what it receives."""
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
    """Yield a client of a gateway that relays everything else to an echoing upstream."""
    with echoing() as url, httpx.Client(base_url=url) as client:
        yield client


def test_other_requests_are_relayed_unchanged(passing: httpx.Client) -> None:
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


def test_credentials_are_not_relayed(passing: httpx.Client) -> None:
    """The upstream gets only its own key; the client never sees that key."""
    sent = {
        "authorization": "Bearer client-key",
        "api-key": "client-key",
        "x-api-key": "client-key",
        "cookie": "session=client-key",
        "openai-organization": "client-key",
    }
    told = passing.get("/v1/files", headers=sent).json()
    assert "client-key" not in json.dumps(told)
    assert told["headers"]["authorization"] == "Bearer [redacted]"


def test_configured_query_has_priority(passing: httpx.Client) -> None:
    """A client cannot replace the query parameters of the configuration."""
    told = passing.get("/v1/files?api-version=2&a=1").json()
    assert told["target"] == "/base/files?a=1&api-version=1"
    for query in (
        "api%2Dversion=2", "API-Version=2", "api-version%5B%5D=2", "api-version[]=2",
        "x;api-version=2", "+api-version=2", "x%26api-version=2", "api-version",
        "api-version=2&api-version=3",
    ):  # fmt: skip
        target = raw_told(str(passing.base_url).rstrip("/"), f"/v1/files?a=1&{query}".encode())
        assert target == "/base/files?a=1&api-version=1", query


@pytest.mark.parametrize(
    ("method", "path", "status", "allow", "words"),
    [
        ("GET", "/v1/chat/completions", 405, "POST", "does not support GET. Use POST."),
        ("DELETE", "/v1/models", 405, "GET", "does not support DELETE. Use GET."),
        ("POST", "/v1/v1/chat/completions", 404, None, "has /v1 twice"),
        ("POST", "/v1/chat/completion", 404, None, "Did you mean /v1/chat/completions?"),
        ("GET", "/v1/vector_stores/vs_1", 404, None, "The Vector stores API is not served"),
    ],
)
def test_wrong_paths_and_methods_are_explained(
    http: httpx.Client, method: str, path: str, status: int, allow: str | None, words: str
) -> None:
    """The error names what is wrong with the address, and the methods that are allowed."""
    response = http.request(method, path)
    assert (response.status_code, response.headers.get("allow")) == (status, allow)
    assert words in response.json()["error"]["message"]


def raw_request(url: str, target: bytes) -> bytes:
    """Send a request line unchanged; return the whole answer."""
    head = b"GET " + target + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with connected(url, head) as connection:
        return connection.makefile("rb").read()


def raw_told(url: str, target: bytes) -> str:
    """Send a request line unchanged; return the target that the upstream received."""
    answer = raw_request(url, target)
    found = re.search(rb'"target":"([^"]*)"', answer)
    assert found, answer
    return found[1].decode()


@pytest.mark.parametrize("target", PATHS)
def test_no_path_leaves_the_base_url(passing: httpx.Client, target: bytes) -> None:
    """Dots, double and encoded slashes, and control characters are refused, never relayed."""
    status = raw_request(str(passing.base_url).rstrip("/"), target)
    assert status.split()[1] in {b"400", b"404"}, status


@pytest.mark.parametrize("status", [401, 403])
def test_upstreams_error_about_its_key_is_hidden(script: Script, status: int) -> None:
    """Providers repeat parts of a key that they refuse: the client gets only the status."""
    refusal = whole(b'{"error":{"message":"Incorrect API key: sk-own"}}', status)
    for place in ("passed", "first"):
        script.play(refusal, at=place)
    for answer in (script.http.get("/v1/files"), script.ask(stream=False)):
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == "upstream_credentials"
        assert "sk-own" not in answer.text
