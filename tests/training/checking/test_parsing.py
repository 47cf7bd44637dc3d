"""Parsing of answers: every form of calls that is accepted, and the problem codes."""

from __future__ import annotations

import pytest

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call
from switchcraft_training.checking import parse_native, parse_text

ROOTS = Call("algebra.roots", {"a": 1, "b": -3})
SUM = Call("add", {"x": [1, 2], "deep": {"k": True}})


@pytest.mark.parametrize(
    "text",
    [
        "[algebra.roots(a=1, b=-3), add(x=[1, 2], deep={'k': True})]",
        "[algebra.roots(a=1, b=-3), add(x=[1, 2], deep={'k': True})]\nThese find the roots.",
        """['algebra.roots(a=1, b=-3)', "add(x=[1, 2], deep={'k': True})"]""",
        "`algebra.roots({'a': 1, 'b': -3}), add({'x': [1, 2], 'deep': {'k': True}})`",
        (
            "Here they are: <tool_call>{'name': 'algebra.roots', 'arguments': {'a': 1, 'b': -3}}"
            "</tool_call> <tool_call>{'name': 'add', "
            "'arguments': {'x': [1, 2], 'deep': {'k': True}}}</tool_call> Done."
        ),
        "algebra.roots(a=1, b=-3), add(x=[1, 2], deep={'k': True})",
        "algebra.roots(a=1, b=-3); add(x=[1, 2], deep={'k': True});",
        "algebra.roots(a=1, b=-3)\nadd(x=(1, 2), deep={'k': True})",
        "```python\n[algebra.roots(a=1, b=-3), add(x=[1, 2], deep={'k': true})]\n```\nThis adds.",
        (
            "[{'name': 'algebra.roots', 'parameters': {'a': 1, 'b': -3}},"
            " {'name': 'add', 'parameters': {'x': [1, 2], 'deep': {'k': True}}}]"
        ),
        '[{"algebra.roots": {"a": 1, "b": -3}}, {"add": {"x": [1, 2], "deep": {"k": true}}}]',
        (
            '<tool_call>\n{"arguments": {"a": 1, "b": -3}, "name": "algebra.roots"}\n</tool_call>\n'
            '<tool_call>\n{"arguments": {"x": [1, 2], "deep": {"k": true}}, "name": "add"}'
            "\n</tool_call>"
        ),
        (
            '<function_call> {"name": "algebra.roots", "arguments": {"a": 1, "b": -3}} '
            '<function_call> {"name": "add", "arguments": {"x": [1, 2], "deep": {"k": true}}}'
        ),
        (
            '[TOOL_CALLS] [{"name": "algebra.roots", "arguments": "{\\"a\\": 1, \\"b\\": -3}"},'
            ' {"name": "add", "arguments": {"x": [1, 2], "deep": {"k": true}}}]'
        ),
        (
            '{"tool_calls": [{"function": {"name": "algebra.roots",'
            ' "arguments": {"a": 1, "b": -3}}},'
            ' {"name": "add", "arguments": {"x": [1, 2], "deep": {"k": true}}}]}'
        ),
    ],
)
def test_every_form_of_two_calls_is_parsed(text: str) -> None:
    """Each form gives the same two calls."""
    assert parse_text(text).calls == (ROOTS, SUM)


def test_escaped_underscores_and_no_function_calls() -> None:
    """Markdown's escapes are removed, and `no_function` does not count as a call."""
    assert parse_text(r"get\_roots(a=1)").calls == (Call("get_roots", {"a": 1}),)
    assert parse_text('{"name": "no_function", "arguments": {}}').calls == ()


def test_python_literals_become_json_values() -> None:
    """Tuples, sets, bytes and other Python literals become JSON values."""
    parsed = parse_text("f(a=(1, (2,)), b={3}, c={4: b'x'}, d=1j, e=...)")
    assert parsed.calls == (
        Call("f", {"a": [1, [2]], "b": [3], "c": {"4": "b'x'"}, "d": "1j", "e": "Ellipsis"}),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("The area is 25.", "text"),
        ("Use `area(base=10)` to find it.", "call_in_text"),
        ("First:\n<tool_call>{'name': 'f', 'arguments': {'a': 1 / x}}</tool_call>", "call_in_text"),
        ("f(10, 5)", "positional_arguments"),
        ("[f('x'), g('y')]", "positional_arguments"),
        ("x = f(a=1)", "call_in_text"),
        ("f(a=1", "malformed_call"),
        ("[f(a='it's')]", "malformed_call"),
        ('{"name": 3}', "malformed_call"),
        ("[1, 2, 3]", "text"),
        ("```python\ndef f(a):\n    return a\n```", "text"),
        ("[" * 3000, "text"),
        (" ", "no_answer"),
    ],
)
def test_answer_without_calls_has_a_problem_code(text: str, problem: str) -> None:
    """Prose, code and broken calls are not parsed as calls, and have different codes."""
    parsed = parse_text(text)
    assert (parsed.calls, parsed.problem) == (None, problem)


@pytest.mark.parametrize(
    ("raw", "calls", "problem"),
    [
        ([{"f": '{"a": 1}'}, {"f": '{"a": 2}'}], (Call("f", {"a": 1}), Call("f", {"a": 2})), None),
        ([{"f": ""}], (Call("f", {}),), None),
        ([], (), None),
        ("f(a=1)", None, "malformed_call"),
        (["One moment.", {"f": '{"a": 1}'}], (Call("f", {"a": 1}),), None),
        (["I need the city."], None, "text"),
        (" ", None, "no_answer"),
        ([{"f": '{"a": 1'}], None, "arguments_not_json"),
        ([{"f": "[1]"}], None, "arguments_not_json"),
        ([7], None, "not_a_call"),
        (7, None, "not_a_call"),
    ],
)
def test_native_answer_has_calls_or_a_problem_code(
    raw: Json, calls: tuple[Call, ...] | None, problem: str | None
) -> None:
    """A native answer is a list of calls or a text; a broken call has a problem code."""
    parsed = parse_native(raw)
    assert (parsed.calls, parsed.problem) == (calls, problem)
