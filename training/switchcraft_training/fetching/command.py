"""`switchcraft-train fetch`: download public recordings of models' answers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from router_service.core.errors import ConfigError
from switchcraft_training.fetching.git import AGAIN
from switchcraft_training.fetching.sources import RECORDINGS, PublicRecording
from switchcraft_training.storage import explaining_failed_writes

MIRRORS: Final = "SWITCHCRAFT_MIRRORS"
_INTERRUPTED: Final = 130

_DESCRIPTION = """\
Download public recordings of models' answers, and arrange them as the folder that `run --data`
reads. An interrupted download continues if you repeat the command. If a recording is already there,
its checksums are verified. Needs git, and pip for v4.
"""

_EXAMPLES = """\
examples:
  switchcraft-train fetch bfcl-2024-08 bfcl-v3-8b --data data
  switchcraft-train fetch bfcl-2025-12 --models '*' --data data
  switchcraft-train fetch bfcl-v3-8b --mirror gorilla-8b=https://git.example.com/gorilla.git
"""


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `fetch` command."""
    fetch = stages.add_parser(
        "fetch",
        help="download public recordings of models' answers",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    listed = ", ".join(f"{each.name} ({each.download_mb} MB)" for each in RECORDINGS.values())
    fetch.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        type=_find_recording,
        help=f"the recordings, or the names of their folders: {listed}",
    )
    fetch.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("SWITCHCRAFT_DATA", "data")),
        help="directory for the recordings, each in its own folder (default: $SWITCHCRAFT_DATA, or"
        " data)",
    )
    fetch.add_argument(
        "--models",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="the models whose answers are downloaded, as names or shell patterns (default: all, or"
        " for bfcl-2025-12 ten models of the largest providers)",
    )
    fetch.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="SOURCE=URL",
        help="download a repository or package from another address; may be repeated (default:"
        f" ${MIRRORS}, separated by spaces). Sources: {', '.join(_source_names())}",
    )
    fetch.set_defaults(stage=run_fetch)


def run_fetch(arguments: argparse.Namespace) -> int:
    """Download the recordings, print their folders, and return the exit status.

    It is 0, or 130 after Ctrl-C.
    """
    from switchcraft_training.fetching.recordings import fetch_recording  # noqa: PLC0415

    given = (*os.environ.get(MIRRORS, "").split(), *arguments.mirror)
    mirrors = read_mirrors(given)
    recordings = {each.name: each for each in arguments.names}
    try:
        with explaining_failed_writes([arguments.data]):
            for recording in recordings.values():
                print(fetch_recording(recording, arguments.data, mirrors, arguments.models))
    except KeyboardInterrupt:
        print(f"switchcraft-train: interrupted. {AGAIN}", file=sys.stderr)
        return _INTERRUPTED
    return 0


def read_mirrors(given: Sequence[str]) -> Mapping[str, str]:
    """Return the addresses by source; of several for a source, the last one counts.

    Raises ConfigError if a source is unknown or has no address.
    """
    known = _source_names()
    mirrors = {}
    for each in given:
        name, _, url = each.partition("=")
        if name not in known or not url:
            problem = f"{each!r} is not SOURCE=URL; the sources are {', '.join(known)}"
            raise ConfigError("fetch", "--mirror", problem)
        mirrors[name] = url
    return mirrors


def _find_recording(name: str) -> PublicRecording:
    for recording in RECORDINGS.values():
        if name in {recording.name, recording.folder}:
            return recording
    problem = f"invalid choice: {name!r} (choose from {', '.join(RECORDINGS)})"
    raise argparse.ArgumentTypeError(problem)


def _source_names() -> Sequence[str]:
    files = (files for recording in RECORDINGS.values() for files in recording.files)
    return sorted({each.source.name for each in files})
