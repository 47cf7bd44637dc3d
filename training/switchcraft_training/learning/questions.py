"""What a sample's models still have to be asked, and what that costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from switchcraft_training.datasets.rows import read_lines
from switchcraft_training.labelling.answers import ANSWERS, QuestionKey, answer_from_json
from switchcraft_training.labelling.pool import Arm, Endpoint, Pool
from switchcraft_training.labelling.run import Plan, ask_all
from switchcraft_training.labelling.sender import GivenSender, Post
from switchcraft_training.labelling.store import RunIdentity, Store
from switchcraft_training.learning.judging import Answers
from switchcraft_training.learning.sampling import (
    Member,
    SampledRequest,
    draw_sample,
    read_sample,
    write_sample,
)
from switchcraft_training.records import Answer, Expected, Judged

SAMPLE: Final = "sample.jsonl"
CONCURRENCY: Final = 4
"""Requests to one model at a time."""
BYTES_PER_TOKEN: Final = 4
"""By which the tokens of a request are estimated before it is asked."""
OUTPUT_TOKENS: Final = 150
"""Tokens of an answer that are expected if the log has no answers: those of the shipped pool."""


@dataclass(frozen=True, slots=True)
class Questions:
    """A sample, and the answers that each member of the pool still has to give to it.

    All counts and costs are in the order of `members`.
    """

    folder: Path
    requests: Sequence[SampledRequest]
    members: Sequence[Member]
    teacher: str
    is_continued: bool
    """Whether an earlier run has drawn the sample, which is kept."""
    unanswered: Sequence[int]
    cost_usd: Sequence[float]
    """Expected cost of the missing answers."""


def prepare_questions(
    log: Path, members: Sequence[Member], teacher: str, count: int, state: Path
) -> Questions:
    """Draw a sample, or continue with the one that the same command has drawn before.

    `state` is the folder for samples. Raises the errors of `draw_sample`, and DataError if another
    run uses the folder.
    """
    pool = _pool(members)
    identity = f"{log.resolve()} {pool.identity()} {teacher} {count}"
    folder = state / sha256(identity.encode()).hexdigest()[:12]
    path = folder / SAMPLE
    is_continued = path.exists()
    if not is_continued:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it has prompts and answers
        write_sample(draw_sample(log, count), path)
    requests = read_sample(path)
    with _open_store(folder, pool) as store:
        answered, models = store.answered(), {member.model for member in members}
        for request in requests:
            for model, reply in request.recorded.items():
                key = QuestionKey(request.id, model, 0)
                if model in models and key not in answered:  # the log's answers cost nothing more
                    store.save_answer(store.begin_request(key, 0.0), key, reply)
        answered = store.answered()
    outputs = [
        reply.output_tokens
        for request in requests
        for reply in request.recorded.values()
        if reply.output_tokens is not None
    ]
    output_tokens = float(np.mean(outputs)) if outputs else OUTPUT_TOKENS
    unanswered, costs_usd = [], []
    for member in members:
        missing = [r for r in requests if QuestionKey(r.id, member.model, 0) not in answered]
        sizes = (len(orjson.dumps(request.request)) / BYTES_PER_TOKEN for request in missing)
        unanswered.append(len(missing))
        costs_usd.append(sum(member.price.cost_usd(size, output_tokens, 0.0) for size in sizes))
    return Questions(folder, requests, members, teacher, is_continued, unanswered, costs_usd)


async def ask_questions(questions: Questions, post: Post, cap_usd: float) -> tuple[int, str]:
    """Ask for the missing answers, and save each as it arrives.

    Return the exit status of `label`, and advice if there are questions left.
    """
    pool = _pool(questions.members)
    rows = [Judged(each.example, Expected(())) for each in questions.requests]
    with _open_store(questions.folder, pool) as store:
        status, advice = await ask_all(Plan(rows, pool, 1), store, GivenSender(post), cap_usd)
        store.export(questions.folder)
    return status, advice


def read_answers(questions: Questions) -> Answers:
    """Return all answers to the sample. Raises DataError."""
    with _open_store(questions.folder, _pool(questions.members)) as store:
        store.export(questions.folder)
    found: defaultdict[str, dict[str, Answer]] = defaultdict(dict)
    for answer in read_lines(questions.folder / ANSWERS, answer_from_json):
        found[answer.example_id][answer.arm] = answer
    return found


def _open_store(folder: Path, pool: Pool) -> Store:
    return Store(folder, RunIdentity.of(folder / SAMPLE, pool))


def _pool(members: Sequence[Member]) -> Pool:
    """Return the members as a pool to label; requests go through the gateway's own code."""
    gateway = Endpoint(base_url="http://127.0.0.1", max_concurrency=CONCURRENCY * len(members))
    return Pool(
        endpoints={"gateway": gateway},
        pool=tuple(
            Arm(arm=each.model, endpoint="gateway", model=each.model, price=each.price)
            for each in members
        ),
    )


def count_sessions(requests: Sequence[SampledRequest]) -> int:
    """Return the number of sessions of a sample."""
    return len({each.session for each in requests})
