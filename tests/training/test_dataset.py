"""Several sources as one dataset: arms, measured rows, training-only rows and the cache."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.config import RunConfig
from switchcraft_training.data.splits import fold_table
from switchcraft_training.data.table import Table
from switchcraft_training.dataset import load_dataset
from switchcraft_training.records import Example, Expected, Judged
from tests.training.runs import answer_line, function_tool, write_run

TOOL = function_tool("f", {})
CITIES = "Oslo Lima Bern Rome Kyiv Riga Baku Doha Cairo Delhi Seoul Tokyo Paris Quito Sofia".split()
PRICES: Mapping[str, Mapping[str, float]] = {
    "large": {"input_usd_per_mtok": 10, "output_usd_per_mtok": 20},
    "local": {"usd_per_hour": 3.6},
}
Answers = Mapping[str, Mapping[str, Sequence[bool]]]
"""The correctness of each attempt, by arm and query."""


def write_source(folder: Path, texts: Mapping[str, str], answers: Answers) -> None:
    """Write a labelling run: queries by id, and their answers."""
    expected = Expected((ExpectedCall("f", {}),))
    rows = [
        Judged(Example(name, "c", request(text), folder.name), expected)
        for name, text in texts.items()
    ]
    lines = [
        answer_line(name, arm, ("gf"[right], {}), attempt=attempt, latency_s=2.0)
        for arm, queries in answers.items()
        for name, attempts in queries.items()
        for attempt, right in enumerate(attempts)
    ]
    write_run(folder, rows, lines)


def request(text: str) -> dict[str, object]:
    """Return a request with one tool."""
    return {"messages": [{"role": "user", "content": text}], "tools": [TOOL]}


def source(name: str) -> dict[str, str]:
    """Return the configuration of a labelling run as a source."""
    return {"format": "labelled", "path": f"{name}/rows.jsonl", "answers": name}


def config_of(*also: str, **changes: object) -> RunConfig:
    """Return a run with the source `ours` and the pool `PRICES`."""
    values = {
        "name": "made-up",
        "source": source("ours"),
        "also": [source(name) for name in also],
        "pool": [{"arm": arm, "price": price} for arm, price in PRICES.items()],
        "auxiliary_arms": "all",
    }
    return RunConfig.model_validate(values | changes)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write two sources: `ours` has both arms and a third, `theirs` two others and one of ours."""
    write_source(
        tmp_path / "ours",
        {"half": "only one arm", "a": "alpha", "b": "beta", "again": "Alpha"},
        {
            "large": {name: [True] for name in ("half", "a", "b", "again")},
            "local": {"a": [True, False], "b": [False], "again": [True]},
            "third": {"a": [True]},
        },
    )
    write_source(
        tmp_path / "theirs",
        {"a": "alpha", "c": "gamma", "unasked": "delta"},
        {"fourth": {"a": [False], "c": [True]}, "large": {"c": [False]}},
    )
    return tmp_path


def labels_by_query(dataset: Table) -> list[tuple[str, str, list[float | None]]]:
    """Return each row's dataset, id and labels, with None if an arm was not asked."""
    rows = dataset.correct.tolist()
    return [
        (e.dataset, e.id, [None if np.isnan(value) else value for value in row])
        for e, row in zip(dataset.examples, rows, strict=True)
    ]


def test_several_sources_are_one_matrix(data: Path) -> None:
    """Measured rows come first, unasked arms are unknown, and duplicates are removed."""
    dataset = load_dataset(config_of("theirs"), data)
    assert dataset.arms == ("large", "local", "third", "fourth")
    assert labels_by_query(dataset) == [
        ("ours", "a", [1.0, 0.5, 1.0, None]),
        ("ours", "b", [1.0, 0.0, None, None]),
        ("ours", "half", [1.0, None, None, None]),
        ("theirs", "a", [None, None, None, 0.0]),
        ("theirs", "c", [0.0, None, None, 1.0]),
    ]
    assert (dataset.measured_rows, dataset.teaching_rows) == ((0, 1), (2, 3, 4))


def test_own_rows_have_the_same_folds_as_without_other_datasets(tmp_path: Path) -> None:
    """Another source changes no fold; near-duplicates of held-out rows are left out."""
    ours = {f"q{i}": f"Show {city} on the map" for i, city in enumerate(CITIES)}
    everybody = {arm: dict.fromkeys(ours, (True,)) for arm in PRICES}
    write_source(tmp_path / "ours", ours, everybody)
    far = {f"far{i}": f"multiply {i} by seventeen" for i in range(3)}
    theirs = {name: f"{text}!" for name, text in ours.items()} | far
    write_source(tmp_path / "theirs", theirs, {"fourth": dict.fromkeys(theirs, (True,))})
    alone, both = (load_dataset(config_of(*also), tmp_path) for also in ([], ["theirs"]))
    pairs = zip(*(fold_table(each, 3, 1) for each in (alone, both)), strict=True)
    for before, after in pairs:
        assert before == replace(after, teaching=())
        held_out = {ours[both.examples[row].id] for row in after.validation + after.test}
        taught = {both.examples[row].query.removesuffix("!") for row in after.teaching}
        assert not held_out & taught
        assert set(far.values()) <= taught
        assert taught - set(far.values()), "what repeats a training query may teach"


def test_labels_are_reused_until_something_changes(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Labels are loaded from the file; after a changed answer they are judged again, and logged."""
    cache, config = data / "cache", config_of("theirs")

    def load() -> tuple[Table, list[str]]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            dataset = load_dataset(config, data, cache)
        lines = [record.getMessage() for record in caplog.records]
        return dataset, [text.split(" from")[0] for text in lines if text.startswith("labels of")]

    first, judged = load()
    second, reused = load()
    assert [text.split(":")[1].split(",")[0] for text in judged] == [" judged", " judged"]
    assert reused == [f"labels of {name}/rows.jsonl: reused" for name in ("ours", "theirs")]
    assert labels_by_query(first) == labels_by_query(second)
    for name in ("attempts", "input_tokens", "output_tokens", "seconds", "cost_usd"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    path = data / "theirs" / "answers.jsonl"
    path.write_text(path.read_text().replace('"g"', '"f"'))
    third, partly = load()
    assert partly == [
        "labels of ours/rows.jsonl: reused",
        "labels of theirs/rows.jsonl: judged, 3 queries x 2 arms",
    ]
    assert labels_by_query(third)[-2] == ("theirs", "a", [None, None, None, 1.0])
