"""Conversations that clients of Responses replace by a summary, whichever model writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests import apis
from tests.answering import MODELS, Peers
from tests.apis import Api
from tests.bodies import ASK, RESPONSES_TOOLS
from tests.dialect_answers import Content, events, whole

SUMMARY = 'The user asked for "Oslo": ☔.'
CONTENT = Content(text=SUMMARY)
CALL: list[Any] = [
    {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "rain"},
]
TRIGGER: Any = {"type": "compaction_trigger"}
NEXT: Any = {"type": "message", "role": "user", "content": "And now?"}
OPENAIS: Any = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAABopenai"}
PATHS = {model: f"/v1{api.path}" for api, model in MODELS.items()}
OTHERS = [apis.CHAT, apis.MESSAGES]


@pytest.fixture
def client(it: Peers) -> Iterator[openai.OpenAI]:
    """Yield OpenAI's client."""
    url = f"{it.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as made:
        yield made


def prepare(it: Peers, api: Api, *, stream: bool = False) -> None:
    """Set the upstream's next answer."""
    it.upstream.is_stream = stream
    it.upstream.answer = json.dumps(whole(CONTENT, api)).encode()
    if stream:
        it.upstream.answer = b"".join(
            b"event: %b\ndata: %b\n\n"
            % (event.get("type", "x").encode(), json.dumps(event).encode())
            for event in events(CONTENT, api)
        )


def expect_continued(it: Peers, item: dict[str, Any]) -> None:
    """Expect that every model reads the summary, and that no provider gets what it cannot read."""
    for model in PATHS:
        it.upstream.answer, it.upstream.is_stream = b"{}", False
        body = {"model": model, "input": [item, NEXT], "store": False, "tools": RESPONSES_TOOLS}
        it.post("/v1/responses", json.dumps(body).encode())
        texts = json.dumps(json.loads(it.upstream.bodies[-1]), ensure_ascii=False)
        assert SUMMARY.replace('"', '\\"') in texts
        assert "encrypted_content" not in texts.replace("reasoning.encrypted_content", "")
        assert "compaction" not in texts


@pytest.mark.parametrize("api", OTHERS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_trigger_is_answered_by_one_item(
    it: Peers, client: openai.OpenAI, api: Api, stream: bool
) -> None:
    """The model is asked for a summary, and the client gets it as the only item."""
    prepare(it, api, stream=stream)
    items = [*ASK, *CALL, TRIGGER]
    fields: Any = {"model": MODELS[api], "input": items, "tools": RESPONSES_TOOLS, "store": False}
    fields["text"] = {"format": {"type": "json_object"}}
    answer: Any = client.responses.create(**fields, stream=stream)
    if stream:
        found = list(answer)
        kinds = [event.type for event in found]
        assert "response.compaction.compacting" in kinds
        assert "response.output_text.delta" not in kinds
        answer = found[-1].response
        assert [e.item for e in found if e.type == "response.output_item.done"] == answer.output
    [item] = answer.output
    assert (item.type, answer.status, answer.object) == ("compaction", "completed", "response")
    asked = json.loads(it.upstream.bodies[-1])
    assert it.upstream.paths[-1] == PATHS[MODELS[api]]
    assert "Summarize" in json.dumps(asked["messages"][-1])
    assert asked["tool_choice"] in ("none", {"type": "none"})
    assert "response_format" not in asked
    expect_continued(it, item.model_dump(exclude_none=True))


@pytest.mark.parametrize("api", OTHERS, ids=str)
def test_endpoint_answers_with_one_item(it: Peers, client: openai.OpenAI, api: Api) -> None:
    """Nothing is sent to a path that the upstream does not have."""
    said: Any = [*ASK, *CALL, {"role": "assistant", "content": "It rains."}]
    for given in ("Hi", said):
        prepare(it, api)
        answer = client.responses.compact(model=MODELS[api], input=given)
        assert answer.object == "response.compaction"
        assert answer.usage.total_tokens > 0
        [item] = answer.output
        assert item.type == "compaction"
        assert it.upstream.paths[-1] == PATHS[MODELS[api]]
        expect_continued(it, item.model_dump(exclude_none=True))


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/responses"])
def test_providers_of_responses_compact_themselves(it: Peers, path: str) -> None:
    """They get the client's bytes, and only they get back what they have made."""
    items = [OPENAIS, *ASK] if path.endswith("compact") else [OPENAIS, *ASK, TRIGGER]
    body = json.dumps({"model": "medium", "input": items}, indent=1).encode()
    object_ = "response.compaction" if path.endswith("compact") else "response"
    made = {"id": "r", "object": object_, "created_at": 1, "output": [OPENAIS]}
    made |= {"usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}
    it.upstream.answer, it.upstream.is_stream = json.dumps(made).encode(), False
    response = it.post(path, body)
    assert (response.status_code, response.json()) == (200, made)
    assert (it.upstream.paths[-1], it.upstream.bodies[-1]) == (path, body)
    asked = len(it.upstream.bodies)
    for model in ("small", "large"):
        refused = it.post(path, body.replace(b"medium", model.encode()))
        assert refused.status_code == 400
        assert "'input[0]'" in refused.json()["error"]["message"]
    assert len(it.upstream.bodies) == asked
