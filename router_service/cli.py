"""Gateway that routes tool-calling requests to the cheapest model that answers correctly."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from router_service import __version__, signals
from router_service.core.addresses import read_port
from router_service.core.errors import SwitchcraftError

if TYPE_CHECKING:
    from router_service.artifact import Artifact

# Each command imports what it needs, so that `--help` does not load the model's runtime.


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 on success, 1 after an expected error."""
    given = sys.argv[1:] if argv is None else argv
    if "serve" in given[:1]:
        signals.hold()  # first of all, because a signal must not kill a gateway that is starting
        # numpy starts a thread for each core when it is imported. A gateway multiplies matrices
        # only when it starts, and the threads' memory is never returned (4 MB on two cores).
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = _create_parser().parse_args(given)
    status = 0
    try:
        status = arguments.command(arguments)
    except SwitchcraftError as exc:
        print(f"switchcraft: {exc}", file=sys.stderr)
        status = 1
    except BrokenPipeError:
        # The program that reads our output has ended. Without a new destination, Python would fail
        # when it flushes the remaining output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except BaseException:
        if not signals.is_stopping():
            raise
    return 0 if signals.is_stopping() else status


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="switchcraft", description=__doc__)
    parser.add_argument("--version", action="version", version=f"switchcraft {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    serve = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway. Options override SWITCHCRAFT_* variables, which override the"
        " configuration.",
        epilog="example: switchcraft serve --config gateway.yaml --port 8080",
    )
    serve.add_argument(
        "--config",
        type=Path,
        help="YAML configuration (default: SWITCHCRAFT_CONFIG; without one, an offline sandbox"
        " answers in place of real models)",
    )
    serve.add_argument("--host", help="address to listen on (default: from the configuration)")
    serve.add_argument(
        "--port", type=_port, help="port to listen on (default: from the configuration)"
    )
    serve.add_argument(
        "--log-format",
        choices=["auto", "text", "json"],
        help="format of the log on standard error: text for people, JSON for machines, or auto, "
        "which is text on a terminal and JSON otherwise (default: from the configuration, or auto)",
    )
    serve.set_defaults(command=serve_command)

    check = commands.add_parser(
        "check",
        help="check a configuration without serving",
        description="Check a configuration without serving: the file, variables, the artifact,"
        " arms, prices, keys, Redis, the port and the folders. The exit status is 1 if the gateway"
        " could not serve.",
        epilog="example: switchcraft check gateway.yaml --ask",
    )
    check.add_argument(
        "config",
        type=Path,
        nargs="?",
        help="YAML configuration (default: SWITCHCRAFT_CONFIG)",
    )
    check.add_argument(
        "--ask",
        action="store_true",
        help="also send one short request to each deployment, which providers charge for",
    )
    check.add_argument("--json", action="store_true", help="print the findings as JSON")
    check.set_defaults(command=check_command)

    route = commands.add_parser(
        "route",
        help="decide offline: requests on standard input, decisions on standard output",
        description="Decide which model should answer, without sending anything. Standard input has"
        " one body of a Chat Completions request per line; standard output gets a decision for"
        " each, in the same order. To continue a verified answer, a line may be"
        ' {"request": BODY, "answers": {ARM: MESSAGE}}.',
        epilog="example: switchcraft route --policy accuracy=best < requests.jsonl",
    )
    route.add_argument(
        "--artifact", type=Path, help="directory of a trained router (default: the shipped one)"
    )
    route.add_argument(
        "--policy",
        help="the name of a policy (see `switchcraft policies`), a rule or a goal; by default, the"
        " policy of requests whose answers are not verified. Rules:"
        " theta=0.5, the cheapest model with at least this probability of a correct answer;"
        " drift=0.1, the cheapest model at most this far below the most probable one;"
        " utility=0.002, the best"
        " probability for its cost, if a correct answer is worth 0.002 USD. Goals: accuracy=best,"
        " accuracy=0.87, usd_per_1k=0.5; with @95 at the end, the worse end of the 95%% interval"
        " must reach the goal",
    )
    route.add_argument(
        "--verified-goals",
        action="store_true",
        help="a goal may choose a verified policy, which asks several models",
    )
    route.set_defaults(command=route_command)

    policies = commands.add_parser(
        "policies",
        help="show the measured accuracy and cost of each policy of an artifact",
        description="Show the accuracy and cost of each policy of an artifact, measured on queries"
        " that the router had not seen, with 95% intervals.",
        epilog="example: switchcraft policies --goal accuracy=best",
    )
    of = policies.add_mutually_exclusive_group()
    of.add_argument(
        "--artifact", type=Path, help="directory of a trained router (default: the shipped one)"
    )
    of.add_argument(
        "--config", type=Path, help="a gateway's configuration: its artifact, arms and prices"
    )
    policies.add_argument(
        "--goal",
        help="show the rule that reaches a goal, with its intervals: accuracy=best (best-1: at most"
        " one point below the best single model), accuracy=0.87, usd_per_1k=0.5; with @95 at the"
        " end, the worse end of the 95%% interval must reach the goal",
    )
    policies.add_argument(
        "--verified-goals",
        action="store_true",
        help="the goal may choose a verified policy, which asks several models",
    )
    policies.add_argument(
        "--all",
        action="store_true",
        help="also show rules that are not more accurate than a cheaper rule",
    )
    policies.set_defaults(command=policies_command)

    _add_advise(commands)

    metrics = commands.add_parser(
        "metrics",
        help="list all Prometheus series as a Markdown table",
        description="List all Prometheus series of the gateway as a Markdown table.",
        epilog="example: switchcraft metrics > METRICS.md",
    )
    metrics.set_defaults(command=metrics_command)

    sandbox = commands.add_parser(
        "sandbox",
        help="run an offline provider, for tests",
        description="Run an offline provider that imitates any model in OpenAI's and Anthropic's"
        " APIs, for tests.",
        epilog="example: switchcraft sandbox --port 8081",
    )
    sandbox.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    sandbox.add_argument(
        "--port", type=_port, default=8081, help="port to listen on (default: %(default)s)"
    )
    sandbox.set_defaults(command=sandbox_command)

    key = commands.add_parser(
        "key",
        help="create an API key for a client, and its hash for the configuration",
        description="Create an API key for a client, and its hash, which the configuration can have"
        " in place of the key.",
        epilog="example: switchcraft key",
    )
    key.set_defaults(command=key_command)
    return parser


def _port(text: str) -> int:
    try:
        return read_port(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def serve_command(arguments: argparse.Namespace) -> int:
    """Run the gateway."""
    from router_service.serving.serve import serve  # noqa: PLC0415
    from router_service.serving.server import ServeOptions  # noqa: PLC0415

    serve(ServeOptions(arguments.config, arguments.host, arguments.port, arguments.log_format))
    return 0


def check_command(arguments: argparse.Namespace) -> int:
    """Print what was found; return 1 if the gateway could not serve."""
    from router_service.check import Status, check  # noqa: PLC0415

    findings = []
    for finding in check(arguments.config, asks=arguments.ask):
        findings.append(finding)
        if not arguments.json:
            print(f"{finding.status:<6}  {finding.subject}: {finding.detail}", flush=True)
    has_failed = any(finding.status is Status.FAILED for finding in findings)
    if arguments.json:
        import orjson  # noqa: PLC0415

        report = {"ok": not has_failed, "findings": findings}
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    return int(has_failed)


def route_command(arguments: argparse.Namespace) -> int:
    """Print a decision for each request body on standard input."""
    from router_service.artifact import SHIPPED  # noqa: PLC0415
    from router_service.offline import decide_lines  # noqa: PLC0415
    from router_service.policies.base import Policy  # noqa: PLC0415
    from router_service.policies.verified import Verified  # noqa: PLC0415
    from router_service.router import Router  # noqa: PLC0415

    if sys.stdin.isatty():
        print(
            "switchcraft: reading requests from the terminal; press Ctrl+D to end, and see"
            " `switchcraft route --help` for the format",
            file=sys.stderr,
        )
    router = Router.load(arguments.artifact or SHIPPED)
    policy: Policy | Verified = router.artifact.manifest.choose_once.rule
    if arguments.policy is not None:
        policy = router.policy(
            arguments.policy, param="--policy", verified_goals=arguments.verified_goals
        )
    for line in decide_lines(router, policy, sys.stdin.buffer):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    return 0


def _add_advise(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `advise`."""
    advise = commands.add_parser(
        "advise",
        help="show which few of your models are enough, with measured accuracy and cost",
        description="Show the smallest pools of models that reach an accuracy at a cost, measured"
        " on queries that the router had not seen: with the router that chooses once, and with"
        " verified answers. Takes some seconds.",
        epilog="example: switchcraft advise --models grok-4.1-fast claude-haiku-4.5 gpt-5.2",
    )
    of = advise.add_mutually_exclusive_group()
    of.add_argument(
        "--artifact", type=Path, help="directory of a trained router (default: the shipped one)"
    )
    of.add_argument(
        "--config", type=Path, help="a gateway's configuration: its artifact, arms and prices"
    )
    advise.add_argument(
        "--models",
        nargs="+",
        metavar="MODEL",
        help="models that you can use: names of arms, or ids such as openai/gpt-5.2 (default: all)",
    )
    advise.add_argument(
        "--max-models", type=_count, default=4, metavar="N", help="largest pool (default: 4)"
    )
    advise.add_argument(
        "--max-providers",
        type=_count,
        metavar="N",
        help="largest number of companies whose models a pool has",
    )
    advise.add_argument(
        "--cost-share",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="largest cost of a recommended pool, relative to the best single model (default: 0.2)",
    )
    advise.add_argument(
        "--all", action="store_true", help="also show every pool that is efficient at any cost"
    )
    advise.add_argument("--json", action="store_true", help="print the advice as JSON")
    advise.set_defaults(command=advise_command)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def advise_command(arguments: argparse.Namespace) -> int:
    """Show which pools of models to use."""
    from router_service.measurement.advice import advise, arms_of  # noqa: PLC0415
    from router_service.offline import explain_advice  # noqa: PLC0415

    artifact = _artifact_of(arguments)
    arms = None if arguments.models is None else arms_of(artifact, arguments.models)
    advice = advise(
        artifact,
        arms,
        max_models=arguments.max_models,
        max_providers=arguments.max_providers,
        cost_share=arguments.cost_share,
    )
    if arguments.json:
        print(advice.model_dump_json(indent=2))
    else:
        print("\n".join(explain_advice(advice, every=arguments.all)))
    return 0


def _artifact_of(arguments: argparse.Namespace) -> Artifact:
    """Return the artifact of `--artifact` or `--config`, with the configuration's figures."""
    from router_service.artifact import SHIPPED, Artifact  # noqa: PLC0415

    if arguments.config is None:
        return Artifact.load(arguments.artifact or SHIPPED)
    from router_service.runtime.engine import EngineBuilder  # noqa: PLC0415
    from router_service.runtime.reloading import load_first_router  # noqa: PLC0415
    from router_service.settings import read_settings  # noqa: PLC0415

    settings = read_settings(arguments.config)
    router, _ = load_first_router(settings, EngineBuilder(announces=False))
    return router.artifact


def policies_command(arguments: argparse.Namespace) -> int:
    """Show the measured results of policies, or of the rule that reaches a goal."""
    from router_service.offline import explain_goal, list_policies  # noqa: PLC0415

    artifact = _artifact_of(arguments)
    lines = (
        list_policies(artifact, every=arguments.all)
        if arguments.goal is None
        else explain_goal(arguments.goal, artifact, verified_goals=arguments.verified_goals)
    )
    print("\n".join(lines))
    return 0


def metrics_command(_arguments: argparse.Namespace) -> int:
    """Show all Prometheus series."""
    from router_service.telemetry.metrics import metrics_page  # noqa: PLC0415

    print("\n".join(metrics_page()))
    return 0


def sandbox_command(arguments: argparse.Namespace) -> int:
    """Run the sandbox."""
    import uvicorn  # noqa: PLC0415

    from router_service.sandbox.app import KEEP_ALIVE_S, create_sandbox  # noqa: PLC0415

    print(f"sandbox upstream at http://{arguments.host}:{arguments.port}/v1", file=sys.stderr)
    uvicorn.run(
        create_sandbox(),
        host=arguments.host,
        port=arguments.port,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return 0


def key_command(_arguments: argparse.Namespace) -> int:
    """Show a new API key and its hash."""
    from router_service.core.keys import hashed, new_key  # noqa: PLC0415

    key = new_key()
    print(key)
    print(
        "The line above is the client's key, which is not stored. The next line is its hash, for "
        "the configuration:",
        file=sys.stderr,
    )
    print(hashed(key))
    return 0


if __name__ == "__main__":
    sys.exit(main())
