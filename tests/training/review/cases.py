"""A small benchmark with typical mistakes, and a critic that knows them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.records import Example, Expected, Judged
from tests.serving import served


def tool(name: str, description: str, required: list[str], **properties: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an OpenAI function tool."""
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


BALANCE = tool(
    "get_balance",
    "Return the balance of one account in its own currency.",
    ["account"],
    account={"type": "string", "description": "The account's number, as list_accounts gives it."},
)
LIST = tool("list_accounts", "List a customer's accounts.", [])
FLIGHTS = tool(
    "search_flights",
    "Search for flights between two airports on one day.",
    ["origin", "destination", "date"],
    origin={"type": "string", "description": "IATA code of the airport of departure."},
    destination={"type": "string", "description": "IATA code of the airport of arrival."},
    date={"type": "string", "description": "Day of departure, YYYY-MM-DD.", "format": "date"},
    cabin={"type": "string", "enum": ["economy", "business"], "default": "economy"},
    passengers={"type": "integer", "minimum": 1, "default": 1},
)
ACCOUNTS = json.dumps(
    {
        "accounts": [
            {"number": "C-881", "kind": "checking"},
            {"number": "S-204", "kind": "savings"},
        ]
    }
)


def row(
    identifier: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    *calls: ExpectedCall,
) -> Judged:
    """Return a row of the benchmark."""
    request = {"messages": messages, "tools": tools}
    example = Example(identifier, "dialogue", request, "bank", identifier)
    return Judged(example, Expected(calls))


def user(text: str) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text}


def balance(account: str) -> ExpectedCall:
    """Return the call that asks for a balance."""
    return ExpectedCall("get_balance", {"account": (account,)})


SAVINGS = row(
    "savings",
    [
        user("Hi, I would like to know what is on my savings account."),
        {
            "role": "assistant",
            "content": "Let me look up your accounts.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "list_accounts", "arguments": "{}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": ACCOUNTS},
        {"role": "assistant", "content": "You have two accounts. Which one do you mean?"},
        user("The savings one, please."),
    ],
    [BALANCE, LIST],
    balance("C-881"),
)
CHRISTMAS = row(
    "christmas",
    [user("Find me a flight from Newark to Boston on the 25th of December.")],
    [FLIGHTS, BALANCE],
    ExpectedCall(
        "search_flights",
        {
            "origin": ("EWR",),
            "destination": ("BOS",),
            "date": ("2023-12-25",),
            "cabin": ("economy",),
        },
        frozenset({"cabin"}),
    ),
)
RIGHT = row("right", [user("What is on C-881?")], [BALANCE], balance("C-881"))
SPELLING = row("spelling", [user("What is on C-881 now?")], [BALANCE], balance("C-881"))
UNKNOWN = row("unknown", [user("Close my account.")], [BALANCE, LIST], balance("S-204"))
GARBLED = row("garbled", [user("What is on account S-204?")], [BALANCE], balance("S-205"))

ROWS = (SAVINGS, CHRISTMAS, RIGHT, SPELLING, UNKNOWN, GARBLED)
FLAGGED = ("savings", "christmas", "unknown", "garbled")
UTTERANCE = "Find me a flight from Newark to Boston on the 25th of December 2023."


def corrected(account: str, name: str = "get_balance") -> list[dict[str, Any]]:
    """Return the critic's suggested correction."""
    return [{"name": name, "arguments": {"account": [account]}}]


VERDICTS: Mapping[str, str] = {
    "savings": json.dumps(
        {
            "verdict": "wrong_truth",
            "category": "incorrect_parameter_value",
            "explanation": "The user asks for the savings account, which is S-204 in the result "
            "of list_accounts; the expected call names the checking account, C-881.",
            "expected": corrected("S-204"),
        }
    ),
    "christmas": json.dumps(
        {
            "verdict": "ambiguous_input",
            "category": "temporal_ambiguity",
            "explanation": "The expected date is in 2023, but the user names no year.",
            "utterance": UTTERANCE,
        }
    ),
    "right": json.dumps({"verdict": "right", "explanation": "It is what was asked."}),
    "spelling": json.dumps({"verdict": "wrong_truth", "expected": corrected("c-881")}),
    "unknown": json.dumps(
        {
            "verdict": "wrong_truth",
            "category": "wrong_function",
            "explanation": "The user wants the account closed; its balance is beside the point.",
            "expected": corrected("S-204", "close_account"),
        }
    ),
    "garbled": "I think that the number is wrong.",
}


@dataclass
class FakeCritic:
    """A critic's endpoint that answers by the last user message, and counts its requests."""

    url: str = ""
    requested: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    status: int = 500
    verdicts: dict[str, str] = field(default_factory=lambda: dict(VERDICTS))

    async def answer(self, request: Request) -> JSONResponse:
        """Answer a chat completion request as OpenAI does."""
        body = await request.json()
        asked = json.loads(body["messages"][1]["content"])["conversation"][-1]["content"]
        identifier = next(r.example.id for r in ROWS if r.example.query == asked)
        self.requested.append(identifier)
        if identifier in self.refused:
            return JSONResponse(
                {"error": {"message": "no"}}, self.status, {"x-should-retry": "false"}
            )
        message = {"role": "assistant", "content": self.verdicts[identifier]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return JSONResponse({**head, "choices": [choice], "usage": usage})


@contextmanager
def verifying() -> Iterator[FakeCritic]:
    """Serve a critic over HTTP, and a web page under /home."""
    critic, app = FakeCritic(), FastAPI()
    app.post("/v1/chat/completions")(critic.answer)
    app.post("/home/chat/completions")(lambda: HTMLResponse("<p>Welcome.</p>"))
    with served(app) as url:
        critic.url = f"{url}/v1"
        yield critic


def written(folder: Path) -> Path:
    """Write the benchmark's rows; return their file."""
    path = folder / "rows.jsonl"
    write_rows(ROWS, path)
    return path
