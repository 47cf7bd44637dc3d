"""Which answers make the same calls."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call, Toolbox, read_function, same_calls


def toolbox(**tools: Json) -> Toolbox:
    """Return tools by name, each with the schema of its parameters."""
    functions = ({"name": name, "parameters": schema} for name, schema in tools.items())
    return Toolbox(map(read_function, functions))


def properties(**schemas: Json) -> dict[str, Json]:
    """Return the schema of an object with these properties."""
    return {"type": "object", "properties": schemas}


STRING = {"type": "string"}
WEATHER = properties(
    city=STRING,
    days={"type": "integer", "description": "Number of days. Defaults to 3."},
    limit={"type": "number"},
    tags={"type": "array", "items": STRING},
    place=properties(name=STRING, zone={"type": "string", "default": "UTC"}),
)
TOOLS = toolbox(get_weather=WEATHER, get_time=properties(city=STRING))


def are_same(tools: Toolbox, calls: list[Call], others: list[Call]) -> bool:
    """Return whether two answers make the same calls, and check that their roles do not matter."""
    result = same_calls(tools, calls, others)
    assert same_calls(tools, others, calls) is result
    return result


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ({"city": "New York"}, {"city": "new york"}),
        ({"days": 5}, {"days": 5.0}),
        ({"city": 5}, {"city": "5"}),
        ({"tags": ["a", "b"]}, {"tags": ["b", "A"]}),
        ({"city": "Oslo", "days": 3}, {"city": "Oslo"}),
        ({"place": {"name": "Oslo", "zone": "UTC"}}, {"place": {"name": "Oslo"}}),
    ],
)
def test_spellings_and_stated_defaults_make_the_same_call(
    arguments: Mapping[str, Json], others: Mapping[str, Json]
) -> None:
    """Arguments may differ in spelling, in the order of keys, and in defaults that are stated."""
    assert are_same(TOOLS, [Call("get_weather", arguments)], [Call("get_weather", others)])


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ({"city": "Oslo"}, {"city": "Rome"}),
        ({"city": "Oslo"}, {}),
        ({"city": "Oslo", "days": 2}, {"city": "Oslo"}),
        ({"days": 5}, {"days": "6"}),
        ({"limit": 5}, {"limit": 5.5}),
        ({"tags": ["a", "a"]}, {"tags": ["a", "b"]}),
        ({"city": "Oslo", "unknown": 1}, {"city": "Oslo"}),
        ({"place": {"name": "Oslo", "zone": "CET"}}, {"place": {"name": "Oslo"}}),
    ],
)
def test_other_arguments_make_another_call(
    arguments: Mapping[str, Json], others: Mapping[str, Json]
) -> None:
    """Another value, and an argument that is left out but is no default, make another call."""
    assert not are_same(TOOLS, [Call("get_weather", arguments)], [Call("get_weather", others)])


def test_calls_pair_in_any_order_and_one_to_one() -> None:
    """The order of calls does not matter, but each call needs its own partner."""
    oslo, rome = Call("get_weather", {"city": "Oslo"}), Call("get_weather", {"city": "Rome"})
    time = Call("get_time", {"city": "Oslo"})
    assert are_same(TOOLS, [oslo, rome, time], [time, oslo, rome])
    assert not are_same(TOOLS, [oslo, oslo, time], [oslo, time, time])
    assert not are_same(TOOLS, [oslo, oslo], [oslo, rome])


def test_calls_of_other_tools_differ() -> None:
    """Tools are equal by name, except for characters that provider APIs replace."""
    oslo = {"city": "Oslo"}
    assert not are_same(TOOLS, [Call("get_weather", oslo)], [Call("get_time", oslo)])
    assert are_same(TOOLS, [Call("get.time", oslo)], [Call("get_time", oslo)])
    assert are_same(TOOLS, [Call("no_tool", oslo)], [Call("no_tool", oslo)])
    assert not are_same(TOOLS, [Call("no_tool", oslo)], [Call("other", oslo)])


@pytest.mark.parametrize(
    "schema",
    [
        5,
        "object",
        properties(a=5),
        properties(a={"type": "quaternion"}),
        properties(a={"enum": 7}),
        {"patternProperties": {"(": STRING}},
        properties(a={"$ref": "#/$defs/none"}),
        properties(a={"$ref": "#/properties/a"}),
        properties(a={"anyOf": {"type": "string"}}),
    ],
)
def test_calls_differ_if_the_schema_cannot_be_interpreted(schema: object) -> None:
    """A schema that cannot be interpreted gives "not the same" and does not raise."""
    call, other = Call("f", {"a": "x"}), Call("f", {"a": "X"})
    assert not are_same(toolbox(f=schema), [call], [other])


def deep(levels: int, value: object, *, is_list: bool) -> object:
    """Return a value inside nested lists or objects."""
    for _ in range(levels):
        value = [value] if is_list else {"a": value}
    return value


@pytest.mark.parametrize("is_list", [True, False])
def test_arguments_nested_too_deeply_are_different(*, is_list: bool) -> None:
    """A comparison that exceeds the recursion limit gives "not the same" and does not raise."""
    tools = toolbox(f={})
    nested = [Call("f", {"a": deep(2000, 1, is_list=is_list)})]
    assert not are_same(tools, nested, nested)
    shallow = [Call("f", {"a": deep(20, 1, is_list=is_list)})]
    assert are_same(tools, shallow, shallow)


def test_each_call_may_match_in_either_direction() -> None:
    """A required argument may be left out if it is a default, in either answer and in any call."""
    unit = {"type": "string", "default": "km"}
    tools = toolbox(f=properties(a=STRING, unit=unit) | {"required": ["unit"]})
    calls = [Call("f", {"a": "x", "unit": "km"}), Call("f", {"a": "y"})]
    others = [Call("f", {"a": "y", "unit": "km"}), Call("f", {"a": "x"})]
    assert are_same(tools, calls, others)
