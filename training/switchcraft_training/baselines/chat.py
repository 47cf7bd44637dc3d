"""Baseline that learns from preferences between chat answers, with RouteLLM's recipe.

RouteLLM: Ong et al., 2024, arXiv 2406.18665, section 4.2, and
`routellm/routers/matrix_factorization`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from router_service.apis.conversation import Json
from router_service.core.errors import ConfigError
from switchcraft_training.baselines.base import Chooser, profiled_costs_usd
from switchcraft_training.baselines.inputs import Embedder, Views
from switchcraft_training.baselines.predictors import Fitting, MatrixFactorization
from switchcraft_training.baselines.simple import best_arm
from switchcraft_training.config import ChatPreferencesConfig
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.datasets.rows import read_lines
from switchcraft_training.models.optimization import one_thread
from switchcraft_training.records import Example

CHAT_FITTING: Final = Fitting(
    learning_rate=3e-4, batch_size=64, max_epochs=100, weight_decay=1e-5, patience_epochs=100
)
"""RouteLLM's values. It trains for all epochs, without early stopping."""

TIES: Final = ("tie", "tie (bothbad)")
"""Values of `winner` in Chatbot Arena's data if no answer was preferred."""


@dataclass(frozen=True, slots=True)
class Battle:
    """A prompt that two models answered, and which of the answers was preferred."""

    prompt: str
    winner: str
    loser: str


@dataclass(frozen=True, slots=True)
class ChatPreferences:
    """The battles of a file, and which of their models are the strong and the weak one."""

    battles: tuple[Battle, ...]
    settings: ChatPreferencesConfig

    @property
    def models(self) -> tuple[str, ...]:
        """The names of all models, sorted."""
        return tuple(sorted({name for each in self.battles for name in (each.winner, each.loser)}))


def read_preferences(settings: ChatPreferencesConfig, data: Path) -> ChatPreferences:
    """Read a file of chat preferences, whose path is relative to the folder `data`.

    As in RouteLLM, ties and battles of a model against itself are skipped. Raises DataError if the
    file or one of its rows cannot be read, and ConfigError if the strong or the weak model has no
    battle.
    """
    path = data / settings.path
    battles = tuple(each for each in read_lines(path, _read_battle) if each is not None)
    preferences = ChatPreferences(battles, settings)
    for role, model in (("strong", settings.strong), ("weak", settings.weak)):
        if model not in preferences.models:
            names = ", ".join(preferences.models) or "no model"
            problem = f"no row in which {model} wins or loses; name one of {names}"
            raise ConfigError(str(path), f"evaluation.chat_preferences.{role}", problem)
    return preferences


def _read_battle(row: Mapping[str, Json]) -> Battle | None:
    """Return the battle of a row, or None if it has no winner.

    Raises TypeError or ValueError if the row is invalid.
    """
    texts: list[str] = []
    for name in ("prompt", "model_a", "model_b", "winner"):
        if not isinstance(row, Mapping) or not isinstance(row.get(name), str):
            raise TypeError(f"a row is an object, and its field `{name}` must be a string")
        texts.append(row[name])
    prompt, model_a, model_b, winner = texts
    if winner not in ("model_a", "model_b", *TIES):
        raise ValueError(f"`winner` is {winner!r}; it must be model_a, model_b or {TIES[0]}")
    if winner in TIES or model_a == model_b:
        return None
    won, lost = (model_a, model_b) if winner == "model_a" else (model_b, model_a)
    return Battle(prompt, won, lost)


@dataclass(frozen=True)
class ChatTrained:
    """RouteLLM's matrix factorization: the strong arm if it probably wins, otherwise the weak arm.

    A network over embeddings predicts which of two models wins a battle. It is trained on the
    battles only, once for all splits. The pool's best arm takes the place of the strong model of
    the battles, and its cheapest arm that of the weak one. A query goes to the best arm if the
    strong model's win probability is at least a threshold. As in RouteLLM, the threshold is the
    one that sends a given share of the calibration queries to the strong model; here, these are the
    training queries. Both prompts and queries are embedded without tools and earlier turns.
    """

    preferences: ChatPreferences
    views: Views
    embed: Embedder
    seed: int
    fitting: Fitting = CHAT_FITTING
    name: str = "chat-trained (RouteLLM)"

    def fit(self, train: Table, validation: Table) -> Chooser:  # noqa: ARG002 - part of the protocol
        """Find the pool's best and cheapest arm, and the threshold."""
        costs_usd = profiled_costs_usd(train)
        strong, weak = best_arm(train.correct, costs_usd), int(np.argmin(costs_usd))
        share = self.preferences.settings.strong_share
        threshold = np.quantile(self.win_probabilities(train.examples), 1 - share)

        return lambda examples: np.where(
            self.win_probabilities(examples) >= threshold, strong, weak
        )

    def win_probabilities(self, examples: Sequence[Example]) -> Floats:
        """Return the probability that the strong model wins against the weak one, (queries,)."""
        vectors = self.embed([self.views.prompt(example.query) for example in examples])
        models, settings = self.preferences.models, self.preferences.settings
        network = self._network
        with torch.inference_mode():
            scores = network(torch.tensor(vectors, dtype=torch.float32)).double()
        strong, weak = (scores[:, models.index(name)] for name in (settings.strong, settings.weak))
        probabilities: Floats = torch.sigmoid(strong - weak).numpy()
        return probabilities

    @cached_property
    def _network(self) -> MatrixFactorization:
        battles, fitting = self.preferences.battles, self.fitting
        models = self.preferences.models
        ids = {name: number for number, name in enumerate(models)}
        vectors = torch.tensor(
            self.embed([self.views.prompt(each.prompt) for each in battles]), dtype=torch.float32
        )
        winners = torch.tensor([[ids[each.winner]] for each in battles])
        losers = torch.tensor([[ids[each.loser]] for each in battles])
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = MatrixFactorization(vectors.shape[1], models).train()
            optimizer = torch.optim.Adam(
                network.parameters(), fitting.learning_rate, weight_decay=fitting.weight_decay
            )
            for _ in range(fitting.max_epochs):
                for rows in torch.split(torch.randperm(len(battles)), fitting.batch_size):
                    optimizer.zero_grad()
                    scores = network(vectors[rows])
                    margins = scores.gather(1, winners[rows]) - scores.gather(1, losers[rows])
                    loss = -functional.logsigmoid(margins).mean()
                    loss.backward()
                    optimizer.step()
        return network.eval()
