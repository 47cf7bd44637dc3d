"""What an app holds for the requests that come to it."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from router_service.lifecycle.gateway import Gateway


def gateway_of(request: Request) -> Gateway:
    """Return the gateway of the app that a request came to."""
    return cast("Gateway", request.app.state.gateway)
