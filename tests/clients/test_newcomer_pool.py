"""A newcomer's first configuration: a list of models, and the shipped router routes between them.

The upstreams replay recorded answers of the real models.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import yaml
from openai.types.chat import ChatCompletion
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from router_service.artifact import SHIPPED, FrontierPoint, read_manifest
from router_service.check import Status, check
from router_service.checker.toolbox import Call
from router_service.predictor.familiarity import LIMIT
from router_service.runtime.engine import EngineBuilder
from router_service.runtime.reloading import load_first_router
from router_service.serving.app import create_app
from router_service.settings import Settings, load_settings
from switchcraft_training.checking import check_answer
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.config import load_config
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.dataset import open_source
from switchcraft_training.records import Answer, Judged
from tests.serving import served

QUERIES = 150
IDS = {
    "gpt-4.1-mini": "openai/gpt-4.1-mini",
    "claude-haiku-4.5": "anthropic/claude-haiku-4-5",
    "claude-sonnet-4.5": "anthropic/claude-sonnet-4-5-20250929",
    "grok-4.1-fast": "xai/grok-4-1-fast-non-reasoning",
}
"""The ids that the newcomer writes, by the arm that stands for each."""


@dataclass(frozen=True)
class Recording:
    """Some recorded queries, and the answers of the models, by the question and the upstream id."""

    queries: tuple[Judged, ...]
    answers: Mapping[tuple[str, str], Answer]


def question_of(messages: list[dict[str, Any]]) -> str:
    """Return the texts of the users of a conversation in either API, without spacing."""
    texts = []
    for message in messages:
        parts = message["content"]
        if message["role"] == "user":
            texts += [parts] if isinstance(parts, str) else [part["text"] for part in parts]
    return "".join("".join(texts).split())


@pytest.fixture(scope="module")
def recording(recorded_data: Path) -> Recording:
    """Return queries that every model of the configuration answered."""
    config = load_config(Path("configs/frontier-2025-12.yaml"))
    source = open_source(config.source, recorded_data)
    assert isinstance(source, CheckedAnswers)
    by_arm = {arm: {a.example_id: a for a in source.source.answers(arm)} for arm in IDS}
    by_question = {
        question_of(judged.example.request["messages"]): judged
        for judged in source.judged.values()
        if all(
            judged.example.id in answers and answers[judged.example.id].input_tokens
            for answers in by_arm.values()
        )
    }
    chosen = random.Random(1).sample(sorted(by_question), QUERIES)
    answers = {
        (question, name.partition("/")[2]): by_arm[arm][by_question[question].example.id]
        for question in chosen
        for arm, name in IDS.items()
    }
    return Recording(tuple(by_question[question] for question in chosen), answers)


@pytest.fixture(scope="module")
def upstream(recording: Recording) -> Iterator[str]:
    """Serve the recorded answers in the APIs of OpenAI and Anthropic; yield the address."""

    def calls_of(answer: Answer, tools: list[dict[str, Any]]) -> list[Call] | None:
        """Return the calls, None for text, and a call that cannot be read for broken ones."""
        if answer.calls is not None:
            return list(answer.calls)
        name = tools[0].get("function", tools[0])["name"]
        return None if answer.problem in TEXT_PROBLEMS else [Call(name, {"": ""})]

    async def chat(request: Request) -> Response:
        body = await request.json()
        answer = recording.answers[question_of(body["messages"]), body["model"]]
        calls = calls_of(answer, body["tools"])
        message: dict[str, Any] = {"role": "assistant", "content": None if calls else "In words."}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{place}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for place, call in enumerate(calls)
            ]
        usage = {"prompt_tokens": answer.input_tokens, "completion_tokens": answer.output_tokens}
        usage["total_tokens"] = sum(filter(None, usage.values()))
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        common = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
        return JSONResponse({**common, "model": "m", "choices": [choice], "usage": usage})

    async def messages(request: Request) -> Response:
        body = await request.json()
        answer = recording.answers[question_of(body["messages"]), body["model"]]
        calls = calls_of(answer, body["tools"])
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"toolu_{n}", "name": call.name, "input": call.arguments}
            for n, call in enumerate(calls or ())
        ] or [{"type": "text", "text": "In words."}]
        usage = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
        common = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
        reason = "tool_use" if calls else "end_turn"
        return JSONResponse({**common, "content": content, "stop_reason": reason, "usage": usage})

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
    ]
    with served(Starlette(routes=routes)) as url:
        yield url


@pytest.fixture(scope="module")
def settings(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return the newcomer's settings: only a list of models, here at the replaying upstreams."""
    addresses = {"anthropic": upstream}
    models = [
        {
            "model_name": arm.partition("-")[2],
            "litellm_params": {
                "model": name,
                "api_key": "k",
                "api_base": addresses.get(name.partition("/")[0], f"{upstream}/v1"),
            },
        }
        for arm, name in IDS.items()
    ]
    path = tmp_path_factory.mktemp("newcomer") / "gateway.yaml"
    path.write_text(yaml.safe_dump({"model_list": models, "server": {"port": 0}}))
    findings = list(check(path))
    assert [finding for finding in findings if finding.status is Status.FAILED] == []
    return load_settings(path, {})


def test_a_list_of_models_is_routed_with_the_measured_accuracy_and_cost(
    recording: Recording, settings: Settings
) -> None:
    """The answers of 150 recorded queries are as correct and as cheap as the gateway's figures say.

    The shipped artifact has learned from these queries, so accuracy may exceed the held-out figure,
    and must not be more than three standard errors below it. The cost is that of the requests that
    are like the training data; the most accurate model answers the others.
    """
    router, _ = load_first_router(settings, EngineBuilder())
    prices = {arm: read_manifest(SHIPPED / "manifest.json").profile[arm].price for arm in IDS}
    with (
        served(create_app(settings, router)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client,
    ):
        cards = client.get("/policies", cast_to=dict[str, Any])
        (measured,) = (card["measured"] for card in cards["data"] if card["name"] == "verified")
        point = FrontierPoint.model_validate(measured)
        results = [ask(client, judged) for judged in recording.queries]
    correct, all_costs_usd, is_familiar = np.array(results).T
    costs_usd = all_costs_usd[is_familiar == 1]
    assert 0.85 < is_familiar.mean() < 1
    error = np.hypot(correct.std() / QUERIES**0.5, point.accuracy.stderr)
    assert correct.mean() > point.accuracy.value - 3 * error
    assert costs_usd.mean() == pytest.approx(point.cost_usd.value, rel=0.5)
    sonnet = [
        prices["claude-sonnet-4.5"].cost_usd(a.input_tokens or 0, a.output_tokens or 0, 0)
        for (_, name), a in recording.answers.items()
        if name == "claude-sonnet-4-5-20250929"
    ]
    assert costs_usd.mean() < 0.2 * np.mean(sonnet)


def ask(client: openai.OpenAI, judged: Judged) -> tuple[float, float, bool]:
    """Return whether the answer to a query is correct, its cost in USD, and if it is familiar."""
    response = client.chat.completions.with_raw_response.create(
        model="switchcraft", **judged.example.request
    )
    assert response.headers["x-switchcraft-why"]
    is_familiar = float(response.headers["x-switchcraft-familiarity"]) >= LIMIT
    policy = "verified" if is_familiar else "best"
    assert response.headers["x-switchcraft-policy"].startswith(policy)
    answer = response.parse()
    assert isinstance(answer, ChatCompletion)
    functions = [
        call.function
        for call in answer.choices[0].message.tool_calls or ()
        if call.type == "function"
    ]
    calls = tuple(Call(each.name, json.loads(each.arguments)) for each in functions)
    problem = None if calls else "text"
    given = Answer(judged.example.id, "gateway", calls or None, problem, None, None)
    verdict = check_answer(*judged, given)
    cost_usd = float(response.headers["x-switchcraft-cost-usd"])
    return float(verdict.correct), cost_usd, is_familiar
