"""Bodies built to take long are decided or refused soon, and other keys are still served."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from pydantic import SecretStr

from router_service.artifact import SHIPPED
from router_service.core.errors import InvalidRequestError
from router_service.core.keys import new_key
from router_service.core.reasons import Reason
from router_service.http.protocol import BoundedProtocol
from router_service.requests.deciding import plan_request
from router_service.requests.parsing import Endpoint
from router_service.requests.planning import Plan
from router_service.router import Router
from router_service.runtime.gateway import Gateway
from router_service.serving.app import create_app
from router_service.serving.server import uvicorn_config
from router_service.settings import KeySettings, Settings
from tests.bodies import ASK, BODY, TOOLS
from tests.bodies import CHAT as CHAT_PATH
from tests.endpoints import CHAT, RESPONSES
from tests.serving import Sandbox, served

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
    "deep schema of fewer values": (lambda: body(tools=deep(60, 700_000)), UNREAD),
    "deep schema within the limits": (lambda: body(tools=deep(50, 180_000)), DECIDED),
    "wide schema": (
        lambda: body(tools=tool('{"properties":' + members('"p%d":{}', 900_000) + "}")),
        UNREAD,
    ),
    "wide schema within the limits": (
        lambda: body(tools=tool('{"properties":' + members('"fooBar%d":{}', 320_000) + "}")),
        DECIDED,
    ),
    "enum of numbers": (lambda: body(tools=enum(array("12345"))), UNREAD),
    "enum of strings": (lambda: body(tools=enum(array('"a%d"', 3_000_000))), UNREAD),
    "enum of arrays": (lambda: body(tools=enum("[" + array("[1]", 600_000) + "]")), UNREAD),
    "enum that repeats the query": (
        lambda: body(user('"' + "a" * 19_000 + '"'), enum(array(REPEATED, 600_000))),
        DECIDED,
    ),
    "a million tools": (lambda: body(tools=array('{"name":"f"}')), REFUSED),
    "100,000 tools": (lambda: body(tools=array('{"name":"%d"}', 1_200_000)), UNREAD),
    "tools without names": (lambda: body(tools=array("{}", 600_000)), UNREAD),
    "long name": (lambda: body(tools=tool("{}", name=string("aB"))), UNREAD),
    "long description": (lambda: body(tools=tool("{}", description=f'"{WORDS}"')), UNREAD),
    "long description within the limits": (
        lambda: body(tools=tool("{}", description=f'"{WORDS[:640_000]}"')),
        DECIDED,
    ),
    "long property": (lambda: body(tools=tool('{"properties":{' + string("aB") + ":{}}}")), UNREAD),
    "long type": (lambda: body(tools=tool('{"type":' + array('"a"', 2_000_000) + "}")), UNREAD),
    "values that no schema has": (
        lambda: body(tools=tool('{"x":' + array("[1]", 600_000) + "}")),
        UNREAD,
    ),
    "deep value": (lambda: body(tools=tool('{"a":' * 900 + "1" + "}" * 900)), REFUSED),
    "a million messages": (lambda: body(array('{"role":"user"}')), REFUSED),
    "50,000 messages": (
        lambda: body(array('{"role":"user","content":"%d"}', 1_500_000)),
        UNREAD,
    ),
    "messages of no kind": (lambda: body(array("{}", 600_000)), UNREAD),
    "blank messages": (
        lambda: body(array('{"role":"user","content":"x' + " \\t" * 900 + '%d"}')),
        DECIDED,
    ),
    "a million parts": (lambda: body(user(array('{"text":""}'))), REFUSED),
    "many parts": (lambda: body(user(array('{"text":"a"}', 900_000))), UNREAD),
    "many strings as parts": (lambda: body(user(array('"a"', 2_000_000))), UNREAD),
    "many calls": (
        lambda: body('[{"role":"assistant","tool_calls":' + array('{"name":"f"}', 900_000) + "}]"),
        UNREAD,
    ),
    "long text": (lambda: body(user(f'"{WORDS}"')), DECIDED),
    "blanks": (lambda: body(user(string(" "))), DECIDED),
    "escapes": (lambda: body(user(string("\\\\\\n\\u003a\\u006d"))), DECIDED),
    "quotes": (lambda: body(user(string('\\",'))), DECIDED),
    "digits": (lambda: body(user(string("1"))), DECIDED),
    "numbers": (lambda: body(x=array("0")), REFUSED),
    "long numbers": (lambda: body(x=array("1" * 20)), DECIDED),
    "a long number": (lambda: body(x="1" * SIZE_BYTES), DECIDED),
    "objects": (lambda: body(x=array("{}")), REFUSED),
    "nested arrays": (lambda: body(x=array("[[[[[[[[[[]]]]]]]]]]")), REFUSED),
    "strings": (lambda: body(x=array('","')), REFUSED),
    "keys": (lambda: body(x=members('"%d":0')), REFUSED),
    "escaped colons": (lambda: body(x=array('{"\\u003a":1}', 1_200_000)), DECIDED),
    "duplicate keys": (lambda: body(x=array('{"a":1,"a":2}', 900_000)), REFUSED),
    "keys with the name model": (lambda: body(x=array('{"model":1}', 1_200_000)), REFUSED),
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


KEYS = {name: new_key() for name in ("attacker", "victim")}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def url(router: Router, sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway with two keys, as in production; yield its address."""
    settings = Settings.sandbox(sandbox.base_url, router.artifact.manifest.arms)
    keys = KeySettings(api={name: SecretStr(key) for name, key in KEYS.items()})
    app = create_app(settings.model_copy(update={"keys": keys}), router)
    protocol = uvicorn_config(app, settings.server).http
    assert isinstance(protocol, type)
    assert issubclass(protocol, BoundedProtocol)
    with served(app, http=protocol) as address:
        yield address


def test_a_flood_of_heavy_requests_does_not_stop_other_keys(url: str) -> None:
    """Eight clients send the heaviest bodies, and every request of another key is still decided."""
    kinds = ("deep schema within the limits", "enum of numbers", "wide schema within the limits")
    texts = [HEAVY[kind][0]() for kind in kinds]
    is_over = threading.Event()

    def attack(text: bytes) -> int:
        sent = 0
        while not is_over.is_set():
            # A different body each time, so that no cache holds it.
            fresh = text.replace(b'"x":0', b'"x":%d' % next(NUMBERS), 1)
            fresh = fresh.replace(b'"Does it."', b'"Does it %d."' % next(NUMBERS), 1)
            with httpx.Client(base_url=url, timeout=60, headers=key_of("attacker")) as client:
                assert client.post(CHAT_PATH, content=fresh).status_code in {200, 400, 429, 503}
            sent += 1
        return sent

    with (
        ThreadPoolExecutor(8) as attackers,
        httpx.Client(base_url=url, timeout=60, headers=key_of("victim")) as victim,
    ):
        attacks = [attackers.submit(attack, texts[i % len(texts)]) for i in range(8)]
        try:
            for _ in range(5):
                ask = [{"role": "user", "content": f"What is the weather in {next(NUMBERS)}?"}]
                answer = victim.post(CHAT_PATH, json=BODY | {"messages": ask})
                assert answer.status_code == 200
        finally:
            is_over.set()
        assert sum(future.result() for future in attacks) > 0


def key_of(name: str) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {KEYS[name]}"}
