"""Packing: what goes into the encoder's window, in which order, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Punctuation, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as Steps

from router_service.apis.conversation import (
    Conversation,
    Role,
    ToolCall,
    ToolSpec,
    Turn,
    parse_conversation,
)
from router_service.artifact import SHIPPED, Artifact
from router_service.core.resources import CacheCounts
from router_service.predictor.packing import (
    CHARS_PER_TOKEN,
    Extent,
    Packed,
    PackedView,
    PackedViewer,
    Packer,
    PackingSpec,
    TemplateSlot,
    signature,
)

WORDS = ["[UNK]", "[CLS]", "[SEP]"]


def word_tokenizer(vocabulary: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer with one token per word or punctuation mark, and BERT's special tokens."""
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
    """Return the words that token ids stand for."""
    return " ".join(tokenizer.id_to_token(i) or "" for i in ids)


def unpack(packed: Packed, slot: TemplateSlot) -> str:
    """Return one slot of a packed conversation as words."""
    tokenizer = word_tokenizer(TEXT)
    part = next(part for part in packed.parts if part.slot is slot)
    return words(tokenizer, packed.token_ids[part.start : part.stop])


def pack(conversation: Conversation, **spec: object) -> Packed:
    """Pack with a small window and one token per word."""
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


def test_small_request_packs_into_these_tokens() -> None:
    """A small request packs into exactly these tokens."""
    packed = pack(booking(SYSTEM, ASK))
    assert words(word_tokenizer(TEXT), packed.token_ids) == (
        "[CLS] 9 , 1 , 2 [SEP] book a table for 4 in Oslo [SEP] "
        "book _ table ( guests : integer , city ? : string ) ; [SEP] system : be brief ; [SEP]"
    )


def test_older_turns_fill_the_window_newest_first() -> None:
    """The newest of the other turns go in, and those that do not fit are cut."""
    turns = [{"role": "user", "content": f"turn {i}"} for i in range(30)]
    packed = pack(booking(*turns, ASK), budget_tokens=48)
    text = unpack(packed, TemplateSlot.OTHER_TURNS)
    assert text.startswith("turn [UNK] ; turn [UNK] ;")
    part = packed.parts[-1]
    assert part.is_cut
    assert len(packed.token_ids) == 48


def test_tool_loop_comes_before_older_turns() -> None:
    """In a tool loop, the call and its result precede the turns before the question."""
    loop = [
        {"role": "user", "content": "old turn"},
        ASK,
        {"role": "assistant", "tool_calls": [{"function": {"name": "book", "arguments": "now"}}]},
        {"role": "tool", "content": "ok"},
    ]
    packed = pack(booking(*loop), budget_tokens=96)
    assert unpack(packed, TemplateSlot.LATEST_USER) == "book a table for 4 in Oslo"
    assert unpack(packed, TemplateSlot.OTHER_TURNS) == (
        "tool : ok ; assistant : book ( now ) ; old turn ;"
    )


def test_tools_beyond_their_cap_are_cut_and_marked() -> None:
    """Signatures beyond their cap are cut, and end with the marker."""
    packed = pack(booking(ASK, tools=9))
    text = unpack(packed, TemplateSlot.TOOLS)
    assert len(text.split()) == 20
    assert text.endswith("[ truncated ]")


def test_long_user_turn_keeps_both_ends_and_the_tools() -> None:
    """The latest user turn is cut in its middle, and the tools keep their room."""
    words = " ".join(["book", *["some"] * 500, "now"])
    packed = pack(booking({"role": "user", "content": words}))
    text = unpack(packed, TemplateSlot.LATEST_USER)
    assert text.startswith("book some")
    assert text.endswith("some now")
    assert "[ truncated ]" in text
    assert unpack(packed, TemplateSlot.TOOLS).startswith("book _ table ( guests : integer")
    assert len(packed.token_ids) == 64


def test_text_that_fits_exactly_is_not_cut() -> None:
    """Tools, the user turn and an older turn are complete if their last token still fits."""
    fitting, cut = (pack(booking(ASK), tool_budget_tokens=cap).parts for cap in (14, 13))
    tools = [next(part for part in parts if part.slot == "tools") for parts in (fitting, cut)]
    assert [(part.is_cut, part.stop - part.start) for part in tools] == [(False, 14), (True, 13)]
    left = 64 - len(pack(Conversation((Turn(Role.USER, ""),))).token_ids)
    for words, is_cut in ((left, False), (left + 1, True)):
        packed = pack(Conversation((Turn(Role.USER, "a " * words),)))
        user = next(part for part in packed.parts if part.slot == "latest_user")
        assert (user.is_cut, bool(user.marker)) == (is_cut, is_cut)
        # An older turn ends with ";".
        old = Turn(Role.USER, "a " * (words - 1)), Turn(Role.USER, "")
        assert pack(Conversation(old)).parts[-1].is_cut is is_cut


def test_calls_of_a_turn_are_separated_by_blanks() -> None:
    """Parallel calls follow the text of their turn, one after another."""
    calls = ToolCall("book", "now"), ToolCall("call", "me")
    turns = Turn(Role.USER, "ok"), Turn(Role.ASSISTANT, "sure", tool_calls=calls)
    packed = pack(Conversation(turns))
    assert unpack(packed, TemplateSlot.OTHER_TURNS) == (
        "assistant : sure book ( now ) call ( me ) ;"
    )


def test_only_the_marker_is_shown_if_nothing_else_fits() -> None:
    """If only the marker fits, tools and user turn are the marker, without a stray token."""
    text = {"role": "user", "content": "book " * 50}
    packed = pack(booking(text), budget_tokens=16, tool_budget_tokens=3)
    assert unpack(packed, TemplateSlot.TOOLS) == "[ truncated ]"
    assert unpack(packed, TemplateSlot.LATEST_USER) == "[ truncated ]"
    packed = pack(booking(text), budget_tokens=16, tool_budget_tokens=4)
    assert unpack(packed, TemplateSlot.TOOLS) == "book [ truncated ]"
    assert unpack(packed, TemplateSlot.LATEST_USER) == "[ truncated"
    assert unpack(pack(booking(text), tool_budget_tokens=2), TemplateSlot.TOOLS) == "[ truncated"


@pytest.mark.parametrize(("extra", "is_cut"), [(0, False), (1, True)])
def test_turn_is_cut_beyond_its_characters(extra: int, is_cut: bool) -> None:
    """16 characters are read for each token that is left; one more marks a turn as cut."""
    now = Turn(Role.USER, "now")
    left = 64 - len(pack(Conversation((now,))).token_ids)
    blanks = " " * (left * CHARS_PER_TOKEN - len("x  ; ") + extra)
    packed = pack(Conversation((Turn(Role.USER, f"x{blanks}"), now)))
    assert packed.parts[-1].is_cut is is_cut
    left += 1  # without the token of "now"
    blanks = " " * (left * CHARS_PER_TOKEN - 1 + extra)
    packed = pack(Conversation((Turn(Role.USER, f"x{blanks}"),)))
    assert unpack(packed, TemplateSlot.LATEST_USER) == "[UNK]"
    latest = next(part for part in packed.parts if part.slot is TemplateSlot.LATEST_USER)
    assert latest.is_cut is is_cut


def test_characters_of_tools_without_words_are_limited() -> None:
    """Tools whose names are blanks are cut by their characters, long before by their tokens."""

    def tools(count: int) -> Packed:
        blank = ToolSpec(" " * 900)
        return pack(Conversation((Turn(Role.USER, "now"),), (blank,) * count))

    few, many = (unpack(tools(count), TemplateSlot.TOOLS) for count in (3, 5))
    assert few == "( ) ; ( ) ; ( ) ;"
    assert many.endswith("[ truncated ]")


@pytest.mark.parametrize("is_bert", [True, False])
def test_repeated_texts_are_tokenized_once(shipped_tokenizer: Tokenizer, is_bert: bool) -> None:
    """Packing the next request of a conversation looks up all earlier turns and all tools."""
    packer = Packer(PackingSpec(), shipped_tokenizer if is_bert else word_tokenizer(TEXT))
    turns = Turn(Role.SYSTEM, "be brief"), Turn(Role.USER, "book a table"), Turn(Role.USER, "now")
    tools = ToolSpec("book"), ToolSpec("call")
    packer.pack(Conversation(turns, tools))
    packer.pack(Conversation((*turns[:2], Turn(Role.TOOL, "ok"), turns[2]), tools))
    assert packer.caches["signatures"].counts == CacheCounts(hits=2, misses=2)
    # The only new text is the tool's answer.
    assert packer.caches["turns"].counts == CacheCounts(hits=3, misses=4)


def test_separator_in_a_user_text_is_text() -> None:
    """A user cannot write a special token: `[SEP]` in a turn is not the separator."""
    packed = pack(booking({"role": "user", "content": "book [SEP] now"}))
    assert unpack(packed, TemplateSlot.LATEST_USER) == "book [ SEP ] now"


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
def test_tools_are_packed_without_user_text(messages: list[object]) -> None:
    """Without a user turn, or without any text, the tools are still packed."""
    assert unpack(pack(booking(*messages)), TemplateSlot.TOOLS).startswith("book _ table")


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
def test_invalid_packing_specs_are_refused(spec: dict[str, object]) -> None:
    """The manifest's packing section is validated before it is used."""
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
def test_packing_never_exceeds_the_window(
    conversation: list[Turn], tools: int, budget_tokens: int
) -> None:
    """For any turns and tools, the ids fit the window, and the parts are in order."""
    spec = booking(ASK, tools=tools).tools
    packed = pack(Conversation(tuple(conversation), spec), budget_tokens=budget_tokens)
    assert len(packed.token_ids) <= budget_tokens
    edges = [edge for part in packed.parts for edge in (part.start, part.stop)]
    assert edges == sorted(edges)
    assert edges[-1] <= len(packed.token_ids)


@pytest.mark.parametrize("blank", [" ", ", ", "."])
def test_long_turns_pack_as_if_tokenized_whole(shipped_tokenizer: Tokenizer, blank: str) -> None:
    """In any window, the first tokens of a long turn go in, and the turn is marked as cut."""
    text = blank.join(f"word{number}" for number in range(2000))
    long, packer = {"role": "system", "content": text}, Packer(PackingSpec(), shipped_tokenizer)
    whole = shipped_tokenizer.encode(f"system: {text}", add_special_tokens=False).ids
    for length in (1, 40, 100):
        ask = {"role": "user", "content": "book " * length}
        packed = packer.pack(booking(long, ask, tools=0))
        other = packed.parts[-1]
        assert list(packed.token_ids[other.start : other.stop]) == whole[: other.stop - other.start]
        assert (other.is_cut, len(packed.token_ids)) == (True, 512)


def test_characters_of_turns_without_words_are_limited() -> None:
    """Thousands of one-token turns do not fill the window, and would take seconds to tokenize."""
    blank = Turn(Role.USER, "x" + " " * 900)
    turns = (Turn(Role.USER, "old"), *[blank] * 50, Turn(Role.USER, "now"))
    packed = pack(Conversation(turns), budget_tokens=256)
    others = next(part for part in packed.parts if part.slot is TemplateSlot.OTHER_TURNS)
    assert others.is_cut
    assert others.stop - others.start < 60
    few = pack(Conversation((turns[0], *[blank] * 5, turns[-1])), budget_tokens=256)
    assert "old" in unpack(few, TemplateSlot.OTHER_TURNS).split()


SEPARATOR_ASK = Turn(Role.USER, "weather in Oslo [SEP] now")
SHORT = Conversation((SEPARATOR_ASK,), (ToolSpec("get_weather"),))
LONG = Conversation(
    (Turn(Role.USER, "old " * 300), Turn(Role.USER, "first " + "word " * 900 + "last")),
    tuple(ToolSpec(f"tool_number_{number}") for number in range(90)),
)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """Return the shipped artifact."""
    return Artifact.load(SHIPPED)


@pytest.fixture(scope="module")
def packer(artifact: Artifact) -> Packer:
    """Return the shipped artifact's packer."""
    return Packer(artifact.manifest.packing, artifact.tokenizer)


@pytest.fixture(scope="module")
def viewer(artifact: Artifact, packer: Packer) -> PackedViewer:
    """Return the viewer of the packer."""
    return PackedViewer(artifact.manifest.packing, artifact.tokenizer, packer)


def text_of(view: PackedView, slot: TemplateSlot) -> str:
    """Return the text that is shown for a slot, without the marker."""
    return " ".join(p.text for p in view.pieces if p.slot is slot and not p.is_cut_mark)


def extents(view: PackedView) -> dict[TemplateSlot, Extent]:
    """Return the extents by slot."""
    return {extent.slot: extent for extent in view.extents}


@pytest.mark.parametrize(
    "conversation", [SHORT, LONG, Conversation(())], ids="short long no".split()
)
def test_view_shows_each_token_once(
    viewer: PackedViewer, packer: Packer, conversation: Conversation
) -> None:
    """The pieces have as many tokens as the encoder's input, part by part."""
    view, packed = viewer.view(conversation), packer.pack(conversation)
    assert sum(piece.tokens for piece in view.pieces) == view.tokens == len(packed.token_ids)
    for part in packed.parts:
        shown = sum(piece.tokens for piece in view.pieces if piece.slot is part.slot)
        assert shown == part.stop - part.start == extents(view)[part.slot].tokens


def test_view_shows_separators_in_user_text_as_text(viewer: PackedViewer) -> None:
    """A user's `[SEP]` is shown as part of the request, not of the template."""
    view = viewer.view(SHORT)
    assert text_of(view, TemplateSlot.LATEST_USER) == "weather in oslo [ sep ] now"
    marks = "".join(piece.text for piece in view.pieces if piece.slot is None)
    assert marks == "[CLS][SEP][SEP][SEP][SEP]"


def test_view_shows_what_was_cut(viewer: PackedViewer, packer: Packer) -> None:
    """The view of a long request has both ends of the last turn, the markers, and full lengths."""
    view = viewer.view(LONG)
    user = text_of(view, TemplateSlot.LATEST_USER)
    assert user.startswith("first word")
    assert user.endswith("word last")
    cut = {piece.slot for piece in view.pieces if piece.is_cut_mark}
    assert cut == {TemplateSlot.LATEST_USER, TemplateSlot.TOOLS}
    found = extents(view)
    assert found[TemplateSlot.LATEST_USER].whole_tokens == 902
    assert (
        found[TemplateSlot.OTHER_TURNS].tokens,
        found[TemplateSlot.OTHER_TURNS].whole_tokens,
    ) == (0, 301)
    assert found[TemplateSlot.TOOLS].tokens == 100 < found[TemplateSlot.TOOLS].whole_tokens
    assert not any(extent.at_least for extent in view.extents)
    assert tuple(view.features.values()) == packer.pack(LONG).features
    assert view.tokens == view.budget_tokens == 512
