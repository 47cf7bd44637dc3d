"""What the verifier is asked (paper, appendix on ConFETTI: correction methodology)."""

from __future__ import annotations

from typing import Final

import orjson
from openai.types.chat import ChatCompletionMessageParam

from switchcraft_training.datasets.corrections import CATEGORIES, CorrectionKind, truth_of
from switchcraft_training.records import Json, Judged

_CATEGORIES: Final = {kind: ", ".join(CATEGORIES[kind]) for kind in CorrectionKind}

INSTRUCTIONS: Final = f"""\
You verify the ground truth of a benchmark of tool calls. You are given one entry: the whole \
conversation, the tools that are offered, and the calls that the benchmark expects next.

Decide whether the expected calls are the right next calls. Read the conversation to its end, the \
results of earlier calls among it, and hold every value against what was said and against the \
tool's schema. Accept what a careful person could defend; do not flag matters of taste.

How expected calls are written: a list of {{"name", "arguments", "optional", "after"}}. Each \
parameter in "arguments" has a list of accepted values, any one of which is right. "optional" \
names the parameters that may be left out. "after" holds the indices of calls that must come \
first. An object {{"$one_of": [...], "$optional": true or false}} inside a value lists accepted \
values too. An empty list means that no tool should be called. "any_call": true means that \
whichever tool is called is right.

Answer with one JSON object and nothing else:
{{"verdict": "right" | "wrong_truth" | "ambiguous_input",
 "category": string or null,
 "explanation": string,
 "expected": list of expected calls or null,
 "utterance": string or null}}

- "right": the expected calls are right and can be known from the conversation. Leave the other \
fields null, and the explanation short.
- "wrong_truth": they are not. Give the whole corrected list in "expected", written as above and \
changed no more than is needed. Category, the most impactful that applies: \
{_CATEGORIES[CorrectionKind.TRUTH]}.
- "ambiguous_input": they are plausible, but the conversation does not say enough to know them, as \
where a date has no year. Give in "utterance" the last user message with the fewest words added \
that settle it; the expected calls stay. Category: {_CATEGORIES[CorrectionKind.INPUT]}.

Explain in one to three sentences, to a person who has the entry before them, and name the value \
and the place in the conversation that decide it."""


def messages_for(judged: Judged) -> list[ChatCompletionMessageParam]:
    """Return the two messages that ask for an opinion on an entry."""
    request = judged.example.request
    entry: Json = {
        "conversation": request["messages"],
        "tools": request["tools"],
        "expected": [call.model_dump(mode="json") for call in truth_of(judged)],
        "any_call": judged.expected.any_call,
    }
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": orjson.dumps(entry).decode()},
    ]
