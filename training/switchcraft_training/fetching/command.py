"""`switchcraft-train fetch`: download public recordings of models' answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from router_service.command_line import SEVERAL
from router_service.core.errors import ConfigError
from switchcraft_training.fetching.downloads import AGAIN
from switchcraft_training.fetching.sources import RECORDINGS
from switchcraft_training.storage import explaining_failed_writes

MIRRORS: Final = "SWITCHCRAFT_MIRRORS"
_INTERRUPTED: Final = 130


def _source_names() -> Sequence[str]:
    files = (files for recording in RECORDINGS.values() for files in recording.files)
    return sorted({each.source.name for each in files})


_LISTED = ", ".join(f"{each.name} ({each.download_mb} MB)" for each in RECORDINGS.values())
_BY_NAME = {
    name: recording
    for recording in RECORDINGS.values()
    for name in (recording.name, recording.folder)
}


def fetch(
    names: Annotated[
        Sequence[str],
        Parameter(
            choices=_BY_NAME,
            show_choices=False,
            help=f"the recordings, or the names of their folders: {_LISTED}",
        ),
    ],
    /,
    *,
    data: Annotated[Path, Parameter(env_var="SWITCHCRAFT_DATA")] = Path("data"),
    models: Annotated[Sequence[str], SEVERAL, Parameter(metavar="PATTERN...")] = (),
    mirror: Annotated[
        Sequence[str],
        Parameter(
            metavar="SOURCE=URL",
            help="download a repository or package from another address; may be repeated (default:"
            f" ${MIRRORS}, separated by spaces). Sources: {', '.join(_source_names())}",
        ),
    ] = (),
) -> int:
    r"""Download public recordings of models' answers.

    Arranges them as the folder that `run --data` reads. An interrupted download continues if you
    repeat the command. If a recording is already there, its checksums are verified. Needs git, and
    pip for v4.

    For example:

        switchcraft-train fetch bfcl-2024-08 bfcl-v3-8b --data data
        switchcraft-train fetch bfcl-2025-12 --models '*' --data data
        switchcraft-train fetch bfcl-v3-8b \
          --mirror gorilla-8b=https://git.example.com/gorilla.git

    Args:
        data: directory for the recordings, each in its own folder
        models: the models whose answers are downloaded, as names or shell patterns (default: all,
            or for bfcl-2025-12 ten models of the largest providers)
    """
    from switchcraft_training.fetching.recordings import fetch_recording

    mirrors = read_mirrors((*os.environ.get(MIRRORS, "").split(), *mirror))
    recordings = {_BY_NAME[name].name: _BY_NAME[name] for name in names}
    try:
        with explaining_failed_writes([data]):
            for recording in recordings.values():
                print(fetch_recording(recording, data, mirrors, models))
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
