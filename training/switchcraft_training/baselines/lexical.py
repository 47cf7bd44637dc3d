"""TF-IDF over token ids and a logistic regression for each arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from switchcraft_training.baselines.base import Predictor, profiled_costs_usd
from switchcraft_training.baselines.views import View
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.finetune.lexical import soft_regression
from switchcraft_training.records import Example


@dataclass(frozen=True, slots=True)
class Lexical:
    """Words and word pairs of a view, as its tokenizer writes them."""

    name: str
    view: View

    def fit(self, train: Table, validation: Table) -> Predictor:  # noqa: ARG002 - the protocol's
        """Fit the vectorizer on all training queries, each arm's model on those it was asked."""
        costs_usd = profiled_costs_usd(train)
        vectorizer = TfidfVectorizer(
            sublinear_tf=True,
            ngram_range=(1, 2),
            min_df=2,
            token_pattern=r"\d+",  # noqa: S106 - a pattern, not a password
        )
        rows = vectorizer.fit_transform(self._texts(train.examples))
        models = [soft_regression(rows, labels) for labels in train.correct.T]

        def predict(examples: Sequence[Example]) -> Floats:
            unseen = vectorizer.transform(self._texts(examples))
            return np.column_stack([model.predict_proba(unseen)[:, 1] for model in models])

        return Predictor(predict, costs_usd)

    def _texts(self, examples: Sequence[Example]) -> list[str]:
        return [" ".join(map(str, self.view(example))) for example in examples]
