"""`switchcraft-train publish`: publish an artifact to running gateways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import mutually_exclusive
from pydantic import ValidationError

from router_service.core.errors import ArtifactError
from router_service.core.releases import Canary, Publication, Release

_DEFAULTS = {name: field.default for name, field in Canary.model_fields.items()}

_one_action = Group(validator=mutually_exclusive)
_limits = Group("Limits of a canary release, which gateways withdraw if it exceeds them")


def publish(
    artifact: Path | None = None,
    /,
    *,
    to: Annotated[Path, Parameter(metavar="DIR")],
    role: Annotated[Literal["stable", "canary"], Parameter("--as", group=_one_action)] = "stable",
    withdraw: Annotated[Literal["canary"] | None, Parameter(group=_one_action)] = None,
    promote: Annotated[bool, Parameter(group=_one_action)] = False,
    list_: Annotated[bool, Parameter(group=_one_action)] = False,
    share: Annotated[float, Parameter(group=_limits)] = _DEFAULTS["share"],
    max_error_increase: Annotated[float, Parameter(group=_limits)] = _DEFAULTS[
        "max_error_increase"
    ],
    max_cost_ratio: Annotated[float, Parameter(group=_limits)] = _DEFAULTS["max_cost_ratio"],
    min_requests: Annotated[int, Parameter(group=_limits)] = _DEFAULTS["min_requests"],
) -> None:
    r"""Verify an artifact, copy it, and switch running gateways to it.

    The artifact is copied to where gateways look for releases. A gateway keeps its present release
    if the new one fails its canary requests.

    For example:

        switchcraft-train publish runs/today/artifact --to /srv/releases
        switchcraft-train publish runs/today/artifact --to /srv/releases \
          --as canary --share 0.05
        switchcraft-train publish --to /srv/releases --promote

    Args:
        artifact: the artifact's directory
        to: where gateways look for releases: a directory that all of them mount
        role: stable: serves traffic; canary: serves a share of the conversations
        withdraw: remove the canary release
        promote: make the canary the stable release
        list_: show what is published
        share: share of the conversations that it serves
        max_error_increase: share of failed requests above the stable release's
        max_cost_ratio: mean cost of a request relative to the stable release's
        min_requests: number of requests before the limits apply
    """
    # Imported here because other commands do not need the model runtime.
    from router_service.store.pointers import Pointer
    from switchcraft_training.publishing import releases

    if to.parts[:1] in {("redis:",), ("rediss:",)}:  # else a folder with this name would be created
        problem = "artifacts are published in a directory; give one that all gateways mount"
        raise ArtifactError("--to", problem)
    pointer = Pointer(to)
    if list_:
        published = pointer.read()
    elif withdraw:
        published = pointer.move(releases.withdraw)
    elif promote:
        published = pointer.move(releases.promote)
    else:
        if role != "stable" and pointer.read() is None:
            problem = "nothing is published; publish a stable release first"
            raise ArtifactError(pointer.name, problem)
        if artifact is None:
            raise ArtifactError("publish", "no artifact is given; pass the artifact's directory")
        release = releases.make_release(artifact, to)
        if role == "canary":
            try:
                canary = Canary(
                    release=release,
                    share=share,
                    max_error_increase=max_error_increase,
                    max_cost_ratio=max_cost_ratio,
                    min_requests=min_requests,
                )
            except ValidationError as exc:
                first = exc.errors()[0]
                flag = f"--{str(first['loc'][0]).replace('_', '-')}"
                raise ArtifactError(flag, first["msg"]) from exc
            published = pointer.move(lambda old: releases.put_canary(old, canary))
        else:
            published = pointer.move(lambda old: releases.put_stable(old, release))
    _print_published(pointer.name, published)


def _print_published(name: str, published: Publication | None) -> None:
    if published is None:
        print(f"{name}: nothing is published")
        return
    canary = published.canary
    roles: dict[str, Release | None] = {
        "stable": published.stable,
        "canary": canary.release if canary else None,
    }
    print(f"{name}: publication {published.serial}")
    for role, release in roles.items():
        text = f"{release.label}  {release.created}  {release.path}" if release else "none"
        print(f"{role}  {text}")
    if canary:
        print(
            f"        {canary.share:.1%} of conversations; withdrawn after"
            f" {canary.min_requests} requests with {canary.max_error_increase * 100:+.1f} points"
            f" of errors, or {canary.max_cost_ratio:g} times the cost"
        )
