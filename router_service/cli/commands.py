"""The commands of `switchcraft`. A function is a command, and its docstring is its help.

Each command imports what it needs, so that `--help` does not load the model's runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import mutually_exclusive

from router_service.cli.accounts import Config, Json, keys, open_database, teams
from router_service.cli.learning import learn
from router_service.cli.onboarding import onboard
from router_service.cli.setup import setup
from router_service.command_line import SEVERAL, Count, create_command_line
from router_service.core.addresses import read_port

if TYPE_CHECKING:
    from cyclopts import Token

    from router_service.artifact import Artifact

TaskKind: TypeAlias = Literal["coding", "mcp", "service", "research"]
"""That of `measurement.agent_tasks`, which takes longer to import than the help may take."""

app = create_command_line(
    "switchcraft",
    "Gateway that routes tool-calling requests to the cheapest model that answers correctly.",
)
app.command(keys)
app.command(teams)
app.command(setup)
app.command(learn)
app.command(onboard)


def _read_port(_type: type, tokens: Sequence[Token]) -> int:
    return read_port(tokens[0].value)


Port: TypeAlias = Annotated[int, Parameter(converter=_read_port, metavar="PORT")]

_either = Group(validator=mutually_exclusive)

RouterArtifact: TypeAlias = Annotated[
    Path | None,
    Parameter("--artifact", help="directory of a trained router (default: the shipped one)"),
]
MeasuredArtifact: TypeAlias = Annotated[RouterArtifact, Parameter(group=_either)]
GatewayConfig: TypeAlias = Annotated[
    Path | None,
    Parameter(
        "--config", group=_either, help="a gateway's configuration: its artifact, arms and prices"
    ),
]


@app.command
def serve(
    *,
    config: Path | None = None,
    host: str | None = None,
    port: Port | None = None,
    log_format: Literal["auto", "text", "json"] | None = None,
    workers: Annotated[int | None, Parameter(("--workers", "--num_workers"), show=False)] = None,
) -> None:
    """Run the gateway.

    Options override `SWITCHCRAFT_*` variables, which override the configuration.

    Example: `switchcraft serve --config gateway.yaml --port 8080`

    Args:
        config: YAML configuration (default: `SWITCHCRAFT_CONFIG`; without one, an offline sandbox
            answers in place of real models)
        host: address to listen on (default: from the configuration)
        port: port to listen on (default: from the configuration)
        log_format: format of the log on standard error: text for people, JSON for machines, or
            auto, which is text on a terminal and JSON otherwise (default: from the configuration,
            or auto)
        workers: number of processes, as LiteLLM and earlier versions had it: an error says what to
            do instead
    """
    from router_service.core.errors import ConfigError
    from router_service.serving.serve import serve as serve_gateway
    from router_service.settings.reading import ONE_PROCESS

    if workers is not None:
        raise ConfigError("the command line", "--workers", ONE_PROCESS)
    serve_gateway(config, host, port, log_format)


@app.command
def check(
    config: Path | None = None, *, ask: bool = False, changes: bool = False, json: bool = False
) -> int:
    """Check a configuration without serving.

    Checks the file, variables, the artifact, arms, prices, keys, Redis, the port and the folders.
    The exit status is 1 if the gateway could not serve.

    Example: `switchcraft check gateway.yaml --ask`

    Args:
        config: YAML configuration (default: `SWITCHCRAFT_CONFIG`)
        ask: also send one short request to each deployment, which providers charge for
        changes: also list what behaves differently from the previous version, and which setting
            keeps the old behaviour
        json: print the findings as JSON
    """
    from router_service.check import Status
    from router_service.check import check as check_configuration

    findings = []
    for finding in check_configuration(config, asks=ask, changes=changes):
        findings.append(finding)
        if not json:
            print(f"{finding.status:<6}  {finding.subject}: {finding.detail}", flush=True)
    has_failed = any(finding.status is Status.FAILED for finding in findings)
    if json:
        import orjson

        report = {"ok": not has_failed, "findings": findings}
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    return int(has_failed)


@app.command
def compare(*, config: Config = None, json: Json = False) -> None:
    """Show how often a second model makes the same calls as the delivered answers.

    `router.compare` in the configuration asks the second model for a share of the requests. Shows
    the share of answers with the same calls, with 95% intervals, and the cost and the time of both,
    by key and by tool, in the last 30 days.

    Example: `switchcraft compare --config gateway.yaml`

    Args:
        json: print JSON
    """
    from router_service.telemetry.comparisons import comparison_lines, read_comparisons

    with open_database(config) as (settings, database):
        models = read_comparisons(database)
    if json:
        import orjson

        described = [each.model_dump(mode="json") for each in models]
        print(orjson.dumps(described, option=orjson.OPT_INDENT_2).decode())
        return
    lines = comparison_lines(models)
    if not lines:
        lines = ["No request has been compared in the last 30 days."]
        if settings.router.compare.model is None:
            lines.append("Set router.compare: {model: NAME} in the configuration to compare some.")
    print("\n".join(lines))


@app.command
def route(
    *,
    artifact: MeasuredArtifact = None,
    config: GatewayConfig = None,
    policy: str | None = None,
    verified_goals: bool = False,
) -> None:
    """Decide offline: requests on standard input, decisions on standard output.

    Nothing is sent to a model. Standard input has one body of a Chat Completions request per line;
    standard output gets a decision for each, in the same order. To continue a verified answer, a
    line may be `{"request": BODY, "answers": {ARM: MESSAGE}}`.

    Example: `switchcraft route --policy accuracy=best < requests.jsonl`

    Args:
        policy: the name of a policy (see `switchcraft policies`), a rule or a goal; by default,
            that of the configuration, or of an artifact's requests that are not verified. Rules:
            `theta=0.5`, the cheapest model with at least this probability of a correct answer;
            `drift=0.1`, the cheapest model at most this far below the most probable one;
            `utility=0.002`, the best probability for its cost, if a correct answer is worth
            0.002 USD. Goals: `accuracy=best`, `accuracy=0.87`, `usd_per_1k=0.5`; with `@95` at the
            end, the worse end of the 95% interval must reach the goal
        verified_goals: a goal may choose a verified policy, which asks several models
    """
    from router_service.artifact import SHIPPED
    from router_service.offline import decide_lines
    from router_service.policies.base import Policy
    from router_service.policies.verified import Verified
    from router_service.router import Router
    from router_service.runtime.engine import EngineBuilder, default_rule
    from router_service.settings import read_settings

    if sys.stdin.isatty():
        print(
            "switchcraft: reading requests from the terminal; press Ctrl+D to end, and see"
            " `switchcraft route --help` for the format",
            file=sys.stderr,
        )
    rule: Policy | Verified
    if config is None:
        router = Router.load(artifact or SHIPPED)
        rule = router.artifact.manifest.choose_once.rule
    else:
        settings = read_settings(config)
        router, _ = EngineBuilder().first_router(settings)
        rule = default_rule(settings, router)
    if policy is not None:
        rule = router.policy(policy, param="--policy", verified_goals=verified_goals)
    for line in decide_lines(router, rule, sys.stdin.buffer):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


@app.command
def policies(
    *,
    artifact: MeasuredArtifact = None,
    config: GatewayConfig = None,
    goal: str | None = None,
    verified_goals: Annotated[bool, Parameter(negative="--no-verified-goals")] = True,
    all_: bool = False,
) -> None:
    """Show the measured accuracy and cost of each policy of an artifact.

    They are measured on queries that the router had not seen, with 95% intervals.

    Example: `switchcraft policies --goal accuracy=best`

    Args:
        goal: show the rule that reaches a goal, with its intervals: `accuracy=best` (`best-1`: at
            most one point below the best single model), `accuracy=0.87`, `usd_per_1k=0.5`; with
            `@95` at the end, the worse end of the 95% interval must reach the goal
        verified_goals: the goal may choose a verified policy, which asks several models, as in a
            gateway
        all_: also show rules that are not more accurate than a cheaper rule
    """
    from router_service.offline import explain_goal, list_policies

    measured = _load_measured(artifact, config)
    lines = (
        list_policies(measured, every=all_)
        if goal is None
        else explain_goal(goal, measured, verified_goals=verified_goals)
    )
    print("\n".join(lines))


@app.command
def advise(
    *,
    artifact: MeasuredArtifact = None,
    config: GatewayConfig = None,
    models: Annotated[Sequence[str] | None, SEVERAL] = None,
    max_models: Count = 4,
    max_providers: Count | None = None,
    cost_share: float = 0.2,
    all_: bool = False,
    task: TaskKind | None = None,
    within: float = 2.0,
    json: bool = False,
) -> None:
    """Show which few of your models are enough, with measured accuracy and cost.

    Shows the smallest pools of models that reach an accuracy at a cost, measured on queries that
    the router had not seen: with the router that chooses once, and with verified answers. Takes
    some seconds.

    With `--task`, shows instead what share of an agent's whole tasks each model solves and what a
    task costs, from published benchmarks, and which model to use.

    Example: `switchcraft advise --models grok-4.1-fast claude-haiku-4.5 gpt-5.2`

    Example: `switchcraft advise --task coding --models claude-opus-4-8 minimax-m3 gpt-5.5`

    Args:
        models: models that you can use: names of arms, or ids such as openai/gpt-5.2 (default: all)
        max_models: largest pool
        max_providers: largest number of companies whose models a pool has
        cost_share: largest cost of a recommended pool, relative to the best single model
        all_: also show every pool that is efficient at any cost
        task: the kind of whole tasks. Coding is SWE-bench Verified, mcp is Toolathlon, service is
            tau2-bench telecom, and research is GAIA
        within: with `--task`, choose the cheapest model that solves at most so many points less
            than the best one
        json: print the advice as JSON
    """
    if task is not None:
        _advise_on_tasks(task, artifact, config, models, within, json=json)
        return
    from router_service.measurement.advice import advise as advise_on
    from router_service.measurement.advice import arms_of
    from router_service.offline import explain_advice

    measured = _load_measured(artifact, config)
    advice = advise_on(
        measured,
        None if models is None else arms_of(measured, models),
        max_models=max_models,
        max_providers=max_providers,
        cost_share=cost_share,
    )
    print(
        advice.model_dump_json(indent=2) if json else "\n".join(explain_advice(advice, every=all_))
    )


def _advise_on_tasks(
    task: TaskKind,
    artifact: Path | None,
    config: Path | None,
    models: Sequence[str] | None,
    within: float,
    *,
    json: bool,
) -> None:
    from router_service.measurement.agent_tasks import advise_on_tasks, measured_on
    from router_service.offline import explain_task_advice
    from router_service.requests.agents import named_candidates, pool_candidates
    from router_service.requests.pool import Pool
    from router_service.settings import read_settings

    measured = _load_measured(artifact, config)
    if config is None:
        names = measured_on(task) if models is None else models
        candidates = named_candidates(names, measured)
    else:
        pool = Pool.build(read_settings(config), measured.manifest)
        candidates = pool_candidates(pool, measured)
        if models is not None:
            configured = {candidate.name: candidate for candidate in candidates}
            others = {each.name: each for each in named_candidates(models, measured)}
            candidates = tuple((others | configured)[name] for name in others)
    advice = advise_on_tasks(candidates, task, within)
    print(advice.model_dump_json(indent=2) if json else "\n".join(explain_task_advice(advice)))


def _load_measured(artifact: Path | None, config: Path | None) -> Artifact:
    """Return an artifact with its own figures, or with those for a configuration's models."""
    from router_service.artifact import SHIPPED, Artifact

    if config is None:
        return Artifact.load(artifact or SHIPPED)
    from router_service.runtime.engine import EngineBuilder
    from router_service.settings import read_settings

    router, _ = EngineBuilder().first_router(read_settings(config))
    return router.artifact


@app.command
def usage(
    *,
    config: Path | None = None,
    from_: Annotated[date | None, Parameter("--from")] = None,
    to: date | None = None,
    by: Annotated[
        Sequence[Literal["day", "model", "policy", "key", "team"]] | None, SEVERAL
    ] = None,
    key: str | None = None,
    team: str | None = None,
    csv: bool = False,
) -> None:
    """Show what requests have used and cost, from the gateway's database.

    Days end at 0:00 UTC. A running gateway writes its numbers every second. The column `accuracy`
    has the expected number of correct answers as a share of the baseline model's.

    Example: `switchcraft usage --config gateway.yaml --by team model --csv > usage.csv`

    Args:
        config: the gateway's configuration (default: `SWITCHCRAFT_CONFIG`)
        from_: first day, such as 2026-11-01 (default: the first of the month of the last day)
        to: last day (default: today)
        by: what a row is for (default: day)
        key: only requests with this key
        team: only requests of this team; by key, those of the keys that are in it now
        csv: print all numbers as CSV; names that begin like a formula get an apostrophe in front
    """
    from router_service.database.engine import Database
    from router_service.settings import read_settings
    from router_service.telemetry.usage_reports import (
        UsageGroup,
        UsageQuery,
        read_rows,
        write_csv,
        write_table,
    )

    url = read_settings(config).database.url
    database = Database(None if url is None else url.get_secret_value())
    database.check_exists()
    query = UsageQuery.of(from_, to, [UsageGroup(group) for group in by or ("day",)], key, team)
    rows = read_rows(database, query)
    for line in write_csv(rows, query.by) if csv else write_table(rows, query.by):
        sys.stdout.write(line)
    sys.stdout.flush()


@app.command
def sandbox(*, host: str = "127.0.0.1", port: Port = 8081) -> None:
    """Run an offline provider, for tests.

    It imitates any model in OpenAI's and Anthropic's APIs.

    Example: `switchcraft sandbox --port 8081`

    Args:
        host: address to listen on
        port: port to listen on
    """
    import uvicorn

    from router_service.sandbox.provider import KEEP_ALIVE_S, create_sandbox

    print(f"sandbox upstream at http://{host}:{port}/v1", file=sys.stderr)
    uvicorn.run(
        create_sandbox(),
        host=host,
        port=port,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


@app.command
def key() -> None:
    """Create an API key for a client, and its hash for the configuration.

    The configuration can have the hash in place of the key. `switchcraft keys create` creates keys
    in the database, which can have limits and budgets, and need no restart or reload.

    Example: `switchcraft key`
    """
    from router_service.core.keys import hashed, new_key

    created = new_key()
    print(created)
    print(
        "The line above is the client's key, which is not stored. The next line is its hash, for "
        "the configuration:",
        file=sys.stderr,
    )
    print(hashed(created))
