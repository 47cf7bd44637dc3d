"""Frozen values that a routing decision is made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Author of a turn, as the Chat Completions API names it."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call by a model. `arguments` is JSON text, or free text for a custom tool."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. `attachments` counts images, audio and files, which are not read."""

    role: Role
    text: str
    attachments: int = 0
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Schema:
    """The parts of a JSON-Schema node that signatures and features need."""

    type: str = "any"
    description: str = ""
    enum: tuple[str, ...] = ()
    has_default: bool = False
    properties: tuple[Parameter, ...] = ()
    items: Schema | None = None
    alternatives: tuple[Schema, ...] = ()

    def children(self) -> Iterator[Schema]:
        """Yield the schemas directly below this one."""
        yield from (parameter.schema for parameter in self.properties)
        if self.items is not None:
            yield self.items
        yield from self.alternatives


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named property of an object schema."""

    name: str
    schema: Schema
    required: bool


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the model may call: a function, or a custom tool without parameters."""

    name: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hash the whole schema once, because caches look tools up with every request."""
        content = (self.name, self.description, self.parameters)
        object.__setattr__(self, "_hash", hash(content))

    def __hash__(self) -> int:
        """Return the hash of all fields."""
        return self._hash

    def __reduce__(self) -> tuple[type[ToolSpec], tuple[object, ...]]:
        """Pickle without the hash, because every process hashes the same text differently."""
        return ToolSpec, (self.name, self.description, self.parameters)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns and tools of a request. `unread` holds the paths of parts that could not be read."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def opening(self) -> tuple[str, str]:
        """The first system text and the first user text; every later request repeats them."""
        system = user = None
        for turn in self.turns:
            if turn.role is Role.USER:
                user = turn.text if user is None else user
            elif turn.role in {Role.SYSTEM, Role.DEVELOPER}:
                system = turn.text if system is None else system
            if system is not None and user is not None:
                break
        return system or "", user or ""

    @property
    def latest_user(self) -> int | None:
        """Index of the last user turn with text, or else of the last user turn, or None."""
        latest = None
        for i in reversed(range(len(self.turns))):
            turn = self.turns[i]
            if turn.role is Role.USER:
                if turn.text and not turn.text.isspace():
                    return i
                latest = i if latest is None else latest
        return latest


@dataclass(frozen=True, slots=True)
class Reference:
    """The id of a stored object, and the field of the request that names it."""

    param: str
    id: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The parts of a Chat Completions or Responses request that the gateway acts on."""

    model: str
    stream: bool
    conversation: Conversation
    continues: Reference | None = None
    """The stored response or conversation that the request continues. Its turns are not in
    `conversation`."""

    @property
    def has_tools(self) -> bool:
        """Whether the request offers tools (paper, section 3)."""
        return bool(self.conversation.tools) or any(
            path.startswith(("tools", "functions")) for path in self.conversation.unread
        )
