"""`switchcraft-train <stage>`: the stages of training on the command line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from router_service.core.errors import SwitchcraftError
from switchcraft_training.checking import command as checking
from switchcraft_training.comparison import command as comparison
from switchcraft_training.datasets import command as datasets
from switchcraft_training.evaluation import command as evaluation
from switchcraft_training.labelling import command as labelling
from switchcraft_training.publishing import command as publishing
from switchcraft_training.replay import command as replay
from switchcraft_training.review import command as review
from switchcraft_training.sweep import command as sweep


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage; return the process's exit status, 1 after an error that is explained."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        status: int = arguments.stage(arguments)
    except SwitchcraftError as exc:
        print(f"switchcraft-train: {exc}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith(("training", "router_service")):
            raise
        extras = "pip install 'switchcraft-router[cpu,train,review]'"
        print(f"switchcraft-train: {exc.name} is not installed; run {extras}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="switchcraft-train", description=__doc__)
    stages = parser.add_subparsers(required=True, metavar="stage")

    run = stages.add_parser("run", help="the whole pipeline, from recorded answers to an artifact")
    run.add_argument("config", type=Path, help="a YAML file, or one shipped as configs/NAME.yaml")
    run.add_argument("--out", type=Path, required=True, help="where artifact and report go")
    run.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SWITCHCRAFT_DATA", "../shared/data")),
        help="the folder of recorded answers (default: $SWITCHCRAFT_DATA, else %(default)s)",
    )
    run.add_argument(
        "--workspace",
        type=Path,
        help="checkpoints, labels and frozen states, which later runs reuse (default: OUT/work)",
    )
    run.set_defaults(stage=_run)

    datasets.register(stages)
    checking.register(stages)
    comparison.register(stages)
    review.register(stages)
    labelling.register(stages)
    evaluation.register(stages)
    sweep.register(stages)
    replay.register(stages)
    publishing.register(stages)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    # Imported here: torch takes seconds to load, and judging answers does not need it.
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.pipeline import run  # noqa: PLC0415

    config = load_config(arguments.config)
    directory = run(config, arguments.data, arguments.out, workspace=arguments.workspace)
    print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
