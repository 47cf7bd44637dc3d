"""What is shown of a packed request: the very tokens, and how many there were."""

from __future__ import annotations

import pytest

from router_service.core.artifact import SHIPPED, Artifact
from router_service.core.messages import Conversation, Role, ToolSpec, Turn
from router_service.core.packing import (
    MEASURED_TOKENS,
    Extent,
    PackedView,
    PackedViewer,
    Packer,
    Slot,
)

ASK = Turn(Role.USER, "weather in Oslo [SEP] now")
SHORT = Conversation((ASK,), (ToolSpec("get_weather"),))
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
    """Return its packer."""
    return Packer(artifact.manifest.packing, artifact.tokenizer)


@pytest.fixture(scope="module")
def viewer(artifact: Artifact, packer: Packer) -> PackedViewer:
    """Return what shows its packing."""
    return PackedViewer(artifact.manifest.packing, artifact.tokenizer, packer)


def text_of(view: PackedView, slot: Slot) -> str:
    """Return what is shown of a slot, but for the packer's own words."""
    return " ".join(p.text for p in view.pieces if p.slot is slot and not p.is_cut_mark)


def extents(view: PackedView) -> dict[Slot, Extent]:
    """Return the extents by slot."""
    return {extent.slot: extent for extent in view.extents}


@pytest.mark.parametrize(
    "conversation", [SHORT, LONG, Conversation(())], ids="short long no".split()
)
def test_each_token_is_shown_once(
    viewer: PackedViewer, packer: Packer, conversation: Conversation
) -> None:
    """The pieces are as many tokens as the encoder gets, part by part."""
    view, packed = viewer.view(conversation), packer.pack(conversation)
    assert sum(piece.tokens for piece in view.pieces) == view.tokens == len(packed.token_ids)
    for part in packed.parts:
        shown = sum(piece.tokens for piece in view.pieces if piece.slot is part.slot)
        assert shown == part.stop - part.start == extents(view)[part.slot].tokens


def test_text_of_a_user_is_no_mark_of_the_template(viewer: PackedViewer) -> None:
    """What looks like a separator in a request is shown as that request's text."""
    view = viewer.view(SHORT)
    assert text_of(view, Slot.LATEST_USER) == "weather in oslo [ sep ] now"
    marks = "".join(piece.text for piece in view.pieces if piece.slot is None)
    assert marks == "[CLS][SEP][SEP][SEP][SEP]"


def test_what_fits_is_whole(viewer: PackedViewer) -> None:
    """A short request has as many tokens as it had."""
    assert not any(extent.is_cut for extent in viewer.view(SHORT).extents)


def test_what_is_cut_is_told(viewer: PackedViewer, packer: Packer) -> None:
    """Of a long one both ends of the last turn are there, with a mark between, and how much was."""
    view = viewer.view(LONG)
    user = text_of(view, Slot.LATEST_USER)
    assert user.startswith("first word")
    assert user.endswith("word last")
    cut = {piece.slot for piece in view.pieces if piece.is_cut_mark}
    assert cut == {Slot.LATEST_USER, Slot.TOOLS}
    found = extents(view)
    assert found[Slot.LATEST_USER].whole_tokens == 902
    assert (found[Slot.OTHER_TURNS].tokens, found[Slot.OTHER_TURNS].whole_tokens) == (0, 301)
    assert found[Slot.TOOLS].tokens == 100 < found[Slot.TOOLS].whole_tokens
    assert not any(extent.at_least for extent in view.extents)
    assert tuple(view.features.values()) == packer.pack(LONG).features


def test_what_is_longer_than_is_measured_is_told_as_such(viewer: PackedViewer) -> None:
    """A text beyond the measured window costs no more than that window, and is `at_least` it."""
    endless = Conversation((Turn(Role.USER, "word " * 8 * MEASURED_TOKENS),))
    user = extents(viewer.view(endless))[Slot.LATEST_USER]
    assert user.at_least
    assert user.whole_tokens < MEASURED_TOKENS
