"""Attacks on a budget: long answers in parallel, and prompts whose answers nobody waits for.

    python -m benchmarks.budget_attack

Each row has a new key with a budget of 1 USD. Its 600 parallel requests cost 0.16 USD each, also
after 420 requests that cost nearly nothing. The gateway expects 0.003 USD of each. It promises to
overspend at most the cost of one request. The last row has a large budget, and 40
prompts of 250,000 tokens (0.25 USD) whose deadline ends before their answer begins.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import httpx
import yaml
from sqlalchemy import func, select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from router_service.access.accounts import Accounts
from router_service.access.key import Budget, BudgetPeriod
from router_service.access.specs import NewKey
from router_service.core.keys import new_key
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import spending
from router_service.settings import KeySettings
from tests.bodies import TOOLS
from tests.drills.processes import gateway
from tests.serving import served, wait_for

MODEL = "gpt-4.1-mini"
PRICE = {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-5}
LIMIT_USD = 1.0
LONG_TOKENS = 16_000
TINY = "tiny"
HANGING = "hanging"
ATTACKS: dict[str, dict[str, object]] = {
    "`max_tokens: 16000`": {"model": MODEL, "max_tokens": LONG_TOKENS},
    "`n: 128`": {"model": MODEL, "max_tokens": LONG_TOKENS // 128, "n": 128},
    "no limit": {"model": MODEL},
    "routed": {"model": "switchcraft", "max_tokens": LONG_TOKENS, "tools": TOOLS},
}


async def answer(request: Request) -> Response:
    """Answer as expensively as the request allows, or with one token, or not at all."""
    body = await request.json()
    text = body["messages"][0]["content"]
    await asyncio.sleep(3 if text.startswith(HANGING) else 0.05)
    tokens = 1 if text == TINY else LONG_TOKENS
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    message = {"role": "assistant", "content": "Sunny."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse(
        {"id": "1", "object": "chat.completion", "model": MODEL, "created": 1, "usage": usage}
        | {"choices": [choice] * body.get("n", 1)}
    )


async def ask(
    http: httpx.AsyncClient, body: dict[str, object], text: str, count: int
) -> Counter[int]:
    """Send parallel requests, and return how many got each status."""
    content = body | {"messages": [{"role": "user", "content": text}]}
    answers = await asyncio.gather(
        *(http.post("/v1/chat/completions", json=content) for _ in range(count))
    )
    return Counter(response.status_code for response in answers)


async def attack(url: str, secret: str, body: dict[str, object], tiny: int) -> Counter[int]:
    """Send small requests, and then those that may spend the budget."""
    headers = {"authorization": f"Bearer {secret}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as http:
        for _ in range(tiny // 10):
            await ask(http, body, TINY, 10)
        return await ask(http, body, "Long.", 600)


async def give_up(url: str, secret: str) -> Counter[int]:
    """Send long prompts with a deadline before the beginning of their answers."""
    headers = {"authorization": f"Bearer {secret}", "x-request-timeout": "1"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as http:
        prompt = f"{HANGING} {'word' * 250_000}"
        statuses: Counter[int] = Counter()
        for _ in range(10):
            statuses += await ask(http, {"model": MODEL}, prompt, 4)
        return statuses


def main() -> None:
    """Print a row for each attack."""
    admin = new_key()
    with (
        tempfile.TemporaryDirectory() as name,
        served(
            Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
        ) as upstream,
    ):
        folder, config = Path(name), Path(name) / "config.yaml"
        place = {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "x"}
        database_url = f"sqlite:///{folder / 'keys.db'}"
        sections = {
            "model_list": [{"model_name": MODEL, "litellm_params": place | PRICE}],
            "keys": {"admin": admin},
            "database": {"url": database_url},
            "budgets": {"cheaper_first": False},
            "server": {"max_requests_in_flight": 2000},
        }
        config.write_text(yaml.safe_dump(sections))
        database = Database(database_url)
        database.prepare()
        accounts = Accounts(database, KeySettings.model_validate({"admin": admin}))
        print("| attack | before | answered, refused | spent, USD |\n|---|--:|--:|--:|")
        with gateway(config, folder, key=admin) as process:

            def key(title: str, usd: float) -> str:
                budget = Budget(usd=usd, period=BudgetPeriod.TOTAL)
                secret = accounts.create_key(NewKey(name=title, budget=budget)).secret
                asyncio.run(asyncio.sleep(2))
                return secret

            def spent_usd(title: str) -> float:
                query = select(func.coalesce(func.sum(spending.c.spent_nusd), 0)).where(
                    spending.c.subject == f"key:{title}", spending.c.period == BudgetPeriod.TOTAL
                )
                with database.read() as connection:
                    return int(connection.execute(query).scalar_one()) / NANO

            def report(title: str, before: int, statuses: Counter[int]) -> None:
                wait_for(lambda: spent_usd(f"{title} {before}") > 0, "it is written")
                asyncio.run(asyncio.sleep(2))
                usd, refused = spent_usd(f"{title} {before}"), statuses.total() - statuses[200]
                print(f"| {title} | {before} | {statuses[200]}, {refused} | {usd:.3f} |")

            for title, body in ATTACKS.items():
                for tiny in (0, 420):
                    secret = key(f"{title} {tiny}", LIMIT_USD)
                    report(title, tiny, asyncio.run(attack(process.url, secret, body, tiny)))
            title = "40 prompts, deadline"
            report(title, 0, asyncio.run(give_up(process.url, key(f"{title} 0", 100.0))))
        database.close()


if __name__ == "__main__":
    main()
