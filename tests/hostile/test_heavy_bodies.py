"""Bodies built to take long are decided or refused soon.

That other keys are served meanwhile is shown by `test_malicious_client.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest

from router_service.artifact import SHIPPED
from router_service.core.errors import InvalidRequestError
from router_service.core.reasons import Reason
from router_service.requests.deciding import plan_request
from router_service.requests.parsing import Endpoint
from router_service.requests.planning import Plan
from router_service.router import Router
from router_service.runtime.gateway import Gateway
from router_service.settings import Settings
from tests.bodies import ASK, TOOLS
from tests.endpoints import CHAT, RESPONSES

SIZE_BYTES = 10_000_000
MAX_CPU_S = 2.0
"""Each takes 0.4 s at most on an idle machine; without limits, most take seconds to minutes. The
processor time of other threads of the tests counts, too."""
WORDS = " ".join(f"word{i:x}" for i in range(SIZE_BYTES // 10))


def body(messages: str = json.dumps(ASK), tools: str = json.dumps(TOOLS), x: str = "0") -> bytes:
    """Return a chat body with its model at the end."""
    text = f'{{"messages":{messages},"tools":{tools},"x":{x},"model":"switchcraft"}}'
    return text.encode()


def array(item: str, size_bytes: int = SIZE_BYTES) -> str:
    """Return an array of about this size with one repeated item; `%d` in it becomes a number."""
    count = size_bytes // (len(item) + 1)
    return "[" + ",".join(item % i if "%d" in item else item for i in range(count)) + "]"


def members(item: str, size_bytes: int = SIZE_BYTES) -> str:
    """Return an object of about this size with one repeated member, whose name has a number."""
    return "{" + array(item, size_bytes)[1:-1] + "}"


def string(text: str) -> str:
    """Return a string that repeats a text."""
    return '"' + text * (SIZE_BYTES // len(text)) + '"'


def user(content: str) -> str:
    """Return an array of one message."""
    return '[{"role":"user","content":' + content + "}]"


def tool(parameters: str, name: str = '"f"', description: str = '"Does it."') -> str:
    """Return an array of one tool."""
    return f'[{{"name":{name},"description":{description},"parameters":{parameters}}}]'


def enum(values: str) -> str:
    """Return an array of one tool with an enum."""
    return tool('{"properties":{"a":{"enum":' + values + "}}}")


def deep(levels: int, size_bytes: int) -> str:
    """Return an array of one tool whose schema has this many levels of properties."""
    schema, leaves = "{}", members('"p%d":{}', size_bytes // levels)[1:-1]
    for _ in range(levels):
        schema = '{"properties":{"n":' + schema + "," + leaves + "}}"
    return tool(schema)


REPEATED = '"' + "a" * 45 + "%d" + "a" * 45 + '"'
REFUSED = "refused"
DECIDED = "decided"
UNREAD = Reason.UNREAD

HEAVY: dict[str, tuple[Callable[[], bytes], str]] = {
    "deep schema": (lambda: body(tools=deep(60, SIZE_BYTES)), REFUSED),
    "deep schema within the limits": (lambda: body(tools=deep(50, 180_000)), DECIDED),
    "wide schema": (
        lambda: body(tools=tool('{"properties":' + members('"p%d":{}', 900_000) + "}")),
        UNREAD,
    ),
    "enum of numbers": (lambda: body(tools=enum(array("12345"))), UNREAD),
    "enum that repeats the query": (
        lambda: body(user('"' + "a" * 19_000 + '"'), enum(array(REPEATED, 600_000))),
        DECIDED,
    ),
    "a million tools": (lambda: body(tools=array('{"name":"f"}')), REFUSED),
    "long name": (lambda: body(tools=tool("{}", name=string("aB"))), UNREAD),
    "long description": (lambda: body(tools=tool("{}", description=f'"{WORDS}"')), UNREAD),
    "deep value": (lambda: body(tools=tool('{"a":' * 900 + "1" + "}" * 900)), REFUSED),
    "a million messages": (lambda: body(array('{"role":"user"}')), REFUSED),
    "blank messages": (
        lambda: body(array('{"role":"user","content":"x' + " \\t" * 900 + '%d"}')),
        DECIDED,
    ),
    "a million parts": (lambda: body(user(array('{"text":""}'))), REFUSED),
    "many calls": (
        lambda: body('[{"role":"assistant","tool_calls":' + array('{"name":"f"}', 900_000) + "}]"),
        UNREAD,
    ),
    "long text": (lambda: body(user(f'"{WORDS}"')), DECIDED),
    "escapes": (lambda: body(user(string("\\\\\\n\\u003a\\u006d"))), DECIDED),
    "numbers": (lambda: body(x=array("0")), REFUSED),
    "a long number": (lambda: body(x="1" * SIZE_BYTES), DECIDED),
    "keys": (lambda: body(x=members('"%d":0')), REFUSED),
    "duplicate keys": (lambda: body(x=array('{"a":1,"a":2}', 900_000)), REFUSED),
    "strings with the text model": (lambda: body(x=array('"model"', 4_000_000)), DECIDED),
}


@pytest.fixture(scope="module")
def router() -> Router:
    """Load the shipped artifact's router."""
    return Router.load(SHIPPED)


@pytest.fixture(scope="module")
def gateway(router: Router) -> Gateway:
    """Return a gateway that decides by the real router."""
    settings = Settings.sandbox("http://127.0.0.1:9/v1", router.artifact.manifest.arms)
    return Gateway(settings, router)


@pytest.mark.parametrize("name", HEAVY)
def test_heavy_bodies_are_decided_or_refused_soon(gateway: Gateway, name: str) -> None:
    """Both APIs answer soon; if part of a body is not read, the reason says so."""
    make, expected = HEAVY[name]
    chat = make()
    outcome, took_s = planned(gateway, CHAT, chat)
    assert outcome == expected
    assert took_s < MAX_CPU_S
    _, took_s = planned(gateway, RESPONSES, chat.replace(b'"messages"', b'"input"', 1))
    assert took_s < MAX_CPU_S


def planned(gateway: Gateway, endpoint: Endpoint, text: bytes) -> tuple[str, float]:
    """Return the outcome of a request and its processor time."""

    async def plan_once() -> Plan:
        return await plan_request(gateway, gateway.engine, endpoint, text)

    started_s = time.process_time()
    try:
        plan = asyncio.run(plan_once())
        outcome = str(UNREAD) if plan.reason is UNREAD else DECIDED
    except InvalidRequestError:
        outcome = REFUSED
    return outcome, time.process_time() - started_s
