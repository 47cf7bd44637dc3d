"""The table of whole agent tasks, made of recorded outcomes."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from benchmarks.agent_task_table import make_table, success_interval
from router_service.apis.conversation import Json
from router_service.measurement.agent_tasks import MeasuredModel


def _arm(source: str, model: str, harness: str, **more: Json) -> dict[str, Json]:
    facts = {"source": source, "arm": f"{harness}/{model}", "model": model, "harness": harness}
    return facts | {"released": "2026-02-05", **more}


def _runs(arm: str, solved: int, **more: Json) -> list[dict[str, Json]]:
    return [
        {"task": f"t{n}", "arm": arm, "success": n < solved, **({} if n > 7 else more)}
        for n in range(10)
    ]


@pytest.fixture
def figures(tmp_path: Path) -> Mapping[tuple[str, str], MeasuredModel]:
    """Return the figures of a small folder, by benchmark and model."""
    price = {"price_in": 5.0, "price_out": 25.0, "price_cached": None}
    trials = [
        {"task": "a", "arm": "Default/GPT-5-high", "passed": 3, "trials": 3},
        {"task": "b", "arm": "Default/GPT-5-high", "passed": 1, "trials": 3},
    ]
    rows = {
        "arms": [
            _arm("openhands", "claude-opus-4-6", "OpenHands", **price),
            _arm("openhands", "claude-opus-4-6", "Claude Code", **price),
            _arm("openhands", "claude-fable-5", "OpenHands", **price),
            _arm("swe-bench-mini", "claude-4.6-opus-20260205", "mini-SWE-agent v1"),
            _arm("swe-bench-mini", "o3-20250416", "mini-SWE-agent v1"),
            _arm("toolathlon", "GPT-5-high", "Default"),
        ],
        "openhands-swe-bench": [
            *_runs("OpenHands/claude-opus-4-6", 8, cost_usd=0.5),
            *_runs("Claude Code/claude-opus-4-6", 10, cost_usd=0.1),
            *_runs("OpenHands/claude-fable-5", 10, cost_usd=0.1),
        ],
        "swe-bench-mini": [
            *_runs("mini-SWE-agent v1/claude-4.6-opus-20260205", 1, cost_usd=0.1),
            *_runs("mini-SWE-agent v1/o3-20250416", 5),
        ],
        "toolathlon": trials,
        "tau2-telecom": [],
        "openhands-gaia": [],
    }
    for name, lines in rows.items():
        text = b"\n".join(map(orjson.dumps, lines))
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(text))
    return {(each.benchmark, each.model): each for each in make_table(tmp_path).figures}


def test_first_harness_of_a_benchmark_counts(
    figures: Mapping[tuple[str, str], MeasuredModel],
) -> None:
    """Other harnesses count only for other models; costs are means of those that are known."""
    verified = "SWE-bench Verified"
    assert set(figures) == {
        (verified, "claude-opus-4-6"),
        (verified, "o3"),
        ("Toolathlon", "gpt-5"),
    }
    opus, o3 = figures[verified, "claude-opus-4-6"], figures[verified, "o3"]
    assert (opus.harness, opus.success, opus.usd_per_task) == ("OpenHands", 0.8, 0.5)
    assert (o3.harness, o3.success, o3.usd_per_task) == ("mini-SWE-agent v1", 0.5, None)
    several = figures["Toolathlon", "gpt-5"]
    assert (several.success, several.harness) == (0.6667, "its own harness, effort high")


def test_interval_of_success() -> None:
    """Single trials give Wilson's interval, and several trials of a task a narrower one."""
    single = {str(n): float(n < 5) for n in range(10)}
    assert success_interval(single) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    low, high = success_interval({str(n): 0.4 + 0.2 * (n < 5) for n in range(10)})
    assert 0.4 < low < 0.5 < high < 0.6
