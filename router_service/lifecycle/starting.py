"""What a gateway starts with: the stable release where one is published, else its artifact."""

from __future__ import annotations

import asyncio
import logging

from router_service.core.errors import ConfigError, SwitchcraftError
from router_service.core.releases import Publication
from router_service.lifecycle.building import EngineBuilder
from router_service.lifecycle.stores import shared_state
from router_service.router import Router
from router_service.settings import Settings
from router_service.store.local import read_pointer

_log = logging.getLogger("switchcraft.server")


def first_router(settings: Settings, builder: EngineBuilder) -> tuple[Router, Publication | None]:
    """Return the router to start with, and what it was published as.

    What is tried beside the stable release is taken up once the gateway runs. Where nothing usable
    is published it is `router.artifact`, with a warning. Raises ArtifactError and ConfigError.
    """
    if settings.router.publication == "redis" and settings.server.redis_url is None:
        problem = "redis needs server.redis_url"
        raise ConfigError(settings.source, "router.publication", problem)
    try:
        published = _published(settings)
        if published is not None:
            return builder.router(settings, published), published
    except SwitchcraftError as exc:
        _log.warning("the publication is not usable, router.artifact serves: %s", exc)
    else:
        if settings.router.publication is not None:
            _log.warning("nothing is published yet, router.artifact serves")
    return builder.router(settings, None), None


def _published(settings: Settings) -> Publication | None:
    place = settings.router.publication
    if place is None:
        return None
    text = asyncio.run(_shared_pointer(settings)) if place == "redis" else read_pointer(place)
    if text is None:
        return None
    publication = Publication.parse(text, str(place))
    return publication.model_copy(update={"shadow": None, "canary": None})


async def _shared_pointer(settings: Settings) -> bytes | None:
    state = shared_state(settings.server)
    try:
        return (await state.read(())).publication
    finally:
        await state.aclose()
