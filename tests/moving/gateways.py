"""Gateways with the configuration of another program's user, in front of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.serving import served


def before_sandbox(settings: Settings, sandbox_url: str) -> Settings:
    """Return the settings with the sandbox's address in place of every provider's."""
    models = tuple(
        model.model_copy(
            update={
                "deployments": tuple(
                    each.model_copy(update={"base_url": sandbox_url}) for each in model.deployments
                )
            }
        )
        for model in settings.models
    )
    return settings.model_copy(update={"models": models})


@contextmanager
def moved_gateway(settings: Settings, sandbox_url: str, router: Router) -> Iterator[str]:
    """Serve a gateway whose providers the sandbox plays; yield its address, http://HOST:PORT."""
    with served(create_app(before_sandbox(settings, sandbox_url), router)) as url:
        yield url
