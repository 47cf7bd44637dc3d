"""`switchcraft serve | route | policies | metrics | sandbox | key`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from router_service import signals
from router_service.core.addresses import read_port
from router_service.core.errors import SwitchcraftError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What `add_subparsers` returns, which argparse has no public name for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the process's exit status, 1 after an error that is explained."""
    given = sys.argv[1:] if argv is None else argv
    if "serve" in given[:1]:
        signals.hold()  # first of all: a signal must not kill a gateway that is starting
    arguments = _parser().parse_args(given)
    try:
        status = _run(arguments)
    except BaseException:
        if not signals.is_stopping():
            raise
    return 0 if signals.is_stopping() else status


def _run(arguments: argparse.Namespace) -> int:
    try:
        status: int = arguments.command(arguments)
    except SwitchcraftError as exc:
        print(f"switchcraft: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has left; what Python would flush at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="switchcraft", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("--config", type=Path, help="YAML file; without one, a sandbox upstream")
    serve.add_argument("--host", help="address to listen on (default: the configuration's)")
    serve.add_argument(
        "--port", type=_port, help="port to listen on (default: the configuration's)"
    )
    serve.set_defaults(command=_serve)

    route = commands.add_parser("route", help="decide offline: JSON lines in, decisions out")
    route.add_argument("--artifact", type=Path, help="an artifact directory (default: the shipped)")
    route.add_argument(
        "--policy",
        help="a policy's name, a rule such as theta=0.5 or drift=0.1, or a goal such as"
        " accuracy=best, accuracy=0.87 or usd_per_1k=0.5, and the same with @95",
    )
    route.set_defaults(command=_route)

    _add_policies(commands)

    metrics = commands.add_parser("metrics", help="every Prometheus series, as a Markdown table")
    metrics.set_defaults(command=_metrics)

    sandbox = commands.add_parser("sandbox", help="an OpenAI-compatible provider, offline")
    sandbox.add_argument("--host", default="127.0.0.1")
    sandbox.add_argument("--port", type=_port, default=8081)
    sandbox.set_defaults(command=_sandbox)

    key = commands.add_parser("key", help="a new key for clients, and its hash for the file")
    key.set_defaults(command=_key)
    return parser


def _port(text: str) -> int:
    try:
        return read_port(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _add_policies(commands: Commands) -> None:
    policies = commands.add_parser("policies", help="what each policy was measured to do")
    policies.add_argument("--artifact", type=Path, help="an artifact directory")
    policies.add_argument(
        "--goal",
        help="the rule that reaches it, with its intervals: accuracy=best (or best-1: at most a"
        " point below the best single model), accuracy=0.87, usd_per_1k=0.5; with @95 at the end,"
        " the worse end of the 95%% interval must reach it",
    )
    policies.add_argument(
        "--all", action="store_true", help="also the rules that a cheaper one matches"
    )
    policies.set_defaults(command=_policies)


def _serve(arguments: argparse.Namespace) -> int:
    # Imports wait for their command: `--help` must not load the runtime of a model.
    from router_service.http.server import serve  # noqa: PLC0415

    serve(arguments.config, host=arguments.host, port=arguments.port)
    return 0


def _route(arguments: argparse.Namespace) -> int:
    from router_service.core.artifact import SHIPPED  # noqa: PLC0415
    from router_service.offline import decide_lines  # noqa: PLC0415
    from router_service.router import Router  # noqa: PLC0415

    router = Router.load(arguments.artifact or SHIPPED)
    policy = router.policy(arguments.policy, param="--policy")
    _write(decide_lines(router, policy, sys.stdin.buffer))
    return 0


def _policies(arguments: argparse.Namespace) -> int:
    from router_service.core.artifact import SHIPPED, Artifact  # noqa: PLC0415
    from router_service.policies import list_policies, tell_goal  # noqa: PLC0415

    manifest = Artifact.load(arguments.artifact or SHIPPED).manifest
    lines = (
        list_policies(manifest, every=arguments.all)
        if arguments.goal is None
        else tell_goal(arguments.goal, manifest)
    )
    print("\n".join(lines))
    return 0


def _metrics(_arguments: argparse.Namespace) -> int:
    from router_service.telemetry.metrics import metrics_page  # noqa: PLC0415

    print("\n".join(metrics_page()))
    return 0


def _sandbox(arguments: argparse.Namespace) -> int:
    import uvicorn  # noqa: PLC0415

    from router_service.sandbox.app import create_sandbox  # noqa: PLC0415
    from router_service.sandbox.server import KEEP_ALIVE_S  # noqa: PLC0415

    print(f"sandbox upstream at http://{arguments.host}:{arguments.port}/v1", file=sys.stderr)
    uvicorn.run(
        create_sandbox(),
        host=arguments.host,
        port=arguments.port,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return 0


def _key(_arguments: argparse.Namespace) -> int:
    from router_service.core.keys import hashed, new_key  # noqa: PLC0415

    key = new_key()
    print(key)
    print(
        "The line above is for the client, and is not kept. This is for the file:", file=sys.stderr
    )
    print(hashed(key))
    return 0


def _write(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
