"""What a conversation's next turn says against the calls of the last one.

A tool's result that is an error, or the same tool called with other arguments right after, may
mean that the call was wrong. It may as well have been right, so this is weak evidence, marked so.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import orjson

from router_service.core.answers import WrittenCall
from router_service.core.decision_log import LoggedEvidence
from router_service.core.errors import StoreError
from router_service.core.messages import Json
from router_service.core.tool_errors import ToolResult, latest_tool_results
from router_service.requests.recorder import Ended
from router_service.store.base import EvidenceMark, RememberedCall
from router_service.store.guarded import GuardedStore

MAX_CALLS = 32
"""Calls of an answer that are remembered, and compared with earlier ones."""

MAX_NAME_CHARACTERS = 200
"""Longest name of a tool that is remembered as it is; OpenAI allows 64 characters."""

Kind = Literal["tool_error", "repeated_call"]


class Evidence:
    """Remembers the calls of routed answers, and finds what is said against them.

    Turns may come to different replicas, so the stores are those that replicas share. A call counts
    once, whoever sends its result again.
    """

    def __init__(
        self,
        calls: GuardedStore[RememberedCall],
        marks: GuardedStore[EvidenceMark],
        *,
        keeps_names: bool,
    ) -> None:
        """Remember in stores of its own; without `keeps_names` tools are known by a hash.

        So are those whose name is too long to be one.
        """
        self._calls = calls
        self._marks = marks
        self._keeps_names = keeps_names

    async def note(self, ended: Ended, body: Mapping[str, Json]) -> Sequence[LoggedEvidence]:
        """Return what a request and its answer say of earlier calls, and remember its own.

        While the store is away nothing is found, nor remembered.
        """
        try:
            found = await self._found(ended, latest_tool_results(body))
            await asyncio.gather(*map(self._calls.put, self._remembered(ended)))
        except StoreError:
            return ()  # counted and logged by the store
        return found

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._calls.aclose()
        await self._marks.aclose()

    async def _found(self, ended: Ended, results: Sequence[ToolResult]) -> Sequence[LoggedEvidence]:
        ids = [_call_key(ended, result.call_id) for result in results]
        calls = await asyncio.gather(*map(self._calls.get, ids))
        lines: dict[object, LoggedEvidence] = {}
        for call, result in zip(calls, results, strict=True):
            kind = self._kind(call, result, ended) if call is not None else None
            if call is None or kind is None:
                continue
            if await self._marks.add(EvidenceMark(id=call.id)):
                # Two parallel calls of one tool and a third after them are one doubt.
                lines[call.decision_id, call.tool, kind] = _line(call, kind)
        return list(lines.values())

    def _kind(self, call: RememberedCall, result: ToolResult, ended: Ended) -> Kind | None:
        if result.is_error:
            return "tool_error"
        said = ended.outcome.said
        repeats = (
            self._tool(next_call) == call.tool and _hash_of(next_call) != call.arguments_sha256
            for next_call in (said.calls[:MAX_CALLS] if said else ())
        )
        return "repeated_call" if any(repeats) else None

    def _remembered(self, ended: Ended) -> Iterator[RememberedCall]:
        """Yield the calls of an answer that the chosen arm gave; of others no arm is to blame."""
        decision, outcome = ended.plan.decision, ended.outcome
        if decision is None or outcome.said is None or outcome.model is not ended.plan.model:
            return
        for call in outcome.said.calls[:MAX_CALLS]:
            if call.id:
                yield RememberedCall(
                    id=_call_key(ended, call.id),
                    decision_id=ended.record.id,
                    arm=decision.arm,
                    tool=self._tool(call),
                    arguments_sha256=_hash_of(call),
                )

    def _tool(self, call: WrittenCall) -> str:
        is_kept = self._keeps_names and len(call.name) <= MAX_NAME_CHARACTERS
        return call.name if is_kept else _digest(call.name.encode())[:32]


def _line(call: RememberedCall, kind: Kind) -> LoggedEvidence:
    return LoggedEvidence(
        created=time.time(),
        decision_id=call.decision_id,
        arm=call.arm,
        kind=kind,
        tool=call.tool,
    )


def _call_key(ended: Ended, call_id: str) -> str:
    """Return what a call is remembered by: some models number them anew in each conversation.

    The key of the client takes part: no other client can speak against its calls.
    """
    facts = (ended.record.key or "", ended.plan.request.conversation_id, call_id)
    return _digest("\0".join(facts).encode(errors="surrogatepass"))[:32]


def _hash_of(call: WrittenCall) -> str:
    """Return a hash of the arguments, the same however they are written."""
    try:
        return _digest(orjson.dumps(call.decoded(), option=orjson.OPT_SORT_KEYS))
    except orjson.JSONEncodeError:  # nested deeper than is written: as it came
        return _digest(call.arguments.encode())


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
