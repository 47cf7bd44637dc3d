"""Routed tool calls as a user sees them: real client, real gateway, shipped router."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from openai import OpenAI

from router_service.artifact import CANARIES, SHIPPED
from tests.drills.processes import sandbox_gateway


def test_gateway_and_route_command_choose_the_same_arms(tmp_path: Path) -> None:
    """If it chooses once, the gateway chooses the same arm as `switchcraft route`.

    The requests are the artifact's canary requests, and each gets calls of tools that it offers.
    """
    lines = (SHIPPED / CANARIES).read_text().splitlines()
    bodies = [json.loads(line)["request"] for line in lines]
    result = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "route"],
        input="".join(json.dumps(body) + "\n" for body in bodies).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    offline = [json.loads(line)["arm"] for line in result.stdout.splitlines()]
    online = []
    with (
        sandbox_gateway(tmp_path) as url,
        OpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=0) as client,
    ):
        for body in bodies:
            answer = client.chat.completions.with_raw_response.create(
                model="switchcraft:fast", **body
            )
            calls = answer.parse().choices[0].message.tool_calls
            offered = {tool["function"]["name"] for tool in body["tools"]}
            assert {call.function.name for call in calls} <= offered
            online.append(answer.headers["x-switchcraft-model"])
    assert online == offline
