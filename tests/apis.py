"""The APIs that the tests ask in, by name."""

from router_service.apis.api import Api, UpstreamApi
from router_service.apis.chat.api import CHAT
from router_service.apis.converse.api import CONVERSE
from router_service.apis.messages.api import MESSAGES
from router_service.apis.registry import APIS
from router_service.apis.responses.api import RESPONSES

__all__ = ["APIS", "CHAT", "CONVERSE", "MESSAGES", "PAIRS", "RESPONSES", "Api", "UpstreamApi"]

PAIRS: list[tuple[UpstreamApi, Api]] = [
    (source, target) for source in APIS.of_upstreams for target in APIS if source is not target
]
"""Each API that an upstream may speak, with each other API that a client may speak."""
