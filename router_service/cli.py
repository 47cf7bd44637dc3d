"""`switchcraft serve | route | policies | sandbox`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from router_service.core.errors import SwitchcraftError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the process's exit status, 1 after an error that is explained."""
    arguments = _parser().parse_args(argv)
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
    serve.add_argument("--port", type=int, help="port to listen on (default: the configuration's)")
    serve.set_defaults(command=_serve)

    route = commands.add_parser("route", help="decide offline: JSON lines in, decisions out")
    route.add_argument("--artifact", type=Path, help="an artifact directory (default: the shipped)")
    route.add_argument(
        "--policy",
        help="a policy's name, a rule such as theta=0.5 or drift=0.1, or a goal such as"
        " accuracy=best, accuracy=0.87 or usd_per_1k=0.5",
    )
    route.set_defaults(command=_route)

    policies = commands.add_parser("policies", help="what each policy was measured to do")
    policies.add_argument("--artifact", type=Path, help="an artifact directory")
    policies.set_defaults(command=_policies)

    sandbox = commands.add_parser("sandbox", help="an OpenAI-compatible provider, offline")
    sandbox.add_argument("--host", default="127.0.0.1")
    sandbox.add_argument("--port", type=int, default=8081)
    sandbox.set_defaults(command=_sandbox)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    # Imports wait for their command: `--help` must not load the runtime of a model.
    from router_service.api.server import serve  # noqa: PLC0415

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

    manifest = Artifact.load(arguments.artifact or SHIPPED).manifest
    named: dict[str, str] = {}
    for name, rule in manifest.policies.items():
        named[rule] = f"{named.get(rule, '')} {name}"
    print(f"{'policy':<32}{'accuracy':>18}{'USD per 1,000':>22}")
    for point in sorted(manifest.frontier, key=lambda point: point.cost_usd.value):
        name = f"{point.policy}{named.get(point.policy, '')}"
        accuracy, cost = point.accuracy, point.cost_usd
        shares = f"{accuracy.value:.1%} ± {accuracy.stderr:.1%}"
        print(f"{name:<32}{shares:>18}{cost.value * 1e3:>13.3f} ± {cost.stderr * 1e3:.3f}")
    best = manifest.metrics.get("best_single_accuracy")
    if best is not None:
        print(f"{'best single model':<32}{f'{best.value:.1%} ± {best.stderr:.1%}':>18}")
    return 0


def _sandbox(arguments: argparse.Namespace) -> int:
    import uvicorn  # noqa: PLC0415

    from router_service.sandbox.app import create_sandbox  # noqa: PLC0415

    print(f"sandbox upstream at http://{arguments.host}:{arguments.port}/v1", file=sys.stderr)
    uvicorn.run(create_sandbox(), host=arguments.host, port=arguments.port, access_log=False)
    return 0


def _write(lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
