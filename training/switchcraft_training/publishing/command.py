"""`switchcraft-train publish`: publish an artifact to running gateways."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from router_service.core.errors import PublicationError
from router_service.core.releases import Canary, Pointer, PublicationUpdate, Release
from router_service.store.pointers import open_pointer

_EXAMPLE = """\
examples:
  switchcraft-train publish runs/today/artifact --to /srv/releases
  switchcraft-train publish runs/today/artifact --to /srv/releases --as canary --share 0.05
  switchcraft-train publish --to /srv/releases --promote
"""


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `publish` command."""
    publish = stages.add_parser(
        "publish",
        help="verify an artifact, copy it, and switch running gateways to it",
        description="Verify an artifact, copy it to where gateways look for releases, and tell them"
        " to serve it.\nA gateway keeps its present release if the new one fails its canary"
        " requests.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    publish.add_argument("artifact", type=Path, nargs="?", help="the artifact's directory")
    publish.add_argument(
        "--to",
        required=True,
        metavar="DIR|redis://...",
        help="where gateways look for releases: a directory, or the Redis that they share",
    )
    publish.add_argument(
        "--store",
        type=Path,
        help="with Redis: the directory for releases, on a volume that every gateway mounts at"
        " the same path",
    )
    action = publish.add_mutually_exclusive_group()
    action.add_argument(
        "--as",
        dest="role",
        choices=("stable", "shadow", "canary"),
        default="stable",
        help="stable: serves traffic; shadow: its decisions are recorded but not used; canary:"
        " serves a share of the conversations (default: %(default)s)",
    )
    action.add_argument(
        "--withdraw", choices=("shadow", "canary"), help="remove the shadow or canary release"
    )
    action.add_argument("--promote", action="store_true", help="make the canary the stable release")
    action.add_argument("--list", action="store_true", help="show what is published")
    limits = publish.add_argument_group(
        "limits of a canary release, which gateways withdraw automatically if it exceeds them"
    )
    for name, kind, text in (
        ("share", float, "share of the conversations that it serves"),
        ("max_error_increase", float, "share of failed requests above the stable release's"),
        ("max_cost_ratio", float, "mean cost of a request relative to the stable release's"),
        ("min_requests", int, "number of requests before the limits apply"),
    ):
        default = Canary.model_fields[name].default
        flag = f"--{name.replace('_', '-')}"
        limits.add_argument(flag, type=kind, default=default, help=f"{text} (default: {default})")
    publish.set_defaults(stage=run_publish)


def run_publish(arguments: argparse.Namespace) -> int:
    """Change or read what is published, print it, and return the exit status 0."""
    pointer = open_pointer(arguments.to)
    if arguments.list:
        published = pointer.read()
    else:
        published = pointer.move(_requested_update(arguments, pointer))
    if published is None:
        print(f"{pointer.name}: nothing is published")
        return 0
    canary = published.canary
    roles: dict[str, Release | None] = {
        "stable": published.stable,
        "shadow": published.shadow,
        "canary": canary.release if canary else None,
    }
    print(f"{pointer.name}: publication {published.serial}")
    for role, release in roles.items():
        text = f"{release.label}  {release.created}  {release.path}" if release else "none"
        print(f"{role}  {text}")
    if canary:
        print(
            f"        {canary.share:.1%} of conversations; withdrawn after"
            f" {canary.min_requests} requests with {canary.max_error_increase * 100:+.1f} points"
            f" of errors, or {canary.max_cost_ratio:g} times the cost"
        )
    return 0


def _requested_update(arguments: argparse.Namespace, pointer: Pointer) -> PublicationUpdate:
    """Return the requested update, after verifying and copying the artifact if there is one."""
    # Imported here because other commands do not need the model runtime.
    from switchcraft_training.publishing import releases  # noqa: PLC0415

    if arguments.withdraw:
        return lambda published: releases.withdraw(published, arguments.withdraw)
    if arguments.promote:
        return releases.promote
    if arguments.role != "stable" and pointer.read() is None:
        raise PublicationError(pointer.name, "nothing is published; publish a stable release first")
    if arguments.artifact is None:
        raise PublicationError("publish", "no artifact is given; pass the artifact's directory")
    store = Path(arguments.to) if pointer.is_beside_releases else arguments.store
    if store is None:
        problem = "Redis cannot hold a release's files; give a directory for them with --store"
        raise PublicationError(pointer.name, problem)
    release = releases.make_release(
        arguments.artifact, store, is_beside_pointer=pointer.is_beside_releases
    )
    if arguments.role == "stable":
        return lambda published: releases.put_stable(published, release)
    if arguments.role == "shadow":
        return lambda published: releases.put_shadow(published, release)
    try:
        canary = Canary(
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
    return lambda published: releases.put_canary(published, canary)
