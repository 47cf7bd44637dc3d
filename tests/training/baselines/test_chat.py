"""The baseline that is trained on preferences between chat answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from router_service.measurement.rules import Choices
from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.chat import (
    CHAT_FITTING,
    Battle,
    ChatPreferences,
    ChatTrained,
    read_preferences,
)
from switchcraft_training.config import ChatPreferencesConfig
from switchcraft_training.data.table import Table
from tests.training.baselines.cases import (
    EASY,
    FILLERS,
    HARD,
    SPLIT,
    CountingEmbedder,
    learnable,
    views,
)

SETTINGS = ChatPreferencesConfig(path=Path("chats.jsonl"), strong="gpt", weak="mix")
ROW = {"prompt": "river stone", "model_a": "gpt", "model_b": "mix", "winner": "model_a"}

FAST = replace(CHAT_FITTING, learning_rate=3e-3, max_epochs=20)
"""Few battles need fewer, but larger steps."""


def chats(rows: int = 1_000) -> tuple[Battle, ...]:
    """Return battles of three models: `gpt` wins with hard prompts, and `mix` with easy ones.

    `old` loses against both.
    """
    rng = np.random.default_rng(1)
    battles = []
    for _ in range(rows):
        is_hard = rng.random() < 0.5
        prompt = " ".join([*rng.choice(HARD if is_hard else EASY, 2), *rng.choice(FILLERS, 2)])
        winner, loser = ("gpt", "mix") if is_hard else ("mix", "gpt")
        battles.append(Battle(prompt, winner, "old" if rng.random() < 0.2 else loser))
    return tuple(battles)


@cache
def trained(strong_share: float = 0.5, *, is_reversed: bool = False) -> ChatTrained:
    """Return the baseline for the chats above, or for chats with the opposite preferences."""
    battles = chats()
    if is_reversed:
        battles = tuple(replace(b, winner=b.loser, loser=b.winner) for b in battles)
    settings = SETTINGS.model_copy(update={"strong_share": strong_share})
    preferences = ChatPreferences(battles, settings)
    return ChatTrained(preferences, views(), CountingEmbedder(), seed=0, fitting=FAST)


def choices(baseline: ChatTrained, table: Table) -> Choices:
    """Return the choices for the test part of a table."""
    return held_out(baseline, table, [SPLIT]).choices


def test_queries_go_to_the_strong_arm_if_the_strong_model_wins_such_chats() -> None:
    """Hard queries go to the pool's best arm, and easy queries to its cheapest arm.

    The share of the strong model is the share of hard queries.
    """
    table = learnable()
    is_hard = table.correct[:, 0] == 0
    share = float(is_hard[list(SPLIT.train)].mean())
    right = choices(trained(share), table) == np.where(is_hard[list(SPLIT.test)], 1, 0)
    assert right.mean() > 0.95


def write(folder: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows as the file of preferences, and return its path."""
    path = folder / SETTINGS.path
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_file_gives_winners_and_losers_without_ties(tmp_path: Path) -> None:
    """Ties and battles of a model against itself are skipped, and other fields ignored."""
    rows = [
        ROW | {"judge": "a person"},
        ROW | {"winner": "model_b"},
        ROW | {"winner": "tie"},
        ROW | {"winner": "tie (bothbad)"},
        ROW | {"model_b": "gpt"},
    ]
    write(tmp_path, rows)
    found = read_preferences(SETTINGS, tmp_path)
    assert found.battles == (
        Battle("river stone", "gpt", "mix"),
        Battle("river stone", "mix", "gpt"),
    )
    assert found.models == ("gpt", "mix")
