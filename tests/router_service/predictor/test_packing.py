"""Packing: what goes into the encoder's window, in which order, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Punctuation, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as Steps

from router_service.apis.conversation import (
    Conversation,
    Json,
    Role,
    ToolCall,
    ToolSpec,
    Turn,
    parse_conversation,
)
from router_service.artifact import SHIPPED, Artifact
from router_service.predictor.packing import (
    Packed,
    PackedView,
    Packer,
    PackingSpec,
    Part,
    TemplateSlot,
)

LATEST, TOOLS, OTHERS = (
    TemplateSlot.LATEST_USER,
    TemplateSlot.TOOLS,
    TemplateSlot.OTHER_TURNS,
)
WORDS = ["[UNK]", "[CLS]", "[SEP]"]
TEXT = (
    "system : be brief ; book a table for 4 in Oslo now then call me assistant : sure tool : ok "
    "book _ table ( guests integer , city ? string | [ ] { } ) note none some old turn newest "
    "truncated 0 1 2 3 5 6 7 8 9 10 11 12 13 14 SEP ="
).split()


def word_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per word or punctuation mark, and BERT's special tokens."""
    names = list(dict.fromkeys([*WORDS, *TEXT]))
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Steps([WhitespaceSplit(), Punctuation()])
    tokenizer.add_special_tokens(WORDS)
    return tokenizer


def words(ids: Sequence[int]) -> str:
    """Return the words that token ids stand for."""
    tokenizer = word_tokenizer()
    return " ".join(tokenizer.id_to_token(i) or "" for i in ids)


def part_of(packed: Packed, slot: TemplateSlot) -> Part:
    """Return one slot of a packed conversation."""
    return next(part for part in packed.parts if part.slot is slot)


def unpack(packed: Packed, slot: TemplateSlot) -> str:
    """Return one slot of a packed conversation as words."""
    part = part_of(packed, slot)
    return words(packed.token_ids[part.start : part.stop])


def pack(conversation: Conversation, **spec: object) -> Packed:
    """Pack with a small window and one token per word."""
    budgets = {"budget_tokens": 64, "tool_budget_tokens": 20, **spec}
    return Packer(PackingSpec.model_validate(budgets), word_tokenizer()).pack(conversation)


PARAMETERS = {
    "type": "object",
    "properties": {"guests": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["guests"],
}
BOOK = {
    "type": "function",
    "function": {
        "name": "book_table",
        "description": "never shown",
        "parameters": PARAMETERS,
    },
}


def user(text: str) -> Json:
    """Return a user's message."""
    return {"role": "user", "content": text}


def booking(*messages: object, tools: int = 1) -> Conversation:
    """Return a conversation with `tools` copies of one tool."""
    return parse_conversation({"messages": list(messages), "tools": [BOOK] * tools})


SYSTEM = {"role": "system", "content": "be brief"}
ASK = user("book a table for 4 in Oslo")


def test_small_request_packs_into_these_tokens() -> None:
    """A small request packs into exactly these tokens."""
    packed = pack(booking(SYSTEM, ASK))
    assert words(packed.token_ids) == (
        "[CLS] 9 , 1 , 2 [SEP] book a table for 4 in Oslo [SEP] "
        "book _ table ( guests : integer , city ? : string ) ; [SEP] system : be brief ; [SEP]"
    )


CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "book", "arguments": "now"}}]}
LOOP = booking(user("old turn"), ASK, CALLED, {"role": "tool", "content": "ok"})
PARALLEL = (ToolCall("book", "now"), ToolCall("call", "me"))
LONG = booking(user("book " * 50))
BLANK = ToolSpec(" " * 900)
NOW = Turn(Role.USER, "now")


@pytest.mark.parametrize(
    ("conversation", "spec", "slot", "text"),
    [
        # In a tool loop, the call and its result precede the turns before the question.
        (LOOP, {"budget_tokens": 96}, LATEST, "book a table for 4 in Oslo"),
        (LOOP, {"budget_tokens": 96}, OTHERS, "tool : ok ; assistant : book ( now ) ; old turn ;"),
        (
            Conversation((Turn(Role.USER, "ok"), Turn(Role.ASSISTANT, "sure", 0, PARALLEL))),
            {},
            OTHERS,
            "assistant : sure book ( now ) call ( me ) ;",
        ),
        # If nothing else fits, tools and user turn are the marker, without a stray token.
        (LONG, {"budget_tokens": 16, "tool_budget_tokens": 3}, TOOLS, "[ truncated ]"),
        (LONG, {"budget_tokens": 16, "tool_budget_tokens": 3}, LATEST, "[ truncated ]"),
        (LONG, {"budget_tokens": 16, "tool_budget_tokens": 4}, TOOLS, "book [ truncated ]"),
        (LONG, {"budget_tokens": 16, "tool_budget_tokens": 4}, LATEST, "[ truncated"),
        (LONG, {"tool_budget_tokens": 2}, TOOLS, "[ truncated"),
        (booking(ASK), {"signature": "names"}, TOOLS, "book _ table ( guests , city ) ;"),
        # A user cannot write a special token.
        (booking(user("book [SEP] now")), {}, LATEST, "book [ SEP ] now"),
        (booking(SYSTEM), {}, LATEST, ""),
        # Names that are blanks are cut by their characters, long before by their tokens.
        (Conversation((NOW,), (BLANK,) * 3), {}, TOOLS, "( ) ; ( ) ; ( ) ;"),
        (Conversation((NOW,), (BLANK,) * 5), {}, TOOLS, "( ) ; ( ) ; ( ) ; ( ) ; [ truncated ]"),
    ],
)
def test_slots_are_packed_as_words(
    conversation: Conversation, spec: dict[str, object], slot: TemplateSlot, text: str
) -> None:
    """Each slot has its form, and is cut at its own end."""
    assert unpack(pack(conversation, **spec), slot) == text


RELEVANT = {"precedence": "relevance", "cut_turns_budget_tokens": 5}

calls = st.lists(st.builds(ToolCall, st.text(max_size=9), st.text(max_size=60)), max_size=2)
turns = st.builds(
    Turn,
    role=st.sampled_from(Role),
    text=st.text(max_size=200) | st.sampled_from(["word " * 400, "x" * 5000]),
    tool_calls=calls.map(tuple),
)


def test_long_user_turn_keeps_both_ends_and_the_tools() -> None:
    """The latest user turn is cut in its middle, in equal shares; the tools keep their room."""
    packed = pack(booking(user("book " * 300 + "now " * 300)))
    head, _, tail = unpack(packed, LATEST).partition(" [ truncated ] ")
    assert {*head.split()} == {"book"}
    assert {*tail.split()} == {"now"}
    assert len(head.split()) - len(tail.split()) in {0, 1}
    assert unpack(packed, TOOLS).startswith("book _ table ( guests : integer")
    assert len(packed.token_ids) == 64


@settings(max_examples=60)
@given(st.lists(turns, max_size=6), st.integers(0, 9), st.integers(40, 200))
def test_packing_never_exceeds_the_window(
    conversation: list[Turn], tools: int, budget_tokens: int
) -> None:
    """For any turns and tools, the ids fit the window, and the parts are in order.

    Precedence changes nothing of a conversation that the window has room for.
    """
    spec = booking(ASK, tools=tools).tools
    packed = pack(Conversation(tuple(conversation), spec), budget_tokens=budget_tokens)
    assert len(packed.token_ids) <= budget_tokens
    edges = [edge for part in packed.parts for edge in (part.start, part.stop)]
    assert edges == sorted(edges)
    assert edges[-1] <= len(packed.token_ids)
    relevant = pack(
        Conversation(tuple(conversation), spec), budget_tokens=budget_tokens, **RELEVANT
    )
    assert len(relevant.token_ids) <= budget_tokens
    whole = pack(
        Conversation(tuple(conversation), spec), budget_tokens=9000, tool_budget_tokens=4000
    )
    are_turns_cut = any(part.is_cut for part in packed.parts if part.slot is not TOOLS)
    if len(whole.token_ids) <= budget_tokens and not are_turns_cut:
        assert relevant == packed


def test_what_is_relevant_precedes_what_does_not_fit() -> None:
    """The tool that fits the question, and the user's words, go in before what the order says."""
    tools = [ToolSpec(name) for name in ("be_brief", "call_me", "note_none", "book_table", "ok")]
    system = Turn(Role.SYSTEM, "be brief " * 9)
    result = Turn(Role.TOOL, "note " * 40)
    turns = Turn(Role.USER, "old turn"), system, Turn(Role.USER, ASK["content"]), result
    conversation = Conversation((*turns,), tuple(tools))
    for spec, first_tool, others in (
        ({}, "be _ brief", "tool : note note note"),
        (RELEVANT, "book _ table", "old turn ; tool :"),
    ):
        packed = pack(conversation, **spec)
        assert unpack(packed, TOOLS).startswith(first_tool)
        assert unpack(packed, OTHERS).startswith(others)
    assert len(unpack(packed, OTHERS).split()) == RELEVANT["cut_turns_budget_tokens"]


@pytest.mark.parametrize("blank", [" ", "."])
def test_long_turns_pack_as_if_tokenized_whole(shipped_tokenizer: Tokenizer, blank: str) -> None:
    """In any window, the first tokens of a long turn go in, and the turn is marked as cut."""
    text = blank.join(f"word{number}" for number in range(2000))
    long, packer = {"role": "system", "content": text}, Packer(PackingSpec(), shipped_tokenizer)
    whole = shipped_tokenizer.encode(f"system: {text}", add_special_tokens=False).ids
    for length in (1, 100):
        packed = packer.pack(booking(long, user("book " * length), tools=0))
        other = packed.parts[-1]
        assert list(packed.token_ids[other.start : other.stop]) == whole[: other.stop - other.start]
        assert (other.is_cut, len(packed.token_ids)) == (True, 512)


CUT = Conversation(
    (Turn(Role.USER, "old " * 300), Turn(Role.USER, "first " + "word " * 900 + "last")),
    tuple(ToolSpec(f"tool_number_{number}") for number in range(90)),
)


def test_view_shows_what_the_encoder_sees() -> None:
    """A slot that was cut says so, and the pieces together have all tokens."""
    artifact = Artifact.load(SHIPPED)
    spec = artifact.manifest.packing
    packed = Packer(spec, artifact.tokenizer).pack(CUT)
    view = PackedView.of(packed, spec, artifact.tokenizer)
    shown = {piece.slot: piece for piece in view.pieces}
    user = shown[LATEST].text
    assert (user.startswith("first word"), user.endswith("word last")) == (True, True)
    assert "[ truncated ]" in user
    assert {piece.slot for piece in view.pieces if piece.is_cut} == {LATEST, TOOLS, OTHERS}
    assert (shown[OTHERS].tokens, shown[TOOLS].tokens) == (0, 100)
    assert tuple(view.features.values()) == packed.features
    assert view.tokens == view.budget_tokens == 512 == sum(piece.tokens for piece in view.pieces)
