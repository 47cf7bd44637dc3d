"""What a verifier learns from: context around queries, and corrupted answers."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from router_service.checker.toolbox import Call
from switchcraft_training.checking.mistakes import toolbox_of
from switchcraft_training.models.contexts import (
    EVERYTHING,
    MAX_SYSTEM_CHARACTERS,
    MAX_TOOLS,
    SHELVES,
    Context,
    Loop,
    Solved,
    Wrapper,
)
from switchcraft_training.models.corruptions import Corruption, Subject, corrupt
from switchcraft_training.records import Example


def tool(name: str, description: str) -> dict[str, Any]:
    """Return a function with one parameter."""
    schema = {"type": "object", "properties": {"value": {"type": "string"}}}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


OTHERS = [
    Example(
        str(number),
        "simple",
        {
            "messages": [{"role": "user", "content": f"Question {number}"}],
            "tools": [tool(f"tool_{number}", f"Does task {number}.")],
        },
    )
    for number in range(80)
]
ASKED: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather forecast in Oslo?"},
    ],
    "tools": [tool("forecast", "Weather forecast of a city."), {"type": "custom", "name": "x"}],
}
RIVAL = Example(
    "rival",
    "simple",
    {"messages": ASKED["messages"], "tools": [tool("weather", "Weather forecast in a place.")]},
)


@pytest.mark.parametrize("contexts", [EVERYTHING, *(frozenset([each]) for each in Context)])
def test_query_and_its_tools_stay(contexts: frozenset[Context]) -> None:
    """Only what the context says is added, within its limits, and no tool for the same task."""
    before = str(ASKED)
    for seed in range(40):
        wrapper = Wrapper(seed % SHELVES, [*OTHERS, RIVAL], contexts)
        wrapped = wrapper.wrap(ASKED, random.Random(seed))
        messages, tools = wrapped["messages"], wrapped["tools"]
        assert messages[-1] == ASKED["messages"][-1]
        assert ASKED["messages"][0] in messages
        assert all(each in tools for each in ASKED["tools"])
        names = [each["function"]["name"] for each in tools if "function" in each]
        assert len(set(names)) == len(names)
        assert "weather" not in names
        assert (len(tools) > 2) == (Context.TOOLS in contexts)
        assert len(tools) <= MAX_TOOLS + 2
        prompts = [each["content"] for each in messages if each["role"] == "system"]
        assert len(prompts) == 1 + (Context.SYSTEM in contexts)
        assert all(len(prompt) < MAX_SYSTEM_CHARACTERS + 200 for prompt in prompts)
        turns = len(messages) - len(prompts) - 1
        assert bool(turns) == (Context.TURNS in contexts)
        called = [each["id"] for m in messages for each in m.get("tool_calls", ())]
        assert called == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert str(ASKED) == before


def test_system_prompts_of_two_shelves_share_no_rule() -> None:
    """So a verifier is tested with texts that it has not learned from."""
    rules: list[set[str]] = []
    for shelf in range(SHELVES):
        wrapper = Wrapper(shelf, OTHERS, frozenset([Context.SYSTEM]), largest=True)
        rng = random.Random(0)
        prompts = [wrapper.wrap(ASKED, rng)["messages"][0]["content"] for _ in range(20)]
        sentences = "\n".join(prompts).replace(". ", ".\n").splitlines()
        rules.append({each.lstrip("-*0123456789. ") for each in sentences[1:] if len(each) > 40})
    first = rules[0]
    assert first
    assert not any(first & other for other in rules[1:])


@pytest.mark.parametrize("seed", range(20))
def test_loop_has_the_calls_that_were_made_and_asks_for_all_queries(seed: int) -> None:
    """One message asks for all of its queries, and the results of the calls so far follow it."""
    before, after = Solved(OTHERS[1], [Call("tool_1", {"value": "a"})]), Solved(OTHERS[2], [])
    own = [Call("forecast", {"value": "Oslo"})]
    wrapper = Wrapper(seed % SHELVES, [*OTHERS, RIVAL])
    wrapped = wrapper.wrap_in_loop(ASKED, Loop([before], own, [after]), random.Random(seed))
    messages = wrapped["messages"]
    last = max(n for n, each in enumerate(messages) if each["role"] == "user")
    places = [
        messages[last]["content"].index(each.query)
        for each in (OTHERS[1], Example("own", "simple", ASKED), OTHERS[2])
    ]
    assert places == sorted(places)
    loop = messages[last + 1 :]
    made = [call for each in loop for call in each.get("tool_calls", ())]
    asked_for = [call["function"] for call in made][-2:]
    assert [each["name"] for each in asked_for] == ["tool_1", "forecast"]
    assert json.loads(asked_for[1]["arguments"]) == {"value": "Oslo"}
    assert [each["tool_call_id"] for each in loop if each["role"] == "tool"] == [
        call["id"] for call in made
    ]
    offered = {each["function"]["name"] for each in wrapped["tools"] if "function" in each}
    assert {call["function"]["name"] for call in made} | {"tool_2"} <= offered


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "hotel": {"type": "string"},
                    "nights": {"type": "integer"},
                    "date": {"type": "string"},
                    "room": {"type": "string", "enum": ["single", "double"]},
                    "breakfast": {"type": "boolean"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object"}}},
]
ARGUMENTS = {
    "city": "Oslo", "hotel": "Plaza", "nights": 3, "date": "2026-03-05", "room": "single",
}  # fmt: skip
CALLS = (Call("book", ARGUMENTS), Call("book", {"city": "Lima"}))
SUBJECT = Subject(CALLS, toolbox_of(TOOLS), ["book", "cancel"], ["Kyoto"], ["late"])


@pytest.mark.parametrize("kind", Corruption)
@pytest.mark.parametrize("seed", range(5))
def test_each_kind_changes_one_thing(kind: Corruption, seed: int) -> None:
    """An answer keeps all of its calls and arguments but one, and the original is unchanged."""
    changed = corrupt(SUBJECT, kind, random.Random(seed))
    if changed is None:  # the call that was drawn has nothing of the kind
        assert kind not in {Corruption.WORDS, Corruption.REPEATED_CALL, Corruption.OTHER_FUNCTION}
        return
    assert changed != CALLS
    assert CALLS[0].arguments == ARGUMENTS
    if kind is Corruption.WORDS:
        assert changed == ()
    elif kind is Corruption.REPEATED_CALL:
        assert changed == (*CALLS, CALLS[-1])
    elif kind is Corruption.MISSING_CALL:
        assert len(changed) == 1
        assert changed[0] in CALLS
    elif kind is Corruption.OTHER_FUNCTION:
        assert [call.name for call in changed] == ["cancel", "book"]
    else:
        differing = [
            (dict(one.arguments), dict(other.arguments))
            for one, other in zip(CALLS, changed, strict=True)
            if one != other
        ]
        assert len(differing) == 1
        old, new = differing[0]
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        assert len(keys) == (2 if kind is Corruption.SWAPPED else 1)
