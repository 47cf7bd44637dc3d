"""The AST checker: compare the tool calls of an answer with the expected ones.

`check` compares calls with expected calls and returns a `Verdict`. `parse_text` and `parse_native`
read calls from what a model wrote, and `check_answer` also handles answers without calls. The
README in this folder lists the rules of comparison.
"""

from switchcraft_training.checking.parsing import (
    TEXT_PROBLEMS,
    ParsedAnswer,
    parse_native,
    parse_text,
    python_value,
)
from switchcraft_training.checking.texts import (
    DEFAULT_ENCODER_PACKAGE,
    ParaphraseDetector,
    encoder_embeddings,
    paraphrase_check,
)
from switchcraft_training.checking.verdicts import CORRECT_FROM, Verdict, check, check_answer

__all__ = [
    "CORRECT_FROM",
    "DEFAULT_ENCODER_PACKAGE",
    "TEXT_PROBLEMS",
    "ParaphraseDetector",
    "ParsedAnswer",
    "Verdict",
    "check",
    "check_answer",
    "encoder_embeddings",
    "paraphrase_check",
    "parse_native",
    "parse_text",
    "python_value",
]
