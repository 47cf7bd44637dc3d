"""Where the leaderboard's files are: their versions and categories, and the installed package."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from router_service.core.errors import ConfigError, DataError

PACKAGE = "bfcl-eval"
INSTALL = "pip install --no-deps bfcl-eval mpmath"
"""What the package declares besides is for asking models; its data and environments need this."""

NO_CALL = frozenset({"relevance", "irrelevance", "live_irrelevance"})
"""Categories where no function fits (v1 calls its own `relevance`)."""

ANY_CALL = frozenset({"live_relevance"})
"""Categories where whichever call is made is right, and none is wrong."""

MULTI_TURN = frozenset(
    f"multi_turn_{kind}" for kind in ("base", "long_context", "miss_func", "miss_param")
)
JUDGED = (
    NO_CALL
    | ANY_CALL
    | {f"simple{language}" for language in ("", "_python", "_java", "_javascript")}
    | {"java", "javascript", "multiple", "parallel", "parallel_multiple"}
    | {f"live_{kind}" for kind in ("simple", "multiple", "parallel", "parallel_multiple")}
    | {f"{kind}_function" for kind in ("multiple", "parallel", "parallel_multiple")}
    | {f"executable_{kind}_function" for kind in ("multiple", "parallel", "parallel_multiple")}
    | {f"exec_{kind}" for kind in ("simple", "multiple", "parallel", "parallel_multiple")}
    | {"executable_simple"}
)
"""The single-turn categories of every version."""

LEFT_OUT = {
    "rest": "answers of web services, which only the network could judge",
    "web_search": "judged by the final text, after searching the web",
    "memory": "judged by the final text, after many steps of a memory of the model's own",
    "format_sensitivity": "other categories' questions again, in other words of a system prompt",
    "multi_turn_composite": "withdrawn by the leaderboard",
    "sql": "withdrawn by the leaderboard",
    "chatable": "offers no function",
}
"""Categories that are not judged here, and why."""

_NAME = re.compile(
    r"(?:gorilla_openfunctions_v(?P<first>1)_test|BFCL_v(?P<version>[1-4]))_(?P<category>\w+?)"
    r"(?:_result|_score)?\.json(?:\.gz)?"
)


@dataclass(frozen=True, slots=True)
class LeaderboardFile:
    """A file of the leaderboard, by the version and category in its name."""

    path: Path
    version: int
    category: str

    @property
    def dataset(self) -> str:
        """The name of the version as a dataset."""
        return f"bfcl-v{self.version}"

    @property
    def truths(self) -> Path:
        """Where the accepted answers to a file of questions are."""
        return self.path.with_name("possible_answer") / self.path.name


def question_files(path: Path) -> list[LeaderboardFile]:
    """Return the files of judged questions in a folder or its `data`, by name.

    The path `bfcl-eval` means the installed package where there is no such folder. Raises
    DataError where there is no file, or one of a category that is not known.
    """
    folder = package_data() if path == Path(PACKAGE) and not path.exists() else path
    data = folder / "data"
    files = judged_files(data if data.is_dir() else folder)
    if not files:
        raise DataError(path, None, "holds no data/gorilla_*.json[.gz] or BFCL_v*.json[.gz]")
    return files


def judged_files(folder: Path) -> list[LeaderboardFile]:
    """Return a folder's questions, results or scores, but for the categories left out."""
    files = [
        LeaderboardFile(path, int(name["version"] or name["first"]), name["category"])
        for path in sorted(folder.glob("*.json*"))
        if (name := _NAME.fullmatch(path.name))
    ]
    for file in files:
        if file.category not in JUDGED | MULTI_TURN | LEFT_OUT.keys():
            raise DataError(file.path, None, f"the category {file.category!r} is not known here")
    return [file for file in files if file.category not in LEFT_OUT]


def package_data() -> Path:
    """Return the data folder of the installed `bfcl-eval`; raises ConfigError where absent."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise package_missing()
    return Path(spec.origin).parent / "data"


def package_missing() -> ConfigError:
    """Return the error that says how to install the package."""
    return ConfigError(PACKAGE, "", f"is not installed, or not whole; run: {INSTALL}")
