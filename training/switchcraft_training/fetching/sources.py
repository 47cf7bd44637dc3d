"""The table of public recordings: addresses, revisions, files, sizes and licences.

`docs/recordings.md` has the same table for readers; change both together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Repository:
    """A public git repository. `name` is the key of a mirror."""

    name: str
    url: str
    licence: str


@dataclass(frozen=True, slots=True)
class Package:
    """A version of a package, from the index that pip is configured to use.

    `name` is the key of a mirror, which is the address of another index.
    """

    name: str
    version: str
    sha256: str
    """Hash of the wheel."""
    licence: str


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a repository or package, and where they go in a recording's folder."""

    source: Repository | Package
    commit: str
    """The pinned commit of a repository; empty for a package, whose version is pinned."""
    pattern: re.Pattern[str]
    """Matches the whole path. The group `model`, if there is one, is the model's name."""
    target: str
    """The path in the recording's folder, in which `{NAME}` is a group of the pattern."""


@dataclass(frozen=True, slots=True)
class PublicRecording:
    """A recording that `switchcraft-train fetch` arranges in the folder `folder`."""

    name: str
    folder: str
    files: tuple[Files, ...]
    download_mb: int
    disk_mb: int
    models: tuple[str, ...] = ("*",)
    """The models that are fetched if the user names none; shell patterns."""


_BFCL_RESULT: Final = Repository(
    "bfcl-result", "https://github.com/HuanzhiMao/BFCL-Result", licence="no licence file"
)
_GORILLA: Final = Repository(
    "gorilla", "https://github.com/ShishirPatil/gorilla", licence="Apache-2.0"
)
_GORILLA_8B: Final = Repository(
    "gorilla-8b", "https://github.com/aaronwu901225main/gorilla", licence="Apache-2.0"
)
_BFCL_VLLM: Final = Repository(
    "bfcl-vllm", "https://github.com/bbrowning/bfcl-vllm-results", licence="no licence file"
)
_BFCL_EVAL: Final = Package(
    "bfcl-eval",
    "2026.3.23",
    sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    licence="Apache-2.0",
)

_AUGUST_2024: Final = "b4adfc9be5e0c65e8dbb1340c689688eb92a9379"
_QUESTIONS_V1: Final = "de8307b415d5e609be141e38f954a2850be4a4d5"
_V3_8B: Final = "ef6d9b060e8e3eb7426e77ab860c7719edaa5115"
_GPT_OSS: Final = "f98223aef4e7a560e2d2d69849dfb04eed260a52"
_DECEMBER_2025: Final = "6830ed13035c0cfee9aa7a9a0ffed70f10b3dd50"

_V1: Final = "gorilla_openfunctions_v1_test_(?!chatable|rest|sql)"
_V3: Final = "BFCL_v3_(?!multi_turn)"
_V4: Final = "BFCL_v4_(?!format_sensitivity|memory|multi_turn|web_search)"
_SINGLE_TURN_V4: Final = rf"(?:live|non_live)/{_V4}\w+\.json"
_LEADERBOARD: Final = "berkeley-function-call-leaderboard/"
_RESULTS_8B: Final = _LEADERBOARD + "BFCL_ENG_Response&Score/"


def _files(source: Repository | Package, commit: str, pattern: str, target: str) -> Files:
    return Files(source, commit, re.compile(pattern), target)


_QUESTIONS_V4: Final = _files(
    _BFCL_EVAL,
    "",
    rf"bfcl_eval/data/(?P<file>(?:possible_answer/)?{_V4}\w+\.json)",
    "data/{file}.gz",
)
_GPT_OSS_RUNS: Final = {"run-1": "2025-11-12-main", "run-2": "2025-11-12-harmony-fixes"}

_RECORDINGS: Final = (
    PublicRecording(
        "bfcl-2024-08",
        folder="bfcl-2024-08",
        files=(
            _files(
                _GORILLA,
                _QUESTIONS_V1,
                rf"{_LEADERBOARD}data/(?P<file>(?:possible_answer/)?{_V1}\w+\.json)",
                "data/{file}.gz",
            ),
            _files(
                _BFCL_RESULT,
                _AUGUST_2024,
                rf"2024-08-11/result/(?P<model>[^/]+)/(?P<file>{_V1}\w+\.json)",
                "result/{model}/{file}.gz",
            ),
            _files(
                _BFCL_RESULT,
                _AUGUST_2024,
                r"2024-08-11/score/(?P<model>[^/]+)/(?P<file>(?!rest)\w+\.json)",
                "score/{model}/{file}.gz",
            ),
        ),
        download_mb=20,
        disk_mb=26,
    ),
    PublicRecording(
        "bfcl-v3-8b",
        folder="bfcl-v3-8b",
        files=(
            _files(
                _GORILLA_8B,
                _V3_8B,
                rf"{_LEADERBOARD}bfcl_eval/data/original_eng_data/(?P<file>{_V3}\w+\.json)",
                "data/{file}.gz",
            ),
            _files(
                _GORILLA_8B,
                _V3_8B,
                rf"{_LEADERBOARD}bfcl_eval/data/(?P<file>possible_answer/{_V3}\w+\.json)",
                "data/{file}.gz",
            ),
            *(
                _files(
                    _GORILLA_8B,
                    _V3_8B,
                    rf"{_RESULTS_8B}eng_{kind}/(?P<model>[^/]+)/(?P<file>{_V3}\w+\.json)",
                    f"{kind}/{{model}}/{{file}}.gz",
                )
                for kind in ("result", "score")
            ),
        ),
        download_mb=8,
        disk_mb=10,
    ),
    PublicRecording(
        "bfcl-v4-gptoss",
        folder="bfcl-v4-gptoss",
        files=(
            _QUESTIONS_V4,
            *(
                _files(
                    _BFCL_VLLM,
                    _GPT_OSS,
                    rf"results/{day}/(?P<file>(?:result|score)/(?P<model>[^/]+)/{_SINGLE_TURN_V4})",
                    f"{run}/{{file}}.gz",
                )
                for run, day in _GPT_OSS_RUNS.items()
            ),
        ),
        download_mb=4,
        disk_mb=4,
    ),
    PublicRecording(
        "bfcl-2025-12",
        folder="bfcl-v4-2025-12",
        files=(
            _QUESTIONS_V4,
            _files(
                _BFCL_RESULT,
                _DECEMBER_2025,
                rf"2025-12-16/result/(?P<model>[^/]+)/(?P<file>{_SINGLE_TURN_V4})",
                "run-1/result/{model}/{file}.gz",
            ),
        ),
        download_mb=12,
        disk_mb=8,
        models=(
            "DeepSeek-V3.2-Exp-FC",
            "claude-haiku-4-5-20251001-FC",
            "claude-opus-4-5-20251101-FC",
            "claude-sonnet-4-5-20250929-FC",
            "gemini-2.5-flash-lite-FC",
            "gemini-3-pro-preview-FC",
            "gpt-4.1-mini-2025-04-14-FC",
            "gpt-5-mini-2025-08-07-FC",
            "gpt-5.2-2025-12-11-FC",
            "grok-4-1-fast-non-reasoning-FC",
        ),
    ),
)

QUESTIONS: Final = PublicRecording(
    "bfcl-questions", folder="bfcl-v4-questions", files=(_QUESTIONS_V4,), download_mb=3, disk_mb=1
)
"""The questions without answers, for models that have none yet."""

RECORDINGS: Final[Mapping[str, PublicRecording]] = {each.name: each for each in _RECORDINGS}
