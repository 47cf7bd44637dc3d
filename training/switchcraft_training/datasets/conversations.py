"""Conversations and tools as datasets describe them, converted to OpenAI requests.

A conversation becomes one example for each turn that calls tools (section 4.1 of the paper).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import orjson

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call, ExpectedCall
from switchcraft_training.datasets.rows import NothingToJudgeError
from switchcraft_training.records import Example, Expected, Judged

Tools = Sequence[Mapping[str, Json]]
"""OpenAI tools, in the order in which they are offered."""

_NOT_ALLOWED_IN_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME_LENGTH = 64
"""The Chat Completions API accepts names that match `[a-zA-Z0-9_-]{1,64}`."""


def to_name(name: str) -> str:
    """Return a function's name with `_` in place of characters that the API does not accept.

    Raises ValueError if the name is empty or longer than the API accepts.
    """
    if not 0 < len(name) <= _MAX_NAME_LENGTH:
        raise ValueError(f"a function name must have 1 to {_MAX_NAME_LENGTH} characters: {name!r}")
    return _NOT_ALLOWED_IN_NAME.sub("_", name)


def to_tools(functions: Iterable[Mapping[str, Json]]) -> Tools:
    """Return functions, whose `parameters` are JSON Schema, as OpenAI tools without duplicates.

    A function may already be a tool. Raises ValueError if two different functions have the same
    name, because a call could then mean either of them.
    """
    tools: dict[str, dict[str, Json]] = {}
    for given in functions:
        function = given["function"] if given.get("type") == "function" else given
        name = to_name(function["name"])
        parameters = function.get("parameters") or {}
        tool = {
            "type": "function",
            "function": {
                "name": name,
                "description": function.get("description") or "",
                "parameters": {"type": "object", "properties": {}, **parameters},
            },
        }
        if tools.setdefault(name, tool) != tool:
            raise ValueError(f"two different functions have the name {name!r}")
    return list(tools.values())


def parameters_of(tools: Tools) -> dict[str, Mapping[str, Json]]:
    """Return the schema of each tool's parameters, by the tool's name."""
    functions = (tool["function"] for tool in tools)
    return {function["name"]: function.get("parameters") or {} for function in functions}


def expect(calls: Iterable[Call], tools: Tools) -> Expected:
    """Return calls as expected calls, with one accepted value for each argument.

    Raises ValueError if a function or a parameter is not offered.
    """
    expected = tuple(
        ExpectedCall(call.name, {name: (value,) for name, value in call.arguments.items()})
        for call in calls
    )
    check_offered(expected, parameters_of(tools))
    return Expected(expected)


def check_offered(calls: Iterable[ExpectedCall], offered: Mapping[str, Json]) -> None:
    """Raise ValueError if an expected call needs a function or a parameter that is not offered."""
    known = {name.replace(".", "_"): schema for name, schema in offered.items()}
    for call in calls:
        if call.name not in known:
            raise ValueError(f"the expected answer calls {call.name!r}, which is not offered")
        unknown = call.arguments.keys() - (known[call.name].get("properties") or {}).keys()
        if unknown:
            raise ValueError(
                f"the expected answer calls {call.name!r} with the arguments {sorted(unknown)},"
                " which are not parameters of the function"
            )


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message, an assistant's message with its calls, or the result of one call."""

    role: Literal["user", "assistant", "tool"]
    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A dataset's conversation, with its category and the tools that are offered in it."""

    id: str
    dataset: str
    category: str
    tools: Tools
    turns: Sequence[Turn]


def read_turns(conversation: Conversation) -> Iterator[Judged]:
    """Yield an example for each turn with calls: the messages so far, and the expected calls.

    Turns without calls give no example, because comparing calls cannot judge a text. Raises
    NothingToJudgeError if there are no calls at all, and ValueError if results do not match calls,
    or if a call's function is not offered.
    """
    history, has_calls = _MessageHistory(), False
    for number, turn in enumerate(_join_assistant_turns(conversation.turns)):
        if turn.calls:
            has_calls = True
            if not history.messages:
                raise ValueError("the assistant calls a function before the first user message")
            example = Example(
                f"{conversation.id}:{number}",
                conversation.category,
                {"messages": list(history.messages), "tools": conversation.tools},
                conversation.dataset,
                conversation.id,
            )
            yield Judged(example, expect(turn.calls, conversation.tools))
        history.add(turn)
    if not has_calls:
        raise NothingToJudgeError("no turn calls a function")


def to_messages(turns: Iterable[Turn]) -> list[Json]:
    """Return turns as OpenAI messages; raises ValueError if results do not match calls."""
    history = _MessageHistory()
    for turn in _join_assistant_turns(turns):
        history.add(turn)
    return history.messages


def _join_assistant_turns(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns, with consecutive assistant turns joined into one."""
    held: Turn | None = None
    for turn in turns:
        if held is not None and turn.role == "assistant":
            text = f"{held.text}\n{turn.text}".strip()
            held = Turn("assistant", text, held.calls + turn.calls)
            continue
        if held is not None:
            yield held
        held = turn if turn.role == "assistant" else None
        if held is None:
            yield turn
    if held is not None:
        yield held


@dataclass(slots=True)
class _MessageHistory:
    """The messages so far, and the ids of calls that have no result yet."""

    messages: list[Json] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    calls: int = 0

    def add(self, turn: Turn) -> None:
        if turn.role == "tool":
            if not self.waiting:
                raise ValueError("a tool result has no matching call")
            message = {"role": "tool", "tool_call_id": self.waiting.pop(0), "content": turn.text}
            self.messages.append(message)
            return
        if self.waiting:
            raise ValueError(f"{len(self.waiting)} calls have no result before the next message")
        if turn.calls:
            tool_calls = []
            for call in turn.calls:
                self.calls += 1
                self.waiting.append(f"call_{self.calls}")
                arguments = orjson.dumps(call.arguments).decode()
                function = {"name": call.name, "arguments": arguments}
                tool_calls.append(
                    {"id": self.waiting[-1], "type": "function", "function": function}
                )
            content = turn.text or None
            self.messages.append(
                {"role": "assistant", "content": content, "tool_calls": tool_calls}
            )
        elif turn.text:
            self.messages.append({"role": turn.role, "content": turn.text})
