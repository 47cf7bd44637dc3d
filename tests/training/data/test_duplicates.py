"""Near-duplicates: what joins rows, what does not, and groups that are too large."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from switchcraft_training.data.duplicates import near_duplicates, similar_tools
from switchcraft_training.data.learned import LearnedTools
from switchcraft_training.records import Example

PROMPT = "You are the assistant of an airline. Never book a flight without a confirmation. " * 30
LETTERS = random.Random(0)
WORDS = ["".join(LETTERS.choices("aeioubcdfghklmnprstvw", k=7)) for _ in range(1000)]


def sentence(number: int, words: int = 12) -> str:
    """Return a sentence of random words, the same one for the same number."""
    return " ".join(random.Random(number).choices(WORDS, k=words))


def example(*said: str | Mapping[str, Any], conversation: str = "", system: str = "") -> Example:
    """Return a row with these messages; a message that is only text is a user's."""
    messages = [
        {"role": "user", "content": each} if isinstance(each, str) else each for each in said
    ]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return Example("q", "a", {"messages": messages, "tools": []}, "d", conversation)


def groups_of(examples: Sequence[Example]) -> list[list[int]]:
    """Return the rows of each group."""
    groups = near_duplicates(examples)
    found = [np.flatnonzero(groups == group).tolist() for group in np.unique(groups)]
    return sorted(found)


def test_numbers_and_names_and_case_make_no_other_query() -> None:
    """Queries that differ in a number, in a name, or in case and spacing share a group."""
    rows = [
        example("What is the area of a circle with a radius of 5 metres?"),
        example("What is the area of a circle with a radius of 10 metres?"),
        example("Please book a table for two at eight in the evening in Rome."),
        example("Please book a table for two at eight in the evening in Oslo."),
        example("Play some jazz."),
        example("play  some JAZZ. "),
        example("Translate this letter into Welsh."),
    ]
    assert groups_of(rows) == [[0, 1], [2, 3], [4, 5], [6]]


def offering(*tools: tuple[str, str]) -> Example:
    """Return a row that offers tools, each with a name and its parameters."""
    offered = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {each: {} for each in names.split()},
                },
            },
        }
        for name, names in tools
    ]
    return Example("q", "a", {"messages": [], "tools": offered}, "d")


def test_the_same_or_nearly_the_same_tools_join_rows() -> None:
    """Order, case and one parameter more do not matter; a shared tool is not enough."""
    forecast = ("weather_get_forecast", "city country days units language")
    rows = [
        offering(forecast, ("book_hotel", "city nights guests")),
        offering(("book_hotel", "guests city nights"), forecast),
        offering((forecast[0], f"{forecast[1]} hourly"), ("book_hotel", "city nights guests")),
        offering(("book_hotel", "city nights guests")),
        offering(("play_song", "artist title")),
        offering(),
        offering(),
    ]
    first, *others = similar_tools(rows).tolist()
    assert others[:2] == [first, first]
    assert len({first, *others[2:]}) == 5
    learned = LearnedTools.of(rows[:1])
    assert [learned.has(row) for row in rows[:5]] == [True, True, True, False, False]


def test_turns_of_a_conversation_stay_together() -> None:
    """Turns have one group, and so have all turns of conversations that say nearly the same."""
    one = ("Book a table for two in Rome.", "And another one tomorrow, please.")
    other = ("Book a table for two in Roma.", "Which films are on at the cinema tonight?")
    rows = [
        *(example(*one[:n], conversation="c") for n in (1, 2)),
        *(example(*other[:n], conversation="d") for n in (1, 2)),
        example("Play some jazz.", conversation="e"),
    ]
    assert groups_of(rows) == [[0, 1, 2, 3], [4]]


def test_a_system_prompt_decides_nothing() -> None:
    """Different questions under one long prompt are different; one question under two is one."""
    rows = [example(sentence(i, 6), system=PROMPT) for i in range(50)]
    rows.append(example(sentence(0, 6), system="Answer briefly."))
    assert groups_of(rows) == [[0, 50], *([i] for i in range(1, 50))]


def test_tool_results_decide_nothing() -> None:
    """Steps of two agents with the same task share a group, whatever their tools returned."""
    made = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    call = {"role": "assistant", "content": None, "tool_calls": [made]}
    rows = [
        example(
            sentence(i), call, {"role": "tool", "tool_call_id": "1", "content": sentence(9 + k)}
        )
        for i, k in ((1, 0), (1, 1), (2, 0))
    ]
    assert groups_of(rows) == [[0, 1], [2]]


def test_a_common_opening_is_divided_by_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    """If one short turn joins many conversations, a warning names it, and they are separated."""
    rows = [
        example(*said, conversation=f"c{i}", system=PROMPT)
        for i in range(60)
        for said in (("Hello!",), ("Hello!", sentence(i)))
    ]
    with caplog.at_level(logging.WARNING):
        assert groups_of(rows) == [[2 * i, 2 * i + 1] for i in range(60)]
    (message,) = [each for each in caplog.messages if "rows=" in each]
    assert "rows=120 share=100% text='Hello!'" in message
    assert "divided into 60 groups of at most 2 rows" in message


def test_a_chain_of_similar_queries_is_divided(caplog: pytest.LogCaptureFixture) -> None:
    """A chain whose ends have nothing in common is cut where its links are weakest."""
    words = WORDS[:120]
    rows = [example(" ".join(words[i : i + 10])) for i in range(100)]
    assert len(groups_of(rows)) > 1
    assert "rows=100 share=100%" in caplog.text


def test_groups_depend_on_neither_order_nor_hash_seed() -> None:
    """Shuffled rows, and another process with another hash seed, give the same groups."""
    texts = [f"{sentence(i // 3)} {WORDS[i % 3]}" for i in range(150)]
    rows = [example(text) for text in texts]
    order = list(range(150))
    random.Random(1).shuffle(order)
    shuffled = [sorted(order[i] for i in each) for each in groups_of([rows[i] for i in order])]
    expected = groups_of(rows)
    assert sorted(shuffled) == expected
    assert len(expected) == 50
    code = (
        "import sys; from switchcraft_training.records import Example;"
        "from switchcraft_training.data.duplicates import near_duplicates;"
        "rows = [Example('q', 'a', {'messages': [{'role': 'user', 'content': t}], 'tools': []})"
        " for t in sys.stdin.read().splitlines()]; print(near_duplicates(rows).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input="\n".join(texts),
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(near_duplicates(rows).tolist())


def test_hardly_any_pair_of_the_exact_comparison_is_missed() -> None:
    """Of all pairs with a cosine similarity of 0.75 or more, at least 99% share a group."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415

    rng = random.Random(3)
    texts = []
    for i in range(300):
        words = sentence(i, 14).split()
        texts.append(" ".join(words))
        for _ in range(rng.randrange(3)):
            changed = [rng.choice(WORDS) if rng.random() < 0.1 else word for word in words]
            texts.append(" ".join(changed))
    vectors = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, use_idf=False
    ).fit_transform(texts)
    near = np.triu((vectors @ vectors.T).toarray() >= 0.75, 1)
    groups = near_duplicates([example(text) for text in texts])
    one, other = near.nonzero()
    assert len(one) > 100
    assert (groups[one] == groups[other]).mean() > 0.99
