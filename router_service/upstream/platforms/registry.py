"""The client of each configured platform. Their packages are extras, imported when needed."""

from __future__ import annotations

from functools import lru_cache

from router_service.settings.platforms import Bedrock, Entra, Platform, Vertex
from router_service.upstream.platforms.platform import PlatformClient

MAX_ACCOUNTS = 256
"""Most accounts whose credentials are kept. They outlive a reload of the configuration, so that no
request waits for new ones."""


@lru_cache(maxsize=MAX_ACCOUNTS)
def client_of(platform: Platform) -> PlatformClient:
    """Return the client of an account, the same for all of its deployments."""
    # Imported here, because the vendors' packages take 0.2 s and are missing from most gateways.
    # ruff: noqa: PLC0415
    match platform:
        case Bedrock():
            from router_service.upstream.platforms.bedrock import BedrockClient

            return BedrockClient(platform)
        case Vertex():
            from router_service.upstream.platforms.vertex import VertexClient

            return VertexClient(platform)
        case Entra():
            from router_service.upstream.platforms.entra import EntraClient

            return EntraClient(platform)
