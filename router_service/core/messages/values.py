"""What a routing decision is made from, as frozen values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Who speaks in a turn, as the Chat Completions API names them."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    FUNCTION = "function"


_SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})
_USER_ROLES = frozenset({Role.USER})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a model wrote it; `arguments` is JSON text, or free text for a custom tool."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One message; `attachments` counts images, audio and files, which are not read."""

    role: Role
    text: str
    attachments: int = 0
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON-Schema node, as far as a signature or a feature needs it."""

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
    """A tool that the model may call: a function with parameters, or a custom tool without."""

    name: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hash the whole schema once: caches look tools up by it with every request."""
        content = (self.name, self.description, self.parameters)
        object.__setattr__(self, "_hash", hash(content))

    def __hash__(self) -> int:
        """Return the hash of all of it."""
        return self._hash

    def __reduce__(self) -> tuple[type[ToolSpec], tuple[object, ...]]:
        """Hash anew in another process, where the same text has another hash."""
        return ToolSpec, (self.name, self.description, self.parameters)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a routing decision is made from; `unread` holds the paths that could not be read."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def opening(self) -> tuple[str, str]:
        """The first system text and the first user text, which its later turns repeat."""
        system, user = (
            next((turn.text for turn in self.turns if turn.role in roles), "")
            for roles in (_SYSTEM_ROLES, _USER_ROLES)
        )
        return system, user

    @property
    def latest_user(self) -> int | None:
        """Index of the last user turn that says anything, else of the last user turn, if any."""
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
    """Something stored that a request goes on from: its id, and the field that names it."""

    param: str
    id: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of the Chat Completions API or of the Responses API, as far as it is acted on."""

    model: str
    stream: bool
    conversation: Conversation
    continues: Reference | None = None
    """A stored response or conversation that it goes on from, and that is not in it."""

    @property
    def has_tools(self) -> bool:
        """Whether this is a tool-calling request (paper, section 3)."""
        return bool(self.conversation.tools) or any(
            path.startswith(("tools", "functions")) for path in self.conversation.unread
        )
