"""Requests that end early leave nothing that only a full garbage collection frees."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import anyio
import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from router_service.requests.call import Call
from router_service.requests.candidates import Candidate
from router_service.serving.app import create_app
from router_service.settings import Deployment, Model, Settings
from router_service.upstream.connection import Connection
from router_service.upstream.streams import StartedAnswer
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import served, wait_for

KINDS = (Candidate, Connection, Call, StartedAnswer)


async def hang_midway(_: Request) -> Response:
    """Answer with the beginning of an object, and send no more."""

    async def parts() -> AsyncIterator[bytes]:
        yield b'{"id": "c", "object": "chat.completion", "padding": "' + b"x" * 100_000
        await anyio.sleep(60)

    return StreamingResponse(parts(), media_type="application/json")


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """Yield the address of a gateway whose upstream completes no answer."""
    route = Route("/v1/chat/completions", hang_midway, methods=["POST"])
    with served(Starlette(routes=[route])) as url:
        place = Deployment(upstream_model="m", base_url=f"{url}/v1", api_key=SecretStr("k"))
        models = tuple(Model(name=arm, deployments=(place,)) for arm in FakeRouter().probabilities)
        with served(create_app(Settings(models=models), FakeRouter())) as address:
            yield address


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Free all garbage, and then collect none until the test has ended."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_alive() -> int:
    """Return how many objects of requests exist, in this process."""
    return sum(isinstance(each, KINDS) for each in gc.get_objects())


@pytest.mark.parametrize("leaves", [False, True], ids=["deadline", "client leaves"])
@pytest.mark.usefixtures("no_collections")
def test_unfinished_answers_are_freed_without_a_collection(gateway: str, leaves: bool) -> None:
    """What was read of an answer is freed when its request has ended, however that ends."""
    before = count_alive()
    with httpx.Client(base_url=gateway, timeout=0.5 if leaves else 30) as client:
        for _ in range(3):
            headers = {} if leaves else {"x-request-timeout": "0.3"}
            with suppress(httpx.ReadTimeout):
                answer = client.post(CHAT, json=BODY | {"model": "small"}, headers=headers)
                assert answer.status_code == 504
    wait_for(lambda: count_alive() <= before, "the requests' objects are freed")
