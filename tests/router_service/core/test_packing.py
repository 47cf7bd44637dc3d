"""Packing: what goes into the encoder's window, and in what order of claim."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Punctuation, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as Steps

from router_service.core.messages import Conversation, Role, ToolCall, Turn, parse_conversation
from router_service.core.packing import (
    Packed,
    Packer,
    PackingSpec,
    Slot,
    signature,
    tokenizes_words_separately,
)

WORDS = ["[UNK]", "[CLS]", "[SEP]"]


def word_tokenizer(vocabulary: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer with a token a word or punctuation mark, and BERT's special tokens."""
    names = list(dict.fromkeys([*WORDS, *vocabulary]))
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Steps([WhitespaceSplit(), Punctuation()])
    tokenizer.add_special_tokens(WORDS)
    return tokenizer


TEXT = (
    "system : be brief ; book a table for 4 in Oslo now then call me assistant : sure tool : ok "
    "book _ table ( guests integer , city ? string | [ ] { } ) note none some old turn newest "
    "truncated 0 1 2 3 5 6 7 8 9 10 11 12 13 14 SEP ="
).split()


def words(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Write token ids as the words that they stand for."""
    return " ".join(tokenizer.id_to_token(i) or "" for i in ids)


def unpack(packed: Packed, slot: Slot) -> str:
    """Read one slot of a packed conversation back as words."""
    tokenizer = word_tokenizer(TEXT)
    part = next(part for part in packed.parts if part.slot is slot)
    return words(tokenizer, packed.token_ids[part.start : part.stop])


def pack(conversation: Conversation, **spec: object) -> Packed:
    """Pack with a small window, a word a token."""
    budgets = {"budget_tokens": 64, "tool_budget_tokens": 20, **spec}
    return Packer(PackingSpec.model_validate(budgets), word_tokenizer(TEXT)).pack(conversation)


BOOK = {
    "type": "function",
    "function": {
        "name": "book_table",
        "description": "never shown",
        "parameters": {
            "type": "object",
            "properties": {"guests": {"type": "integer"}, "city": {"type": "string"}},
            "required": ["guests"],
        },
    },
}


def booking(*messages: object, tools: int = 1) -> Conversation:
    """Return a conversation with `tools` copies of one tool."""
    return parse_conversation({"messages": list(messages), "tools": [BOOK] * tools})


SYSTEM = {"role": "system", "content": "be brief"}
ASK = {"role": "user", "content": "book a table for 4 in Oslo"}


def test_golden() -> None:
    """A small request packs into exactly these tokens."""
    packed = pack(booking(SYSTEM, ASK))
    assert words(word_tokenizer(TEXT), packed.token_ids) == (
        "[CLS] 9 , 1 , 2 [SEP] book a table for 4 in Oslo [SEP] "
        "book _ table ( guests : integer , city ? : string ) ; [SEP] system : be brief ; [SEP]"
    )


def test_the_real_tokenizer_packs_the_same_every_time(shipped_tokenizer: Tokenizer) -> None:
    """With the shipped tokenizer, packing is a function of the conversation alone."""
    packer = Packer(PackingSpec(), shipped_tokenizer)
    first = packer.pack(booking(SYSTEM, ASK))
    packer.pack(booking(ASK, tools=30))
    assert packer.pack(booking(SYSTEM, ASK)) == first
    assert words(shipped_tokenizer, first.token_ids[:8]) == "[CLS] 9 , 1 , 2 [SEP] book"


def test_turns_fill_the_window_newest_first() -> None:
    """Of the turns that are not the latest, the newest go in; what does not fit is cut."""
    turns = [{"role": "user", "content": f"turn {i}"} for i in range(30)]
    packed = pack(booking(*turns, ASK), budget_tokens=48)
    text = unpack(packed, Slot.OTHER_TURNS)
    assert text.startswith("turn [UNK] ; turn [UNK] ;")
    part = packed.parts[-1]
    assert part.is_cut
    assert len(packed.token_ids) == 48


def test_a_turn_that_goes_in_by_half_is_cut() -> None:
    """A single older turn that fills the window says that it was cut; one that fits does not."""
    long, short = ({"role": "user", "content": "a word " * count} for count in (100, 2))
    assert pack(booking(long, ASK), budget_tokens=48).parts[-1].is_cut
    assert not pack(booking(short, ASK), budget_tokens=48).parts[-1].is_cut


def test_turns_after_the_latest_user_turn_are_the_newest() -> None:
    """In a tool loop, the call and its result come before the turns that precede the question."""
    loop = [
        {"role": "user", "content": "old turn"},
        ASK,
        {"role": "assistant", "tool_calls": [{"function": {"name": "book", "arguments": "now"}}]},
        {"role": "tool", "content": "ok"},
    ]
    packed = pack(booking(*loop), budget_tokens=96)
    assert unpack(packed, Slot.LATEST_USER) == "book a table for 4 in Oslo"
    assert unpack(packed, Slot.OTHER_TURNS) == ("tool : ok ; assistant : book ( now ) ; old turn ;")


def test_tools_are_capped_and_marked() -> None:
    """Signatures beyond their own cap are cut, and end with the marker."""
    packed = pack(booking(ASK, tools=9))
    text = unpack(packed, Slot.TOOLS)
    assert len(text.split()) == 20
    assert text.endswith("[ truncated ]")


def test_a_long_user_turn_keeps_both_ends_and_leaves_room_for_tools() -> None:
    """The latest user turn may be cut in its middle, never at the cost of the tools."""
    words = " ".join(["book", *["some"] * 500, "now"])
    packed = pack(booking({"role": "user", "content": words}))
    text = unpack(packed, Slot.LATEST_USER)
    assert text.startswith("book some")
    assert text.endswith("some now")
    assert "[ truncated ]" in text
    assert unpack(packed, Slot.TOOLS).startswith("book _ table ( guests : integer")
    assert len(packed.token_ids) == 64


def test_a_separator_in_the_text_is_text() -> None:
    """A user cannot write a special token: `[SEP]` in a turn does not become the separator."""
    packed = pack(booking({"role": "user", "content": "book [SEP] now"}))
    assert unpack(packed, Slot.LATEST_USER) == "book [ SEP ] now"


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM],
        [{"role": "user", "content": ""}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "content": None}],
        [7],
    ],
)
def test_any_conversation_packs(messages: list[object]) -> None:
    """Without a user turn, or without text at all, the tools are still packed."""
    assert unpack(pack(booking(*messages)), Slot.TOOLS).startswith("book _ table")


def test_signature_styles() -> None:
    """A signature shows names with types, optional marks, enums, arrays and nesting; or names."""
    tool = parse_conversation(
        {
            "messages": [ASK],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {
                            "required": ["a"],
                            "properties": {
                                "a": {"enum": ["x", "y"]},
                                "b": {"type": "array", "items": {"type": "number"}},
                                "c": {"type": "object", "properties": {"d": {"type": "string"}}},
                                "e": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                            },
                        },
                    },
                }
            ],
        }
    ).tools[0]
    assert signature(tool) == "f(a: x|y, b?: number[], c?: {d: string}, e?: integer|null)"
    assert signature(tool, "names") == "f(a, b, c, e)"


@pytest.mark.parametrize(
    "spec",
    [
        {"template": "{latest_user}"},
        {"template": "{preamble}{latest_user}{tools}{other_turns}{more}"},
        {"features": ("no_such_count",)},
        {"budget_tokens": 100, "tool_budget_tokens": 51},
        {"window": 512},
    ],
)
def test_a_spec_that_cannot_be_packed_by_is_refused(spec: dict[str, object]) -> None:
    """A manifest's packing section is checked whole before anything is packed by it."""
    with pytest.raises(ValidationError):
        PackingSpec.model_validate(spec)


turns = st.builds(
    Turn,
    role=st.sampled_from(Role),
    text=st.text(max_size=200) | st.sampled_from(["word " * 400, "x" * 5000]),
    tool_calls=st.lists(
        st.builds(ToolCall, st.text(max_size=9), st.text(max_size=60)), max_size=2
    ).map(tuple),
)


@settings(max_examples=60)
@given(st.lists(turns, max_size=6), st.integers(0, 9), st.integers(40, 200))
def test_the_window_is_never_exceeded(
    conversation: list[Turn], tools: int, budget_tokens: int
) -> None:
    """Whatever the turns and tools, the ids fit the window and the parts lie in order in it."""
    spec = booking(ASK, tools=tools).tools
    packed = pack(Conversation(tuple(conversation), spec), budget_tokens=budget_tokens)
    assert len(packed.token_ids) <= budget_tokens
    edges = [edge for part in packed.parts for edge in (part.start, part.stop)]
    assert edges == sorted(edges)
    assert edges[-1] <= len(packed.token_ids)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=12) | st.sampled_from([" ", ",", "\n", "e\u0301", "\u0301"])))
def test_a_text_s_tokens_are_those_of_its_pieces(
    shipped_tokenizer: Tokenizer, parts: list[str]
) -> None:
    """However a text is parted before blanks, commas and line ends, its tokens are the same."""
    text = "".join(parts)
    Packer(PackingSpec(), shipped_tokenizer)  # which sets it up
    assert tokenizes_words_separately(shipped_tokenizer)
    pieces = re.split("(?=[ ,\n])", text)
    encode = shipped_tokenizer.encode
    ids = [i for piece in pieces for i in encode(piece, add_special_tokens=False).ids]
    assert ids == encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("blank", [" ", ", ", "."])
def test_long_turns_are_packed_as_if_tokenized_whole(
    shipped_tokenizer: Tokenizer, blank: str
) -> None:
    """In any window, a long turn's first tokens go in, and it says that it was cut."""
    text = blank.join(f"word{number}" for number in range(2000))
    long, packer = {"role": "system", "content": text}, Packer(PackingSpec(), shipped_tokenizer)
    whole = shipped_tokenizer.encode(f"system: {text}", add_special_tokens=False).ids
    for length in (1, 40, 100):
        ask = {"role": "user", "content": "book " * length}
        packed = packer.pack(booking(long, ask, tools=0))
        other = packed.parts[-1]
        assert list(packed.token_ids[other.start : other.stop]) == whole[: other.stop - other.start]
        assert (other.is_cut, len(packed.token_ids)) == (True, 512)


def test_turns_without_words_are_read_up_to_a_number_of_characters() -> None:
    """Thousands of turns that are one token each fill no window, and would take seconds to read."""
    blank = Turn(Role.USER, "x" + " " * 900)
    turns = (Turn(Role.USER, "old"), *[blank] * 50, Turn(Role.USER, "now"))
    packed = pack(Conversation(turns), budget_tokens=256)
    others = next(part for part in packed.parts if part.slot is Slot.OTHER_TURNS)
    assert others.is_cut
    assert others.stop - others.start < 60
    few = pack(Conversation((turns[0], *[blank] * 5, turns[-1])), budget_tokens=256)
    assert "old" in unpack(few, Slot.OTHER_TURNS).split()
