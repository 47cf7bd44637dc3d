"""The sandbox's Responses API, as the OpenAI client and a plain HTTP client see it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent
from pydantic import BaseModel

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
MAIL: Any = {
    "type": "function",
    "name": "send_email",
    "parameters": {
        "type": "object",
        "properties": {"to": {"type": "string"}},
        "required": ["to"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOTE: Any = {"type": "custom", "name": "write_note"}
ASK = "What is the weather in Oslo?"
BOTH = "Get weather of Oslo and send email to a@example.com"
RESPONSES = "/v1/responses"


@pytest.fixture
def client(sandbox_url: str) -> Iterator[openai.OpenAI]:
    """Yield the real client, without its retries."""
    with openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0) as made:
        yield made


def calls_of(response: Response) -> list[ResponseFunctionToolCall]:
    """Return the function calls of a response."""
    return [item for item in response.output if item.type == "function_call"]


def test_client_reads_a_tool_call(client: openai.OpenAI) -> None:
    """The OpenAI client reads a whole response: the fitting tool, its arguments, and the usage."""
    response = client.responses.create(model="m", input=ASK, tools=[MAIL, WEATHER])
    (call,) = calls_of(response)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
    assert (response.status, response.model, response.output_text) == ("completed", "m", "")
    assert response.usage is not None
    assert response.usage.input_tokens > 0
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert response.tools[0].type == "function"


def test_agent_loop_ends_with_text(client: openai.OpenAI) -> None:
    """Parallel calls are followed by a text once their outputs are sent back."""
    first = client.responses.create(model="m", input=BOTH, tools=[MAIL, WEATHER])
    calls = calls_of(first)
    assert {call.name for call in calls} == {"get_weather", "send_email"}
    assert len({call.call_id for call in calls}) == 2
    items: list[Any] = [{"role": "user", "content": BOTH}]
    for call in calls:
        items.append(call.model_dump(exclude_none=True))
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        items.append(output)
    second = client.responses.create(model="m", input=items, tools=[MAIL, WEATHER])
    assert "sandbox" in second.output_text
    assert not calls_of(second)


def test_parallel_tool_calls_and_tool_choice_are_obeyed(client: openai.OpenAI) -> None:
    """They have the flat form of this API."""
    one = client.responses.create(
        model="m", input=BOTH, tools=[MAIL, WEATHER], parallel_tool_calls=False
    )
    assert len(calls_of(one)) == 1
    forced = client.responses.create(
        model="m",
        input=ASK,
        tools=[MAIL, WEATHER],
        tool_choice={"type": "function", "name": "send_email"},
    )
    assert [call.name for call in calls_of(forced)] == ["send_email"]
    none = client.responses.create(model="m", input=ASK, tools=[WEATHER], tool_choice="none")
    assert none.output_text


def test_streamed_response_equals_the_whole_one(client: openai.OpenAI) -> None:
    """The OpenAI client's accumulator assembles the same response."""
    with client.responses.stream(model="m", input=BOTH, tools=[MAIL, WEATHER, NOTE]) as stream:
        final = stream.get_final_response()
    whole = client.responses.create(model="m", input=BOTH, tools=[MAIL, WEATHER, NOTE])
    assert [call.arguments for call in calls_of(final)] == [
        call.arguments for call in calls_of(whole)
    ]
    assert final.usage == whole.usage


def test_events_have_the_order_of_openai(http: httpx.Client) -> None:
    """Each event has its name and number, and the events of an item are contiguous."""
    body = {"model": "m", "input": ASK, "tools": [WEATHER], "stream": True}
    response = http.post(RESPONSES, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = response.text.split("\n\n")
    named = [block.split("\n") for block in blocks]
    events = [json.loads(data.removeprefix("data: ")) for _, data in named]
    assert rest == ""
    assert [name for name, _ in named] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [kind for kind, _ in itertools.groupby(event["type"] for event in events)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    added, done = events[2]["item"], events[-2]["item"]
    assert (added["arguments"], added["status"], added["id"]) == ("", "in_progress", done["id"])
    deltas = [event["delta"] for event in events if event["type"].endswith("delta")]
    assert "".join(deltas) == done["arguments"]
    assert events[-1]["response"]["output"] == [done]
    assert events[0]["response"]["usage"] is None
    assert events[-1]["response"]["usage"]["total_tokens"] > 0


def test_text_is_streamed_as_message_item(client: openai.OpenAI) -> None:
    """The deltas of its one part add up to the whole text."""
    events: list[ResponseStreamEvent] = list(
        client.responses.create(model="m", input=ASK, stream=True, reasoning={"effort": "low"})
    )
    assert [kind for kind, _ in itertools.groupby(event.type for event in events)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1]
    assert last.type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == last.response.output_text
    assert last.response.output[0].type == "reasoning"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens_details.reasoning_tokens > 0


class City(BaseModel):
    """A structured output."""

    name: str
    people: int


def test_structured_output_can_be_parsed(client: openai.OpenAI) -> None:
    """The OpenAI client's parser accepts the JSON of `text.format`."""
    parsed = client.responses.parse(model="m", input="Which city has 7 people?", text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_custom_tool_gets_the_users_words(client: openai.OpenAI) -> None:
    """The input is the same streamed and whole."""
    whole = client.responses.create(model="m", input="Write a note", tools=[NOTE])
    (item,) = whole.output
    assert item.type == "custom_tool_call"
    assert (item.name, item.input) == ("write_note", "Write a note")
    events = list(client.responses.create(model="m", input="Write", tools=[NOTE], stream=True))
    done = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert [event.input for event in done] == ["Write"]


def test_built_in_tools_are_not_called(client: openai.OpenAI) -> None:
    """Tools that the provider would run are accepted and answered with text."""
    search: Any = {"type": "web_search"}
    response = client.responses.create(model="m", input=ASK, tools=[search], tool_choice=search)
    assert response.output_text


def test_stored_response_can_be_retrieved_until_deleted(client: openai.OpenAI) -> None:
    """A response with `store=False` cannot be retrieved."""
    made = client.responses.create(model="m", input=ASK, background=True)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert client.responses.cancel(made.id).id == made.id
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(made.id)
    passing = client.responses.create(model="m", input=ASK, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(passing.id)


def test_only_background_responses_can_be_cancelled(client: openai.OpenAI) -> None:
    """Others get status 400."""
    made = client.responses.create(model="m", input=ASK)
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(made.id)


def test_previous_response_id_continues_a_conversation(client: openai.OpenAI) -> None:
    """Only the tool outputs are sent; an unknown id is refused."""
    first = client.responses.create(model="m", input=ASK, tools=[WEATHER])
    (call,) = calls_of(first)
    second = client.responses.create(
        model="m",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
        tools=[WEATHER],
    )
    assert "Oslo" in second.output_text
    assert second.previous_response_id == first.id
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", previous_response_id="resp_unknown", input="x")
    assert caught.value.code == "previous_response_not_found"


def test_faults_apply_to_responses(http: httpx.Client, client: openai.OpenAI) -> None:
    """An error event has this API's name and type."""
    body = {"model": "m", "input": ASK, "stream": True}
    text = http.post(RESPONSES, json=body, headers={"x-sandbox": "error_after=2"}).text
    name, data = text.split("\n\n")[-2].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["type"] == "error"
    with pytest.raises(openai.APIError, match="mid-stream"):
        list(
            client.responses.create(
                model="m", input=ASK, stream=True, extra_headers={"x-sandbox": "error_after=2"}
            )
        )
    odd = {"x-sandbox": "keep_alives,multi_line"}
    events = list(client.responses.create(model="m", input=ASK, stream=True, extra_headers=odd))
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"input": 1}, "input"), ({"input": "x", "tools": 1}, "tools"), ({}, "input")],
)
def test_unreadable_request_gets_status_400(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    """The body is OpenAI's error body."""
    response = http.post(RESPONSES, json={"model": "m", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


FIELDS = (
    "input instructions tools tool_choice stream text format reasoning effort include type role "
    "content name parameters schema mode parallel_tool_calls previous_response_id"
).split()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["function", "user", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


ITEMS = st.lists(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), max_size=3)


@settings(max_examples=200)
@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)
    | st.fixed_dictionaries({}, optional={"input": ITEMS, "tools": ITEMS})
)
def test_no_body_causes_a_server_error(http: httpx.Client, fields: dict[str, Any]) -> None:
    """Any JSON body is answered or refused with status 400."""
    response = http.post(RESPONSES, json={"model": "m", "input": ASK, "tools": [WEATHER]} | fields)
    assert response.status_code in {200, 400}, response.text
