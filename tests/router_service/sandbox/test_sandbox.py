"""The sandbox's answers, as the providers' clients and a plain HTTP client see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json
from router_service.apis.parts import Answer, Text, ToolUse
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.answers import make_answer
from router_service.sandbox.provider import run_in_thread

ASK: Any = [{"role": "user", "content": "What is the weather in Oslo for 3 days, in fahrenheit?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
}
ARGUMENTS = {"city": "Oslo", "unit": "fahrenheit", "days": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": ASK},
    "/v1/responses": {"model": "m", "input": ASK},
    "/v1/messages": {"model": "m", "max_tokens": 100, "messages": ASK},
}


def function(name: str, description: str = "", **schema: object) -> dict[str, Any]:
    """Return a function tool of Chat Completions."""
    tool = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": tool}


TOOLS = [
    function("send_email", "Sends an email"),
    function("get_weather", "Weather of a city", **SCHEMA),
    function("getStockPrice", "Price of a share"),
    function("book_flight", "Books a seat on a plane"),
]
NOTE: Any = {"type": "custom", "custom": {"name": "write_note", "description": "Notes a text."}}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Yield a plain HTTP client of a sandbox."""
    with run_in_thread() as url, httpx.Client(base_url=url.removesuffix("/v1"), timeout=30) as made:
        yield made


@pytest.fixture(scope="module")
def client(http: httpx.Client) -> Iterator[openai.OpenAI]:
    """Yield OpenAI's client, without its retries."""
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def claude(http: httpx.Client) -> Iterator[anthropic.Anthropic]:
    """Yield Anthropic's client."""
    with anthropic.Anthropic(base_url=str(http.base_url), api_key="k", max_retries=0) as made:
        yield made


def answer(query: str = "hello", **fields: Json) -> Answer:
    """Return the answer to a query, with all tools unless told otherwise."""
    messages = [{"role": "user", "content": query}]
    body = {"model": "m", "messages": messages, "tools": TOOLS} | fields
    return make_answer(CHAT, CHAT.read_request(body))


def called(query: str = "hello", **fields: Json) -> list[str]:
    """Return the names of the tools called."""
    return [part.name for part in answer(query, **fields).parts if isinstance(part, ToolUse)]


def chosen(name: str) -> dict[str, Any]:
    """Return the choice of a tool."""
    return {"tool_choice": {"type": "function", "function": {"name": name}}}


@pytest.mark.parametrize(
    ("query", "fields", "names"),
    [
        ("Is the weather nice?", {}, ["get_weather"]),
        ("What are ACME's stock prices?", {}, ["getStockPrice"]),
        ("I need a seat on a plane to Rome", {}, ["book_flight"]),
        ("Something else entirely", {}, ["send_email"]),
        ("The stock price, and get the weather", {}, ["getStockPrice", "get_weather"]),
        ("The stock price, and get the weather", {"parallel_tool_calls": False}, ["getStockPrice"]),
        ("the weather", {"tool_choice": "none"}, []),
        ("the weather", {"tool_choice": "required"}, ["get_weather"]),
        ("the weather", chosen("book_flight"), ["book_flight"]),
        ("the weather", {"tools": []}, []),
    ],
)
def test_tools_that_match_the_query_are_called(
    query: str, fields: dict[str, Any], names: list[str]
) -> None:
    """Names and descriptions count, in any case and number, and `tool_choice` is obeyed."""
    assert called(query, **fields) == names


@pytest.mark.parametrize("choice", [chosen("unknown"), {"tools": [], "tool_choice": "required"}])
def test_choice_of_unknown_tool_is_refused(choice: dict[str, Any]) -> None:
    """The error names the field `tool_choice`."""
    with pytest.raises(InvalidRequestError, match="tool_choice") as caught:
        answer(**choice)
    assert caught.value.param == "tool_choice"


def test_tool_result_is_answered_with_text() -> None:
    """This ends an agent's loop, unless a call is forced."""
    function_call = {"name": "get_weather", "arguments": "{}"}
    call = {"id": "1", "type": "function", "function": function_call}
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    assert called(messages=messages) == []
    assert called(messages=messages, tool_choice="required") == ["get_weather"]


def test_only_the_latest_user_turn_decides() -> None:
    """Earlier turns, and what the assistant said, do not change the tool."""
    messages = [
        {"role": "user", "content": "weather weather"},
        {"role": "assistant", "content": "The weather is fine. Weather!"},
        {"role": "user", "content": "Then book a flight"},
    ]
    assert called(messages=messages) == ["book_flight"]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"type": "json_object"}, '{"answer":"sandbox"}'),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}},
            "true",
        ),
    ],
)
def test_text_follows_response_format(form: Json, text: str) -> None:
    """The answer is JSON that matches the schema."""
    assert answer(tools=None, response_format=form).parts == (Text(text),)


def test_call_ids_depend_on_the_conversation() -> None:
    """The same request gets the same ids, and a longer conversation others."""
    longer = [*ASK, {"role": "assistant", "content": "Rain."}, *ASK]
    ids = [answer(messages=each).parts[0].id for each in (ASK, ASK, longer)]  # pyrefly: ignore[missing-attribute]
    assert ids[0] == ids[1] != ids[2]


def test_chat_client_reads_whole_and_streamed_answers(client: openai.OpenAI) -> None:
    """OpenAI's accumulator assembles the same calls, with their arguments and the usage."""
    asked: Any = {"model": "any", "messages": ASK, "tools": [TOOLS[1]]}
    whole = client.chat.completions.create(**asked)
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(**asked, stream_options=options) as stream:
        final = stream.get_final_completion()
    for each in (whole, final):
        choice = each.choices[0]
        assert choice.message.tool_calls is not None
        [call] = choice.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "get_weather",
            ARGUMENTS,
        )
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert whole.model == "any"
    assert final.usage is not None
    assert final.usage == whole.usage
    assert final.usage.total_tokens > final.usage.prompt_tokens > 0


def test_custom_tool_gets_the_users_words(client: openai.OpenAI) -> None:
    """Its input is the latest text."""
    said: Any = [{"role": "user", "content": "Write a note about the meeting"}]
    made = client.chat.completions.create(model="m", messages=said, tools=[NOTE])
    calls = made.choices[0].message.tool_calls
    assert calls is not None
    [call] = calls
    assert call.type == "custom"
    assert call.custom.input == said[0]["content"]


def test_responses_client_reads_whole_and_streamed_answers(client: openai.OpenAI) -> None:
    """OpenAI's accumulator assembles the same response."""
    flat: Any = {"type": "function", **TOOLS[1]["function"]}
    asked: Any = {"model": "m", "input": ASK, "tools": [flat], "reasoning": {"effort": "low"}}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    for each in (whole, final):
        thought, call = each.output
        assert (thought.type, call.type, each.status) == ("reasoning", "function_call", "completed")
        assert call.type == "function_call"
        assert json.loads(call.arguments) == ARGUMENTS
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens > 0
    assert final.usage == whole.usage


def test_messages_client_reads_whole_and_streamed_answers(claude: anthropic.Anthropic) -> None:
    """Anthropic's client builds the same message from the events, with signed thinking."""
    tool: Any = {"name": "get_weather", "input_schema": SCHEMA}
    body: Any = BODIES["/v1/messages"] | {"tools": [tool], "thinking": {"type": "adaptive"}}
    whole = claude.messages.create(**body)
    with claude.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    hidden = {"signature", "parsed_output"}
    blocks: Any = [whole.content, streamed.content]
    first, second = ([block.model_dump(exclude=hidden) for block in each] for each in blocks)
    assert first == second
    assert [block["type"] for block in first] == ["thinking", "tool_use"]
    assert first[1]["input"] == ARGUMENTS
    assert whole.usage == streamed.usage

    result = {"type": "tool_result", "tool_use_id": first[1]["id"], "content": "rain"}
    turns = [
        {"role": "assistant", "content": [block.model_dump() for block in whole.content]},
        {"role": "user", "content": [result]},
    ]
    last = claude.messages.create(**body | {"messages": [*ASK, *turns]})
    assert last.stop_reason == "end_turn"
    counted = claude.messages.count_tokens(model="m", messages=ASK)
    assert counted.input_tokens > 0


def test_foreign_signature_is_refused(http: httpx.Client) -> None:
    """Like Anthropic, the sandbox accepts only its own signatures."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "foreign"}
    messages = [*ASK, {"role": "assistant", "content": [thinking]}, *ASK]
    response = http.post("/v1/messages", json=BODIES["/v1/messages"] | {"messages": messages})
    assert response.status_code == 400
    assert "signature" in response.json()["error"]["message"]


class City(BaseModel):
    """A structured output."""

    name: str
    people: int


def test_structured_output_can_be_parsed(client: openai.OpenAI) -> None:
    """OpenAI's parser accepts the JSON of `text.format`."""
    parsed = client.responses.parse(model="m", input="Which city has 7 people?", text_format=City)
    assert parsed.output_parsed == City(name="name", people=7)


def test_stored_response_can_be_continued_until_deleted(client: openai.OpenAI) -> None:
    """It can be retrieved, cancelled, continued and deleted; `store=False` prevents that."""
    flat: Any = {"type": "function", **TOOLS[1]["function"]}
    made = client.responses.create(model="m", input=ASK, tools=[flat])
    output: Any = {"type": "function_call_output", "output": "rain"}
    output["call_id"] = made.output[0].call_id  # pyrefly: ignore[missing-attribute]
    asked: Any = {"model": "m", "input": [output], "tools": [flat], "previous_response_id": made.id}
    assert "Oslo" in client.responses.create(**asked).output_text
    assert client.responses.retrieve(made.id).output == made.output
    assert client.responses.cancel(made.id).id == made.id
    assert len(client.responses.input_items.list(made.id).data) == 1
    client.responses.delete(made.id)
    passing = client.responses.create(model="m", input=ASK, store=False)
    for gone in (made, passing):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asked)
    assert caught.value.code == "previous_response_not_found"


def test_embeddings_are_deterministic_unit_vectors(client: openai.OpenAI) -> None:
    """Floats and base64 contain the same vector."""
    floats = client.embeddings.create(
        model="m", input=["a", "b", "a"], encoding_format="float", dimensions=64
    )
    first, second, third = (each.embedding for each in floats.data)
    assert first == third != second
    assert (len(first), sum(value * value for value in first)) == (64, pytest.approx(1))
    packed = client.embeddings.create(model="m", input="a", dimensions=64)
    assert packed.data[0].embedding == pytest.approx(first)


def test_prompts_are_completed(client: openai.OpenAI) -> None:
    """Each prompt gets a text, the same streamed and whole."""
    whole = client.completions.create(model="m", prompt=["Once", "Twice"])
    assert "'Twice'" in whole.choices[1].text
    options: Any = {"include_usage": True}
    chunks = list(
        client.completions.create(model="m", prompt="Once", stream=True, stream_options=options)
    )
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].text
    assert chunks[-1].usage is not None


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b'{"model": "m", "messages": []}', 400),
        ("POST", "/v1/chat/completions", b'{"model": "m", "messages": ' + b"[" * 400, 400),
        ("POST", "/v1/responses", b'{"model": "m"}', 400),
        ("POST", "/v1/messages", b'{"model": "m"}', 400),
        ("POST", "/v1/embeddings", b'{"model": "m", "input": [1.5]}', 400),
        ("POST", "/v1/embeddings", b'{"model": "m", "input": "x", "dimensions": 0}', 400),
        ("POST", "/v1/completions", b'{"model": "m", "prompt": [null]}', 400),
        ("GET", "/v1/nothing", b"", 404),
        ("GET", "/v1/chat/completions", b"", 405),
        ("GET", "/v1/responses/none", b"", 404),
    ],
)
def test_errors_have_the_providers_form(
    http: httpx.Client, method: str, path: str, body: bytes, status: int
) -> None:
    """Every answer is marked as the sandbox's."""
    response = http.request(method, path, content=body)
    assert (response.status_code, response.headers["x-sandbox"]) == (status, "true")
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_models_and_health_are_marked_as_sandbox(client: openai.OpenAI, http: httpx.Client) -> None:
    """Both endpoints answer with the header `x-sandbox`."""
    assert [model.id for model in client.models.list()] == ["sandbox"]
    health = http.get("/healthz")
    assert (health.json(), health.headers["x-sandbox"]) == ({"status": "ok"}, "true")


FIELDS = (
    "messages input tools tool_choice stream response_format text format reasoning effort role "
    "content type function custom name parameters json_schema schema previous_response_id thinking"
).split()
WORDS = ["user", "tool", "function", "custom", "json_schema", "required", "auto", "name"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=300)
@given(
    path=st.sampled_from(list(BODIES)),
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8),
)
def test_no_body_causes_a_server_error(
    http: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    """Any JSON body is answered or refused with status 400."""
    response = http.post(path, json=BODIES[path] | {"tools": [TOOLS[1]]} | fields)
    assert response.status_code in {200, 400}, response.text
