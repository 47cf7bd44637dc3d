"""Conversations -> one record a turn that calls tools (section 4.1 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from switchcraft_training.datasets.tools import Tools, expect
from switchcraft_training.records import Call, Example, Json, Judged


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user or an assistant says, with the assistant's calls, or what one call returned."""

    role: Literal["user", "assistant", "tool"]
    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A dataset's conversation: its name, the category it counts for, and the tools it offers."""

    id: str
    dataset: str
    category: str
    tools: Tools
    turns: Sequence[Turn]


def read_turns(conversation: Conversation) -> Iterator[Judged]:
    """Yield a record for each turn that calls: the messages so far, and the calls to make.

    Turns in words are no records: whether one says the right thing is nothing that comparing
    calls can tell. Raises ValueError where results and calls do not answer one another, or a
    call is of nothing that is offered.
    """
    history = _History()
    for number, turn in enumerate(_joined(conversation.turns)):
        if turn.calls:
            yield _record(conversation, number, history.messages, turn)
        history.add(turn)


def to_messages(turns: Iterable[Turn]) -> list[Json]:
    """Return turns as OpenAI's messages; raises ValueError as above."""
    history = _History()
    for turn in _joined(turns):
        history.add(turn)
    return history.messages


def _record(
    conversation: Conversation, number: int, messages: Sequence[Json], turn: Turn
) -> Judged:
    if not messages:
        raise ValueError("the assistant calls before anyone has asked for anything")
    example = Example(
        f"{conversation.id}:{number}",
        conversation.category,
        {"messages": list(messages), "tools": conversation.tools},
        conversation.dataset,
        conversation.id,
    )
    return Judged(example, expect(turn.calls, conversation.tools))


def _joined(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns with an assistant's that follow one another as one: nobody spoke in between."""
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
class _History:
    """The messages so far, and the calls among them that wait for their result."""

    messages: list[Json] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    called: int = 0

    def add(self, turn: Turn) -> None:
        if turn.role == "tool":
            self._answer(turn.text)
            return
        if self.waiting:
            raise ValueError(f"{len(self.waiting)} calls were never answered")
        if turn.calls:
            made = [self._make(call) for call in turn.calls]
            content = turn.text or None
            self.messages.append({"role": "assistant", "content": content, "tool_calls": made})
        elif turn.text:
            self.messages.append({"role": turn.role, "content": turn.text})

    def _make(self, call: Call) -> Json:
        self.called += 1
        identifier = f"call_{self.called}"
        self.waiting.append(identifier)
        arguments = orjson.dumps(call.arguments).decode()
        function = {"name": call.name, "arguments": arguments}
        return {"id": identifier, "type": "function", "function": function}

    def _answer(self, text: str) -> None:
        if not self.waiting:
            raise ValueError("a result answers no call")
        identifier = self.waiting.pop(0)
        self.messages.append({"role": "tool", "tool_call_id": identifier, "content": text})
