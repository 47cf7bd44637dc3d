"""The APIs that the tests ask in, by name."""

from router_service.apis.api import Api
from router_service.apis.chat.api import CHAT
from router_service.apis.messages.api import MESSAGES
from router_service.apis.registry import APIS
from router_service.apis.responses.api import RESPONSES

__all__ = ["APIS", "CHAT", "MESSAGES", "RESPONSES", "Api"]
