"""The lines that `switchcraft route` gets.

Their decisions stay the same if each arm's probability changes by 0.01.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Json = Any

POLICIES = (
    None, "theta=0.89", "drift=0.15", "utility=0.0001", "utility=0.01", "verified", "verified=0.002"
)  # fmt: skip
"""Values of `--policy`; None for none."""


def _tool(name: str, about: str, **properties: Json) -> Json:
    described = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": described, "required": [*properties][:1]}
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def _ask(text: str, *tools: Json) -> Json:
    return {"messages": [{"role": "user", "content": text}], "tools": [*tools]}


def _calls(*calls: tuple[str, Json]) -> Json:
    listed = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


_CONVERT = _ask(
    "Convert 100 USD to EUR and to CHF.",
    _tool("convert", "Convert an amount", amount="number", source="string", target="string"),
)
_QUERY = _ask(
    "Find all customers in Vienna who ordered more than 3 times since March 2024, newest first.",
    _tool("query", "Query a table", table="string", filters="array", order="string"),
)
_TRAVEL = _ask(
    "I need a flight from VIE to LIS on 3 May, back on 10 May, two adults, and a hotel there.",
    _tool("search_flights", "Search flights", origin="string", destination="string", date="string"),
    _tool("search_hotels", "Search hotels", city="string", checkin="string", checkout="string"),
)
_UNRELATED = _ask("Who wrote Faust?", _tool("stock_price", "Price of a share", symbol="string"))
_HELLO = _ask("Hello! How are you?", _tool("send_mail", "Send a mail", to="string", text="string"))

_EUR, _CHF = (
    ("convert", {"amount": 100, "source": "USD", "target": target}) for target in ("EUR", "CHF")
)
_BOTH, _ONE = _calls(_EUR, _CHF), _calls(_EUR)
_WRONG, _UNKNOWN = _calls(("convert", {"source": 7})), _calls(("fly", {}))
_TEXT = {"role": "assistant", "content": "Hello, I am fine."}

_UNREAD: Json = {"messages": [7], "tools": [7]}
_INVALID: tuple[Json, ...] = ({"messages": []}, {"messages": "hello"}, [])


def lines_of(policy: str | None) -> Iterator[bytes]:
    """Yield the requests for a policy; with a verified one, some have answers."""
    bodies = [_CONVERT, _TRAVEL, _UNRELATED, _HELLO, _UNREAD, *_INVALID]
    if policy is None or not policy.startswith("verified"):
        bodies.append(_QUERY)
    else:
        some = {"claude-haiku-4.5": _WRONG, "claude-sonnet-4.5": _UNKNOWN}
        bodies += [
            {"request": _CONVERT, "answers": {}},
            {"request": _CONVERT, "answers": {"grok-4.1-fast": _BOTH}},
            {"request": _CONVERT, "answers": {"grok-4.1-fast": _ONE}},
            {"request": _CONVERT, "answers": {"claude-opus-4.5": _BOTH}},
            {"request": _CONVERT, "answers": {**some, "claude-opus-4.5": _BOTH}},
            {"request": _HELLO, "answers": {"gemini-2.5-flash-lite": _TEXT}},
            {"request": _CONVERT, "answers": {"gpt-2": _BOTH}},
            {"request": 7, "answers": {}},
            {"request": _CONVERT, "answers": []},
        ]
    yield from (json.dumps(body).encode() for body in bodies)
    yield b'{"messages": '
