"""Processor time and memory of grouping and splitting queries, at several numbers of them.

    python benchmarks/grouping.py --rows 10000 40000 150000

The queries are those of `benchmarks/corpus.py`: conversations, repeated questions with other names
and numbers, and lengths as in the paper's five datasets. Each number of queries has its own
process. Seconds are those of the processor, and memory is what grouping needs besides the rows.
With `--exact`, all pairs of up to 10,000 queries are compared exactly, and the share of the similar
pairs that are in one group is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.corpus import Corpus
from switchcraft_training.data.duplicates import NEAR_FROM, Groups, near_duplicates, user_text
from switchcraft_training.data.splits import grouped_folds, key_of, split_keys, unique
from switchcraft_training.progress import running, stage
from switchcraft_training.records import Example

Result = TypeVar("Result")


def main() -> None:
    """Print a line for each number of queries."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 40_000, 150_000])
    parser.add_argument("--exact", action="store_true", help="compare up to 10,000 queries exactly")
    arguments = parser.parse_args()
    for rows in arguments.rows:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            pool.submit(measure, rows, exact=arguments.exact).result()


def measure(rows: int, *, exact: bool) -> None:
    """Group and split a corpus, and print what each step took."""
    corpus = Corpus(np.random.default_rng(0)).examples(rows)
    examples = [judged.example for judged, _ in corpus]
    examples = [examples[place] for place in unique(examples)]
    with running(()) as stages:
        with stage("before"):  # a stage's peak begins at what is in use
            pass
        with stage("near-duplicates"):
            groups = near_duplicates(examples)
    before, grouping = stages.usages.values()
    more_mb = grouping.peak_memory_mb - before.peak_memory_mb
    strata = [f"{example.dataset}/{example.category}" for example in examples]
    folds, folding_s = _timed(lambda: grouped_folds(strata, groups, 5, seed=1))
    keys = list(map(key_of, examples))
    _, splitting_s = _timed(lambda: split_keys(keys, seed=1))
    print(
        f"{len(examples):>8,} rows, {len(np.unique(groups)):>7,} groups, largest"
        f" {np.bincount(groups).max():>5,} | near_duplicates"
        f" {grouping.cpu_seconds:>6.1f} s, {more_mb:>6,.0f} MB | grouped_folds"
        f" {folding_s:>5.1f} s, sizes {np.bincount(folds).min():,}"
        f"-{np.bincount(folds).max():,} | split_keys {splitting_s:>4.1f} s",
        flush=True,
    )
    if exact and len(examples) <= 10_000:
        _compare(examples, groups)


def _compare(examples: list[Example], groups: Groups) -> None:
    vectors = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, use_idf=False
    ).fit_transform([" ".join(user_text(example).split()) for example in examples])
    near = (vectors @ vectors.T).tocoo()
    is_pair = (near.row < near.col) & (near.data >= NEAR_FROM)
    one, other = near.row[is_pair], near.col[is_pair]
    share = (groups[one] == groups[other]).mean()
    print(f"{len(one):,} pairs from {NEAR_FROM}: {share:.2%} in one group", flush=True)


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.process_time()
    return work(), time.process_time() - start


if __name__ == "__main__":
    main()
