"""Keep objects that upstreams store for one API key from all other keys.

All keys share one account with the upstream, in which any object can be used by its id. So the
gateway remembers which key created which object, and refuses ids of other keys' objects in paths
and bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from router_service.apis.conversation import Json, Reference
from router_service.apis.references import CONTINUATION_FIELDS
from router_service.core.errors import InvalidRequestError, StoreError
from router_service.core.refusals import OBJECT_NOT_FOUND, response_not_found
from router_service.core.values import request_value
from router_service.store.memory import LocalRecords
from router_service.store.records import Records, UpstreamObject

MAX_SEGMENTS = 16
"""Largest number of path segments that are checked, because each may need a look-up. OpenAI's
longest path has 7."""

MAX_ID_CHARACTERS = 200
"""Longest id that is remembered or looked up. OpenAI's ids have about 60 characters."""

MAX_NOTED_BYTES = 256 * 1024
"""Longest JSON answer that is searched for the ids of new objects; most answers have 1 KB."""

ADMINISTRATION = frozenset({"organization", "organizations", "projects", "admin"})
"""First path segments of endpoints for the whole account (OpenAI: "Administration")."""

_WORD = re.compile(r"[a-z]+")
_WORDS = frozenset(
    "input_items input_tokens output_items count_tokens file_batches submit_tool_outputs "
    "client_secrets transcription_sessions".split()
)
"""Segments of OpenAI's paths, after the first, that are not ids although they contain `_`. Any
other segment that is not one lower-case word is taken for an id."""


class Ownership:
    """Checks which stored objects a caller may use, and remembers new ones."""

    def __init__(self, held: UpstreamObjectIndex) -> None:
        """Look objects up in this index."""
        self._held = held

    async def check_path(self, viewer: ObjectAccess, method: str, segments: Sequence[str]) -> None:
        """Raise InvalidRequestError unless a caller may send this request.

        If the path names no object, the caller may create objects, but not list or change them.
        Every object in the path must belong to the caller, or be unknown and come after an object
        of the caller. Also raises StoreError.
        """
        if viewer.sees_unowned:
            return
        owns = False
        for segment in segments[1:MAX_SEGMENTS]:
            held = await self._held.fetch(segment)
            is_id = held is not None or not (segment in _WORDS or _WORD.fullmatch(segment))
            if is_id and not viewer.sees(held) and not (held is None and owns):
                raise OBJECT_NOT_FOUND.error(identifier=segment[:200])
            owns = owns or held is not None
        is_too_long = len(segments) > MAX_SEGMENTS
        if is_too_long or not (owns or method == "POST") or segments[0] in ADMINISTRATION:
            raise InvalidRequestError(
                f"{method} /v1/{segments[0][:80]} can reach objects of all API keys, so it needs "
                "the admin key. Put the id of an object that your key has created into the path, "
                "or ask the operator to set router.pass_through_shared.",
                code="admin_key_needed",
                status=403,
            )

    async def check_references(self, viewer: ObjectAccess, references: Iterable[Reference]) -> None:
        """Raise InvalidRequestError if a body names another key's object.

        An unknown object is refused only if the request continues it. Other unknown objects, such
        as files and vector stores, may be the operator's, for all keys. Also raises StoreError.
        """
        if viewer.sees_unowned:
            return
        for reference in references:
            held = await self._held.fetch(reference.id)
            if viewer.sees(held):
                continue
            if reference.param in CONTINUATION_FIELDS:
                raise response_not_found(reference.id[:200], param=reference.param)
            if held is not None:
                raise OBJECT_NOT_FOUND.error(param=reference.param, identifier=reference.id[:200])

    async def holder(self, viewer: ObjectAccess, reference: Reference) -> UpstreamObject | None:
        """Return what is known about the response or conversation that a request continues.

        Reads the shared store only if the object is not in local memory, because another replica
        may have relayed it. Raises InvalidRequestError if the caller may not use the object, and
        StoreError.
        """
        held = await self._held.fetch(reference.id)
        if not viewer.sees(held):
            raise response_not_found(reference.id[:200], param=reference.param)
        return held

    async def creator(self, caller: str | None, method: str, segments: Sequence[str]) -> str | None:
        """Return the name of the key that will own what a request creates; None if it is unknown.

        If the path names an object with a known owner, that owner also owns the new objects, such
        as the files of a batch, whichever key sends the request. Raises StoreError.
        """
        for segment in segments[1:MAX_SEGMENTS]:
            held = await self._held.fetch(segment)
            if held is not None and held.owner is not None:
                return held.owner
        return caller if method == "POST" else None

    async def note(
        self,
        answer: Json,
        example: UpstreamObject,
        is_named: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Remember the objects in an answer that are neither known nor named by the request.

        `example` is a record with the owner and the deployment of these objects. While the shared
        store is unavailable, objects that this process does not know count as new.
        """
        if not isinstance(answer, dict):
            return
        file, results = answer.get("file"), answer.get("result_files")
        candidates = [
            *(answer.get(name) for name in ("id", "thread_id", "output_file_id", "error_file_id")),
            answer.get("fine_tuned_model"),
            file.get("id") if isinstance(file, dict) else None,
            *(results[:MAX_SEGMENTS] if isinstance(results, list) else ()),
        ]
        for name in candidates:
            if not isinstance(name, str) or is_named(name):
                continue
            with suppress(StoreError):
                if await self._held.fetch(name) is not None:
                    continue
            self._held.remember(example.model_copy(update={"id": name}))


@request_value(frozen=True, slots=True)
class ObjectAccess:
    """The access of one caller to objects that upstreams store."""

    caller: str | None
    """Name of the caller's API key; None if no keys are configured."""
    sees_unowned: bool = True
    """Whether the caller may use objects whose owner is unknown."""
    sees_all: bool = False
    """Whether the caller may use the objects of all keys."""

    def sees(self, stored: UpstreamObject | None) -> bool:
        """Return whether the caller may use an object. Pass None for an unknown object."""
        if stored is None or stored.owner is None:
            return self.sees_unowned
        return self.sees_all or self.caller == stored.owner


class UpstreamObjectIndex:
    """Index of the upstream objects that this process or another replica has seen.

    A look-up reads local memory first. Only if the object is not there, it waits for the shared
    store, which answers or fails within its short timeout.
    """

    def __init__(
        self,
        local: LocalRecords[UpstreamObject],
        shared: Records[UpstreamObject] | None = None,
    ) -> None:
        self._local = local
        self._shared = shared

    def remember(self, stored: UpstreamObject) -> None:
        """Remember an object, and write it to the shared store in the background.

        The first owner stays the owner, even if an upstream returns the id to another key. Ids that
        are too long or not printable are ignored.
        """
        if not 0 < len(stored.id) <= MAX_ID_CHARACTERS or not stored.id.isprintable():
            return
        known = self._local.find(stored.id)
        if known is not None and known.owner != stored.owner:
            return
        self._local.keep(stored)
        if self._shared is not None:
            self._shared.save(stored, is_new=known is None)

    def find(self, identifier: str) -> UpstreamObject | None:
        """Return an object that this process knows. This may be called from any thread."""
        return self._local.find(identifier)

    async def fetch(self, identifier: str) -> UpstreamObject | None:
        """Return an object from this process or from the shared store.

        Raise StoreError if the shared store is needed and unreachable.
        """
        stored = self.find(identifier)
        if stored is None and self._shared is not None and len(identifier) <= MAX_ID_CHARACTERS:
            stored = await self._shared.get(identifier)
            if stored is not None:
                self._local.keep(stored)
        return stored

    async def aclose(self) -> None:
        """Finish the writes to the shared store."""
        if self._shared is not None:
            await self._shared.drain()
