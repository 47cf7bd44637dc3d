"""Models of a gateway that join its artifact: what to ask them, their answers, and the result.

The gateway's command line composes these steps, and gives the function that sends a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from router_service.artifact import Artifact, Manifest
from router_service.policies.costs import Price
from switchcraft_training.data.table import Floats
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.errors import DataError
from switchcraft_training.labelling.answers import FAILURES
from switchcraft_training.labelling.pool import Arm, Endpoint, Pool
from switchcraft_training.labelling.run import COMPLETE, FAILED, Plan, ask_all
from switchcraft_training.labelling.sender import GivenSender, Post
from switchcraft_training.labelling.store import RunIdentity, Store
from switchcraft_training.onboarding.pool import MIN_ANSWERS, Joining, check_joining, onboard
from switchcraft_training.onboarding.recording import (
    ROWS,
    Recorded,
    read_answers,
    read_recorded,
    write_choice,
)

CONCURRENCY = 8
"""Requests to one model at the same time."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A model that joins: its name in the configuration, its address, its price and its ids."""

    name: str
    base_url: str
    price: Price
    stands_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewcomerQueries:
    """What the newcomers are asked, and what that is expected to take of each.

    `cost_usd` has the expected cost of each newcomer's answers at its price. The expected tokens
    and time are those of the artifact's own arms on the same queries; reasoning models need more.
    """

    newcomers: tuple[Newcomer, ...]
    recorded: Recorded
    folder: Path
    count: int
    cost_usd: tuple[float, ...]
    minutes: float


def choose_questions(
    artifact: Artifact, newcomers: Sequence[Newcomer], answers: int, data: Path | None, state: Path
) -> NewcomerQueries:
    """Choose the queries to ask, which are the same ones for all newcomers.

    `state` is the folder for answers and downloads. The same models at the same prices get the same
    folder in it, so that the command continues what it began. Raises ConfigError if a model cannot
    join, and the errors of `read_recorded`.
    """
    for each in newcomers:
        check_joining(artifact.manifest, _joining(each, answers))
    recorded = read_recorded(artifact, data, [each.name for each in newcomers], state)
    pool = _pool(newcomers)
    identity = f"{artifact.manifest.files} {pool.identity()} {answers}"
    folder = state / sha256(identity.encode()).hexdigest()[:12]
    if not (folder / ROWS).exists():
        write_choice(recorded, answers, folder)
    ids = {judged.example.id for judged in read_rows(folder / ROWS)}
    rows = [row for row, each in enumerate(recorded.table.examples) if each.id in ids]
    profile = artifact.manifest.profile.values()

    def mean(layer: Floats, name: str) -> float:
        """Return the mean of the recorded usage of these queries, or else of all queries."""
        known = layer[rows]
        if not np.isnan(known).all():
            return float(np.nanmean(known))
        return float(np.mean([getattr(each, name) for each in profile]))

    table = recorded.table
    usage = (mean(table.input_tokens, "input_tokens"), mean(table.output_tokens, "output_tokens"))
    seconds = mean(table.seconds, "seconds")
    return NewcomerQueries(
        tuple(newcomers),
        recorded,
        folder,
        len(rows),
        tuple(len(rows) * each.price.cost_usd(*usage, 0.0) for each in newcomers),
        len(rows) * seconds / CONCURRENCY / 60,
    )


async def ask_newcomers(questions: NewcomerQueries, post: Post, cap_usd: float) -> tuple[int, str]:
    """Ask all newcomers the chosen queries, and save each answer as it arrives.

    Return the exit status of `label`, and advice if there are questions left. A model may fail to
    answer a few questions: enough answers are complete.
    """
    path, pool = questions.folder / ROWS, _pool(questions.newcomers)
    with Store(questions.folder, RunIdentity.of(path, pool)) as store:
        plan = Plan(list(read_rows(path)), pool, 1)
        status, advice = await ask_all(plan, store, GivenSender(post), cap_usd)
        answered = [key.arm for key in store.answered()]
        store.export(questions.folder)
    few = [each.name for each in questions.newcomers if answered.count(each.name) < MIN_ANSWERS]
    if status == FAILED and not few:
        return COMPLETE, ""
    if status == FAILED:
        advice = f"{', '.join(few)}: too few answers; see {questions.folder / FAILURES}. {advice}"
    return status, advice


def join_newcomers(artifact: Artifact, questions: NewcomerQueries, out: Path) -> Manifest:
    """Let the newcomers join by their answers, and write the new artifact to `out`.

    Raises DataError if all answers of a newcomer are wrong, and the errors of `onboard`.
    """
    answers = {
        each.name: read_answers([questions.folder], each.name, questions.recorded)
        for each in questions.newcomers
    }
    for name, given in answers.items():
        if not given.correct[given.rows].any():
            problem = (
                f"none of the {len(given.rows)} answers of {name!r} is correct, so it would never"
                " be chosen. Does its deployment pass tools on? See answers.jsonl there"
            )
            raise DataError(questions.folder, None, problem)
    joining = {
        _joining(each, len(answers[each.name].rows)): answers[each.name]
        for each in questions.newcomers
    }
    return onboard(artifact, questions.recorded, joining, out)


def _joining(newcomer: Newcomer, answers: int) -> Joining:
    return Joining(newcomer.name, newcomer.price, answers, stands_for=newcomer.stands_for)


def _pool(newcomers: Sequence[Newcomer]) -> Pool:
    """Return the newcomers as a pool to label, each with an endpoint of its own."""
    return Pool(
        endpoints={
            each.name: Endpoint(base_url=each.base_url, max_concurrency=CONCURRENCY)
            for each in newcomers
        },
        pool=tuple(
            Arm(arm=each.name, endpoint=each.name, model=each.name, price=each.price)
            for each in newcomers
        ),
    )
