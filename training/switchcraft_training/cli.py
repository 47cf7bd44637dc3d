"""`switchcraft-train COMMAND`: the stages of training as commands.

Each command imports its modules only when it runs, because PyTorch takes seconds to load and most
commands do not need it. The help therefore also works without the optional dependencies.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from router_service.command_line import create_command_line, read_command
from router_service.core.errors import ConfigError, SwitchcraftError
from switchcraft_training.checking.command import score
from switchcraft_training.errors import DataError
from switchcraft_training.fetching.command import fetch
from switchcraft_training.labelling.command import label
from switchcraft_training.onboarding.command import onboard, pool
from switchcraft_training.options import (
    ARTIFACTS,
    DATA,
    DATASETS,
    GATEWAYS,
    TRAINING,
    Data,
    DryRun,
    ImportOptions,
    Processes,
)
from switchcraft_training.publishing.command import publish
from switchcraft_training.storage import explaining_failed_writes

if TYPE_CHECKING:
    from switchcraft_training.workers import Workers

INSTALL = "pip install 'switchcraft-router[cpu,train]'"
"""Command that installs what the commands import."""

_MISSING = (
    ""
    if find_spec("torch")
    else f"""
The extra `train` is not installed, which most commands need: `{INSTALL}`
"""
)

DECISIONS = "decisions"
"""Name of the source of `import` that reads a gateway's decision log."""

app = create_command_line(
    "switchcraft-train",
    f"""Train a router for a pool of models, and evaluate and publish it.

- From recorded answers: `fetch`, then `run configs/NAME.yaml --data data --out runs/today`
- From your own queries: `import`, then `label`, then `run`
- From a gateway's log: `import decisions:PATH`, then `run`, then `publish`

`switchcraft-train COMMAND --help` describes a command and shows an example.
{_MISSING}""",
)
app.command(fetch, group=DATA)
app.command(label, group=DATA)
app.command(score, group=DATA)
app.command(onboard, group=ARTIFACTS)
app.command(pool)
app.command(publish, group=GATEWAYS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status, which is 1 after an error message."""
    command, bound = read_command(app, sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    named = (bound.arguments.get(name) for name in ("out", "workspace", "store"))
    try:
        with explaining_failed_writes(folder for folder in named if isinstance(folder, Path)):
            return command(*bound.args, **bound.kwargs) or 0
    except SwitchcraftError as exc:
        print(f"switchcraft-train: {exc}", file=sys.stderr)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith(("switchcraft_training", "router_service")):
            raise
        remedy = f"run {INSTALL}, in a checkout with '.[...]'"
        print(f"switchcraft-train: {exc.name} is not installed; {remedy}", file=sys.stderr)
    return 1


@app.command(group=TRAINING)
def run(
    config: Path,
    /,
    *,
    data: Data,
    out: Path,
    workspace: Path | None = None,
    processes: Processes = None,
    dry_run: DryRun = False,
) -> int:
    """Run the whole pipeline, from recorded answers to an artifact and a report.

    Labels the recorded answers, trains a router for each fold, measures it on the queries that it
    has not seen, and trains the router on everything. OUT then has the artifact, report.html and
    report.json. An interrupted run continues if you repeat the command.

    Example: `switchcraft-train run configs/mcpmark.yaml --data data --out runs/today`

    Args:
        config: a YAML file, or the name of a shipped one
        out: directory for the artifact and the report
        workspace: directory for checkpoints, labels and encoder outputs, which later runs reuse
            (default: OUT/work)
    """
    from switchcraft_training import pipeline
    from switchcraft_training.config import load_config

    if dry_run:
        return _run_dry(config, data)
    workers = _workers(processes)
    print(pipeline.run(load_config(config), data, out, workspace=workspace, workers=workers))
    return 0


def _workers(processes: int | None) -> Workers:
    from switchcraft_training.workers import Workers

    return Workers.available() if processes is None else Workers(processes)


def _run_dry(path: Path, data: Path) -> int:
    """Check what a run needs, print the result, and return the exit status."""
    from switchcraft_training.config import load_config
    from switchcraft_training.dry_run import DryRun, dry_run

    found = DryRun()
    with found.noting():
        config = load_config(path)
        found = dry_run(config, data)
    for fact in found.facts:
        print(f"ok       {fact}")
    for problem in found.problems:
        print(f"PROBLEM  {problem}")
    count = len(found.problems)
    print(f"the run cannot start: {count} problem(s)" if count else "the run can start")
    return 1 if count else 0


def _check_source(_type: type, source: str) -> None:
    name = source.partition(":")[0]
    if name not in (*DATASETS, DECISIONS):
        raise ValueError(f"Choose from {', '.join((*DATASETS, DECISIONS))}.")


@app.command(group=DATA)
def import_(
    source: Annotated[
        str,
        Parameter(
            "SOURCE[:PATH]",
            validator=_check_source,
            help=f"the format: {', '.join((*DATASETS, DECISIONS))}",
        ),
    ],
    path: Path | None = None,
    /,
    *,
    options: Annotated[ImportOptions | None, Parameter("*")] = None,
    weak_evidence: bool = False,
) -> None:
    r"""Convert a published dataset, or a gateway's decision log, to rows for training.

    Counts the rows. A row has a request with its tools and the expected calls.

    For example:

        switchcraft-train import xlam:downloads/xlam --out rows.jsonl \
          --quarantine bad.jsonl
        switchcraft-train import decisions:/var/log/switchcraft --out queries.jsonl

    Args:
        path: the directory or file, if SOURCE does not include it
        weak_evidence: for a decision log: a call without a verdict counts as correct with
            probability 0.25 if the next turn suggests that it was wrong (default: ignore such
            calls)
    """
    name, _, included = source.partition(":")
    if bool(included) == (path is not None):
        problem = f"give one path, either as {name}:PATH or as {name} PATH"
        raise ConfigError("import", "path", problem)
    path = path or Path(included)
    options = options or ImportOptions()
    with explaining_failed_writes([options.out] if options.out else []):
        if name == DECISIONS:
            from switchcraft_training.decisions.importing import import_decisions

            import_decisions(path, options, weak_evidence=weak_evidence)
        else:
            if weak_evidence:
                raise ConfigError("import", "--weak-evidence", "is only for decisions:PATH")
            from switchcraft_training.datasets.importing import import_dataset

            import_dataset(name, path, options)


@app.command(group=ARTIFACTS)
def evaluate(artifact: Path, data: Sequence[Path], /, *, config: Path, out: Path) -> None:
    r"""Measure an artifact on recorded answers.

    Writes a report. A warning says how many of the queries the artifact has learned from, because
    its results on these are better than on new ones.

    For example:

        switchcraft-train evaluate runs/today/artifact data \
          --config configs/reference-pool.yaml --out evaluation

    Args:
        artifact: the artifact's directory
        data: directories of recorded answers, each like the `--data` of `run`
        config: the configuration whose source and pool are used
        out: directory for the report
    """
    from router_service.router import Router
    from switchcraft_training.config import load_config
    from switchcraft_training.evaluation.report import report_on, write_report

    report = report_on(Router.load(artifact), load_config(config), data)
    out.mkdir(parents=True, exist_ok=True)
    write_report(report, out)
    print(out / "report.html")


@app.command(group=ARTIFACTS)
def add_verifier(
    artifact: Path, /, *, data: Data, out: Path, workspace: Path, processes: Processes = None
) -> None:
    r"""Train a verifier for an artifact, for the policy `verified`.

    A verifier estimates whether an answer is correct. With it, the policy `verified` can ask a
    cheap model first, and another model only if the answer is not trusted.

    For example:

        switchcraft-train add-verifier runs/today/artifact --data data \
          --workspace runs/today/work --out NEW

    Args:
        artifact: the artifact's directory
        out: directory for the new artifact
        workspace: directory for labels and encoder outputs, which later runs reuse
    """
    from router_service.artifact import MANIFEST, read_manifest
    from switchcraft_training import verification
    from switchcraft_training.evaluation.report import write_verification
    from switchcraft_training.evaluation.verified import verified_figures

    workspace.mkdir(parents=True, exist_ok=True)
    study = verification.add_verifier(artifact, data, out, workspace, _workers(processes))
    print("policy  accuracy, %  points vs. best [95%]  cost, % of best  candidates")
    for price_usd, entry in study.entries().items():
        low, high = entry.difference_interval
        asked = study.by_price[price_usd].counts
        print(
            f"{entry.name}{'*' if price_usd == study.price_usd else ''}"
            f"  {entry.accuracy.value:.1%}"
            f"  {entry.difference * 100:+.1f} [{low * 100:+.1f}, {high * 100:+.1f}]"
            f"  {entry.cost_share:.1%}  {asked.mean():.2f}"
        )
    print(write_verification(verified_figures(study), out))
    if joined := [*read_manifest(out / MANIFEST).onboarded]:
        print(
            f"The policy `verified` also asks {', '.join(joined)}, with the accuracy that `onboard`"
            " estimated. The figures above are without it, so the artifact has no measured frontier"
        )


@app.command(group=ARTIFACTS)
def add_unfamiliar(
    artifact: Path, /, *, data: Data, out: Path, workspace: Path, processes: Processes = None
) -> None:
    r"""Train the verifier of unfamiliar requests for an artifact that has a verifier.

    Requests of agents are unlike the training data: they have long system prompts, many tools and
    earlier turns. This verifier learns from queries in such context, and reads nothing of the
    router. Nothing else of the artifact changes. `run` does this for new artifacts.

    For example:

        switchcraft-train add-unfamiliar runs/today/artifact --data data \
          --workspace runs/today/work --out NEW

    Args:
        artifact: the artifact's directory
        out: directory for the new artifact
        workspace: directory for labels and encoder outputs, which later runs reuse
    """
    from switchcraft_training import unfamiliar

    workspace.mkdir(parents=True, exist_ok=True)
    study = unfamiliar.add_unfamiliar(artifact, data, out, workspace, _workers(processes))
    print("context  AUC  of two  right of two  calibration error  points vs. best  cost, % of best")
    for each in study.figures:
        print(
            f"{each.context}  {each.auc:.3f}  {each.auc_of_two:.3f}  {each.right_of_two:.3f}"
            f"  {each.calibration_error:.3f}  {each.difference * 100:+.1f}  {each.cost_share:.1%}"
        )


@app.command(group=GATEWAYS)
def replay(
    log: Path,
    /,
    *,
    artifact: Path | None = None,
    policy: Annotated[Sequence[str], Parameter(metavar="P")] = (),
    quarantine: Path | None = None,
    out: Path | None = None,
) -> None:
    r"""Estimate the results of another policy or artifact from a decision log.

    Estimates accuracy and cost by inverse propensity weighting and by the doubly robust method,
    with 95% intervals, and the regret, which is the loss compared with the logged choices.

    To replay another policy, the logged probabilities are enough. To replay another artifact, the
    log must have been written with `decision_log.content`. A second table has answers that weak
    evidence contradicts, also for unseen and known tools. Verified answers are compared by
    `switchcraft learn`. The assumptions are
    described in training/switchcraft_training/replay/estimators.py.

    For example:

        switchcraft-train replay /var/log/switchcraft --policy theta=0.8 --policy drift=0.1
        switchcraft-train replay /var/log/switchcraft --out replay \
          --artifact runs/today/artifact

    Args:
        log: a decision log's directory, or one of its files
        artifact: another artifact's directory (default: use the logged probabilities)
        policy: policy to replay: `theta=P`, `drift=D` or `utility=USD`; with `--artifact` also a
            goal or one of its policies that choose once; may be repeated (default: every such
            policy of the artifact, or every policy of the log, without exploration)
        quarantine: append unreadable lines to this file and continue (default: fail at the first
            one)
        out: directory for replay.json
    """
    import orjson

    from router_service.router import Router
    from switchcraft_training.decisions.log import read_log_with_quarantine
    from switchcraft_training.replay.replay import print_replay, replay_log

    router = None if artifact is None else Router.load(artifact)
    read, quarantined = read_log_with_quarantine(log, quarantine)
    if quarantined:
        print(f"{quarantined:,} lines quarantined in {quarantine}")
    found = replay_log(read, policy, router)
    if out is not None:
        path = out / "replay.json"
        try:
            out.mkdir(parents=True, exist_ok=True)
            path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
        except OSError as exc:
            raise DataError(path, None, f"cannot be written: {exc}") from exc
    print_replay(found)


if __name__ == "__main__":
    sys.exit(main())
