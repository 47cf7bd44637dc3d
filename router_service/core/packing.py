"""Conversation + tools -> token ids within the artifact's budget (paper, section 3.1).

The latest user turn always goes in, then compact tool signatures up to their own cap, then the
other turns, newest first, until the window is full. Budgets and template are the artifact's:
training and serving pack with this module and the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from router_service.core.cache import Cache
from router_service.core.features import FEATURES, extract
from router_service.core.messages import Conversation, Role, Schema, ToolSpec, Turn

TRUNCATED = "[truncated]"
MAX_ENUM_VALUES = 8
CHARS_PER_TOKEN = 16
"""Text beyond this many characters a token is cut unread: English takes 4 to 5."""
MAX_CHARS_PER_TOKEN = 64
"""Tools and turns are tokenized up to this many characters per token of their budget, all together.
Only texts without words get there: a thousand blanks are no token."""

Ids = tuple[int, ...]

PIECE_CHARS = 400
_PIECE = re.compile(rf"[\s\S]{{1,{PIECE_CHARS}}}[^ ,\n]*")
"""Up to a blank, a comma or a line's end behind so many characters."""


class Slot(StrEnum):
    """What a template may name in braces."""

    PREAMBLE = "preamble"
    LATEST_USER = "latest_user"
    TOOLS = "tools"
    OTHER_TURNS = "other_turns"


class PackingSpec(BaseModel):
    """How an artifact's encoder wants its input; part of the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    budget_tokens: int = Field(512, ge=16, description="The encoder's window.")
    tool_budget_tokens: int = Field(100, ge=0, description="Cap on all tool signatures together.")
    signature: Literal["names", "types"] = Field(
        "types", description="What a tool's signature shows of its parameters."
    )
    template: str = "[CLS]{preamble}[SEP]{latest_user}[SEP]{tools}[SEP]{other_turns}[SEP]"
    features: tuple[str, ...] = Field(
        (), description="Structural counts, in the model's order; `all` of this version."
    )

    @field_validator("features", mode="before")
    @classmethod
    def _all_features(cls, names: object) -> object:
        return tuple(FEATURES) if names == "all" else names

    @field_validator("features")
    @classmethod
    def _known_features(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(names) - set(FEATURES))
        if unknown:
            raise ValueError(f"unknown features {unknown}; this version has {sorted(FEATURES)}")
        return names

    @field_validator("template")
    @classmethod
    def _known_slots(cls, template: str) -> str:
        slots = [text for text, is_slot in split_template(template) if is_slot]
        if sorted(slots) != sorted(Slot):
            raise ValueError(f"a template names each of {[str(s) for s in Slot]} once: {template}")
        return template

    @model_validator(mode="after")
    def _room_for_the_user(self) -> PackingSpec:
        if self.tool_budget_tokens > self.budget_tokens // 2:
            raise ValueError("tool_budget_tokens may be at most half of budget_tokens")
        return self


@dataclass(frozen=True, slots=True)
class Part:
    """Where a template's slot stands among the token ids, and whether something was cut there."""

    slot: Slot
    start: int
    stop: int
    cut: bool
    marker: range = range(0)
    """Where among the token ids it says that something was cut; empty where nothing says so."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The encoder's input for one conversation: `token_ids` (tokens,), `features` (features,)."""

    token_ids: Ids
    features: tuple[float, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Clip:
    ids: Ids
    cut: bool
    marker: range = range(0)


def split_template(template: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a template in order, and whether each is a slot's name."""
    for index, piece in enumerate(re.split(r"\{(\w+)\}", template)):
        if piece:
            yield piece, index % 2 == 1


def signature(tool: ToolSpec, style: Literal["names", "types"] = "types") -> str:
    """Write a tool as `name(param: type, optional?: type)`, or as `name(param, optional)`."""
    if style == "names":
        return f"{tool.name}({', '.join(p.name for p in tool.parameters)})"
    shown = (
        f"{p.name}{'' if p.required else '?'}: {type_expression(p.schema)}" for p in tool.parameters
    )
    return f"{tool.name}({', '.join(shown)})"


def type_expression(schema: Schema) -> str:
    """Write a schema's type: `integer`, `string[]`, `red|green`, `{lat: number, lon: number}`."""
    if schema.enum:
        return "|".join(schema.enum[:MAX_ENUM_VALUES])
    if schema.items is not None:
        return f"{type_expression(schema.items)}[]"
    if schema.properties:
        inner = (f"{p.name}: {type_expression(p.schema)}" for p in schema.properties)
        return "{" + ", ".join(inner) + "}"
    if schema.alternatives:
        return "|".join(type_expression(child) for child in schema.alternatives)
    return schema.type


def is_local(tokenizer: Tokenizer) -> bool:
    """Tell whether a text's ids are those of its pieces: BERT's words end at blanks and commas."""
    return (
        isinstance(tokenizer.normalizer, BertNormalizer)
        and isinstance(tokenizer.pre_tokenizer, BertPreTokenizer)
        and isinstance(tokenizer.model, WordPiece)
    )


class Packer:
    """Packs conversations for one artifact; may be shared by threads."""

    def __init__(self, spec: PackingSpec, tokenizer: Tokenizer) -> None:
        """Take over `tokenizer`: it must not be used to encode special tokens afterwards."""
        self._spec = spec
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = False
        self._pieces = [
            (Slot(text) if is_slot else self._encode(text))
            for text, is_slot in split_template(spec.template)
        ]
        # From here on "[SEP]" in a user's text is text, not a separator.
        tokenizer.encode_special_tokens = True
        self._marker = self._encode(TRUNCATED)
        self._signatures: Cache[str, Ids] = Cache(max_bytes=4 * 2**20)
        self._turns: Cache[str, Ids] = Cache(max_bytes=8 * 2**20)
        self._is_local = is_local(tokenizer)

    @property
    def caches(self) -> dict[str, Cache[str, Ids]]:
        """Tokenized texts, by name: agents send the same tools and turns again."""
        return {"signatures": self._signatures, "turns": self._turns}

    def pack(self, conversation: Conversation) -> Packed:
        """Pack one conversation: at most `budget_tokens` ids, and the features asked for."""
        clips = self._clips(conversation)
        ids: list[int] = []
        parts: list[Part] = []
        for piece in self._pieces:
            if isinstance(piece, Slot):
                clip, start = clips[piece], len(ids)
                marker = range(start + clip.marker.start, start + clip.marker.stop)
                parts.append(Part(piece, start, start + len(clip.ids), clip.cut, marker))
                ids.extend(clip.ids)
            else:
                ids.extend(piece)
        features = extract(conversation, self._spec.features)
        return Packed(tuple(ids), features, tuple(parts))

    def _clips(self, conversation: Conversation) -> dict[Slot, _Clip]:
        """Fill the slots; the cap on the tools is what keeps room for the latest user turn."""
        latest = conversation.latest_user
        left = self._spec.budget_tokens - sum(
            len(piece) for piece in self._pieces if not isinstance(piece, Slot)
        )
        clips: dict[Slot, _Clip] = {}
        clips[Slot.PREAMBLE] = self._preamble(conversation, left)
        left -= len(clips[Slot.PREAMBLE].ids)
        tool_budget_tokens = min(left, self._spec.tool_budget_tokens)
        clips[Slot.TOOLS] = self._tools(conversation.tools, tool_budget_tokens)
        left -= len(clips[Slot.TOOLS].ids)
        latest_text = conversation.turns[latest].text if latest is not None else ""
        clips[Slot.LATEST_USER] = self._both_ends(latest_text, left)
        left -= len(clips[Slot.LATEST_USER].ids)
        others = [turn for i, turn in enumerate(conversation.turns) if i != latest]
        clips[Slot.OTHER_TURNS] = self._newest_first(others, left)
        return clips

    def _preamble(self, conversation: Conversation, budget_tokens: int) -> _Clip:
        """Write `length, num_tools, num_turns`; the length is in words of all turns."""
        words = sum(turn.text.count(" ") + 1 for turn in conversation.turns)
        text = f"{words}, {len(conversation.tools)}, {len(conversation.turns)}"
        return _Clip(self._encode(text)[:budget_tokens], cut=False)

    def _both_ends(self, text: str, budget_tokens: int) -> _Clip:
        """Keep the head and the tail of a text too long: the request stands at one of them."""
        ids = self._encoded(_clip_text(text, budget_tokens), self._turns)
        if len(ids) <= budget_tokens:
            return _Clip(ids, cut=len(text) > budget_tokens * CHARS_PER_TOKEN)
        kept = max(0, budget_tokens - len(self._marker))
        tail = kept // 2
        return self._marked(ids[: kept - tail], ids[len(ids) - tail :], budget_tokens)

    def _tools(self, tools: Sequence[ToolSpec], budget_tokens: int) -> _Clip:
        ids: list[int] = []
        left_chars = budget_tokens * MAX_CHARS_PER_TOKEN
        for tool in tools:
            text = signature(tool, self._spec.signature)
            text = _clip_text(text, budget_tokens) + " ; "
            ids.extend(self._encoded(text, self._signatures))
            left_chars -= len(text)
            if len(ids) > budget_tokens or left_chars < 0:
                kept = max(0, budget_tokens - len(self._marker))
                return self._marked(tuple(ids[:kept]), (), budget_tokens)
        return _Clip(tuple(ids), cut=False)

    def _marked(self, head: Ids, tail: Ids, budget_tokens: int) -> _Clip:
        """Join what is left of a text by the mark that says so."""
        ids = (head + self._marker + tail)[:budget_tokens]
        end = min(len(head) + len(self._marker), len(ids))
        return _Clip(ids, cut=True, marker=range(len(head), end))

    def _newest_first(self, turns: Sequence[Turn], budget_tokens: int) -> _Clip:
        ids: list[int] = []
        cut = False
        left_chars = budget_tokens * MAX_CHARS_PER_TOKEN
        for turn in reversed(turns):
            left = budget_tokens - len(ids)
            if left <= 0 or left_chars < 0:
                return _Clip(tuple(ids), cut=True)
            text = _turn_text(turn)
            clipped = _clip_text(text, left)
            encoded = self._start_of(clipped, left)
            cut = cut or len(encoded) > left or len(text) > left * CHARS_PER_TOKEN
            ids.extend(encoded[:left])
            left_chars -= len(clipped)
        return _Clip(tuple(ids), cut=cut)

    def _start_of(self, text: str, tokens: int) -> Sequence[int]:
        """Return a text's ids, or the first of them: more than `tokens`.

        A turn of which a part goes in is tokenized no further, and by pieces that are the same
        where another part of it goes in.
        """
        if not self._is_local:
            return self._encoded(text, self._turns)
        ids: list[int] = []
        for piece in _PIECE.finditer(text):
            ids.extend(self._encoded(piece[0], self._turns))
            if len(ids) > tokens:
                break
        return ids

    def _encoded(self, text: str, seen: Cache[str, Ids]) -> Ids:
        ids = seen.get(text)
        if ids is None:
            ids = self._encode(text)
            # Text of other scripts has up to 4 bytes a character; so has Python, with 8 an id.
            seen.put(text, ids, size_bytes=4 * len(text) + 8 * len(ids))
        return ids

    def _encode(self, text: str) -> Ids:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _turn_text(turn: Turn) -> str:
    calls = " ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
    who = "" if turn.role is Role.USER else f"{turn.role}: "
    return f"{who}{turn.text} {calls} ; "


def _clip_text(text: str, budget_tokens: int) -> str:
    """Cut a text far beyond the budget before it is tokenized, keeping both ends."""
    limit_chars = max(1, budget_tokens) * CHARS_PER_TOKEN
    if len(text) <= limit_chars:
        return text
    half = limit_chars // 2
    return f"{text[:half]} {text[-half:]}"
