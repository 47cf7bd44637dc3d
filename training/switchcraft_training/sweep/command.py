"""`switchcraft-train sweep`: the same run for every seed and encoder."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `sweep` stage."""
    sweep = stages.add_parser(
        "sweep", help="one run for every seed and encoder; stopped, it goes on when run again"
    )
    sweep.add_argument("config", type=Path, help="a YAML file, or one shipped as configs/NAME.yaml")
    sweep.add_argument("--seeds", type=int, nargs="+", required=True, metavar="SEED")
    sweep.add_argument(
        "--encoders",
        nargs="+",
        metavar="SOURCE",
        help="each as `encoder.source` in a configuration (default: the configuration's)",
    )
    sweep.add_argument("--out", type=Path, required=True, help="where the runs and sweep.json go")
    sweep.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SWITCHCRAFT_DATA", "../shared/data")),
        help="the folder of recorded answers (default: $SWITCHCRAFT_DATA, else %(default)s)",
    )
    sweep.add_argument(
        "--ray",
        nargs="?",
        const="local",
        metavar="ADDRESS",
        help="runs side by side on Ray: of a cluster (`auto`, HOST:PORT) whose machines share DATA"
        " and OUT, else on this machine",
    )
    sweep.set_defaults(stage=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    # Imported here: torch takes seconds to load, and judging answers does not need it.
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.sweep.stage import run_sweep  # noqa: PLC0415
    from switchcraft_training.sweep.table import print_table  # noqa: PLC0415

    config = load_config(arguments.config)
    encoders = arguments.encoders or [config.encoder.source]
    ending = run_sweep(
        config, arguments.data, arguments.out, arguments.seeds, encoders, arguments.ray
    )
    print_table(ending.summary)
    for folder, problem in ending.failures.items():
        print(f"{folder}: {problem}", file=sys.stderr)
    return 1 if ending.failures else 0
