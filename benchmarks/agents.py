"""What an agent costs that only changes its base URL, beside the dearest model for every request.

    python -m benchmarks.agents --out runs/agents.json

A scripted airline's agent has 13 tools, a system prompt of 2.7 KB, and 15 requests: three messages
of the user, each with four calls and a text. It talks to a gateway with the shipped artifact and
README's three models. A scripted upstream answers with the next call of the script, and reports
the tokens that a provider would have cached: the longest beginning that an earlier prompt of the
same model has. With `--wrong`, the cheaper models give an invented value in every n-th call.

The answers are scripted, so this measures costs, changes of the model and caches, not accuracy.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.stamp import write_figures
from router_service.apis.chat.api import CHAT
from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests.serving import served

SONNET, MINI, GROK = "claude-sonnet-4-5", "gpt-4.1-mini", "grok"
CONFIG = """
model_list:
  - model_name: claude-sonnet-4-5
    litellm_params: {model: anthropic/claude-sonnet-4-5-20250929, api_base: BASE, api_key: k}
  - model_name: gpt-4.1-mini
    litellm_params: {model: openai/gpt-4.1-mini, api_base: BASE, api_key: k}
  - model_name: grok
    litellm_params: {model: xai/grok-4-1-fast-non-reasoning, api_base: BASE, api_key: k}
"""
POLICY = (
    "You are the customer service agent of an airline. Help the customer with bookings, changes,"
    " cancellations and refunds, and follow these rules without exception. "
)
RULES = (
    "Ask for the customer's id before you look anything up. Never invent an id, a price or a date.",
    "A booking may be changed up to two hours before departure; basic economy cannot be changed.",
    "A cancelled flight is refunded in full; other refunds follow the fare's rules.",
    "Baggage allowance depends on the cabin and on the customer's status; look it up.",
    "Confirm each payment with the customer, and name its amount, before you charge a card.",
)
SYSTEM = POLICY + " ".join(f"{n}. {RULES[n % len(RULES)]}" for n in range(1, 29))
NAMES = (
    "get_customer", "get_booking", "search_flights", "get_flight_status", "change_flight",
    "cancel_booking", "get_refund_rules", "refund_booking", "add_baggage", "get_baggage_rules",
    "select_seat", "send_certificate", "get_airport",
)  # fmt: skip
PARAMETER = {"get_customer": "customer_id", "search_flights": "route", "get_airport": "code"}
SCRIPT = (
    (
        "I am customer C1042. Flight status, refund rules and baggage rules of booking BK7731?",
        ("get_booking", "BK7731"), ("get_flight_status", "BK7731"),
        ("get_refund_rules", "BK7731"), ("get_baggage_rules", "BK7731"),
    ),
    (
        "Look up customer C1042, the route OSL-LIS, the airport LIS, and booking BK7731 again.",
        ("get_customer", "C1042"), ("search_flights", "OSL-LIS"),
        ("get_airport", "LIS"), ("get_booking", "BK7731"),
    ),
    (
        "And my booking BK9902: the booking, its flight status, refund rules and baggage rules?",
        ("get_booking", "BK9902"), ("get_flight_status", "BK9902"),
        ("get_refund_rules", "BK9902"), ("get_baggage_rules", "BK9902"),
    ),
)  # fmt: skip
FILLER = '{"status":"confirmed","detail":"' + "seat 14C, cabin economy, on time; " * 20 + '"}'


def tool(name: str) -> dict[str, Any]:
    """Return a tool with one parameter."""
    what = name.replace("_", " ")
    value = {"type": "string", "description": f"What to {what} for, as the customer wrote it."}
    parameter = PARAMETER.get(name, "booking_id")
    schema = {"type": "object", "properties": {parameter: value}, "required": [parameter]}
    function = {"name": name, "description": f"Call this to {what}.", "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [tool(name) for name in NAMES]


@dataclass
class Tally:
    """What the upstream has counted for each model."""

    wrong: int
    """The cheaper models are wrong in every n-th of their calls; 0 for never."""
    requests: Counter[str] = field(default_factory=Counter)
    prompt: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    seen: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    async def answer(self, request: Request) -> JSONResponse:
        """Answer with the script's next call, or with a text after the fourth."""
        body = orjson.loads(await request.body())
        model, messages = str(body["model"]), body["messages"]
        prompt = orjson.dumps([body["tools"], messages])
        cached = max((_common(prompt, each) for each in self.seen[model]), default=0)
        tokens, cached = len(prompt) // CHARACTERS_PER_TOKEN, cached // CHARACTERS_PER_TOKEN
        cached = cached // 128 * 128 if cached >= 1024 else 0
        self.seen[model].append(prompt)
        self.requests[model] += 1
        self.prompt[model] += tokens
        self.cached[model] += cached
        turn = sum(message["role"] == "user" for message in messages) - 1
        last = max(n for n, message in enumerate(messages) if message["role"] == "user")
        number = sum(message["role"] == "tool" for message in messages[last:])
        calls = SCRIPT[turn][1:]
        message: dict[str, Any] = {"role": "assistant", "content": "All of it is confirmed."}
        if number < len(calls):
            name, value = calls[number]
            is_cheap = "sonnet" not in model
            if self.wrong and is_cheap and self.requests[model] % self.wrong == 0:
                value = "unknown"
            arguments = orjson.dumps({PARAMETER.get(name, "booking_id"): value}).decode()
            function = {"name": name, "arguments": arguments}
            call = {"id": f"call_{turn}_{number}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": 40,
            "total_tokens": tokens + 40,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        reason = "tool_calls" if message["content"] is None else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        answer = {"id": "c", "object": "chat.completion", "created": 0, "model": model}
        return JSONResponse({**answer, "choices": [choice], "usage": usage})


def _common(one: bytes, other: bytes) -> int:
    least = min(len(one), len(other))
    differing = (n for n in range(0, least, 64) if one[n : n + 64] != other[n : n + 64])
    return next(differing, least)


@dataclass(frozen=True)
class Run:
    """One run of the agent."""

    usd: float
    cached_share: float
    """Share of all prompt tokens, those of candidates that were not accepted included."""
    candidates: float
    """Models that were asked for a request, on average."""
    changes: int
    """Requests inside a tool loop that another model answered than the one before."""
    escalations: int
    """Those among them for which the model before was asked first."""
    models: Counter[str]


@contextmanager
def gateway(tally: Tally, section: str) -> Iterator[httpx.Client]:
    """Serve a gateway with the shipped artifact in front of the scripted upstream."""
    app = Starlette(routes=[Route("/v1/chat/completions", tally.answer, methods=["POST"])])
    with served(app) as upstream, TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(CONFIG.replace("BASE", f"{upstream}/v1") + section)
        settings = read_settings(path, environ={})
        models = []
        for model in settings.models:
            (own,) = model.deployments
            chat = own.model_copy(update={"apis": (CHAT,)})
            models.append(model.model_copy(update={"deployments": (chat,)}))
        settings = settings.model_copy(update={"models": tuple(models)})
        with (
            served(create_app(settings, Router.load())) as url,
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            yield http


def run(model: str, section: str, wrong: int) -> Run:
    """Let the agent do its work with a model's name and a section of the configuration."""
    tally, records, loops = Tally(wrong), [], []
    with gateway(tally, section) as http:
        marked = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}
        messages: list[dict[str, Any]] = [{"role": "system", "content": [marked]}]
        for text, *calls in SCRIPT:
            messages.append({"role": "user", "content": text})
            for number in range(len(calls) + 1):
                body = {"model": model, "messages": messages, "tools": TOOLS}
                response = http.post("/v1/chat/completions", json=body)
                response.raise_for_status()
                found = response.headers["x-switchcraft-decision-id"]
                while not (record := http.get(f"/v1/decisions/{found}")).is_success:
                    pass
                records.append(record.json())
                loops.append(number > 0)
                message = response.json()["choices"][0]["message"]
                messages.append(message)
                for call in message.get("tool_calls") or ():
                    result = {"role": "tool", "tool_call_id": call["id"], "content": FILLER}
                    messages.append(result)
    changes = escalations = 0
    for before, after, is_in_loop in zip(records, records[1:], loops[1:], strict=False):
        if is_in_loop and before["model"] != after["model"]:
            changes += 1
            asked = after.get("candidates") or ()
            escalations += bool(asked) and asked[0]["model"] == before["model"]
    return Run(
        usd=sum(record["actual_cost_usd"] for record in records),
        cached_share=tally.cached.total() / tally.prompt.total(),
        candidates=tally.requests.total() / len(records),
        changes=changes,
        escalations=escalations,
        models=Counter(record["model"] for record in records),
    )


SETTINGS = {
    "always Sonnet": (SONNET, ""),
    "`switchcraft`, the defaults": ("switchcraft", ""),
    "without `conversations`": ("switchcraft", "router: {conversations: {enabled: false}}\n"),
    "`unfamiliar: best`": ("switchcraft", "router: {unfamiliar: best}\n"),
    "`switchcraft:fast`": ("switchcraft:fast", ""),
}


def main() -> None:
    """Print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| cheaper models wrong | setting | cost | cached | asked | changes | escalations |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for wrong in args.wrong:
        dearest_usd = 0.0
        for name, (model, section) in SETTINGS.items():
            found = run(model, section, wrong)
            dearest_usd = dearest_usd or found.usd
            rows.append({"wrong": wrong, "setting": name, **vars(found)})
            how = f"1 of {wrong} calls" if wrong else "never"
            print(
                f"| {how} | {name} | {found.usd / dearest_usd:.0%} | {found.cached_share:.0%} |"
                f" {found.candidates:.1f} | {found.changes} | {found.escalations} |",
                flush=True,
            )
    write_figures(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
