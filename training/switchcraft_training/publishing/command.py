"""`switchcraft-train publish`: an artifact goes to the gateways without their restart."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from router_service.core.errors import PublicationError
from router_service.core.releases import Canary, Publication, Release
from switchcraft_training.publishing.changes import (
    promote,
    put_canary,
    put_shadow,
    put_stable,
    withdraw,
)

if TYPE_CHECKING:
    from switchcraft_training.publishing.pointers import Change, Pointer


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `publish` stage."""
    publish = stages.add_parser(
        "publish", help="verify an artifact, copy it, and move the gateways' pointer to it"
    )
    publish.add_argument("artifact", type=Path, nargs="?", help="the artifact's directory")
    publish.add_argument(
        "--to",
        required=True,
        metavar="DIR|redis://...",
        help="where the pointer is: a directory, or the Redis that a fleet shares",
    )
    publish.add_argument(
        "--store",
        type=Path,
        help="with Redis: the directory for releases, on a volume that all gateways see"
        " under the same path",
    )
    _add_actions(publish)
    _add_canary(publish)
    publish.set_defaults(stage=_publish)


def _add_actions(publish: argparse.ArgumentParser) -> None:
    action = publish.add_mutually_exclusive_group()
    action.add_argument(
        "--as",
        dest="role",
        choices=("stable", "shadow", "canary"),
        default="stable",
        help="stable serves; shadow decides, is recorded, and is not obeyed; canary decides for"
        " a share of the conversations (default: %(default)s)",
    )
    action.add_argument("--withdraw", choices=("shadow", "canary"), help="end a trial")
    action.add_argument("--promote", action="store_true", help="the canary becomes stable")
    action.add_argument("--list", action="store_true", help="show what is published")


def _add_canary(publish: argparse.ArgumentParser) -> None:
    bounds = publish.add_argument_group("bounds of a canary, which is withdrawn beyond them")
    for name, kind, text in (
        ("share", float, "share of the conversations that it decides"),
        ("max_error_increase", float, "share of failed requests above the stable release's"),
        ("max_cost_ratio", float, "mean cost of a request over the stable release's"),
        ("min_requests", int, "requests before it is judged"),
    ):
        default = Canary.model_fields[name].default
        flag = f"--{name.replace('_', '-')}"
        bounds.add_argument(flag, type=kind, default=default, help=f"{text} (default: {default})")


def _publish(arguments: argparse.Namespace) -> int:
    # Imported here: other stages need neither Redis' driver nor the runtime of a model.
    from switchcraft_training.publishing.pointers import open_pointer  # noqa: PLC0415

    pointer = open_pointer(arguments.to)
    published = pointer.read() if arguments.list else pointer.move(_change(arguments, pointer))
    print("\n".join(_told(published, pointer.name)))
    return 0


def _change(arguments: argparse.Namespace, pointer: Pointer) -> Change:
    """Return what to do to the pointer; an artifact is verified and copied by then."""
    if arguments.withdraw:
        return lambda published: withdraw(published, arguments.withdraw)
    if arguments.promote:
        return promote
    if arguments.role != "stable" and pointer.read() is None:
        raise PublicationError(pointer.name, "nothing is published; publish a stable one first")
    release = _release(arguments, pointer)
    if arguments.role == "stable":
        return lambda published: put_stable(published, release)
    if arguments.role == "shadow":
        return lambda published: put_shadow(published, release)
    canary = _canary(arguments, release)
    return lambda published: put_canary(published, canary)


def _release(arguments: argparse.Namespace, pointer: Pointer) -> Release:
    from switchcraft_training.publishing.releases import make_release  # noqa: PLC0415

    if arguments.artifact is None:
        raise PublicationError("publish", "name the artifact's directory")
    is_beside_pointer = pointer.is_beside_releases
    store = Path(arguments.to) if is_beside_pointer else arguments.store
    if store is None:
        problem = "holds the pointer alone; name a directory for releases with --store"
        raise PublicationError(pointer.name, problem)
    return make_release(arguments.artifact, store, is_beside_pointer=is_beside_pointer)


def _canary(arguments: argparse.Namespace, release: Release) -> Canary:
    try:
        return Canary(
            release=release,
            share=arguments.share,
            max_error_increase=arguments.max_error_increase,
            max_cost_ratio=arguments.max_cost_ratio,
            min_requests=arguments.min_requests,
        )
    except ValidationError as exc:
        first = exc.errors()[0]
        flag = f"--{str(first['loc'][0]).replace('_', '-')}"
        raise PublicationError(flag, first["msg"]) from exc


def _told(published: Publication | None, name: str) -> Iterator[str]:
    if published is None:
        yield f"{name}: nothing is published"
        return
    yield f"{name}: publication {published.serial}"
    yield f"stable  {_line(published.stable)}"
    yield f"shadow  {_line(published.shadow)}"
    canary = published.canary
    yield f"canary  {_line(canary.release if canary else None)}"
    if canary:
        yield (
            f"        {canary.share:.1%} of conversations; withdrawn after"
            f" {canary.min_requests} requests with {canary.max_error_increase * 100:+.1f} points"
            f" of errors, or {canary.max_cost_ratio:g} times the cost"
        )


def _line(release: Release | None) -> str:
    return f"{release.label}  {release.created}  {release.path}" if release else "none"
