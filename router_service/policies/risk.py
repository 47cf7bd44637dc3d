"""How much harm a tool can do: read only, write, or destroy.

A tool's level comes from the operator's patterns, else from the annotations that its MCP server
gave it, else from a guess by its name and description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from router_service.apis.conversation import ToolSpec
from router_service.core.resources import Cache, shared_cache


class Risk(StrEnum):
    """What a tool may do to the world; the most harmless level comes first."""

    READ_ONLY = "read_only"
    """It changes nothing."""
    WRITING = "writing"
    """It adds or changes something, and the change can be undone."""
    DESTRUCTIVE = "destructive"
    """It may delete, overwrite, spend, send, or run anything."""


@dataclass(frozen=True, slots=True)
class RiskRules:
    """How the levels of tools are found.

    `patterns` has shell patterns of tool names (`delete_*`) for each level; the most severe level
    that matches counts. `guesses` says whether other tools are judged by name and description.
    """

    patterns: Mapping[Risk, Sequence[str]] = field(default_factory=dict)
    guesses: bool = True

    def risk_of(self, tool: ToolSpec) -> Risk | None:
        """Return a tool's level, or None if nothing is known about it."""
        for level in reversed(Risk):
            if any(fnmatchcase(tool.name, pattern) for pattern in self.patterns.get(level, ())):
                return level
        if tool.hints is not None:
            return annotated_risk(tool.hints)
        return guess_risk(tool.name, tool.description) if self.guesses else None

    def highest(self, tools: Sequence[ToolSpec]) -> Risk | None:
        """Return the most severe level among tools, or None if no level is known."""
        return max(filter(None, map(self.risk_of, tools)), key=[*Risk].index, default=None)


def annotated_risk(hints: tuple[bool | None, bool | None]) -> Risk:
    """Return the level for MCP's `readOnlyHint` and `destructiveHint`.

    If a tool is not read-only and says nothing else, MCP's default is that it may be destructive
    (Model Context Protocol 2025-06-18, `ToolAnnotations`).
    """
    read_only, destructive = hints
    if read_only:
        return Risk.READ_ONLY
    return Risk.WRITING if destructive is False else Risk.DESTRUCTIVE


_DESTRUCTIVE = frozenset(
    "ban bash block buy cancel charge clear close deactivate del delete deploy deprovision destroy "
    "disable discard drop erase evict flush kill liquidate merge order overwrite pay purchase "
    "purge reboot refund reject remove replace reset restart revert revoke rm rollback sell send "
    "shell shred shutdown stop suspend terminate transfer trash truncate tweet unassign uninstall "
    "unlink unpublish unsubscribe wipe withdraw write".split()
)
_WRITING = frozenset(
    "accept activate add adjust allocate append apply approve archive assign assist attach author "
    "begin bind book change checkout clone comment commit configure connect contact convert copy "
    "create decrease define download draft edit enable enroll enter export favorite fill follow "
    "fund generate grant import increase init insert install invite issue join label like link "
    "log login logout make mark message mkdir modify mount move mute navigate note open pause pin "
    "place play plan post press prepare provision publish push put record register rename reply "
    "report request rent reserve resize resolve retweet rotate run exec execute save schedule set "
    "share sign snooze sort split start store submit subscribe switch tag touch transition trigger "
    "turn unfollow unlock unmute unpin update upgrade upload upsert use vote".split()
)
_READING = frozenset(
    "analyze area ask audit average browse calculate calc cat cd check classify compare compute "
    "count current daily describe detect diff display distance echo estimate evaluate explain "
    "extract fetch filter find forecast get glob grep has head history identify info inspect is "
    "list locate lookup ls measure monitor next peek ping predict preview price ps pwd "
    "query quote rank read recommend retrieve review route scan score search select show simulate "
    "solve stat stats status suggest summarize summary tail test top track translate validate "
    "verify view wait watch weather what when where which who".split()
)

_PROGRAMS = frozenset("bash cmd code command commands script shell sql terminal".split())
"""What makes a tool that runs something one that can do anything."""
_RUNNING = frozenset("exec execute run".split())

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_GUESS_BYTES = 200
_guesses: Cache[tuple[str, str], tuple[Risk | None]] = shared_cache("risks", max_bytes=4 * 2**20)
_DESCRIBED_WORDS = 30
"""Words of a description that are read for signs of destruction."""
_DESTRUCTION = re.compile(
    r"\b(permanently|irreversibl[ey]|cannot be undone|can not be undone|destructive|"
    r"deletes?|erases?|overwrites?|terminates?|arbitrary (?:code|commands?)|shell commands?)\b",
    re.IGNORECASE,
)


def guess_risk(name: str, description: str) -> Risk | None:
    """Guess a tool's level from the verbs in its name, and from its description.

    Guesses are cached, because agents send the same tools with every request.
    """
    start = " ".join(description.split(maxsplit=_DESCRIBED_WORDS)[:_DESCRIBED_WORDS])
    key = name, start
    found = _guesses.get(key)
    if found is None:
        found = (_guess(name, start),)
        _guesses.put(key, found, 4 * (len(name) + len(start)) + _GUESS_BYTES)
    return found[0]


def _guess(name: str, start: str) -> Risk | None:
    """Guess a tool's level from its name and the start of its description.

    The first verb of the name decides (`get_deleted_items` reads), without what precedes the last
    dot or double underscore, such as a server's name. If the name says that the tool writes, or
    says nothing, a description that speaks of destruction makes it destructive.
    """
    space, _, last = name.replace("__", ".").rpartition(".")
    words = [word.lower() for word in (*_WORDS.findall(last), *_WORDS.findall(space))]
    guess: Risk | None = None
    if not _RUNNING.isdisjoint(words) and not _PROGRAMS.isdisjoint(words):
        return Risk.DESTRUCTIVE
    for word in words:
        if word in _DESTRUCTIVE:
            return Risk.DESTRUCTIVE
        if word in _WRITING:
            guess = Risk.WRITING
            break
        if word in _READING:
            return Risk.READ_ONLY
    return Risk.DESTRUCTIVE if _DESTRUCTION.search(start) else guess
