"""The registry: every API that clients and deployments may speak.

Everything outside of the APIs' folders asks here, and names no API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from router_service.apis.answers import ParsedAnswer
from router_service.apis.api import Api, UpstreamApi
from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json
from router_service.apis.converse.api import CONVERSE
from router_service.apis.messages.api import MESSAGES
from router_service.apis.responses.api import RESPONSES
from router_service.apis.usage import Usage


class Registry(Collection[Api]):
    """The APIs by their names and paths, in their order in `APIS`.

    As a collection it has those that clients may speak. `of_upstreams` has all.
    """

    def __init__(self, apis: Iterable[UpstreamApi]) -> None:
        self._by_name: dict[str, UpstreamApi] = {}
        self._by_path: dict[str, UpstreamApi] = {}
        for api in apis:
            self._by_name[api.name] = self._by_path[api.path] = api

    def __iter__(self) -> Iterator[Api]:
        """Iterate over the APIs that clients may speak."""
        return iter([api for api in self._by_name.values() if isinstance(api, Api)])

    def __contains__(self, api: object) -> bool:
        """Return whether clients may speak an API."""
        return isinstance(api, Api) and api in self._by_name.values()

    def __len__(self) -> int:
        """Return the number of APIs that clients may speak."""
        return len(tuple(iter(self)))

    @property
    def of_upstreams(self) -> tuple[UpstreamApi, ...]:
        """The APIs that deployments may speak, which are all."""
        return tuple(self._by_name.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the APIs that clients may speak."""
        return tuple(api.name for api in self)

    def named(self, name: str) -> Api:
        """Return the API that clients may speak with a name; raises KeyError."""
        api = self._by_name[name]
        if not isinstance(api, Api):
            raise KeyError(name)
        return api

    def at(self, path: str) -> UpstreamApi | None:
        """Return the API in which upstreams answer at a path, or None."""
        return self._by_path.get(path)

    def below(self, path: str) -> Api | None:
        """Return the API of clients whose path below `/v1` is a path, or the beginning of it."""
        for api in self:
            if path == api.path or path.startswith(f"{api.path}/"):
                return api
        return None

    def recognize(self, value: Json) -> UpstreamApi | None:
        """Return the API that an answer or an event has the marks of, or None."""
        if isinstance(value, dict):
            for api in self._by_name.values():
                if api.recognizes(value):
                    return api
        return None

    def api_of(self, value: Mapping[str, Json]) -> Api:
        """Return the API of an answer or an event for clients; the first for those without marks.

        Those are answers of other endpoints, which look most like Chat Completions.
        """
        found = self.recognize(value)
        return found if isinstance(found, Api) else next(iter(self))


APIS = Registry((CHAT, RESPONSES, MESSAGES, CONVERSE))
"""All APIs. To add one, add it here."""


def parse_answer(value: Json, api: UpstreamApi | None = None) -> ParsedAnswer | None:
    """Parse a whole answer, by default of any API. Return None if it is too long to be kept."""
    if not isinstance(value, dict):
        return ParsedAnswer()
    api = api or APIS.recognize(value) or APIS.api_of(value)
    return api.parse_answer(value)


def read_usage(value: Json) -> Usage | None:
    """Return the usage that a whole answer of any API or of another endpoint reports, if any."""
    if not isinstance(value, dict):
        return None
    api = APIS.recognize(value) or APIS.api_of(value)
    return api.read_usage(value)
