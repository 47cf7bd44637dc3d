"""What baselines read of a query: its token ids, packed as the service packs or as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import orjson
from tokenizers import Tokenizer

from router_service.core.messages import Conversation, parse_conversation
from router_service.core.packing import Ids, Packer, PackingSpec, signature
from switchcraft_training.records import Example

View = Callable[[Example], Ids]
"""An example -> token ids, those of the encoder's own marks included."""


class Views:
    """Every view of an example through one tokenizer; each is computed once."""

    def __init__(self, spec: PackingSpec, tokenizer: Tokenizer) -> None:
        self._window_tokens = spec.budget_tokens
        # Copies: the packer changes how its tokenizer treats special tokens.
        self._packer = Packer(spec, Tokenizer.from_str(tokenizer.to_str()))
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._seen: dict[tuple[str, bytes], Ids] = {}

    def packed(self, example: Example) -> Ids:
        """Return what the service feeds its encoder."""
        return self._once("packed", example, lambda chat: self._packer.pack(chat).token_ids)

    def vanilla(self, example: Example) -> Ids:
        """Return the latest user message and all tool signatures, cut on the right.

        The input of the MIRT router (appendix on the MIRT-DistilBERT baseline).
        """
        return self._cut(self._once("vanilla", example, lambda chat: self.text(_vanilla(chat))))

    def truncated(self, example: Example) -> Ids:
        """Return the conversation from its start, then the tools, cut on the right.

        The naive input of the appendix on token packing.
        """
        return self._cut(self.raw(example))

    def raw(self, example: Example) -> Ids:
        """Return the conversation from its start, then the tools as JSON, uncut."""
        tools = orjson.dumps(example.request["tools"]).decode()
        return self._once("raw", example, lambda chat: self.text("\n".join(_raw(chat, tools))))

    def text(self, text: str) -> Ids:
        """Return a text's token ids."""
        return tuple(self._tokenizer.encode(text).ids)

    def _once(self, view: str, example: Example, read: Callable[[Conversation], Ids]) -> Ids:
        key = view, orjson.dumps(example.request)
        if key not in self._seen:
            self._seen[key] = read(parse_conversation(example.request))
        return self._seen[key]

    def _cut(self, ids: Ids) -> Ids:
        """Cut to the encoder's window; its closing mark stays."""
        return (
            ids if len(ids) <= self._window_tokens else (*ids[: self._window_tokens - 1], ids[-1])
        )


def turns(example: Example) -> int:
    """Return how many turns a conversation has."""
    return len(parse_conversation(example.request).turns)


def _vanilla(chat: Conversation) -> str:
    latest = "" if chat.latest_user is None else chat.turns[chat.latest_user].text
    return " ".join([latest, *map(signature, chat.tools)])


def _raw(chat: Conversation, tools: str) -> Iterator[str]:
    for turn in chat.turns:
        calls = (f"{call.name}({call.arguments})" for call in turn.tool_calls)
        yield " ".join([f"{turn.role}:", turn.text, *calls])
    yield tools
