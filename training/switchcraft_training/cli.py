"""`switchcraft-train COMMAND`: the stages of training as commands."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from router_service.core.errors import SwitchcraftError
from switchcraft_training import sweep
from switchcraft_training.checking import command as checking
from switchcraft_training.comparison import command as comparison
from switchcraft_training.datasets import command as datasets
from switchcraft_training.evaluation import command as evaluation
from switchcraft_training.labelling import command as labelling
from switchcraft_training.publishing import command as publishing
from switchcraft_training.replay import command as replay
from switchcraft_training.review import command as review

_DESCRIPTION = """\
Train a router for a pool of models, and evaluate and publish it.

From recorded answers:   switchcraft-train run configs/NAME.yaml --out runs/today
From your own queries:   import, then label, then run
From a gateway's log:    import decisions:PATH, then run, then publish

`switchcraft-train COMMAND --help` describes a command and shows an example.
"""

_RUN_EXAMPLE = """\
example:
  switchcraft-train run configs/mcpmark.yaml --data ../shared/data --out runs/today
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status, which is 1 after an error message."""
    arguments = create_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        status: int = arguments.stage(arguments)
    except SwitchcraftError as exc:
        print(f"switchcraft-train: {exc}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith(("switchcraft_training", "router_service")):
            raise
        extras = "pip install 'switchcraft-router[cpu,train,review]'"
        print(f"switchcraft-train: {exc.name} is not installed; run {extras}", file=sys.stderr)
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
        epilog=_RUN_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("config", type=Path, help="a YAML file, or the name of a shipped one")
    run.add_argument(
        "--out", type=Path, required=True, help="directory for the artifact and the report"
    )
    run.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SWITCHCRAFT_DATA", "../shared/data")),
        help="directory of recorded answers (default: $SWITCHCRAFT_DATA, else %(default)s)",
    )
    run.add_argument(
        "--workspace",
        type=Path,
        help="directory for checkpoints, labels and encoder outputs, which later runs reuse"
        " (default: OUT/work)",
    )
    run.set_defaults(stage=run_pipeline)

    datasets.register(stages, import_decision_log)
    checking.register(stages)
    comparison.register(stages)
    review.register(stages)
    labelling.register(stages)
    evaluation.register(stages)
    sweep.register(stages)
    replay.register(stages)
    publishing.register(stages)
    return parser


def run_pipeline(arguments: argparse.Namespace) -> int:
    """Run the whole pipeline, print the directory of its results, and return the status 0."""
    # Imported here because torch takes seconds to load and most commands do not need it.
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.pipeline import run  # noqa: PLC0415

    config = load_config(arguments.config)
    directory = run(config, arguments.data, arguments.out, workspace=arguments.workspace)
    print(directory)
    return 0


def import_decision_log(path: Path, arguments: argparse.Namespace) -> int:
    """Import a gateway's decision log, and return the exit status."""
    from switchcraft_training.decisions.command import import_decisions  # noqa: PLC0415

    return import_decisions(path, arguments)


if __name__ == "__main__":
    sys.exit(main())
