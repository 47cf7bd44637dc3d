"""Conversations that switch models, between providers that reject each other's reasoning."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise, permutations

import pytest

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import APIS, Api
from tests.clients.conversations import CONVERSATIONS
from tests.providers.app import Play, Provider
from tests.providers.gateways import deployment, gateway
from tests.providers.requests import ProviderRequest
from tests.serving import served

SWITCHES = 1000
"""Least number of switches, over all three clients."""

TURNS = 12
"""Requests of one conversation. Every second one sends the result of a call."""

CALL_IDS = {
    apis.CHAT: ("chatcmpl-tool-{:032x}", "functions.get_weather:{}"),
    apis.RESPONSES: ("call_{:024x}", "fc_{:060x}"),
    apis.MESSAGES: ("toolu_{:024x}", "toolu_bdrk_{:022x}"),
}
"""Ids of calls: of vLLM and Moonshot, of OpenAI and Azure, of Anthropic and Bedrock."""

SERVICES: dict[Api, tuple[str, str]] = {apis.CHAT: ("deepseek", "openai")}
"""The names of the providers, as far as they have rules of their own: DeepSeek accepts reasoning in
chat messages and any id of a call, and OpenAI accepts neither."""


@dataclass(frozen=True)
class Arms:
    """A gateway with two providers for each API."""

    url: str
    providers: dict[str, Provider]
    """The providers by the names of their models."""


class Model:
    """A model that calls a tool for each question, and thinks before each answer."""

    def __init__(self, name: str, dialect: Api, call_id: str) -> None:
        self._name = name
        self._dialect = dialect
        self._call_id = call_id
        self._answers = 0

    def __call__(self, asked: ProviderRequest) -> Play:
        """Answer a question with a call, and results with a text."""
        self._answers += 1
        text = f"{self._name} thinks about {asked.texts[-1]} ({self._answers})."
        if self._answers % 3 == 0 and self._dialect is not apis.CHAT:
            text = ""  # hidden: Anthropic redacts it, and OpenAI has no summary
        thinking = Thinking(text, is_hidden=not text and self._dialect is apis.MESSAGES)
        if asked.ends_with_results:
            return Play([thinking, Text(f"Done, says {self._name}.")])
        call_id = self._call_id.format(self._answers)
        return Play([thinking, ToolUse(call_id, "get_weather", '{"city": "Oslo"}')])


@pytest.fixture(scope="module")
def arms() -> Iterator[Arms]:
    """Yield a gateway whose models are at six providers."""
    with ExitStack() as stack:
        providers, models = {}, {}
        for dialect in APIS:
            for number, call_id in enumerate(CALL_IDS[dialect]):
                name = f"{dialect}-{number}"
                play = Model(name, dialect, call_id)
                provider = Provider(play, name, is_lenient=number == 0)
                url = stack.enter_context(served(provider))
                providers[name] = provider
                services = SERVICES.get(dialect, ("", ""))
                models[name] = deployment(url, dialect, model=name, provider=services[number])
        yield Arms(stack.enter_context(gateway(models)), providers)


@pytest.mark.parametrize("client", APIS)
def test_switches_cause_no_error(arms: Arms, client: Api) -> None:
    """No switch fails, in any direction, within tool loops or between them.

    Each client's conversations switch at least a third of 1,000 times, and between all pairs of the
    six models. A provider rejects reasoning that it has not made, ids of calls that are not in its
    format, and results without a call. None has to reject anything, with one exception: what a chat
    provider says about reasoning in messages is learned from its first rejection.
    """
    rng = random.Random(19)
    switches: list[tuple[str, str]] = []
    number = 0
    pairs = set(permutations(arms.providers, 2))
    while len(switches) < SWITCHES / 3 or set(switches) != pairs:
        number += 1
        names = [rng.choice(list(arms.providers))]
        while len(names) < TURNS:
            names.append(rng.choice([name for name in arms.providers if name != names[-1]]))
        talk = CONVERSATIONS[client](arms.url, names[0], stream=number % 4 == 0, thinks=True)
        calls: dict[str, str] = {}
        for name in names:
            talk.model = name
            heard = talk.answer(calls) if calls else talk.ask(f"question {len(talk.history)}")
            assert heard.error == "", f"{names} at {name}: {heard.message}"
            assert heard.text == (f"Done, says {name}." if calls else "")
            calls = {} if calls else dict.fromkeys((call_id for call_id, _, _ in heard.calls), "-3")
        talk.close()
        switches += pairwise(names)
    rejected = [reason for provider in arms.providers.values() for reason in provider.rejected]
    assert rejected in ([], ["property 'reasoning_content' is unsupported"])
