"""A policy in one file and with one line in the registry works everywhere."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import httpx
import pytest

from router_service.artifact import CANARIES, SHIPPED
from router_service.cli import main
from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.bodies import BODY
from tests.fakes import FakeRouter
from tests.serving import ONE_TRY, Sandbox, served
from tests.toy_policy import Ratio, registered

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    """Register the policy during these tests."""
    with registered():
        yield


@pytest.fixture(scope="module")
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway with three arms: probabilities 0.3, 0.7 and 0.9."""
    router = FakeRouter()
    settings = Settings.sandbox(sandbox.base_url, list(router.probabilities), upstreams=ONE_TRY)
    with (
        served(create_app(settings, router)) as url,
        httpx.Client(base_url=url, timeout=10) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("model", "header"), [("switchcraft", "ratio=0.7"), ("switchcraft:ratio=0.7", None)]
)
def test_request_asks_for_it_by_header_or_model_name(
    http: httpx.Client, model: str, header: str | None
) -> None:
    """The answer's headers name the policy and explain the choice in the policy's own words."""
    headers = {} if header is None else {"x-switchcraft-policy": header}
    answer = http.post(CHAT, json=BODY | {"model": model}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-switchcraft-model"] == "medium"
    assert answer.headers["x-switchcraft-policy"] == "ratio=0.7"
    assert answer.headers["x-switchcraft-reason"] == "policy"
    assert "has at least 70% of the best model (large, 90%)" in answer.headers["x-switchcraft-why"]
    decision = http.get(f"/v1/decisions/{answer.headers['x-switchcraft-decision-id']}").json()
    assert decision["explanation"].startswith("medium: 70% has at least 70% of the best model")
    assert decision["threshold"] == pytest.approx(0.63)
    assert decision["qualifying_arms"] == ["medium", "large"]


def test_page_gets_its_control(http: httpx.Client) -> None:
    """The page's data and the list of policies describe it."""
    control = Ratio.control.model_dump(mode="json")
    assert control in http.get("/ui/api/artifact").json()["rules"]
    assert control in http.get("/v1/policies").json()["rules"]


def test_route_decides_by_it(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """`switchcraft route --policy` chooses as the policy does."""
    lines = (SHIPPED / CANARIES).read_bytes().splitlines()
    bodies = b"".join(json.dumps(json.loads(line)["request"]).encode() + b"\n" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bodies)))
    options = ["--artifact", str(SHIPPED), "--policy", "ratio=0.8"]
    assert main(["route", *options]) == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert len(rows) == len(lines)
    for row in rows:
        arms = list(row["probabilities"])
        chosen = Ratio(0.8).choose([*row["probabilities"].values()], [*row["cost_usd"].values()])
        assert (row["arm"], row["reason"]) == (arms[chosen.arm], "policy")
        assert row["policy"] == "ratio=0.8"
