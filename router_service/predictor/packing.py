"""Packing: conversation and tools -> token ids within the artifact's budget (paper, section 3.1).

The latest user turn always goes in. Compact tool signatures follow, up to their own cap, and then
the other turns, newest first, until the window is full. The artifact's precedence says which of
them go in if the window is too small. Precedence, budgets and template belong to the artifact:
training and serving pack with this module and the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator, model_validator
from tokenizers import Tokenizer

from router_service.apis.conversation import Conversation, Role, SchemaSummary, ToolSpec, Turn
from router_service.core.resources import Cache
from router_service.core.values import Strict, request_value
from router_service.predictor.features import FEATURES, extract, most_relevant_first
from router_service.predictor.words import Ids, WordTokenizer, tokenizes_words_separately

TRUNCATED = "[truncated]"
MAX_ENUM_VALUES = 8
CHARS_PER_TOKEN = 16
"""Before a text is tokenized, it is cut to this many characters for each token of its budget.
English has 4 to 5 characters per token."""
MAX_CHARS_PER_TOKEN = 64
"""Limit on the characters that are tokenized for each token of a budget, over all tools or all
turns. Only texts without words reach it: a thousand blanks give no token."""

PIECE_CHARS = 400
_PIECE = re.compile(rf"[\s\S]{{1,{PIECE_CHARS}}}[^ ,\n]*")
"""Piece of a text: `PIECE_CHARS` characters, extended up to the next blank, comma or line end."""


_PRECEDENCE = {Role.USER: 1, Role.SYSTEM: -1, Role.DEVELOPER: -1}
"""Turns that do not all fit go in by this number, the highest first; it is 0 for other roles."""


class TemplateSlot(StrEnum):
    """Parts of the input that a template names in braces."""

    PREAMBLE = "preamble"
    LATEST_USER = "latest_user"
    TOOLS = "tools"
    OTHER_TURNS = "other_turns"


class PackingSpec(Strict):
    """Layout of the encoder's input; part of the manifest."""

    budget_tokens: int = Field(512, ge=16, description="The encoder's window.")
    tool_budget_tokens: int = Field(100, ge=0, description="Cap on all tool signatures together.")
    signature: Literal["names", "types"] = Field(
        "types", description="Whether a tool's signature shows the types of its parameters."
    )
    precedence: Literal["order", "relevance"] = Field(
        "order",
        description="What goes in first if the window is too small for all turns and tools: the"
        " first tools and the newest turns, or the tools that share most words with the latest user"
        " turn, the user's turns before others, and the system prompt last.",
    )
    cut_turns_budget_tokens: int | None = Field(
        None,
        ge=0,
        description="Cap on the turns besides the latest user turn if the window is too small for"
        " everything and relevance has precedence.",
    )
    template: str = "[CLS]{preamble}[SEP]{latest_user}[SEP]{tools}[SEP]{other_turns}[SEP]"
    features: tuple[str, ...] = Field(
        (), description="Structural features in the model's order, or `all` of this version."
    )

    @field_validator("features", mode="before")
    @classmethod
    def _expand_all(cls, names: object) -> object:
        return tuple(FEATURES) if names == "all" else names

    @field_validator("features")
    @classmethod
    def _check_features(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(names) - set(FEATURES))
        if unknown:
            raise ValueError(f"unknown features {unknown}; this version has {sorted(FEATURES)}")
        return names

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        slots = [text for text, is_slot in split_template(template) if is_slot]
        if sorted(slots) != sorted(TemplateSlot):
            names = [str(slot) for slot in TemplateSlot]
            raise ValueError(f"a template must contain each of {names} once in braces: {template}")
        return template

    @model_validator(mode="after")
    def _check_budgets(self) -> PackingSpec:
        if self.tool_budget_tokens > self.budget_tokens // 2:
            raise ValueError("tool_budget_tokens may be at most half of budget_tokens")
        return self


@request_value(frozen=True, slots=True)
class Part:
    """The token range of one slot, and whether its text was cut."""

    slot: TemplateSlot
    start: int
    stop: int
    is_cut: bool


@request_value(frozen=True, slots=True)
class Packed:
    """The encoder's input for one conversation: `token_ids` (tokens,), `features` (features,)."""

    token_ids: Ids
    features: tuple[float, ...]
    parts: tuple[Part, ...]


@request_value(frozen=True, slots=True)
class _Clip:
    """Token ids of one slot."""

    ids: Ids
    is_cut: bool = False


def split_template(template: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a template in order, each with whether it is the name of a slot."""
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


def type_expression(schema: SchemaSummary) -> str:
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


class Packer:
    """Packs conversations for one artifact; may be shared by threads."""

    def __init__(self, spec: PackingSpec, tokenizer: Tokenizer) -> None:
        """Take over `tokenizer`, which must not be used to encode special tokens afterwards."""
        self._spec = spec
        self._tokenizer = tokenizer
        self._words: WordTokenizer | None = None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = False
        self._template: list[TemplateSlot | Ids] = [
            (TemplateSlot(text) if is_slot else self._encode(text))
            for text, is_slot in split_template(spec.template)
        ]
        template_tokens = sum(len(p) for p in self._template if not isinstance(p, TemplateSlot))
        self._slots_budget_tokens = spec.budget_tokens - template_tokens
        # From here on "[SEP]" in a user's text is text, not a separator.
        tokenizer.encode_special_tokens = True
        if tokenizes_words_separately(tokenizer):
            self._words = WordTokenizer(tokenizer)
        self._marker = self._encode(TRUNCATED)
        self._signatures: Cache[str, Ids] = Cache(max_bytes=4 * 2**20)
        self._turns: Cache[str, Ids] = Cache(max_bytes=8 * 2**20)

    @property
    def caches(self) -> dict[str, Cache[str, Ids]]:
        """Tokenized texts by name. Agents send the same tools and turns with every request."""
        return {"signatures": self._signatures, "turns": self._turns}

    def pack(self, conversation: Conversation) -> Packed:
        """Pack one conversation into at most `budget_tokens` ids and the spec's features."""
        latest = conversation.deciding_turn
        others = [turn for i, turn in enumerate(conversation.turns) if i != latest]
        clips = self._fill(conversation, conversation.tools, others, None)
        if self._spec.precedence == "relevance" and not self._has_room(clips, conversation.tools):
            are_cut = clips[TemplateSlot.TOOLS].is_cut
            tools = most_relevant_first(conversation) if are_cut else conversation.tools
            others.sort(key=lambda turn: _PRECEDENCE.get(turn.role, 0))
            clips = self._fill(conversation, tools, others, self._spec.cut_turns_budget_tokens)

        ids: list[int] = []
        parts: list[Part] = []
        for piece in self._template:
            if isinstance(piece, TemplateSlot):
                clip, start = clips[piece], len(ids)
                parts.append(Part(piece, start, start + len(clip.ids), clip.is_cut))
                ids.extend(clip.ids)
            else:
                ids.extend(piece)
        return Packed(tuple(ids), extract(conversation, self._spec.features), tuple(parts))

    def _fill(
        self,
        conversation: Conversation,
        tools: Sequence[ToolSpec],
        others: Sequence[Turn],
        others_budget_tokens: int | None,
    ) -> dict[TemplateSlot, _Clip]:
        """Fill the slots from the first of `tools` and the last of `others`, up to their caps."""
        turns = conversation.turns
        left = self._slots_budget_tokens
        clips: dict[TemplateSlot, _Clip] = {}

        # The preamble slot gets three counts: words in all turns, tools, and turns.
        words = sum(turn.text.count(" ") + 1 for turn in turns)
        clips[TemplateSlot.PREAMBLE] = _Clip(
            self._encode(f"{words}, {len(tools)}, {len(turns)}")[:left]
        )
        left -= len(clips[TemplateSlot.PREAMBLE].ids)

        # The cap on the tools keeps room for the latest user turn.
        clips[TemplateSlot.TOOLS] = self._pack_tools(
            tools, min(left, self._spec.tool_budget_tokens)
        )
        left -= len(clips[TemplateSlot.TOOLS].ids)

        latest = conversation.deciding_turn
        text = turns[latest].text if latest is not None else ""
        latest_ids = self._encode(_clip_text(text, left), self._turns)
        if len(latest_ids) <= left:
            is_cut = len(text) > left * CHARS_PER_TOKEN
            clips[TemplateSlot.LATEST_USER] = _Clip(latest_ids, is_cut)
        else:  # keep both ends of a long text: the request itself is at one of them
            kept = max(0, left - len(self._marker))
            tail = kept // 2
            clips[TemplateSlot.LATEST_USER] = self._join_by_marker(
                latest_ids[: kept - tail], latest_ids[len(latest_ids) - tail :], left
            )
        left -= len(clips[TemplateSlot.LATEST_USER].ids)

        if others_budget_tokens is not None:
            left = min(left, others_budget_tokens)
        clips[TemplateSlot.OTHER_TURNS] = self._pack_newest_first(others, left)
        return clips

    def _has_room(self, clips: Mapping[TemplateSlot, _Clip], tools: Sequence[ToolSpec]) -> bool:
        """Return whether the window has room for all turns and, without their cap, all tools."""
        turns = [clip for slot, clip in clips.items() if slot is not TemplateSlot.TOOLS]
        if any(clip.is_cut for clip in turns):
            return False
        left = self._slots_budget_tokens - sum(len(clip.ids) for clip in turns)
        return not clips[TemplateSlot.TOOLS].is_cut or not self._pack_tools(tools, left).is_cut

    def _pack_tools(self, tools: Sequence[ToolSpec], budget_tokens: int) -> _Clip:
        ids: list[int] = []
        left_chars = budget_tokens * MAX_CHARS_PER_TOKEN
        for tool in tools:
            text = _clip_text(signature(tool, self._spec.signature), budget_tokens) + " ; "
            ids.extend(self._encode(text, self._signatures))
            left_chars -= len(text)
            if len(ids) > budget_tokens or left_chars < 0:
                kept = max(0, budget_tokens - len(self._marker))
                return self._join_by_marker(tuple(ids[:kept]), (), budget_tokens)
        return _Clip(tuple(ids))

    def _pack_newest_first(self, turns: Sequence[Turn], budget_tokens: int) -> _Clip:
        ids: list[int] = []
        is_cut = False
        left_chars = budget_tokens * MAX_CHARS_PER_TOKEN
        for turn in reversed(turns):
            left = budget_tokens - len(ids)
            if left <= 0 or left_chars < 0:
                return _Clip(tuple(ids), is_cut=True)
            speaker = "" if turn.role is Role.USER else f"{turn.role}: "
            calls = " ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
            text = f"{speaker}{turn.text} {calls} ; "
            clipped = _clip_text(text, left)
            turn_ids: list[int] = []
            if self._words is not None:
                # A turn is tokenized only as far as it fits. Its pieces do not depend on how much
                # of it fits, so that the next request finds them in the cache.
                for piece in _PIECE.finditer(clipped):
                    turn_ids.extend(self._encode(piece[0], self._turns))
                    if len(turn_ids) > left:
                        break
            else:
                turn_ids.extend(self._encode(clipped, self._turns))
            is_cut = is_cut or len(turn_ids) > left or len(text) > left * CHARS_PER_TOKEN
            ids.extend(turn_ids[:left])
            left_chars -= len(clipped)
        return _Clip(tuple(ids), is_cut)

    def _join_by_marker(self, head: Ids, tail: Ids, budget_tokens: int) -> _Clip:
        """Join the two ends of a cut text by the `[truncated]` marker."""
        return _Clip((head + self._marker + tail)[:budget_tokens], is_cut=True)

    def _encode(self, text: str, cache: Cache[str, Ids] | None = None) -> Ids:
        ids = None if cache is None else cache.get(text)
        if ids is None:
            if self._words is not None:
                ids = self._words.encode(text)
            else:
                ids = tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
            if cache is not None:
                # Python takes up to 4 bytes for a character, and 8 for an id.
                cache.put(text, ids, size_bytes=4 * len(text) + 8 * len(ids))
        return ids


def _clip_text(text: str, budget_tokens: int) -> str:
    """Cut the middle out of a text that is far longer than the budget, before it is tokenized."""
    limit_chars = max(1, budget_tokens) * CHARS_PER_TOKEN
    if len(text) <= limit_chars:
        return text
    half = limit_chars // 2
    return f"{text[:half]} {text[-half:]}"


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """One slot as text, or a run of the template's own tokens, which has no slot."""

    slot: TemplateSlot | None
    text: str
    tokens: int
    is_cut: bool = False
    """Whether the encoder sees only a part of the slot."""


@dataclass(frozen=True, slots=True)
class PackedView:
    """The text and the features that a router's model sees of a conversation."""

    pieces: tuple[PackedPiece, ...]
    features: Mapping[str, float]
    """Structural features by name."""
    tokens: int
    budget_tokens: int

    @classmethod
    def of(cls, packed: Packed, spec: PackingSpec, tokenizer: Tokenizer) -> PackedView:
        """Decode what was packed with this spec and tokenizer."""
        ids, end = packed.token_ids, 0

        def decoded(
            stop: int, slot: TemplateSlot | None = None, *, is_cut: bool = False
        ) -> PackedPiece:
            text = tokenizer.decode(ids[end:stop], skip_special_tokens=False)
            return PackedPiece(slot, text, stop - end, is_cut)

        pieces: list[PackedPiece] = []
        for part in packed.parts:
            pieces.append(decoded(part.start))
            end = part.start
            pieces.append(decoded(part.stop, part.slot, is_cut=part.is_cut))
            end = part.stop
        pieces.append(decoded(len(ids)))
        features = dict(zip(spec.features, packed.features, strict=True))
        return cls(tuple(pieces), features, len(packed.token_ids), spec.budget_tokens)
