"""`switchcraft-train evaluate`: measure an artifact on recorded answers."""

from __future__ import annotations

import argparse
from pathlib import Path


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `evaluate` stage."""
    evaluate = stages.add_parser("evaluate", help="measure an artifact on recorded answers")
    evaluate.add_argument("artifact", type=Path, help="the artifact's directory")
    evaluate.add_argument(
        "data", type=Path, nargs="+", help="folders of recorded answers, as `run` has in --data"
    )
    evaluate.add_argument(
        "--config", type=Path, required=True, help="the run that names source and pool"
    )
    evaluate.add_argument("--out", type=Path, required=True, help="where the report goes")
    evaluate.set_defaults(stage=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> int:
    # Imported here because PyTorch takes seconds to load and judging answers does not need it.
    from router_service.router import Router  # noqa: PLC0415
    from switchcraft_training.config import load_config  # noqa: PLC0415
    from switchcraft_training.evaluation.report import write_report  # noqa: PLC0415
    from switchcraft_training.evaluation.stage import report_on  # noqa: PLC0415

    router = Router.load(arguments.artifact)
    report = report_on(router, load_config(arguments.config), arguments.data)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    write_report(report, out)
    print(out / "report.html")
    return 0
