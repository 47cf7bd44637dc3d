"""Token ids -> the text that the encoder sees, and how much of a request it does not.

For people who ask what a decision was made from; no decision waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from router_service.core.messages import Conversation
from router_service.core.packing import Packed, Packer, PackingSpec, Part, Slot

MEASURED_TOKENS = 4_096
"""Window in which a request is packed to see how long it is; what is longer is `at_least` that.
Tokenizing one text holds the interpreter's lock: 0.15 s for this much on a busy core, 1.8 s for
32,768."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens of one origin, as text: a slot's, or the template's own without one."""

    slot: Slot | None
    text: str
    tokens: int
    is_cut_mark: bool = False
    """Whether it is the packer's word for what is left out here."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How many tokens of a slot the encoder sees, and how many there were."""

    slot: Slot
    tokens: int
    whole_tokens: int
    at_least: bool
    """Whether there were even more."""

    @property
    def is_cut(self) -> bool:
        """Whether the encoder sees less than there was."""
        return self.at_least or self.tokens < self.whole_tokens


@dataclass(frozen=True, slots=True)
class View:
    """What a router's model sees of a conversation."""

    pieces: tuple[Piece, ...]
    extents: tuple[Extent, ...]
    features: Mapping[str, float]
    """Structural counts by name."""
    tokens: int
    budget_tokens: int


class Viewer:
    """Shows what a packer makes of conversations; may be shared by threads."""

    def __init__(self, spec: PackingSpec, tokenizer: Tokenizer, packer: Packer) -> None:
        """Show what `packer` makes with this spec and tokenizer."""
        self._spec = spec
        self._tokenizer = tokenizer
        self._packer = packer
        # The same packing without its limits is what was there to be packed.
        limits = {"budget_tokens": MEASURED_TOKENS, "tool_budget_tokens": MEASURED_TOKENS // 2}
        self._whole = Packer(spec.model_copy(update={**limits, "features": ()}), tokenizer)

    def view(self, conversation: Conversation) -> View:
        """Pack a conversation and read it back; CPU-bound, so call it off the event loop."""
        packed, whole = self._packer.pack(conversation), self._whole.pack(conversation)
        pairs = zip(packed.parts, whole.parts, strict=True)
        return View(
            pieces=tuple(self._pieces(packed)),
            extents=tuple(_extent(part, measured) for part, measured in pairs),
            features=dict(zip(self._spec.features, packed.features, strict=True)),
            tokens=len(packed.token_ids),
            budget_tokens=self._spec.budget_tokens,
        )

    def _pieces(self, packed: Packed) -> Iterator[Piece]:
        end = 0
        for part in packed.parts:
            yield from self._read(packed, None, range(end, part.start))
            yield from self._read_part(packed, part)
            end = part.stop
        yield from self._read(packed, None, range(end, len(packed.token_ids)))

    def _read_part(self, packed: Packed, part: Part) -> Iterator[Piece]:
        marker = part.marker
        if not marker:
            yield from self._read(packed, part.slot, range(part.start, part.stop))
            return
        yield from self._read(packed, part.slot, range(part.start, marker.start))
        yield from self._read(packed, part.slot, marker, is_cut_mark=True)
        yield from self._read(packed, part.slot, range(marker.stop, part.stop))

    def _read(
        self, packed: Packed, slot: Slot | None, where: range, *, is_cut_mark: bool = False
    ) -> Iterator[Piece]:
        ids = packed.token_ids[where.start : where.stop]
        if ids:
            text = self._tokenizer.decode(ids, skip_special_tokens=False)
            yield Piece(slot, text, len(ids), is_cut_mark)


def _extent(part: Part, whole: Part) -> Extent:
    return Extent(part.slot, part.stop - part.start, whole.stop - whole.start, at_least=whole.cut)
