"""The endpoints of the APIs, as the gateway parses their requests."""

from router_service.requests.parsing import Endpoint
from tests import apis

CHAT = Endpoint.of(apis.CHAT)
RESPONSES = Endpoint.of(apis.RESPONSES)
MESSAGES = Endpoint.of(apis.MESSAGES)
