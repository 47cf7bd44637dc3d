"""`switchcraft-train COMMAND`: the stages of training as commands.

Each command imports its modules only when it runs, because PyTorch takes seconds to load and most
commands do not need it. The help therefore also works without the optional dependencies.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from router_service.artifact import MANIFEST, read_manifest
from router_service.core.errors import ConfigError, DataError, SwitchcraftError
from switchcraft_training.checking import command as checking
from switchcraft_training.datasets import command as datasets
from switchcraft_training.fetching import command as fetching
from switchcraft_training.labelling import command as labelling
from switchcraft_training.onboarding import command as onboarding
from switchcraft_training.publishing import command as publishing
from switchcraft_training.review import command as review
from switchcraft_training.storage import explaining_failed_writes

if TYPE_CHECKING:
    from switchcraft_training.config import RunConfig
    from switchcraft_training.workers import Workers

_DESCRIPTION = """\
Train a router for a pool of models, and evaluate and publish it.

From recorded answers:   fetch, then switchcraft-train run configs/NAME.yaml --out runs/today
From your own queries:   import, then label, then run
From a gateway's log:    import decisions:PATH, then run, then publish

`switchcraft-train COMMAND --help` describes a command and shows an example.
"""

_RUN_DESCRIPTION = """\
Run the whole pipeline: label the recorded answers, train a router for each fold, measure it on the
queries that it has not seen, and train the router on everything. OUT then has the artifact,
report.html and report.json. An interrupted run continues if you repeat the command.
"""

_RUN_EXAMPLE = """\
example:
  switchcraft-train run configs/mcpmark.yaml --data ../shared/data --out runs/today
"""

_COMPARE_DESCRIPTION = """\
Compare the verdicts of our checker with those of the Berkeley Function Calling Leaderboard (BFCL):
a table of agreement, and the answers on which the two disagree.
"""

_EVALUATE_DESCRIPTION = """\
Measure an artifact on recorded answers, and write a report. A warning says how many of the queries
the artifact has learned from, because its results on these are better than on new ones.
"""

_EVALUATE_EXAMPLE = """\
example:
  switchcraft-train evaluate runs/today/artifact data --config reference-pool --out evaluation
"""

_VERIFIER_DESCRIPTION = """\
Train a verifier, which estimates whether an answer is correct. With it, the policy `verified` can
ask a cheap model first, and another model only if the answer is not trusted.
"""

_VERIFIER_EXAMPLE = """\
example:
  switchcraft-train add-verifier runs/today/artifact --workspace runs/today/work --out NEW
"""

_FAMILIARITY_DESCRIPTION = """\
Let an artifact tell which requests are unlike the queries that it has learned from. Nothing else
of it changes, and no router is trained. `run` does this for new artifacts.
"""

_FAMILIARITY_EXAMPLE = """\
example:
  switchcraft-train add-familiarity runs/today/artifact --workspace runs/today/work --out NEW
"""

_SWEEP_EXAMPLE = """\
example:
  switchcraft-train sweep configs/reference-pool.yaml --seeds 1 2 3 --out runs/sweep
"""

_REPLAY_EXAMPLE = """\
examples:
  switchcraft-train replay /var/log/switchcraft --policy theta=0.8 --policy drift=0.1
  switchcraft-train replay /var/log/switchcraft --artifact runs/today/artifact --out replay
"""

_COMPARE_EXAMPLE = """\
examples:
  switchcraft-train compare data/bfcl-2024-08 --out comparison --peer
  switchcraft-train compare --labelled rows.jsonl runs/labels --out comparison
"""

_REPLAY_DESCRIPTION = """\
Estimate accuracy and cost by inverse propensity weighting and by the doubly robust method, with
95% intervals, and the regret, which is the loss compared with the logged choices.

To replay another policy, the logged probabilities are enough. To replay another artifact, the log
must have been written with decision_log.content.
A verified policy is followed through the logged answers. The table has the share of the traffic for
which the log has all answers that the policy asks for, and the result on this part. A second table
has answers that weak evidence contradicts and added seconds, also for unseen and known tools.
The assumptions are described in training/switchcraft_training/replay/estimators.py.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status, which is 1 after an error message."""
    arguments = create_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    named = (getattr(arguments, name, None) for name in ("out", "workspace", "store"))
    try:
        with explaining_failed_writes(folder for folder in named if isinstance(folder, Path)):
            status: int = arguments.stage(arguments)
    except SwitchcraftError as exc:
        print(f"switchcraft-train: {exc}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith(("switchcraft_training", "router_service")):
            raise
        remedy = (
            "run pip install 'switchcraft-router[cpu,train,review]', in a checkout with '.[...]'"
        )
        print(f"switchcraft-train: {exc.name} is not installed; {remedy}", file=sys.stderr)
        return 1
    return status


def create_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with every command."""
    parser = argparse.ArgumentParser(
        prog="switchcraft-train",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stages = parser.add_subparsers(required=True, metavar="COMMAND")
    run = stages.add_parser(
        "run",
        help="run the whole pipeline, from recorded answers to an artifact and a report",
        description=_RUN_DESCRIPTION,
        epilog=_RUN_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("config", type=Path, help="a YAML file, or the name of a shipped one")
    run.add_argument(
        "--out", type=Path, required=True, help="directory for the artifact and the report"
    )
    _add_data(run)
    run.add_argument(
        "--workspace",
        type=Path,
        help="directory for checkpoints, labels and encoder outputs, which later runs reuse"
        " (default: OUT/work)",
    )
    _add_processes(run)
    _add_dry_run(run)
    run.set_defaults(stage=run_pipeline)

    fetching.register(stages)
    datasets.register(stages, import_decision_log)
    checking.register(stages)
    register_compare(stages)
    review.register(stages)
    labelling.register(stages)
    register_evaluate(stages)
    register_add_verifier(stages)
    register_add_familiarity(stages)
    onboarding.register(stages)
    register_sweep(stages)
    register_replay(stages)
    publishing.register(stages)
    return parser


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Run the whole pipeline, print the directory of its results, and return the status 0.

    A dry run only checks, and returns 1 if there are problems.
    """
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.pipeline import run  # noqa: PLC0415

    if arguments.dry_run:
        return _run_dry(arguments, lambda config: {config.name: config}, lambda _: 1)
    config = load_config(arguments.config)
    directory = run(
        config,
        arguments.data,
        arguments.out,
        workspace=arguments.workspace,
        workers=_workers(arguments),
    )
    print(directory)
    return 0


def import_decision_log(path: Path, arguments: argparse.Namespace) -> int:
    """Import a gateway's decision log, and return the exit status."""
    from switchcraft_training.decisions.command import import_decisions  # noqa: PLC0415

    return import_decisions(path, arguments)


def register_compare(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `compare` command."""
    compare = stages.add_parser(
        "compare",
        help="compare our checker's verdicts on recorded answers with those of BFCL's checker",
        description=_COMPARE_DESCRIPTION,
        epilog=_COMPARE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument(
        "recordings", type=Path, nargs="*", help="directories of BFCL results with verdicts"
    )
    compare.add_argument(
        "--labelled",
        type=Path,
        nargs=2,
        action="append",
        default=[],
        metavar=("ROWS", "ANSWERS"),
        help="a labelling run of any dataset: its file of rows and its directory of answers, which"
        " the installed bfcl-eval judges; may be repeated",
    )
    compare.add_argument(
        "--paraphrases",
        metavar="ENCODER",
        help="an encoder that decides whether texts have the same meaning, as `encoder.source`"
        " (default: our checker accepts no paraphrases)",
    )
    compare.add_argument(
        "--out", type=Path, required=True, help="directory for the table and the disagreements"
    )
    compare.add_argument(
        "--sample",
        type=int,
        default=200,
        help="number of disagreements in sample.jsonl (default: %(default)s)",
    )
    compare.add_argument(
        "--seed", type=int, default=1, help="seed of the sample (default: %(default)s)"
    )
    compare.add_argument(
        "--peer", action="store_true", help="also run the checker of the installed bfcl-eval"
    )
    compare.set_defaults(stage=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """Compare the checkers, print the table, and return the exit status 0."""
    from switchcraft_training.comparison import (  # noqa: PLC0415
        CompareOptions,
        compare_checkers,
    )
    from switchcraft_training.labelling.answers import LabelledRun  # noqa: PLC0415

    if not arguments.recordings and not arguments.labelled:
        problem = "is missing: name directories of BFCL results, or give --labelled ROWS ANSWERS"
        raise ConfigError("compare", "recordings", problem)
    options = CompareOptions(
        recordings=arguments.recordings,
        labelled=[LabelledRun(rows, answers) for rows, answers in arguments.labelled],
        with_peer=arguments.peer,
        paraphrases=arguments.paraphrases,
        sample_size=arguments.sample,
        seed=arguments.seed,
    )
    print(compare_checkers(options, arguments.out))
    return 0


def register_evaluate(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `evaluate` command."""
    evaluate = stages.add_parser(
        "evaluate",
        help="measure an artifact on recorded answers",
        description=_EVALUATE_DESCRIPTION,
        epilog=_EVALUATE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    evaluate.add_argument("artifact", type=Path, help="the artifact's directory")
    evaluate.add_argument(
        "data",
        type=Path,
        nargs="+",
        help="directories of recorded answers, each like the --data of `run`",
    )
    evaluate.add_argument(
        "--config",
        type=Path,
        required=True,
        help="the configuration whose source and pool are used",
    )
    evaluate.add_argument("--out", type=Path, required=True, help="directory for the report")
    evaluate.set_defaults(stage=run_evaluate)


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Measure an artifact, print the path of the report, and return the exit status 0."""
    from router_service.router import Router  # noqa: PLC0415
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.evaluation.report import report_on, write_report  # noqa: PLC0415

    router = Router.load(arguments.artifact)
    report = report_on(router, load_config(arguments.config), arguments.data)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    write_report(report, out)
    print(out / "report.html")
    return 0


def register_add_verifier(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `add-verifier` command."""
    add = stages.add_parser(
        "add-verifier",
        help="train a verifier for an artifact, for the policy `verified`",
        description=_VERIFIER_DESCRIPTION,
        epilog=_VERIFIER_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.add_argument("artifact", type=Path, help="the artifact's directory")
    add.add_argument("--out", type=Path, required=True, help="directory for the new artifact")
    _add_data(add)
    add.add_argument(
        "--workspace",
        type=Path,
        required=True,
        help="directory for labels and encoder outputs, which later runs reuse",
    )
    _add_processes(add)
    add.set_defaults(stage=run_add_verifier)


def run_add_verifier(arguments: argparse.Namespace) -> int:
    """Train a verifier, print and write its measured results, and return the exit status 0."""
    from switchcraft_training.evaluation.report import write_verification  # noqa: PLC0415
    from switchcraft_training.evaluation.verified import verified_figures  # noqa: PLC0415
    from switchcraft_training.verification import add_verifier  # noqa: PLC0415

    arguments.workspace.mkdir(parents=True, exist_ok=True)
    study = add_verifier(
        arguments.artifact,
        arguments.data,
        arguments.out,
        arguments.workspace,
        _workers(arguments),
    )
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
    print(write_verification(verified_figures(study), arguments.out))
    if joined := [*read_manifest(arguments.out / MANIFEST).onboarded]:
        print(
            f"The policy `verified` also asks {', '.join(joined)}, with the accuracy that `onboard`"
            " estimated. The figures above are without it, so the artifact has no measured frontier"
        )
    return 0


def register_add_familiarity(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `add-familiarity` command."""
    add = stages.add_parser(
        "add-familiarity",
        help="let an artifact tell which requests are unlike its training data",
        description=_FAMILIARITY_DESCRIPTION,
        epilog=_FAMILIARITY_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add.add_argument("artifact", type=Path, help="the artifact's directory")
    add.add_argument(
        "--out",
        type=Path,
        required=True,
        help="directory for the new artifact; may be the artifact's own",
    )
    _add_data(add)
    add.add_argument(
        "--workspace", type=Path, required=True, help="directory for labels, reused by later runs"
    )
    add.set_defaults(stage=run_add_familiarity)


def run_add_familiarity(arguments: argparse.Namespace) -> int:
    """Fit the familiarity, print how it was measured, and return the exit status 0."""
    import numpy as np  # noqa: PLC0415

    from switchcraft_training.familiarity import add_familiarity  # noqa: PLC0415

    arguments.workspace.mkdir(parents=True, exist_ok=True)
    spec = add_familiarity(
        arguments.artifact, arguments.data, arguments.out, arguments.workspace
    ).familiarity
    if spec is None:
        return 0
    far = np.interp(spec.limit, spec.shares[::-1], spec.distances[::-1])
    print(
        f"{spec.limit:.0%} of {spec.queries} held-out queries with unseen tools are farther than"
        f" {far:.2f} from the training data, and therefore unfamiliar."
    )
    return 0


def register_sweep(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `sweep` command."""
    sweep = stages.add_parser(
        "sweep",
        help="run the pipeline for every variant and seed of a configuration",
        description="Run the pipeline for every variant and seed of a configuration, and compare"
        " the results.\nAn interrupted sweep continues if you repeat the command.",
        epilog=_SWEEP_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sweep.add_argument("config", type=Path, help="a YAML file, or the name of a shipped one")
    sweep.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[],
        metavar="SEED",
        help="seeds of the runs (default: the configuration's `sweep.seeds`)",
    )
    sweep.add_argument(
        "--encoders",
        nargs="+",
        default=[],
        metavar="SOURCE",
        help="encoders, in the form of `encoder.source`, in place of the configuration's variants",
    )
    sweep.add_argument(
        "--out", type=Path, required=True, help="directory for the runs, sweep.json and sweep.html"
    )
    _add_data(sweep)
    sweep.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="run in parallel on Ray: on the cluster at ADDRESS (`auto` or HOST:PORT), whose"
        " machines must share DATA and OUT; without ADDRESS, on this machine",
    )
    _add_dry_run(sweep)
    sweep.set_defaults(stage=run_sweep)


def run_sweep(arguments: argparse.Namespace) -> int:
    """Run a sweep, print its table, and return 1 if a run failed.

    A dry run only checks, and returns 1 if there are problems.
    """
    from switchcraft_training import sweep  # noqa: PLC0415
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.evaluation.seeds import print_table  # noqa: PLC0415

    if arguments.dry_run:
        return _run_dry(
            arguments,
            lambda config: sweep.sweep_variants(config, arguments.encoders),
            lambda config: len(sweep.sweep_seeds(config, arguments.seeds)),
        )
    config = load_config(arguments.config)
    result = sweep.run_sweep(
        config, arguments.data, arguments.out, arguments.seeds, arguments.encoders, arguments.ray
    )
    print_table(result.summary)
    for folder, problem in result.failures.items():
        print(f"{folder}: {problem}", file=sys.stderr)
    return 1 if result.failures else 0


def register_replay(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `replay` command."""
    replay = stages.add_parser(
        "replay",
        help="estimate the results of another policy or artifact from a decision log",
        description=_REPLAY_DESCRIPTION,
        epilog=_REPLAY_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument("log", type=Path, help="a decision log's directory, or one of its files")
    replay.add_argument(
        "--artifact",
        type=Path,
        help="another artifact's directory (default: use the logged probabilities)",
    )
    replay.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help="policy to replay: theta=P, drift=D or utility=USD; with --artifact also a goal, one"
        " of its policies, verified or verified=PRICE; may be repeated (default: every policy of"
        " the artifact or the log, without exploration)",
    )
    replay.add_argument(
        "--quarantine",
        type=Path,
        metavar="FILE",
        help="append unreadable lines to FILE and continue (default: fail at the first one)",
    )
    replay.add_argument("--out", type=Path, metavar="DIR", help="directory for replay.json")
    replay.set_defaults(stage=run_replay)


def run_replay(arguments: argparse.Namespace) -> int:
    """Replay a log, print the estimates, and return the exit status 0."""
    import orjson  # noqa: PLC0415

    from router_service.router import Router  # noqa: PLC0415
    from switchcraft_training.decisions.log import read_log_with_quarantine  # noqa: PLC0415
    from switchcraft_training.replay.replay import print_replay, replay_log  # noqa: PLC0415

    router = None if arguments.artifact is None else Router.load(arguments.artifact)
    log, quarantined = read_log_with_quarantine(arguments.log, arguments.quarantine)
    if quarantined:
        print(f"{quarantined:,} lines quarantined in {arguments.quarantine}")
    found = replay_log(log, arguments.policy, router)
    if arguments.out is not None:
        path = arguments.out / "replay.json"
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
            path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
        except OSError as exc:
            raise DataError(path, None, f"cannot be written: {exc}") from exc
    print_replay(found)
    return 0


def _add_processes(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--processes",
        type=_positive,
        metavar="N",
        help="how many folds are trained at the same time, each in a process with its own copy of"
        " the data (default: one per core of the CPU, or 1 if a GPU trains)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _workers(arguments: argparse.Namespace) -> Workers:
    from switchcraft_training.workers import Workers  # noqa: PLC0415

    if arguments.processes is None:
        return Workers.available()
    return Workers(arguments.processes)


def _add_dry_run(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--dry-run",
        action="store_true",
        help="check the configuration, the data, the encoders and the disk space, and estimate the"
        " time, without training; the exit status is 1 if there are problems",
    )


def _run_dry(
    arguments: argparse.Namespace,
    variants_of: Callable[[RunConfig], Mapping[str, RunConfig]],
    seeds_of: Callable[[RunConfig], int],
) -> int:
    """Check what a run or a sweep needs, print the result, and return the exit status."""
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.dry_run import DryRun, dry_run  # noqa: PLC0415

    found = DryRun()
    with found.noting():
        config = load_config(arguments.config)
        found = dry_run(variants_of(config), arguments.data, arguments.out, seeds_of(config))
    for fact in found.facts:
        print(f"ok       {fact}")
    for problem in found.problems:
        print(f"PROBLEM  {problem}")
    count = len(found.problems)
    print(f"the run cannot start: {count} problem(s)" if count else "the run can start")
    return 1 if count else 0


def _add_data(stage: argparse.ArgumentParser) -> None:
    stage.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SWITCHCRAFT_DATA", "../shared/data")),
        help="directory of recorded answers (default: $SWITCHCRAFT_DATA, or ../shared/data)",
    )


if __name__ == "__main__":
    sys.exit(main())
