"""`switchcraft-train replay`: estimate the results of other policies from a decision log."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from router_service.core.errors import DataError

if TYPE_CHECKING:
    from switchcraft_training.replay.stage import Replay

REPORT = "replay.json"


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `replay` stage."""
    replay = stages.add_parser(
        "replay",
        help="estimate what another policy or artifact would have come to on a decision log",
        description="Estimates accuracy and cost by inverse propensities and doubly robust, with"
        " 95% intervals, and the regret against what was chosen. Another policy needs the logged"
        " probabilities alone; another artifact needs decision_log.content. What the estimators"
        " assume: training/switchcraft_training/replay/estimators.py.",
    )
    replay.add_argument("log", type=Path, help="a decision log's folder, or one file of it")
    replay.add_argument(
        "--artifact", type=Path, help="another artifact (default: the probabilities as logged)"
    )
    replay.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="P",
        help="theta=P, drift=D, and with --artifact a name or a goal; may be repeated (default:"
        " all that the artifact names, or those of the log, without exploration)",
    )
    replay.add_argument(
        "--quarantine",
        type=Path,
        metavar="FILE",
        help="append lines that do not parse to FILE and go on (default: stop at the first)",
    )
    replay.add_argument("--out", type=Path, metavar="DIR", help=f"where {REPORT} goes")
    replay.set_defaults(stage=_replay)


def _replay(arguments: argparse.Namespace) -> int:
    # Imported here, so that the command line loads only what the chosen stage needs.
    from router_service.router import Router  # noqa: PLC0415
    from switchcraft_training.decisions.log import read_log_aside  # noqa: PLC0415
    from switchcraft_training.replay.stage import replay_log  # noqa: PLC0415
    from switchcraft_training.replay.table import print_replay  # noqa: PLC0415

    router = None if arguments.artifact is None else Router.load(arguments.artifact)
    log, quarantined = read_log_aside(arguments.log, arguments.quarantine)
    if quarantined:
        print(f"{quarantined:,} lines quarantined in {arguments.quarantine}")
    found = replay_log(log, arguments.policy, router)
    if arguments.out is not None:
        _save(found, arguments.out)
    print_replay(found)
    return 0


def _save(found: Replay, folder: Path) -> None:
    import orjson  # noqa: PLC0415

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORT).write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as exc:
        raise DataError(folder / REPORT, None, f"cannot be written: {exc}") from exc
