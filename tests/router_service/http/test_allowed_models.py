"""Keys that may use only some models and policies: every way to reach another one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.bodies import ASK, BODY, CHAT
from tests.fakes import VerifyingRouter
from tests.gateways import sandbox_settings
from tests.keyed_gateways import KeyedGateway, keyed_gateway
from tests.serving import Sandbox, wait_for
from tests.stored_keys import bearer, change_key

MESSAGES = "/v1/messages"
POLICY = "x_switchcraft_policy"


@pytest.fixture(scope="module")
def gateway(sandbox: Sandbox) -> Iterator[KeyedGateway]:
    """Yield a gateway with three models, aliases, fallbacks and a pass-through model."""
    settings = sandbox_settings(
        sandbox.base_url,
        pass_through="large",
        baseline_model="large",
        aliases={"claude-*": "switchcraft", "gpt-*": "medium"},
    )
    models = tuple(
        model.model_copy(update={"fallbacks": ("large", "medium")})
        if model.name == "small"
        else model
        for model in settings.models
    )
    settings = settings.model_copy(update={"models": models})
    with keyed_gateway(sandbox, settings, VerifyingRouter()) as it:
        yield it


def ask(gateway: KeyedGateway, secret: str, model: str, **headers: str) -> httpx.Response:
    """Send a chat request with tools."""
    return gateway.post(secret, CHAT, BODY | {"model": model}, **headers)


def code_of(response: httpx.Response) -> str:
    """Return the code of an error with status 403."""
    assert response.status_code == 403, response.text
    error: dict[str, Any] = response.json()["error"]
    return str(error.get("code") or error["details"]["error_code"])


def record_of(gateway: KeyedGateway, secret: str, response: httpx.Response) -> dict[str, Any]:
    """Return the decision record of a response."""
    path = f"/v1/decisions/{response.headers['x-switchcraft-decision-id']}"
    headers = bearer(secret)
    wait_for(lambda: gateway.http.get(path, headers=headers).is_success, "it is recorded")
    record: dict[str, Any] = gateway.http.get(path, headers=headers).json()
    return record


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
            record = record_of(gateway, secret, answer)
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
    candidates = record_of(gateway, secret, answer)["candidates"]
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


def test_only_an_allowed_model_passes_requests_through(gateway: KeyedGateway) -> None:
    """The pass-through model must be on the list, even if the router may choose it."""
    path, body = "/v1/images/generations", {"prompt": "a cat"}
    for models, status in ((["large"], None), (["small"], 403), (["switchcraft"], 403)):
        secret = gateway.add_key(f"passing-{models[0]}", models=models)
        answer = gateway.post(secret, path, body)
        if status is None:
            assert answer.headers["x-switchcraft-reason"] == "passed"
        else:
            assert code_of(answer) == "model_not_allowed"


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
