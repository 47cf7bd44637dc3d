"""Routed tool calls as a user sees them: real client, real gateway, shipped router."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from router_service.artifact import CANARIES, SHIPPED, Artifact
from router_service.core.decision_record import label_policy

README = Path(__file__).parents[2] / "README.md"

ARMS = Artifact.load(SHIPPED).manifest.arms


def get(url: str) -> str:
    """Return the body at an address."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own address
        body: str = answer.read().decode()
        return body


def recorded(gateway: str, decision_id: str) -> Mapping[str, Any]:
    """Return a decision's record, which is written just after the answer's last byte."""
    for _ in range(100):
        try:
            record: dict[str, Any] = json.loads(get(f"{gateway}/v1/decisions/{decision_id}"))
        except urllib.error.HTTPError as exc:
            if exc.code != 404:
                raise
            time.sleep(0.02)
        else:
            return record
    pytest.fail(f"the decision {decision_id} was not recorded")


def decisions_counted(gateway: str) -> float:
    """Return the number of decisions in the gateway's metrics, over all arms and reasons."""
    families = text_string_to_metric_families(get(f"{gateway}/metrics"))
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "switchcraft_decisions_total"
    )


def ask(
    client: OpenAI, body: Mapping[str, Any], *, stream: bool, model: str = "switchcraft"
) -> Mapping[str, str]:
    """Send a request to be routed, check its tool calls, and return the headers."""
    answer = client.chat.completions.with_raw_response.create(model=model, stream=stream, **body)
    calls = list(streamed(answer.parse())) if stream else whole(answer.parse())
    offered = {tool["function"]["name"] for tool in body["tools"]}
    assert calls
    for name, arguments in calls:
        assert name in offered
        assert isinstance(json.loads(arguments), dict)
    return answer.headers


def whole(completion: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - the client's own type
    """Return the calls of a complete answer."""
    calls = completion.choices[0].message.tool_calls
    return [(call.function.name, call.function.arguments) for call in calls]


def streamed(chunks: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - the client's own type
    """Yield the calls of a stream, assembled as a client does."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                names.setdefault(call.index, call.function.name)
                arguments[call.index] = arguments.get(call.index, "") + call.function.arguments
    for index, name in names.items():
        yield name, arguments[index]


def route_all(gateway: str, bodies: Sequence[Mapping[str, Any]]) -> None:
    """Send all bodies, alternately streamed and not, and check each decision record."""
    client = OpenAI(base_url=f"{gateway}/v1", api_key="not-needed", max_retries=0)
    before = decisions_counted(gateway)
    for index, body in enumerate(bodies):
        headers = ask(client, body, stream=index % 2 == 0)
        record = recorded(gateway, headers["x-switchcraft-decision-id"])
        assert record["arm"] == record["model"] == headers["x-switchcraft-model"]
        assert set(record["probabilities"]) == set(ARMS)
        assert record["reason"] == headers["x-switchcraft-reason"]
        shown = label_policy(record["policy"], record["policy_name"])
        assert shown == headers["x-switchcraft-policy"]
        assert record["packed_tokens"] > 0
        assert record["status"] == 200
    assert decisions_counted(gateway) - before == len(bodies)


def own_questions() -> list[dict[str, Any]]:
    """Return our own requests: the artifact's canary requests."""
    lines = (SHIPPED / CANARIES).read_text().splitlines()
    return [json.loads(line)["request"] for line in lines]


def test_own_requests_are_routed_answered_and_recorded(gateway: str) -> None:
    """Each of our own requests is routed, answered by the chosen arm, and recorded."""
    route_all(gateway, [body for body in own_questions() for _ in range(2)])


def test_gateway_and_route_command_choose_the_same_arms(gateway: str) -> None:
    """If it chooses once, the gateway chooses the same arm as `switchcraft route`."""
    client = OpenAI(base_url=f"{gateway}/v1", api_key="not-needed", max_retries=0)
    bodies = own_questions()
    lines = "".join(json.dumps(body) + "\n" for body in bodies)
    result = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "route"],
        input=lines.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    offline = [json.loads(line)["arm"] for line in result.stdout.splitlines()]
    online = [
        ask(client, body, stream=False, model="switchcraft:fast")["x-switchcraft-model"]
        for body in bodies
    ]
    assert online == offline
