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


@pytest.mark.parametrize("stream", [False, True])
def test_only_the_creating_key_can_continue_a_response(two_keys: World, stream: bool) -> None:
    """Other keys get the same 404 as for an unknown response; the admin key may continue it."""
    first = two_keys.a.ask("POST", "/responses", response_body(stream=stream))
    told = json.loads(first.text.split("data: ")[-1])["response"] if stream else first.json()
    for model in ("medium", "switchcraft", "large"):
        body = response_body(previous_response_id=told["id"], model=model)
        assert two_keys.a.status("POST", "/responses", body) == 200
        assert two_keys.admin.status("POST", "/responses", body) == 200
        with two_keys.asks_nothing():
            refused = two_keys.b.ask("POST", "/responses", body)
            unknown = two_keys.b.ask(
                "POST", "/responses", body | {"previous_response_id": "resp_0"}
            )
        assert refused.status_code == 404
        assert refused.text.replace(told["id"], "resp_0") == unknown.text
        assert refused.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("method", "end"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
)
def test_stored_response_belongs_to_its_key(two_keys: World, method: str, end: str) -> None:
    """Other keys cannot read, delete or cancel it, nor list its input, in any spelling."""
    made = two_keys.a.create("/responses", response_body())
    with two_keys.asks_nothing():
        for spelling in (made, made.replace("-", "%2D"), f"%72{made[1:]}"):
            refused = two_keys.b.ask(method, f"/responses/{spelling}{end}")
            assert refused.status_code == 404
            assert refused.json()["error"]["code"] == "response_not_found"
            assert two_keys.b.status(method, f"/%72esponses/{spelling}{end}") == 404
        assert two_keys.b.status(method, f"/responses/resp_0{end}") == 404
    assert two_keys.a.status(method, f"/responses/{made}{end}") == 200
    assert two_keys.admin.status(method, f"/responses/{made}{end}") == 200
    assert two_keys.admin.status(method, f"/responses/resp_0{end}") == 200, "the upstream says"


COLLECTIONS = [
    "/files", "/batches", "/vector_stores", "/conversations", "/fine_tuning/jobs", "/uploads",
    "/threads", "/containers", "/evals",
]  # fmt: skip


@pytest.mark.parametrize("collection", COLLECTIONS)
@pytest.mark.parametrize("body", [{}, {"model": "small"}])
def test_created_object_belongs_to_its_key(
    two_keys: World, collection: str, body: dict[str, str]
) -> None:
    """Only the creating key and the admin key reach it, whatever upstream answered the request."""
    made = two_keys.a.create(collection, body)
    requests = [
        (method, f"{collection}/{made}{end}", sent)
        for end in ("", "/content", "/files/x1", "/cancel")
        for method in METHODS
        for sent in (None, {"model": "small"})
        if sent is None or method == "POST"
    ]
    for method, path, sent in requests:
        with two_keys.asks_nothing():
            refused = two_keys.b.ask(method, path, sent)
            unknown = two_keys.b.ask(method, path.replace(made, "unknown-0A"), sent)
        assert refused.status_code == 404, path
        assert refused.text.replace(made, "unknown-0A") == unknown.text
        assert two_keys.a.status(method, path, sent) == 200, path
        assert two_keys.admin.status(method, path, sent) == 200
    with two_keys.asks_nothing():
        for path in (
            f"{collection}/%{ord(made[0]):x}{made[1:]}",
            f"/{collection[1:].upper()}/{made}",
        ):
            assert two_keys.b.status("GET", path) == 404


def test_own_object_in_the_path_opens_no_other_object(two_keys: World) -> None:
    """Another key's object gets 404, even below the client's own object in the path."""
    own, others = two_keys.b.create("/vector_stores"), two_keys.a.create("/files")
    assert two_keys.b.status("GET", f"/vector_stores/{own}/files/{others}") == 404
    assert two_keys.b.status("GET", f"/vector_stores/{own}/files/file-0A") == 200


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


CONTENT: list[dict[str, object]] = [
    {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "ID"}}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "ID"}]}]},
    {"input": "x", "tools": [{"type": "file_search", "vector_store_ids": ["vs_0A", "ID"]}]},
    {"input": "x", "tools": [{"type": "code_interpreter", "container": "ID"}]},
    {"input": "x", "tools": [{"type": "x", "container": {"type": "auto", "file_ids": ["ID"]}}]},
]


@pytest.mark.parametrize("content", CONTENT)
@pytest.mark.parametrize("model", ["small", "switchcraft"])
def test_body_may_name_only_own_objects(
    two_keys: World, content: dict[str, object], model: str
) -> None:
    """A model reads no file of another key; a file without a known owner is the operator's."""
    path = "/chat/completions" if "messages" in content else "/responses"
    made = two_keys.a.create("/files")

    def send(client: Client, identifier: str, *, escaped: bool = False) -> int:
        text = json.dumps({"model": model, **content}).replace('"ID"', f'"{identifier}"')
        if escaped:
            text = text.replace("file_id", "f\\u0069le_id").replace("container", "c\\u006fntainer")
            text = text.replace("vector_store", "v\\u0065ctor_store")
        headers = {"content-type": "application/json"}
        return client.http.post(f"/v1{path}", content=text, headers=headers).status_code

    with two_keys.asks_nothing():
        assert send(two_keys.b, made) == send(two_keys.b, made, escaped=True) == 404
    assert [send(client, made) for client in (two_keys.a, two_keys.admin)] == [200, 200]
    assert send(two_keys.b, "file-0A") == 200


@pytest.mark.parametrize(
    "body",
    [
        {"input_file_id": "ID"}, {"training_file": "ID"}, {"file_ids": ["ID"]},
        {"thread": {"tool_resources": {"x": {"vector_store_ids": ["ID"]}}}},
        {"assistant_id": "ID"}, {"conversation": "ID"}, {"conversation": {"id": "ID"}},
        {"previous_response_id": "ID"}, {"deep": [[[{"file_id": "ID"}]]]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", [None, "small"])
def test_relayed_request_may_name_only_own_objects(
    two_keys: World, body: dict[str, object], model: str | None
) -> None:
    """A batch of one key cannot read another key's file, whichever upstream is called."""
    made = two_keys.a.create("/files")
    sent = json.loads(json.dumps(body | ({"model": model} if model else {})).replace("ID", made))
    for method, path in (("POST", "/batches"), ("POST", "/responses/unknown")):
        with two_keys.asks_nothing():
            assert two_keys.b.status(method, path, sent) == 404
        assert two_keys.a.status(method, path, sent) == 200


def test_unusual_spellings_do_not_continue_another_keys_response(two_keys: World) -> None:
    """A second reference, another case, blanks, a query or an untyped body are all refused."""
    response, own = (
        client.create("/responses", response_body()) for client in (two_keys.a, two_keys.b)
    )
    conversation, file = two_keys.a.create("/conversations"), two_keys.a.create("/files")
    with two_keys.asks_nothing():
        for fields in (
            {"previous_response_id": own, "conversation": conversation},
            {"previous_response_id": own, "Previous_Response_ID": response},
            {"Previous_Response_Id": response}, {"CONVERSATION": {"id": conversation}},
            {"previou\u017f_re\u017fponse_id": response},
        ):  # fmt: skip
            for client in (two_keys.b, two_keys.a):
                status = client.status("POST", "/responses", response_body(**fields))
                if len(fields) > 1 or client is two_keys.b:
                    assert status in {400, 404}, fields
                    break
        for body in ({"input_file_id": f" {file} "}, {"FILE_IDS": [file]}, {"File_Id": file}):
            assert two_keys.b.status("POST", "/batches", body) == 404
            assert two_keys.b.status("POST", "/chat/completions", {"model": "small", **body}) in {
                400,
                404,
            }
        for query in (f"file_id={file}", f"a=1;file_id={file}", f"file%5Fid={file}", f"x={file}"):
            assert two_keys.b.status("POST", f"/batches?{query}") == 404
        headers = {"content-type": "text/plain"}
        for start in (b"", b" \n", b"\xef\xbb\xbf"):
            content = start + json.dumps({"input_file_id": file}).encode()
            answer = two_keys.b.http.post("/v1/batches", content=content, headers=headers)
            assert answer.status_code in {400, 404}
    assert two_keys.b.status("POST", "/batches?" + "&".join(f"a{n}=1" for n in range(200))) == 400


def test_only_the_creating_key_can_continue_a_conversation(two_keys: World) -> None:
    """A conversation is named by its id, or by an object that contains the id."""
    made = two_keys.a.create("/conversations")
    for conversation in (made, {"id": made}):
        body = response_body(conversation=conversation)
        with two_keys.asks_nothing():
            refused = two_keys.b.ask("POST", "/responses", body)
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "conversation_not_found"
        assert two_keys.a.status("POST", "/responses", body) == 200
    with two_keys.asks_nothing():
        assert two_keys.b.status("POST", "/responses", response_body(conversation="conv_0A")) == 404


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


def test_too_many_object_names_are_refused(two_keys: World) -> None:
    """The number of names that a body makes the gateway look up is limited."""
    refused = two_keys.a.ask("POST", "/batches", {"file_ids": [f"file-{n}" for n in range(2001)]})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "too_many_objects"


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
