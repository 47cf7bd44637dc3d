"""Objects that an upstream stores for one client key are hidden from the other keys."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from router_service.core.keys import new_key
from router_service.policies.costs import Price
from router_service.serving.app import create_app
from router_service.settings import (
    Deployment,
    KeySettings,
    Model,
    RouterSettings,
    ServerSettings,
    Settings,
)
from tests.fakes import FakeRouter
from tests.serving import served

KEYS = {name: new_key() for name in ("team-a", "team-b", "admin")}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass
class Provider:
    """Upstream that stores everything, and shows it to everyone who knows the id."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request."""
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def answer(self, request: Request) -> Response:
        """Create something for a POST; otherwise repeat the path."""
        path, body = request.path_params["path"], await request.body()
        self.asked.append(f"{request.method} /{path}")
        segments = path.split("/")
        fields = json.loads(body) if body[:1] == b"{" else {}
        if request.method != "POST":
            results = {"output_file_id": f"file-out-{segments[-1]}"} if "batches" in path else {}
            return JSONResponse({"id": segments[-1], "path": path, **results})
        told: dict[str, Any] = {"id": f"{segments[0]}-{next(self.numbers)}A", "path": path}
        told |= json.loads(fields.get("metadata", {}).get("answer", "{}"))
        if path == "chat/completions":
            message = {"role": "assistant", "content": "Hi"}
            told |= {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        if path == "responses":
            told |= {"object": "response", "output": [], "status": "completed"}
        if not fields.get("stream"):
            return JSONResponse(told)

        async def events() -> Any:  # noqa: ANN401 - an async generator of events
            yield b": a comment comes first\n\n"
            for kind in ("response.created", "response.completed"):
                event = {"type": kind, "response": told}
                yield f"event: {kind}\ndata: {json.dumps(event)}\n\n".encode()

        return StreamingResponse(events(), media_type="text/event-stream")


@contextmanager
def provided() -> Iterator[Provider]:
    """Serve a provider."""
    provider = Provider()
    routes = [Route("/v1/{path:path}", provider.answer, methods=METHODS)]
    with served(Starlette(routes=routes)) as url:
        provider.url = f"{url}/v1"
        yield provider


@dataclass
class Client:
    """Client with a key."""

    http: httpx.Client

    def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send a request below /v1."""
        return self.http.request(method, f"/v1{path}", json=body)

    def create(self, path: str, body: object = None) -> str:
        """Create something, and return its id."""
        answer = self.ask("POST", path, {} if body is None else body)
        assert answer.status_code == 200, answer.text
        identifier: str = answer.json()["id"]
        return identifier

    def status(self, method: str, path: str, body: object = None) -> int:
        """Send a request; return its status."""
        return self.ask(method, path, body).status_code


@dataclass
class World:
    """A gateway, its clients and its upstream."""

    provider: Provider
    a: Client
    b: Client
    admin: Client

    @contextmanager
    def asks_nothing(self) -> Iterator[None]:
        """Fail if the upstream is called within the block."""
        before = list(self.provider.asked)
        yield
        assert self.provider.asked == before


@contextmanager
def world(
    provider: Provider,
    names: tuple[str, ...] = ("team-a", "team-b"),
    *,
    shared: bool = False,
    server: ServerSettings | None = None,
) -> Iterator[World]:
    """Serve a gateway with these keys and an admin key, which relays everything else."""
    deployment = Deployment(upstream_model="m", base_url=provider.url)
    price = Price(input_usd_per_mtok=0, output_usd_per_mtok=0)
    settings = Settings(
        models=tuple(
            Model(name=arm, deployments=(deployment,), price=price)
            for arm in FakeRouter().probabilities
        ),
        router=RouterSettings(pass_through="large", pass_through_shared=shared),
        server=server or ServerSettings(),
        keys=KeySettings(
            api={name: SecretStr(KEYS[name]) for name in names}, admin=SecretStr(KEYS["admin"])
        ),
    )
    with ExitStack() as stack:
        url = stack.enter_context(served(create_app(settings, FakeRouter())))
        clients = {
            name: Client(
                stack.enter_context(
                    httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"})
                )
            )
            for name, key in KEYS.items()
        }
        yield World(provider, clients["team-a"], clients["team-b"], clients["admin"])


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Yield an upstream."""
    with provided() as made:
        yield made


@pytest.fixture(scope="module")
def two_keys(provider: Provider) -> Iterator[World]:
    """Yield a gateway with two client keys."""
    with world(provider) as made:
        yield made


def answering(fields: dict[str, object]) -> dict[str, object]:
    """Return a body that makes the upstream add these fields to its answer."""
    return {"metadata": {"answer": json.dumps(fields)}}


def response_body(**fields: object) -> dict[str, object]:
    """Return a body for the Responses API."""
    return {"model": "medium", "input": "Hi", **fields}


COLLECTIONS = [
    *("/files", "/batches", "/vector_stores", "/conversations", "/fine_tuning/jobs", "/uploads"),
    *("/threads", "/containers", "/evals"),
]
FILE = {"role": "user", "content": [{"type": "input_file", "file_id": "ID"}]}
IN_CHAT = {"role": "user", "content": [{"type": "file", "file": {"file_id": "ID"}}]}
SEARCH = [{"type": "file_search", "vector_store_ids": ["vs_0A", "ID"]}]
CONTAINER = [{"type": "x", "container": {"type": "auto", "file_ids": ["ID"]}}]
UPLOADED: dict[str, object] = {"thread": {"tool_resources": {"x": {"vector_store_ids": ["ID"]}}}}
OWNED: list[tuple[str, str, str, Any]] = [
    *(
        ("/responses", method, path, None)
        for method, path in (
            *(("GET", "/responses/ID"), ("DELETE", "/responses/ID"), ("GET", "/%72esponses/ID")),
            *(("POST", "/responses/ID/cancel"), ("GET", "/responses/ID/input_items")),
        )
    ),
    *(
        ("/responses", "POST", "/responses", response_body(previous_response_id="ID", **fields))
        for fields in ({}, {"model": "switchcraft"}, {"model": "large", "stream": True})
    ),
    ("/conversations", "POST", "/responses", response_body(conversation="ID")),
    ("/conversations", "POST", "/responses", response_body(conversation={"id": "ID"})),
    *((collection, "GET", f"{collection}/ID", None) for collection in COLLECTIONS),
    ("/files", "GET", "/files/ID/content", None),
    ("/files", "DELETE", "/files/ID", None),
    ("/batches", "POST", "/batches/ID/cancel", {"model": "small"}),
    ("/vector_stores", "GET", "/vector_stores/ID/files/x1", None),
    ("/files", "POST", "/chat/completions", {"model": "small", "messages": [IN_CHAT]}),
    ("/files", "POST", "/responses", response_body(input=[FILE], model="switchcraft")),
    ("/vector_stores", "POST", "/responses", response_body(tools=SEARCH)),
    ("/files", "POST", "/responses", response_body(tools=CONTAINER)),
    *(
        ("/files", "POST", path, {"model": model, **body} if model else body)
        for path in ("/batches", "/responses/unknown")
        for model in ("", "small")
        for body in (
            *({"input_file_id": "ID"}, {"file_ids": ["ID"]}, {"conversation": {"id": "ID"}}),
            *({"deep": [[[{"file_id": "ID"}]]]}, UPLOADED),
        )
    ),
]
"""The collection of an object, and a request that names the object."""


@pytest.mark.parametrize(("collection", "method", "path", "body"), OWNED)
def test_object_belongs_to_the_key_that_created_it(
    two_keys: World, collection: str, method: str, path: str, body: dict[str, object] | None
) -> None:
    """Other keys get the same 404 as for an unknown object, and the upstream is not asked.

    The admin key may use it.
    """
    made = two_keys.a.create(collection, response_body() if collection == "/responses" else {})

    def ask(client: Client, name: str) -> httpx.Response:
        sent = json.loads(json.dumps(body).replace("ID", name))
        return client.ask(method, path.replace("ID", name), sent)

    with two_keys.asks_nothing():
        refused = ask(two_keys.b, made)
        assert refused.status_code == 404
        if "ID" in path:
            assert ask(two_keys.b, made.replace("-", "%2D")).status_code == 404
            unknown = ask(two_keys.b, "unknown-0A")
            assert refused.text.replace(made, "unknown-0A") == unknown.text
    assert ask(two_keys.a, made).status_code == 200
    assert ask(two_keys.admin, made).status_code == 200


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/responses", '{"model":"small","input":"a","Previous_Response_Id":"<response>"}'),
        (
            "/responses",
            '{"model":"small","input":"a","previou\u017f_re\u017fponse_id":"<response>"}',
        ),
        (
            "/responses",
            '{"model":"small","input":[{"role":"user","content":[{"f\\u0069le_id":"<file>"}]}]}',
        ),
        ("/batches", '{"input_file_id":" <file> "}'),
        ("/batches", '{"FILE_IDS":["<file>"]}'),
        ("/batches", '\ufeff \n{"input_file_id":"<file>"}'),
        ("/chat/completions", '{"model":"small","File_Id":"<file>"}'),
        ("/batches?file_id=<file>", ""),
        ("/batches?a=1;file%5Fid=<file>", ""),
        ("/batches?x=<file>", ""),
    ],
)
def test_unusual_spellings_reach_no_object_of_another_key(
    two_keys: World, path: str, content: str
) -> None:
    """Another case, blanks, escapes, a query or an untyped body are all refused."""
    made = {
        "<response>": two_keys.a.create("/responses", response_body()),
        "<file>": two_keys.a.create("/files"),
    }
    for name, identifier in made.items():
        path, content = path.replace(name, identifier), content.replace(name, identifier)
    with two_keys.asks_nothing():
        for kind in ("application/json", "text/plain"):
            headers = {"content-type": kind}
            answer = two_keys.b.http.post(f"/v1{path}", content=content.encode(), headers=headers)
            assert answer.status_code in {400, 404}


def test_own_object_opens_no_other_object(two_keys: World) -> None:
    """Another key's object gets 404, even below or beside the client's own one.

    One without a known owner is the operator's.
    """
    own, others = two_keys.b.create("/vector_stores"), two_keys.a.create("/files")
    assert two_keys.b.status("GET", f"/vector_stores/{own}/files/{others}") == 404
    assert two_keys.b.status("GET", f"/vector_stores/{own}/files/file-0A") == 200
    mine, conversation = (
        two_keys.b.create("/responses", response_body()),
        two_keys.a.create("/conversations"),
    )
    body = response_body(previous_response_id=mine, conversation=conversation)
    with two_keys.asks_nothing():
        assert two_keys.b.status("POST", "/responses", body) in {400, 404}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in (*COLLECTIONS, "/responses", "/chat/completions")),
        ("DELETE", "/files"), ("GET", "/organization/users"), ("POST", "/organization/projects"),
        ("PUT", "/files"), ("GET", "/" + "/".join("x" * 20)),
    ],
)  # fmt: skip
def test_lists_need_the_admin_key(two_keys: World, method: str, path: str) -> None:
    """Requests for the objects of all keys are refused, and the error says what to do."""
    with two_keys.asks_nothing():
        refused = two_keys.a.ask(method, path)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "admin_key_needed"
    assert "router.pass_through_shared" in refused.json()["error"]["message"]
    assert two_keys.admin.status(method, path) == 200


def test_results_belong_to_the_creator_of_the_job(two_keys: World) -> None:
    """A batch's output belongs to its creator, even if the admin key sees its id first."""
    batch = two_keys.a.create("/batches")
    output = two_keys.admin.ask("GET", f"/batches/{batch}").json()["output_file_id"]
    assert two_keys.a.status("GET", f"/files/{output}/content") == 200
    assert two_keys.b.status("GET", f"/files/{output}/content") == 404


@pytest.mark.parametrize("path", ["/vector_stores", "/vector_stores/{own}/files", "/uploads"])
def test_answers_do_not_change_owners(two_keys: World, path: str) -> None:
    """An answer that repeats an id changes no owner, whether the id is known or only named."""
    own, others = two_keys.b.create("/vector_stores"), two_keys.a.create("/files")
    path = path.format(own=own)
    for field_name in ("id", "output_file_id", "thread_id"):
        two_keys.b.create(path, answering({field_name: others}))
        named = answering({field_name: "file-old-0A"}) | {"file_id": "file-old-0A"}
        two_keys.b.create(path, named)
        unnamed = answering({field_name: "file-old-0A"}) | {"text": "file-old-0A"}
        two_keys.b.create(path, unnamed)
    assert two_keys.b.status("GET", f"/files/{others}") == 404
    assert two_keys.b.status("GET", "/files/file-old-0A") == 404
    assert two_keys.a.status("GET", f"/files/{others}") == 200


@pytest.mark.parametrize("shared", [True, False])
def test_single_key_or_shared_mode_relays_everything(provider: Provider, shared: bool) -> None:
    """A single client key has the upstream's account to itself; a setting lets several share it."""
    names = ("team-a", "team-b") if shared else ("team-a",)
    with world(provider, names, shared=shared) as made:
        clients = (made.a, made.b) if shared else (made.a,)
        identifier = made.a.create("/files")
        for client in clients:
            for path in ("/files", f"/files/{identifier}", "/files/file-0A", "/responses/resp_0"):
                assert client.status("GET", path) == 200
            assert client.status("POST", "/batches", {"input_file_id": "file-0A"}) == 200
        response = made.a.create("/responses", response_body())
        assert made.b.status("GET", f"/responses/{response}") == (404 if shared else 401)
