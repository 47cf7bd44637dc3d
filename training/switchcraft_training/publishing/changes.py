"""What a publisher may do to a publication, as functions from one to the next."""

from __future__ import annotations

from router_service.core.errors import PublicationError
from router_service.core.releases import Canary, Publication, Release


def put_stable(published: Publication | None, release: Release) -> Publication:
    """Let a release serve; shadow and canary stay as they are."""
    if published is None:
        return Publication(serial=1, stable=release)
    return _next(published, stable=release)


def put_shadow(published: Publication | None, release: Release) -> Publication:
    """Let a release decide without being obeyed; raises PublicationError without a stable one."""
    return _next(_existing(published), shadow=release)


def put_canary(published: Publication | None, canary: Canary) -> Publication:
    """Try a release on a share of traffic; raises PublicationError without a stable one."""
    return _next(_existing(published), canary=canary)


def withdraw(published: Publication | None, role: str) -> Publication:
    """End the `shadow` or the `canary`; raises PublicationError where there is none."""
    existing = _existing(published)
    if getattr(existing, role) is None:
        raise PublicationError("the publication", f"has no {role} to withdraw")
    return _next(existing, **{role: None})


def promote(published: Publication | None) -> Publication:
    """Make the canary the stable release; raises PublicationError where there is none."""
    existing = _existing(published)
    if existing.canary is None:
        raise PublicationError("the publication", "has no canary to promote")
    return _next(existing, stable=existing.canary.release, canary=None)


def _existing(published: Publication | None) -> Publication:
    if published is None:
        problem = "nothing is published yet; publish a stable release first"
        raise PublicationError("the publication", problem)
    return published


def _next(published: Publication, **changes: Release | Canary | None) -> Publication:
    return published.model_copy(update={"serial": published.serial + 1, **changes})
