"""Keys of the database: the models and policies that they may use, their rates and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from router_service.access.key import BudgetPeriod, Permission
from router_service.core.money import NANO, to_nusd
from router_service.settings import BudgetSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import PROBABILITIES, VerifyingRouter
from tests.gateways import record_of, sandbox_settings
from tests.keyed_gateways import KeyedGateway, keyed_gateway, open_stream
from tests.serving import ONE_TRY, Sandbox, connected, post_bytes, scripted, wait_for
from tests.stored_keys import bearer, change_key

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
POLICY = "x_switchcraft_policy"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: BODY,
    MESSAGES: {"model": "switchcraft", "max_tokens": 9, "messages": ASK},
    RESPONSES: {"model": "switchcraft", "input": "Hi"},
}


@pytest.fixture(scope="module")
def gateway(sandbox: Sandbox) -> Iterator[KeyedGateway]:
    """Yield a gateway with three models, aliases, fallbacks and a pass-through model."""
    settings = sandbox_settings(
        sandbox.base_url,
        pass_through="large",
        aliases={"claude-*": "switchcraft", "gpt-*": "medium"},
    )
    small, *others = settings.models
    small = small.model_copy(update={"fallbacks": ("large", "medium")})
    budgets = BudgetSettings(cheaper_first=False, max_wait_s=0.5)
    settings = settings.model_copy(update={"models": (small, *others), "budgets": budgets})
    with keyed_gateway(sandbox, settings, VerifyingRouter()) as it:
        yield it


def send(gateway: KeyedGateway, secret: str, path: str = CHAT, **headers: str) -> httpx.Response:
    """Send the usual request of an API."""
    return gateway.post(secret, path, BODIES[path], **headers)


def ask(gateway: KeyedGateway, secret: str, model: str, **headers: str) -> httpx.Response:
    """Send a chat request with tools."""
    return gateway.post(secret, CHAT, BODY | {"model": model}, **headers)


def code_of(response: httpx.Response) -> str:
    """Return the code of an error with status 403."""
    assert response.status_code == 403, response.text
    error: dict[str, Any] = response.json()["error"]
    return str(error.get("code") or error["details"]["error_code"])


def test_other_models_are_refused_in_each_api(gateway: KeyedGateway, sandbox: Sandbox) -> None:
    """The error lists what is allowed, and no upstream is asked; aliases are resolved first."""
    secret = gateway.add_key("small-only", models=["small", "switchcraft"])
    before = sandbox.stats()["requests"]
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"model": "large", "messages": ASK}),
        (CHAT, {"model": "gpt-4o", "messages": ASK}),
        (CHAT, {"model": "large[1m]", "messages": ASK}),
        ("/v1/responses", {"model": "large", "input": "Hi"}),
        (MESSAGES, {"model": "large", "messages": ASK, "max_tokens": 9}),
        ("/v1/messages/count_tokens", {"model": "large", "messages": ASK}),
        ("/v1/embeddings", {"model": "large", "input": "Hi"}),
        ("/v1/audio/speech", {"model": "large", "input": "Hi"}),
    ]
    for path, body in bodies:
        refused = gateway.post(secret, path, body)
        assert code_of(refused) == "model_not_allowed"
        assert "It may use these: switchcraft, " in refused.json()["error"]["message"]
        assert refused.json()["error"]["message"].count("large") <= 1
    assert sandbox.stats()["requests"] == before
    for model in ("small", "switchcraft", "claude-opus-4"):
        assert ask(gateway, secret, model).headers["x-switchcraft-model"] == "small"
    unknown = ask(gateway, secret, "unknown")
    assert unknown.status_code == 404
    assert "large" not in unknown.text


def test_the_router_chooses_only_among_allowed_models(gateway: KeyedGateway) -> None:
    """The same conversation, whose prediction is shared, gets a model that each key allows.

    Nothing that the key sees names another model: headers, probabilities, or costs.
    """
    secrets = {
        name: gateway.add_key(name, models=["switchcraft", name]) for name in ("small", "medium")
    }
    secrets["any"] = gateway.add_key("any")
    for policy in ("quality", "theta=0.99", "drift=0"):
        for name, secret in secrets.items():
            answer = ask(gateway, secret, "switchcraft", **{POLICY: policy})
            assert answer.status_code == 200
            expected = "large" if name == "any" else name
            assert answer.headers["x-switchcraft-model"] == expected
            record = record_of(gateway.http, answer, bearer(secret))
            if name != "any":
                assert record["probabilities"].keys() == {name}
                assert record["cost_usd"].keys() == {name}
                others = {"small", "medium", "large"} - {name}
                assert not any(other in str(record) for other in others)
                assert not any(other in str(answer.headers) for other in others)


def test_candidates_and_fallbacks_are_allowed_models(
    gateway: KeyedGateway, sandbox: Sandbox
) -> None:
    """A verified request asks allowed arms only, and a failed model has no other fallback."""
    secret = gateway.add_key("two-models", models=["switchcraft", "small", "medium"])
    answer = ask(gateway, secret, "switchcraft", **{POLICY: "verified"})
    candidates = record_of(gateway.http, answer, bearer(secret))["candidates"]
    assert {each["arm"] for each in candidates} == {"small", "medium"}
    sandbox.set_faults("small", "status=500")
    sandbox.set_faults("medium", "status=500")
    try:
        failed = ask(gateway, secret, "small")
        assert failed.status_code >= 500
        free = gateway.add_key("all-models")
        assert ask(gateway, free, "small").headers["x-switchcraft-model"] == "large"
    finally:
        sandbox.set_faults("small", "")
        sandbox.set_faults("medium", "")


def test_lists_of_models_have_what_a_key_may_name(gateway: KeyedGateway) -> None:
    """So have single models; other ones are refused, and unknown ones are not found."""
    secret = gateway.add_key(
        "listing", models=["small", "switchcraft"], policies=["economy", "theta=*"]
    )

    def get(path: str) -> httpx.Response:
        return gateway.http.get(f"/v1/models{path}", headers=bearer(secret))

    assert [each["id"] for each in get("").json()["data"]] == [
        "switchcraft", "switchcraft:economy", "small",
    ]  # fmt: skip
    assert get("/small").json()["id"] == "small"
    assert get("/switchcraft:economy").status_code == 200
    assert code_of(get("/large")) == "model_not_allowed"
    assert code_of(get("/switchcraft:quality")) == "model_not_allowed"
    assert get("/none").status_code == 404


def test_other_policies_are_refused(gateway: KeyedGateway) -> None:
    """By header, by suffix and as a goal; the error lists what is allowed."""
    secret = gateway.add_key("frugal", policies=["economy", "drift=*", "theta=0.7"])
    for model, headers in (
        ("switchcraft:quality", {}),
        ("switchcraft", {POLICY: "quality"}),
        ("switchcraft", {POLICY: "theta=0.71"}),
        ("switchcraft", {POLICY: "verified"}),
        ("switchcraft", {POLICY: "accuracy=best"}),
        ("switchcraft:economy", {POLICY: "quality"}),
    ):
        refused = ask(gateway, secret, model, **headers)
        assert code_of(refused) == "policy_not_allowed"
        assert refused.json()["error"]["param"] == (
            POLICY.replace("_", "-") if headers else "model"
        )
        assert "economy, drift=*, theta=0.7" in refused.json()["error"]["message"]
    for policy in ("economy", "drift=0.2", "drift=0", "theta=0.70"):
        assert ask(gateway, secret, "switchcraft", **{POLICY: policy}).status_code == 200
    assert ask(gateway, secret, "large").headers["x-switchcraft-model"] == "large"


@pytest.mark.parametrize(
    ("policies", "applied"),
    [
        (["quality", "economy"], "quality (theta=0.8)"),
        (["theta=*"], "theta=0.5"),
        (["economy", "default"], "theta=0.5"),
        (["drift=*", "economy"], "economy (theta=0.2)"),
    ],
)
def test_requests_that_name_no_policy_have_an_allowed_one(
    gateway: KeyedGateway, policies: list[str], applied: str
) -> None:
    """They have the default if it is allowed, by name or rule, and otherwise the list's first."""
    secret = gateway.add_key(f"default-{'-'.join(policies)}", policies=policies)
    for headers in ({}, {POLICY: "default"}):
        answer = ask(gateway, secret, "switchcraft", **headers)
        assert answer.headers["x-switchcraft-policy"] == applied


def test_stored_responses_of_other_models_are_out_of_reach(gateway: KeyedGateway) -> None:
    """A key whose models were restricted can neither read nor continue what others stored."""
    secret = gateway.add_key("storing")
    stored = gateway.post(secret, "/v1/responses", {"model": "large", "input": "Hi"}).json()["id"]

    def get() -> httpx.Response:
        return gateway.http.get(f"/v1/responses/{stored}", headers=bearer(secret))

    def go_on(model: str) -> httpx.Response:
        body = {"model": model, "input": "Hi", "previous_response_id": stored}
        return gateway.post(secret, "/v1/responses", body)

    assert get().status_code == 200
    assert go_on("switchcraft").status_code == 200
    change_key(gateway.state.database.database, "storing", models=["small", "switchcraft"])
    wait_for(lambda: get().status_code == 404, "the key is restricted")
    for model in ("small", "switchcraft"):
        assert go_on(model).json()["error"]["code"] == "previous_response_not_found"


def test_the_tighter_limit_of_key_and_team_is_shown(gateway: KeyedGateway) -> None:
    """A request counts towards both; a refusal names the one for which it has to wait longest."""
    gateway.add_team("search", requests_per_minute=3)
    first = gateway.add_key("search-1", team="search", requests_per_minute=100)
    second = gateway.add_key("search-2", team="search", requests_per_minute=1)
    assert send(gateway, first).headers["x-ratelimit-limit-requests"] == "3"
    assert send(gateway, second).headers["x-ratelimit-limit-requests"] == "1"
    assert send(gateway, first).headers["x-ratelimit-remaining-requests"] == "0"
    assert "the team 'search' may send 3 requests" in send(gateway, first).text
    assert "the key 'search-2' may send 1 requests" in send(gateway, second).text


def test_slots_of_streams_are_free_when_their_clients_leave(gateway: KeyedGateway) -> None:
    """Two streams are allowed at a time; further requests succeed once a client has left."""
    secret = gateway.add_key("parallel", parallel_requests=2)
    for _ in range(2):  # no slot is lost
        with ExitStack() as stack:
            for path in (CHAT, MESSAGES):
                stack.enter_context(open_stream(gateway.url, secret, path, BODIES[path]))
            refused = send(gateway, secret)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["type"] == "requests"
            said = "the key 'parallel' may have 2 requests at the same time, and has them. Try"
            assert said in refused.json()["error"]["message"]
        wait_for(lambda: send(gateway, secret).status_code == 200, "a slot is free")


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
            own, foreign = send(gateway, limited).headers, send(gateway, unlimited).headers
    assert own.get_list(names[0]) == ["4"]
    assert own.get_list(names[1]) == []
    assert [foreign.get_list(name) for name in names] == [["7777"], ["7777"]]


LARGE_USD, MEDIUM_USD, SMALL_USD = 0.0011, 0.00022, 0.00011
"""What the fake router's models are expected to cost."""


def budgeted(gateway: KeyedGateway, name: str, usd: float) -> str:
    """Add a key with a monthly budget."""
    budget = {"budget_nusd": to_nusd(usd), "budget_period": BudgetPeriod.MONTH.value}
    return gateway.add_key(name, **budget)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, BODY),
        ("/v1/embeddings", {"model": "small", "input": "Hi"}),
        ("/v1/images/generations", {"prompt": "a cat"}),
    ],
)
def test_spent_budget_is_refused_at_each_endpoint(
    gateway: KeyedGateway, sandbox: Sandbox, path: str, body: dict[str, Any]
) -> None:
    """Clients read the code, and do not repeat the request. No upstream is asked."""
    secret = budgeted(gateway, f"spent{path}", 0.0)
    before = sandbox.stats()["requests"]
    answer = gateway.post(secret, path, body)
    assert sandbox.stats()["requests"] == before
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    error = answer.json()["error"]
    assert "(0 USD per month) is spent. It starts again at" in error["message"]
    assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    if path == "/v1/images/generations":  # the cost of a passed request is unknown
        assert gateway.post(budgeted(gateway, "a little", 1e-9), path, body).status_code != 429


def test_rest_of_a_budget_is_for_cheaper_models(gateway: KeyedGateway) -> None:
    """If the policy's choice does not fit, the policy chooses among the models that do.

    A model that a request names stays.
    """
    rest = budgeted(gateway, "rest", (SMALL_USD + LARGE_USD) / 2)
    answer = ask(gateway, rest, "switchcraft", **{POLICY: "quality"})
    assert answer.headers["x-switchcraft-model"] == "medium"
    assert answer.headers["x-switchcraft-reason"] == "budget"
    why = answer.headers["x-switchcraft-why"]
    assert "is the policy's choice among the models that the rest" in why
    rich = budgeted(gateway, "rich", 1.0)
    answer = ask(gateway, rich, "switchcraft", **{POLICY: "quality"})
    assert answer.headers["x-switchcraft-model"] == "large"
    assert answer.headers["x-switchcraft-reason"] != "budget"
    answer = ask(gateway, rich, "switchcraft", **{POLICY: "verified"})
    assert answer.headers["x-switchcraft-candidates"] == "3"
    poor = budgeted(gateway, "poor", SMALL_USD + MEDIUM_USD)
    answer = ask(gateway, poor, "switchcraft", **{POLICY: "verified"})
    assert answer.headers["x-switchcraft-candidates"] in {"1", "2"}
    assert answer.headers["x-switchcraft-model"] != "large"
    chatting = budgeted(gateway, "chatting", 0.0002)
    for model, chosen in (("switchcraft", "small"), ("large", "large")):
        answer = gateway.post(chatting, CHAT, {"model": model, "messages": ASK})
        assert answer.headers["x-switchcraft-model"] == chosen


@pytest.mark.parametrize(
    ("fields", "faults", "status"),
    [
        ({}, "", 200),
        ({"stream": True}, "", 200),
        ({"model": "small"}, "", 200),
        ({}, "status=500", 500),
        ({}, "cut_after=0", 502),
        ({"stream": True}, "cut_after=2", 200),
        ({"stream": True}, "chunk_delay_s=60", 499),
        ({"model": "unknown"}, "", 404),
        ({"model": "switchcraft:none"}, "", 400),
    ],
)
def test_every_ending_is_settled_once(
    gateway: KeyedGateway, fields: dict[str, Any], faults: str, status: int
) -> None:
    """The ledger has the cost of each answer, rounded once, and nothing stays reserved."""
    secret = budgeted(gateway, f"settled-{fields}-{faults}", 1.0)
    key = gateway.state.engine.keys.find(secret.encode(), Permission.CALL)
    assert key is not None
    costs_nusd = 0
    for _ in range(2):
        if status == 499:
            with open_stream(gateway.url, secret, CHAT, BODY):
                pass
            wait_for(lambda: gateway.state.budgets.states(key)[0].spent_usd, "it is settled")
            return
        answer = gateway.post(
            secret, CHAT, BODY | fields, **({"x_sandbox": faults} if faults else {})
        )
        assert answer.status_code == status
        if status not in (400, 404):
            costs_nusd += to_nusd(
                record_of(gateway.http, answer, bearer(secret))["actual_cost_usd"] or 0.0
            )
    (balance,) = gateway.state.budgets.states(key)
    assert (balance.spent_usd, balance.reserved_usd) == (costs_nusd / NANO, 0)
    assert bool(costs_nusd) == (status not in (400, 404, 500))


def test_requests_wait_while_the_rest_is_reserved(gateway: KeyedGateway) -> None:
    """The second request gets `rate_limit_exceeded`; a third one leaves and reserves nothing."""
    secret = budgeted(gateway, "one", 0.0003)
    left = 'switchcraft_requests_total{model="none",policy="none",release="none",status="499"}'

    def disconnects() -> float:
        lines = gateway.state.metrics.exposition().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(left))

    with open_stream(gateway.url, secret, CHAT, BODY | {"model": "small"}):
        answer = send(gateway, secret)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert answer.headers["retry-after"]
        assert "x-should-retry" not in answer.headers
        before = disconnects()
        with connected(gateway.url, post_bytes(CHAT, BODY, **bearer(secret))):
            pass
        wait_for(lambda: disconnects() > before, "the client has left")
    wait_for(lambda: send(gateway, secret).status_code == 200, "the budget is free again")


def test_one_policy_of_the_router_may_be_allowed_by_its_name(gateway: KeyedGateway) -> None:
    """The entry `switchcraft:economy` allows neither the router's default nor a header."""
    secret = gateway.add_key("economical", models=["switchcraft:economy"])
    for model in ("switchcraft:economy", "switchcraft:economy[1m]"):
        assert ask(gateway, secret, model).headers["x-switchcraft-model"] == "small"
    for model, headers in (
        ("switchcraft", {}),
        ("switchcraft:quality", {}),
        ("switchcraft:economy", {POLICY: "quality"}),
    ):
        assert code_of(ask(gateway, secret, model, **headers)) == "model_not_allowed"
