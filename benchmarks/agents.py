"""What an agent costs that only changes its base URL, beside the dearest model for every request.

    python -m benchmarks.agents --out runs/agents.json

Scripted agents of an airline, a shop and a researcher have 13, 5 and 20 tools. They talk to a
gateway with the shipped artifact and three models. A scripted upstream answers with the
next call of the script, and reports the tokens that a provider would have cached: the longest
beginning that an earlier prompt of the same model has. With `--wrong`, the cheaper models give
invented values in every n-th call.

The answers are scripted, so this measures costs, changes of the model and caches, not accuracy.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson
import yaml
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


SCRIPTS = Path(__file__).with_name("agent_scripts.yaml")


@dataclass(frozen=True)
class Agent:
    """A scripted agent. `script` has the user's messages, the calls that follow, and a text."""

    system: str
    tools: Sequence[dict[str, Any]]
    script: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, name: str) -> Agent:
        """Read an agent. All parameters are required texts, and the rules repeat in its prompt."""
        entry = yaml.safe_load(SCRIPTS.read_text())[name]
        rules, tools = entry["rules"], []
        numbered = (f"{n}. {rules[n % len(rules)]}" for n in range(1, entry["numbered"] + 1))
        for each in entry["tools"]:
            parameters = each["parameters"].items()
            properties = {key: {"type": "string", "description": told} for key, told in parameters}
            schema = {"type": "object", "properties": properties, "required": [*properties]}
            tools.append({"type": "function", "function": {**each, "parameters": schema}})
        return cls(entry["role"] + " ".join(numbered), tools, entry["script"])


@dataclass
class Tally:
    """What the upstream has counted for each model."""

    agent: Agent
    wrong: int
    """The cheaper models are wrong in every n-th of their calls; 0 for never."""
    requests: Counter[str] = field(default_factory=Counter)
    prompt: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    seen: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    async def answer(self, request: Request) -> JSONResponse:
        """Answer with the script's next call, or with a text after the last one."""
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
        step = self.agent.script[turn]
        message: dict[str, Any] = {"role": "assistant", "content": step["text"]}
        if number < len(step["calls"]):
            name, arguments = step["calls"][number]["name"], step["calls"][number]["arguments"]
            is_cheap = "sonnet" not in model
            if self.wrong and is_cheap and self.requests[model] % self.wrong == 0:
                arguments = dict.fromkeys(arguments, "unknown")
            function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
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


def run(agent: Agent, model: str, section: str, wrong: int) -> Run:
    """Let an agent do its work with a model's name and a section of the configuration."""
    tally, records, loops = Tally(agent, wrong), [], []
    with gateway(tally, section) as http:
        marked = {"type": "text", "text": agent.system, "cache_control": {"type": "ephemeral"}}
        messages: list[dict[str, Any]] = [{"role": "system", "content": [marked]}]
        for step in agent.script:
            messages.append({"role": "user", "content": step["user"]})
            for number in range(len(step["calls"]) + 1):
                body = {"model": model, "messages": messages, "tools": agent.tools}
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
                    result = step["calls"][number]["result"]
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
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
    "`verified=0.0849`": ("switchcraft", "router: {unfamiliar: verified=0.0849}\n"),
    "without `conversations`": ("switchcraft", "router: {conversations: {enabled: false}}\n"),
    "`unfamiliar: best`": ("switchcraft", "router: {unfamiliar: best}\n"),
    "`switchcraft:fast`": ("switchcraft:fast", ""),
}


def main() -> None:
    """Print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=["airline", "shop", "research"])
    parser.add_argument("--wrong", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(
        "| agent | cheaper models wrong | setting | cost | cached | asked | changes | escalations |"
    )
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for agent, wrong in product(args.agents, args.wrong):
        dearest_usd = 0.0
        for name, (model, section) in SETTINGS.items():
            found = run(Agent.read(agent), model, section, wrong)
            dearest_usd = dearest_usd or found.usd
            rows.append({"agent": agent, "wrong": wrong, "setting": name, **vars(found)})
            how = f"1 of {wrong} calls" if wrong else "never"
            print(
                f"| {agent} | {how} | {name} | {found.usd / dearest_usd:.0%}"
                f" | {found.cached_share:.0%} | {found.candidates:.1f} | {found.changes}"
                f" | {found.escalations} |",
                flush=True,
            )
    write_figures(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
