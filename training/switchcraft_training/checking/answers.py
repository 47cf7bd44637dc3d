"""A model's answer against what is expected of it: what could not be read is wrong."""

from __future__ import annotations

from switchcraft_training.checking.calls import Verdict, check
from switchcraft_training.checking.parsing import WORDS
from switchcraft_training.checking.values import Alike, CheckError, Code
from switchcraft_training.records import Answer, Example, Expected


def judge(
    example: Example, expected: Expected, answer: Answer, alike: Alike | None = None
) -> Verdict:
    """Judge an answer; raises SchemaError where a tool's schema cannot be interpreted.

    Words are right where no tool fits. A provider's failure, or a call that cannot be read, is
    wrong there too: the one is no answer, and the other was meant as a call.
    """
    if answer.calls is None and answer.problem not in WORDS:
        detail = f"the answer could not be read: {answer.problem}"
        return Verdict(0.0, (CheckError(Code.NOT_PARSED, "calls", detail),))
    return check(example.request["tools"], expected, answer.calls, alike)
