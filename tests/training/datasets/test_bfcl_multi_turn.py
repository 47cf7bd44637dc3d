"""Multi-turn conversations: replay, order, and what each turn offers and expects."""

from __future__ import annotations

import importlib
import json
from collections import Counter, defaultdict
from pathlib import Path

import orjson
import pytest

from router_service.core.errors import DataError
from switchcraft_training.datasets import bfcl
from switchcraft_training.datasets.bfcl.format import package_data
from switchcraft_training.datasets.bfcl.multi_turn import Environment
from switchcraft_training.records import Call, Judged

UTILS = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils"
DOCUMENT = {"type": "directory", "contents": {"a.txt": {"type": "file", "content": "one\ntwo"}}}
DISK = {"root": {"home": {"type": "directory", "contents": {"document": DOCUMENT}}}}
CONFIG = {"GorillaFileSystem": DISK, "TwitterAPI": {"authenticated": True, "username": "ann"}}
TOOLS = ["GorillaFileSystem", "TwitterAPI"]


def call(name: str, **arguments: object) -> Call:
    """Return a call."""
    return Call(name, arguments)


def order(*calls: Call) -> list[set[int]]:
    """Return for each call those that must come before it."""
    environment = Environment(TOOLS, CONFIG, long_context=False)
    return [set(after) for after in environment.play(calls).after]


def test_calls_are_ordered_where_an_exchange_changes_something() -> None:
    """Going somewhere comes before looking around there; a tweet about it is free of both."""
    go, tweet = call("cd", folder="document"), call("post_tweet", content="On it.")
    look = call("wc", file_name="a.txt", mode="l")
    assert order(go, tweet, look) == [set(), set(), {0}]


def test_what_a_call_depends_on_is_followed_through() -> None:
    """A call after one that comes after another comes after both, and reading is never ordered."""
    calls = [
        call("cd", folder="document"),
        call("touch", file_name="b.txt"),
        call("cat", file_name="a.txt"),
        call("echo", content="x", file_name="b.txt"),
        call("cat", file_name="b.txt"),
    ]
    assert order(*calls) == [set(), {0}, {0}, {0, 1}, {0, 1, 3}]


def test_the_state_left_behind_orders_calls_too() -> None:
    """Two writes to one file return the same either way, and leave another file behind."""
    make = call("touch", file_name="c.txt")
    first, second = (call("echo", content=text, file_name="c.txt") for text in "xy")
    assert order(make, first, second) == [set(), {0}, {0, 1}]


def test_a_turn_starts_where_the_last_one_ended() -> None:
    """Trying orders out changes nothing: the next turn finds the state of the written order."""
    environment = Environment(TOOLS, CONFIG, long_context=False)
    environment.play([call("cd", folder="document"), call("touch", file_name="b.txt")])
    result = environment.play([call("ls")]).results[0]
    assert json.loads(result) == {"current_directory_content": ["a.txt", "b.txt"]}


def test_what_a_tool_raises_is_its_result() -> None:
    """A call that a simulated tool cannot take is answered by an error, as the leaderboard does."""
    environment = Environment(TOOLS, CONFIG, long_context=False)
    (result,) = environment.play([call("cd", place="document")]).results
    assert result.startswith("Error during execution: ")


@pytest.fixture(scope="module")
def conversations() -> dict[str, list[Judged]]:
    """Read the installed multi-turn categories, turn by turn."""
    turns: dict[str, list[Judged]] = defaultdict(list)
    for judged in bfcl.read_source(Path("bfcl-eval")):
        if judged.example.conversation:
            turns[judged.example.conversation].append(judged)
    return turns


def test_every_turn_of_every_conversation_is_a_record(
    conversations: dict[str, list[Judged]],
) -> None:
    """200 conversations a category, one record for each of their turns.

    Releases up to 2025.11.3 have the paper's 745 turns of base and of long context; 2026.3.23
    took out the 11 that called `update_market_status`.
    """
    counts = Counter(turn.example.category for turns in conversations.values() for turn in turns)
    assert counts == {
        "multi_turn_base": 734,
        "multi_turn_long_context": 734,
        "multi_turn_miss_func": 934,
        "multi_turn_miss_param": 934,
    }
    assert len(conversations) == 800


@pytest.mark.parametrize("category", ["base", "long_context", "miss_func", "miss_param"])
def test_replayed_results_are_those_of_the_leaderboard(
    conversations: dict[str, list[Judged]], category: str
) -> None:
    """Its own replay of the same truths returns the same words, call by call."""
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


def test_messages_are_those_an_agent_would_have_sent(
    conversations: dict[str, list[Judged]],
) -> None:
    """A record ends with the user's turn, and every result answers the call just before it."""
    for turns in conversations.values():
        for turn in turns:
            messages = turn.example.request["messages"]
            assert messages[-1]["role"] == "user"
            made = [m["tool_calls"][0]["id"] for m in messages if m["role"] == "assistant"]
            assert made == [m["tool_call_id"] for m in messages if m["role"] == "tool"]
            assert len(set(made)) == len(made)
        calls = [len(turn.expected.calls) for turn in turns[:-1]]
        assert len(made) == sum(calls)


def test_a_missing_function_is_offered_from_its_turn_on(
    conversations: dict[str, list[Judged]],
) -> None:
    """Before its turn nothing is expected where it is needed; then the user brings it."""
    before, turn = conversations["multi_turn_miss_func_0"][2:4]
    assert "sort" not in before.example.tool_names
    assert before.expected.calls == ()
    assert turn.example.tool_names == (*before.example.tool_names, "sort")
    assert "more functions" in turn.example.query
    (expected,) = turn.expected.calls
    assert (expected.name, expected.arguments) == ("sort", {"file_name": ("final_report.pdf",)})


def test_a_function_that_was_called_cannot_have_been_missing(
    conversations: dict[str, list[Judged]],
) -> None:
    """One conversation calls a function before it is brought: it is offered from the start."""
    offered = [set(t.example.tool_names) for t in conversations["multi_turn_miss_func_49"]]
    assert "tail" in offered[0]
    assert ["wc" in names for names in offered] == [False, False, False, True, True]


def test_second_ways_are_not_offered(conversations: dict[str, list[Judged]]) -> None:
    """A function that the conversation excludes is never offered."""
    assert "cp" not in conversations["multi_turn_base_0"][0].example.tool_names


def test_a_documented_default_may_be_left_out(conversations: dict[str, list[Judged]]) -> None:
    """An argument at its default is optional, at another value it is not."""
    modes = {
        (expected.arguments["mode"][0], "mode" in expected.optional)
        for turns in conversations.values()
        for turn in turns
        for expected in turn.expected.calls
        if expected.name == "wc" and "mode" in expected.arguments
    }
    assert modes == {("l", True), ("w", False), ("c", False)}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("teleport()", "does not simulate 'teleport' here"),
        ("cd('a', 'b')", "more arguments than"),
        ("cd(folder=home)", "ValueError"),
        ("cd", "not a call"),
    ],
)
def test_a_truth_that_cannot_be_replayed_is_refused(
    tmp_path: Path, source: str, problem: str
) -> None:
    """A call that the simulated tools do not have, or that is none, is an error with its line."""
    name = "BFCL_v4_multi_turn_base.json"
    question = [[{"role": "user", "content": "Go."}]]
    row = {"id": "multi_turn_base_0", "question": question, "initial_config": CONFIG}
    (tmp_path / name).write_bytes(orjson.dumps({**row, "involved_classes": TOOLS}))
    (tmp_path / "possible_answer").mkdir()
    truth = {"id": "multi_turn_base_0", "ground_truth": [[source]]}
    (tmp_path / "possible_answer" / name).write_bytes(orjson.dumps(truth))
    with pytest.raises(DataError, match=rf"multi_turn_base\.json:1: .*{problem}"):
        list(bfcl.read_source(tmp_path))
