"""The registry: every API that clients and upstreams may speak.

Everything outside of the APIs' folders asks here, and names no API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from router_service.apis.answers import ParsedAnswer
from router_service.apis.api import Api
from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json
from router_service.apis.messages.api import MESSAGES
from router_service.apis.responses.api import RESPONSES
from router_service.apis.usage import Usage


class Registry(Collection[Api]):
    """The APIs by their names and paths, in the order of their registration."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self._by_name: dict[str, Api] = {}
        self._by_path: dict[str, Api] = {}
        for api in apis:
            self.register(api)

    def register(self, api: Api) -> None:
        """Add an API, before the gateway's app is created; its name and its path must be new."""
        if api.name in self._by_name or api.path in self._by_path:
            raise ValueError(f"an API with the name {api.name} or the path {api.path} exists")
        self._by_name[api.name] = self._by_path[api.path] = api

    def unregister(self, api: Api) -> None:
        """Remove an API that was registered."""
        del self._by_name[api.name], self._by_path[api.path]

    def __iter__(self) -> Iterator[Api]:
        """Iterate over the APIs."""
        return iter(tuple(self._by_name.values()))

    def __contains__(self, api: object) -> bool:
        """Return whether an API is registered."""
        return api in self._by_name.values()

    def __len__(self) -> int:
        """Return the number of APIs."""
        return len(self._by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the APIs."""
        return tuple(self._by_name)

    def named(self, name: str) -> Api:
        """Return the API with a name; raises KeyError."""
        return self._by_name[name]

    def at(self, path: str) -> Api | None:
        """Return the API that answers at a path below `/v1`, or None."""
        return self._by_path.get(path)

    def below(self, path: str) -> Api | None:
        """Return the API whose path is a path below `/v1`, or the beginning of it, or None."""
        for api in self._by_name.values():
            if path == api.path or path.startswith(f"{api.path}/"):
                return api
        return None

    def recognize(self, value: Json) -> Api | None:
        """Return the API that an answer or an event has the marks of, or None."""
        if isinstance(value, dict):
            for api in self._by_name.values():
                if api.recognizes(value):
                    return api
        return None

    def api_of(self, value: Mapping[str, Json]) -> Api:
        """Return the API of an answer or an event; the first one for those without marks.

        Those are answers of other endpoints, which look most like Chat Completions.
        """
        return self.recognize(value) or next(iter(self._by_name.values()))


APIS = Registry((CHAT, RESPONSES, MESSAGES))
"""All APIs. To add one, add it here."""


def parse_answer(value: Json) -> ParsedAnswer | None:
    """Parse a whole answer of any API. Return None if it is too long to be kept."""
    if not isinstance(value, dict):
        return ParsedAnswer()
    record = APIS.api_of(value).record()
    record.feed(value)
    return record.answer()


def read_usage(value: Json) -> Usage | None:
    """Return the usage that a whole answer of any API or of another endpoint reports, if any."""
    return APIS.api_of(value).read_usage(value) if isinstance(value, dict) else None
