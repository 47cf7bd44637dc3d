"""Multi-turn conversations: replay, order of calls, and each turn's tools and expected calls."""

from __future__ import annotations

import importlib
import json
from collections import defaultdict
from pathlib import Path

import orjson
import pytest

from router_service.checker.toolbox import Call
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.bfcl.format import package_data
from switchcraft_training.datasets.bfcl.multi_turn import Environment
from switchcraft_training.errors import DataError
from switchcraft_training.records import Judged

UTILS = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils"
DOCUMENT = {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "one\ntwo"}}}
DISK = {"root": {"home": {"type": "directory", "contents": {"document": DOCUMENT}}}}
CONFIG = {"GorillaFileSystem": DISK, "TwitterAPI": {"authenticated": True, "username": "ann"}}
TOOLS = ["GorillaFileSystem", "TwitterAPI"]


def call(name: str, **arguments: object) -> Call:
    """Return a call."""
    return Call(name, arguments)


def order(*calls: Call) -> list[set[int]]:
    """Return for each call the calls that must come before it."""
    environment = Environment(TOOLS, CONFIG, long_context=False)
    return [set(after) for after in environment.play(calls).after]


def test_calls_are_ordered_if_exchanging_them_changes_results() -> None:
    """A change of directory comes before a listing; a tweet about it is independent of both."""
    go, tweet = call("cd", folder="document"), call("post_tweet", content="On it.")
    look = call("wc", file_name="a.txt", mode="l")
    assert order(go, tweet, look) == [set(), set(), {0}]


def test_calls_are_ordered_if_exchanging_them_changes_the_final_state() -> None:
    """Two writes to one file return the same results in either order, but leave different files."""
    make = call("touch", file_name="c.txt")
    first, second = (call("echo", content=text, file_name="c.txt") for text in "xy")
    assert order(make, first, second) == [set(), {0}, {0, 1}]


def test_turn_starts_from_state_of_previous_turn() -> None:
    """Trying other orders does not change the state that the next turn sees."""
    environment = Environment(TOOLS, CONFIG, long_context=False)
    environment.play([call("cd", folder="document"), call("touch", file_name="b.txt")])
    result = environment.play([call("ls")]).results[0]
    assert json.loads(result) == {"current_directory_content": ["a.txt", "b.txt"]}


@pytest.fixture(scope="module")
def conversations() -> dict[str, list[Judged]]:
    """Read the installed multi-turn categories, turn by turn."""
    turns: dict[str, list[Judged]] = defaultdict(list)
    for judged in bfcl.read_source(Path("bfcl-eval")):
        if judged.example.conversation:
            turns[judged.example.conversation].append(judged)
    return turns


@pytest.mark.parametrize("category", ["base", "long_context", "miss_func", "miss_param"])
def test_replayed_results_equal_the_leaderboards(
    conversations: dict[str, list[Judged]], category: str
) -> None:
    """The leaderboard's own replay of the same calls returns the same texts."""
    replay = importlib.import_module(UTILS).execute_multi_turn_func_call
    folder, name = package_data(), f"BFCL_v4_multi_turn_{category}.json"
    truths = (folder / "possible_answer" / name).read_bytes().splitlines()
    for line, truth in zip((folder / name).read_bytes().splitlines(), truths, strict=True):
        row, turns = orjson.loads(line), orjson.loads(truth)["ground_truth"]
        tools = row["initial_config"], row["involved_classes"], "test", row["id"]
        long_context = category == "long_context"
        wanted = [
            result
            for calls in turns[:-1]
            for result in replay(calls, *tools, long_context=long_context)[0]
        ]
        messages = conversations[row["id"]][-1].example.request["messages"]
        assert [m["content"] for m in messages if m["role"] == "tool"] == wanted


def test_missing_function_is_offered_from_its_turn(
    conversations: dict[str, list[Judged]],
) -> None:
    """Before that turn, no call of it is expected; then the user message offers it."""
    before, turn = conversations["multi_turn_miss_func_0"][2:4]
    assert "sort" not in before.example.tool_names
    assert before.expected.calls == ()
    assert turn.example.tool_names == (*before.example.tool_names, "sort")
    assert "more functions" in turn.example.query
    (expected,) = turn.expected.calls
    assert (expected.name, expected.arguments) == ("sort", {"file_name": ("final_report.pdf",)})


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("teleport()", "offers no function 'teleport'"),
        ("cd('a', 'b')", "more arguments than"),
        ("cd(folder=home)", "ValueError"),
        ("cd", "not a call"),
    ],
)
def test_call_that_cannot_be_replayed_is_refused(tmp_path: Path, source: str, problem: str) -> None:
    """An unknown function, or text that is not a call, is an error with its line."""
    name = "BFCL_v4_multi_turn_base.json"
    question = [[{"role": "user", "content": "Go."}]]
    row = {"id": "multi_turn_base_0", "question": question, "initial_config": CONFIG}
    (tmp_path / name).write_bytes(orjson.dumps({**row, "involved_classes": TOOLS}))
    (tmp_path / "possible_answer").mkdir()
    truth = {"id": "multi_turn_base_0", "ground_truth": [[source]]}
    (tmp_path / "possible_answer" / name).write_bytes(orjson.dumps(truth))
    with pytest.raises(DataError, match=rf"multi_turn_base\.json:1: .*{problem}"):
        list(bfcl.read_source(tmp_path))
