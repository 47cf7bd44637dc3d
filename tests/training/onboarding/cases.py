"""Queries with expected calls, and how models answer them."""

from __future__ import annotations

from collections.abc import Sequence

from router_service.apis.conversation import Json
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.records import Example, Expected, Judged
from tests.training.runs import STRING, answer_line, function_tool

NEW = "newcomer"
ELDER = "elder"
QUERIES = 60
CITIES = "Oslo Lima Bern Rome Kyiv Riga Baku Doha Cairo Delhi Seoul Tokyo Paris Quito Sofia".split()
TOOL = function_tool("forecast", {"city": STRING})


def judged(number: int) -> Judged:
    """Return a query: every second one asks for a forecast, the others for what no tool does."""
    city = f"{CITIES[number % len(CITIES)]} {number}"
    is_call = number % 2 == 0
    text = f"What is the forecast for {city}?" if is_call else f"Who founded {city}, and why?"
    request = {"messages": [{"role": "user", "content": text}], "tools": [TOOL]}
    calls = (ExpectedCall("forecast", {"city": (city,)}),) if is_call else ()
    return Judged(Example(f"q{number}", "cd"[is_call], request, "d"), Expected(calls))


ROWS = [judged(number) for number in range(QUERIES)]
OTHER_ROWS = [judged(number) for number in range(QUERIES, QUERIES + 30)]


def answer(row: Judged, arm: str, *, right: bool) -> dict[str, Json]:
    """Return a line of a labelling run's answers."""
    city = row.example.query.removeprefix("What is the forecast for ").removesuffix("?")
    is_call = bool(row.expected.calls) == right
    calls = [("forecast", {"city": city})] if is_call else []
    return answer_line(row.example.id, arm, *calls, input_tokens=100, latency_s=1.0)


def is_newcomer_right(row: Judged) -> bool:
    """Return whether the new model is right: it always calls, even if it should not."""
    return bool(row.expected.calls)


def newcomers(rows: Sequence[Judged]) -> list[dict[str, Json]]:
    """Return the new model's answers to these queries."""
    return [answer(row, NEW, right=is_newcomer_right(row)) for row in rows]
