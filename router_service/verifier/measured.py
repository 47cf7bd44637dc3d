"""The kinds of requests with which the verifier of unfamiliar requests was measured."""

from __future__ import annotations

import unicodedata
from collections import Counter

from pydantic import BaseModel, ConfigDict, Field

from router_service.apis.conversation import Conversation

MAX_LETTERS = 2_000
"""Letters of a text that tell its script."""


class MeasuredRequests(BaseModel):
    """Limits of the requests with which a verifier was measured; all others are far off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: int = Field(ge=0, description="The most tools that a measured request has offered.")
    scripts: tuple[str, ...] = Field(
        description="Scripts of the measured queries, such as `LATIN`, by their Unicode names."
    )

    def include(self, conversation: Conversation) -> bool:
        """Return whether a request is within the limits, and has no attachments.

        A request whose user has written no word is not.
        """
        latest = conversation.deciding_turn
        script = None if latest is None else script_of(conversation.turns[latest].text)
        return (
            script in self.scripts
            and len(conversation.tools) <= self.tools
            and not any(turn.attachments for turn in conversation.turns)
        )


def script_of(text: str) -> str | None:
    """Return the script of most letters in a text, such as `CYRILLIC`; None without letters."""
    letters = [each for each in text[: 4 * MAX_LETTERS] if each.isalpha()][:MAX_LETTERS]
    scripts = Counter(
        "LATIN" if each.isascii() else unicodedata.name(each, "").partition(" ")[0]
        for each in letters
    )
    return scripts.most_common(1)[0][0] if scripts else None
