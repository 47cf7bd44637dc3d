"""Verified answers with the shipped artifact, real clients and recorded answers of real models."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from router_service.apis.conversation import parse_conversation
from router_service.artifact import SHIPPED, Manifest
from router_service.measurement.simulation import Simulation, VerifiedAnswers
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.config import load_config
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.dataset import open_source
from switchcraft_training.models.verifier import VerifierData, read_candidates
from switchcraft_training.records import Answer, Example
from switchcraft_training.verification import judge_answers, recorded_calls
from tests.serving import ONE_TRY, served, wait_for

QUERIES = 100


@dataclass(frozen=True)
class Recording:
    """Recorded queries, the answers of every arm, and what the offline evaluation accepts."""

    manifest: Manifest
    examples: tuple[Example, ...]
    answers: Mapping[tuple[str, str], Answer]
    """By query, as JSON, and arm."""
    offline: VerifiedAnswers

    def cost_usd(self, row: int) -> float:
        """Return the recorded cost of the candidates of a query."""
        example, total = self.examples[row], 0.0
        for column in self.offline.decided(row)[0]:
            arm = self.manifest.arms[column]
            answer = self.answers[key_of(example.request), arm]
            price = self.manifest.profile[arm].price
            total += price.cost_usd(answer.input_tokens or 0, answer.output_tokens or 0, 0)
        return total


def key_of(body: Mapping[str, Any]) -> str:
    """Return what identifies a recorded query in a request."""
    return json.dumps([body["messages"], body["tools"]], sort_keys=True)


@pytest.fixture(scope="module")
def recording(recorded_data: Path) -> Recording:
    """Return queries that every arm answered, evaluated offline with the shipped artifact."""
    router = Router.load(SHIPPED)
    manifest = router.artifact.manifest
    assert manifest.verifier is not None
    config = load_config(Path("configs/frontier-2025-12.yaml"))
    source = open_source(config.source, recorded_data)
    assert isinstance(source, CheckedAnswers)
    by_arm = {arm: {a.example_id: a for a in source.source.answers(arm)} for arm in manifest.arms}
    complete = [
        example
        for example in source.examples()
        if all(
            example.id in answers and answers[example.id].input_tokens
            for answers in by_arm.values()
        )
    ]
    unique = list({key_of(example.request): example for example in complete}.values())
    random.Random(1).shuffle(unique)
    predicted = ((each, router.predict(parse_conversation(each.request))) for each in unique)
    # The first answer is not verified if the router expects text, and another verifier, which has
    # no recorded judgements, judges unfamiliar requests.
    verifiable = (
        (example, prediction)
        for example, prediction in predicted
        if not manifest.verifier.expects_text(prediction.p_no_call)
        and not router.is_unfamiliar(prediction)
    )
    examples, predictions = zip(*islice(verifiable, QUERIES), strict=True)
    calls = recorded_calls(source, examples, manifest.arms)
    data = VerifierData(
        features=np.array([prediction.features for prediction in predictions]),
        probabilities=np.array([prediction.probabilities for prediction in predictions]),
        candidates=read_candidates(examples, calls),
        correct=np.full((QUERIES, len(manifest.arms)), np.nan),
        costs_usd=np.array(manifest.costs_usd()),
        groups=np.arange(QUERIES),
    )
    judged = judge_answers(router.artifact.directory, manifest.verifier, data)
    simulation = Simulation(judged, manifest.verifier.gain_features)
    spec = manifest.verifier
    offline = simulation.answer(data.costs_usd[None], spec.price_usd, floor=spec.floor)
    answers = {
        (key_of(example.request), arm): by_arm[arm][example.id]
        for example in examples
        for arm in manifest.arms
    }
    return Recording(manifest, examples, answers, offline)


@pytest.fixture(scope="module")
def gateway(recording: Recording) -> Iterator[str]:
    """Serve a gateway with the shipped artifact before an upstream that replays the recording."""

    async def replay(request: Request) -> Response:
        body = await request.json()
        answer = recording.answers[key_of(body), body["model"]]
        message = message_of(answer, body["tools"][0]["function"]["name"])
        usage = {
            "prompt_tokens": answer.input_tokens or 0,
            "completion_tokens": answer.output_tokens or 0,
            "total_tokens": (answer.input_tokens or 0) + (answer.output_tokens or 0),
        }
        common = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answered = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            return JSONResponse(answered)
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", ()))]
        delta = {**message, "tool_calls": calls} if calls else message
        reason = "tool_calls" if calls else "stop"
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        chunk = {**common, "object": "chat.completion.chunk"}
        events = [
            json.dumps({**chunk, "choices": choices}),
            json.dumps({**chunk, "choices": [], "usage": usage}),
            "[DONE]",
        ]
        stream = "".join(f"data: {event}\n\n" for event in events)
        return Response(stream, media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", replay, methods=["POST"])])
    with served(app) as upstream:
        arms = recording.manifest.arms
        settings = Settings.sandbox(f"{upstream}/v1", arms, upstreams=ONE_TRY)
        with served(create_app(settings, Router.load(SHIPPED))) as url:
            yield url


def message_of(answer: Answer, some_tool: str) -> dict[str, Any]:
    """Return a recorded answer as the message of a chat completion.

    An answer that could not be parsed becomes a call whose arguments are not JSON.
    """
    if answer.calls is None and answer.problem in TEXT_PROBLEMS:
        return {"role": "assistant", "content": "In words."}
    made = [(some_tool, "{")]
    if answer.calls is not None:
        made = [(call.name, json.dumps(call.arguments)) for call in answer.calls]
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": text}}
        for i, (name, text) in enumerate(made)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize("stream", [False, True])
def test_gateway_accepts_what_the_offline_evaluation_accepts(
    recording: Recording, gateway: str, stream: bool
) -> None:
    """The accepted answers, the candidates and the costs of 100 queries equal those offline."""
    arms = recording.manifest.arms
    with (
        openai.OpenAI(base_url=f"{gateway}/v1", api_key="key", max_retries=0) as client,
        httpx.Client(base_url=gateway) as http,
    ):
        for row, example in enumerate(recording.examples):
            body: dict[str, Any] = {**example.request, "model": "switchcraft:verified"}
            response = client.chat.completions.with_raw_response.create(**body, stream=stream)
            accepted = arms[recording.offline.accepted[row]]
            assert response.headers["x-switchcraft-model"] == accepted
            assert response.headers["x-switchcraft-policy"].startswith("verified=")
            answer = recording.answers[key_of(example.request), accepted]
            expected = message_of(answer, example.tool_names[0])
            assert calls_of(response.parse()) == [
                (call["function"]["name"], call["function"]["arguments"])
                for call in expected.get("tool_calls", ())
            ]
            path = f"/v1/decisions/{response.headers['x-switchcraft-decision-id']}"
            wait_for(partial(is_found, http, path), "the decision is recorded")
            record = http.get(path).json()
            asked = [candidate["arm"] for candidate in record["candidates"]]
            assert asked == [arms[column] for column in recording.offline.decided(row)[0]]
            total_usd = sum(candidate["cost_usd"] for candidate in record["candidates"])
            assert total_usd == pytest.approx(recording.cost_usd(row), abs=1e-12)


def is_found(http: httpx.Client, path: str) -> bool:
    """Return whether a page exists by now."""
    return http.get(path).is_success


def calls_of(answer: object) -> list[tuple[str, str]]:
    """Return names and arguments of the calls of a whole or streamed answer."""
    if isinstance(answer, openai.Stream):
        chunks: list[ChatCompletionChunk] = list(answer)
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
        return [(str(call.name), str(call.arguments)) for call in calls if call is not None]
    assert isinstance(answer, ChatCompletion)
    made = answer.choices[0].message.tool_calls or ()
    functions = [call.function for call in made if call.type == "function"]
    return [(function.name, function.arguments) for function in functions]
