"""Gateways with models that the router does not know: served by name, and never passed off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from router_service.settings import Deployment, Model, RouterSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, record_of
from tests.serving import Sandbox

IDS = {"small": ("openai/gpt-5-mini",), "medium": ("openai/gpt-5.2",), "large": ("xai/grok-4",)}
PLAIN = {name: value for name, value in BODY.items() if name != "tools"}


def knowing_router() -> FakeRouter:
    """Return a router whose artifact says which models its arms are."""
    router = FakeRouter()
    changed = router.artifact.manifest.model_copy(update={"stands_for": IDS})
    router.artifact = replace(router.artifact, manifest=changed)
    return router


def settings(sandbox: Sandbox, models: Mapping[str, str], **router: object) -> Settings:
    """Return settings with these models, named by their upstreams' names, in the sandbox."""
    made = (
        Model(
            name=name,
            deployments=(Deployment(upstream_model=upstream, base_url=sandbox.base_url),),
        )
        for name, upstream in models.items()
    )
    section = RouterSettings.model_validate({"unknown_prices": "allow"} | router)
    return Settings(models=tuple(made), router=section, source="config.yaml")


@pytest.fixture(scope="module")
def strangers(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway whose router knows none of its models."""
    with gateway_client(settings(sandbox, {"qwen": "qwen3"}), knowing_router()) as http:
        yield http


@pytest.mark.parametrize("body", [BODY, PLAIN, BODY | {"model": "switchcraft:quality"}])
def test_gateway_that_knows_no_model_refuses_to_choose(
    strangers: httpx.Client, body: dict[str, Any]
) -> None:
    """The error says why, and names the models that a request can name."""
    answer = strangers.post(CHAT, json=body)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "no_routed_model"
    assert "none of the configured models" in error["message"]
    assert "Name a model instead: qwen." in error["message"]


def test_known_models_are_routed_among_unknown_ones(sandbox: Sandbox) -> None:
    """The router chooses among the models that it knows, and names them as they are configured."""
    models = {"mini": "gpt-5-mini", "flagship": "gpt-5.2", "qwen": "qwen3"}
    with gateway_client(settings(sandbox, models), knowing_router()) as http:
        answer = http.post(CHAT, json=BODY)
        assert answer.headers["x-switchcraft-model"] == "flagship"
        assert answer.headers["x-switchcraft-why"].startswith("flagship (medium): 70% reaches 50%")
        record = record_of(http, answer)
        assert record["explanation"] == answer.headers["x-switchcraft-why"]
        assert record["labels"] == {"small": "mini (small)", "medium": "flagship (medium)"}
        assert "routing" not in http.get("/readyz").json()
