"""Comparison of styles of tool signatures: mean AUC of a lexical model on packed requests.

    python benchmarks/signatures.py --data ../shared/data

The model is TF-IDF with logistic regression on the packed token ids, instead of the encoder. It
trains in seconds, so every style and cap is measured on all queries in five-fold cross-validation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from tokenizers import Tokenizer

from router_service.apis.conversation import parse_conversation
from router_service.artifact import SHIPPED, TOKENIZER
from router_service.measurement.statistics import mean_auc
from router_service.predictor.packing import Packer, PackingSpec, TemplateSlot
from switchcraft_training.config import load_config
from switchcraft_training.data.table import Table
from switchcraft_training.dataset import load_dataset

FOLDS = 5
CAPS_TOKENS = (0, 50, 100, 160, 256)


def main() -> None:
    """Print a table: style, cap, AUC, share of requests whose tools were cut, mean length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments = parser.parse_args()
    config = load_config(Path("configs/reference-pool.yaml")).model_copy(
        update={"auxiliary_arms": "none", "also": ()}
    )
    table = load_dataset(config, arguments.data).measured(config.arms)
    print(f"{'signature':<10} {'cap':>4} {'AUC':>7} {'tools cut':>10} {'mean tokens':>12}")
    for style in ("names", "types"):
        for cap in CAPS_TOKENS:
            spec = {"signature": style, "tool_budget_tokens": cap}
            print(f"{style:<10} {cap:>4} {measure(table, PackingSpec.model_validate(spec))}")


def measure(table: Table, spec: PackingSpec) -> str:
    """Return one row of the table, behind style and cap."""
    packer = Packer(spec, Tokenizer.from_file(str(SHIPPED / TOKENIZER)))
    packed = [packer.pack(parse_conversation(example.request)) for example in table.examples]
    cut = np.mean(
        [part.is_cut for row in packed for part in row.parts if part.slot is TemplateSlot.TOOLS]
    )
    length = np.mean([len(row.token_ids) for row in packed])
    texts = [" ".join(map(str, row.token_ids)) for row in packed]
    categories = [example.category for example in table.examples]
    auc = mean_auc(table.correct, cross_validated(texts, table.correct, categories))
    return f"{auc:>7.4f} {cut:>10.1%} {length:>12.1f}"


def cross_validated(
    texts: Sequence[str], labels: NDArray[np.float64], categories: Sequence[str]
) -> NDArray[np.float64]:
    """Return out-of-fold probabilities, (queries, arms), folds stratified by category."""
    probabilities = np.zeros_like(labels)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for train, test in folds.split(labels, categories):
        vectorizer = TfidfVectorizer(
            sublinear_tf=True, ngram_range=(1, 2), min_df=2, token_pattern=r"\d+"
        )
        seen = vectorizer.fit_transform([texts[i] for i in train])
        unseen = vectorizer.transform([texts[i] for i in test])
        for arm in range(labels.shape[1]):
            model = LogisticRegression(C=5, max_iter=300).fit(seen, labels[train, arm])
            probabilities[test, arm] = model.predict_proba(unseen)[:, 1]
    return probabilities


if __name__ == "__main__":
    main()
