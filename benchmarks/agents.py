"""What an agent costs that only changes its base URL, beside the dearest model for every request.

    python -m benchmarks.agents --out runs/agents.json
    python -m benchmarks.agents --agents airline --wrong 0 --stream    # with waiting times
    python -m benchmarks.agents --unverifiable                         # what cannot be verified
    python -m benchmarks.agents --models anthropic/claude-sonnet-5-5 openai/gpt-6-luna

Scripted agents of an airline, a shop and a researcher have 13, 5 and 20 tools. They talk to a
gateway with the shipped artifact and three models, or with other `--models`, the first of which is
the one that agents use without a gateway. A scripted upstream answers with the
next call of the script, and reports the tokens that a provider would have cached: the longest
beginning that an earlier prompt of the same model has. With `--wrong`, the cheaper models give
invented values in every n-th call. With `--stream`, the upstream streams for as long as the models
took on the training queries, a fifth of the time, and the table has waiting times at their scale.

The answers are scripted, so this measures costs, changes of the model and caches, not accuracy.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import numpy as np
import orjson
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.stamp import write_figures
from router_service.apis.chat.api import CHAT
from router_service.apis.responses.api import RESPONSES
from router_service.apis.usage import CHARACTERS_PER_TOKEN
from router_service.artifact import SHIPPED, Artifact
from router_service.runtime.engine import EngineBuilder
from router_service.serving.app import create_app
from router_service.settings import read_settings
from tests.serving import served

MODELS = (
    "anthropic/claude-sonnet-4-5-20250929",
    "openai/gpt-4.1-mini",
    "xai/grok-4-1-fast-non-reasoning",
)
"""The agents' models as LiteLLM writes them; the first is the one that they use without a gateway.
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
    """All models but the first are wrong in every n-th of their calls; 0 for never."""
    models: Sequence[str] = MODELS
    requests: Counter[str] = field(default_factory=Counter)
    prompt: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    seen: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    async def answer(self, request: Request) -> Response:
        """Answer with the script's next call, or with a text after the last one."""
        body = orjson.loads(await request.body())
        if request.url.path.endswith("/responses"):
            text = {"type": "output_text", "text": "Done.", "annotations": []}
            item = {"type": "message", "id": "m", "role": "assistant", "content": [text]}
            done = {"object": "response", "id": "resp_1", "status": "completed", "output": [item]}
            return JSONResponse(done | {"model": body["model"], "created_at": 0})
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
            is_cheap = not self.models[0].endswith(model)
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
        if body.get("stream"):
            return StreamingResponse(_streamed(answer, message, reason, usage), 200, _STREAM)
        return JSONResponse({**answer, "choices": [choice], "usage": usage})


_STREAM = {"content-type": "text/event-stream"}


async def _streamed(
    answer: dict[str, Any], message: dict[str, Any], reason: str, usage: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Yield the events of an answer; a third of its time passes before the first one."""
    arm = next(arm for arm in SECONDS if arm.split("-")[0] in answer["model"])
    part_s = SECONDS[arm] * STREAM_SCALE / 3
    head = {**answer, "object": "chat.completion.chunk"}
    calls = [{"index": n, **call} for n, call in enumerate(message.get("tool_calls") or ())]
    begun = {"role": "assistant", "content": message["content"]}
    delta = {**begun, "tool_calls": calls} if calls else begun
    end = {"index": 0, "delta": {}, "finish_reason": reason}
    for choices, more in (
        ([{"index": 0, "delta": delta, "finish_reason": None}], {}),
        ([end], {}),
        ([], {"usage": usage}),
    ):
        await asyncio.sleep(part_s)
        yield b"data: " + orjson.dumps({**head, "choices": choices, **more}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _common(one: bytes, other: bytes) -> int:
    least = min(len(one), len(other))
    differing = (n for n in range(0, least, 64) if one[n : n + 64] != other[n : n + 64])
    return next(differing, least)


STREAM_SCALE = 0.2
"""Time of streamed answers relative to the recorded one, so that a run ends in a minute."""

SECONDS = {
    arm: profile.seconds
    for arm, profile in Artifact.load(SHIPPED).manifest.profile.items()
    if arm in {"claude-sonnet-4.5", "gpt-4.1-mini", "grok-4.1-fast"}
}
"""Mean duration of the models' recorded answers."""


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
    first_byte_s: Sequence[float]
    """Waits for the first event of output, at the scale of the recorded answers."""
    whole_s: Sequence[float]


@contextmanager
def gateway(tally: Tally, section: str, *, speaks_all: bool = False) -> Iterator[httpx.Client]:
    """Serve a gateway with the shipped artifact in front of the scripted upstream.

    With `speaks_all`, the deployments speak Responses, too, so that nothing has to be translated.
    """
    paths = ("/v1/chat/completions", "/v1/responses")
    app = Starlette(routes=[Route(path, tally.answer, methods=["POST"]) for path in paths])
    with served(app) as upstream, TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        place = {"api_base": f"{upstream}/v1", "api_key": "k"}
        listed = [
            {
                "model_name": _name(model),
                "litellm_params": {"model": model, **place},
                "model_info": {"base_model": model},  # whose price is the list's
            }
            for model in tally.models
        ]
        path.write_text(yaml.safe_dump({"model_list": listed}) + section)
        settings = read_settings(path, environ={})
        models = []
        for model in settings.models:
            (own,) = model.deployments
            apis = (CHAT, RESPONSES) if speaks_all else (CHAT,)
            chat = own.model_copy(update={"apis": apis})
            models.append(model.model_copy(update={"deployments": (chat,)}))
        settings = settings.model_copy(update={"models": tuple(models)})
        router, _ = EngineBuilder().first_router(settings)
        router.reach_goals(verified_goals=settings.router.verification.allows_goals)
        with (
            served(create_app(settings, router)) as url,
            httpx.Client(base_url=url, timeout=60) as http,
        ):
            yield http


def _name(model: str) -> str:
    return model.partition("/")[2]


def run(tally: Tally, model: str, section: str, *, stream: bool = False) -> Run:
    """Let an agent do its work with a model's name and a section of the configuration."""
    agent, records, loops = tally.agent, [], []
    waits: list[tuple[float, float]] = []
    with gateway(tally, section) as http:
        marked = {"type": "text", "text": agent.system, "cache_control": {"type": "ephemeral"}}
        messages: list[dict[str, Any]] = [{"role": "system", "content": [marked]}]
        for step in agent.script:
            messages.append({"role": "user", "content": step["user"]})
            for number in range(len(step["calls"]) + 1):
                body = {"model": model, "messages": messages, "tools": agent.tools}
                answer = _ask(http, body | {"stream": stream}, waits)
                found = answer.decision_id
                while not (record := http.get(f"/v1/decisions/{found}")).is_success:
                    pass
                records.append(record.json())
                loops.append(number > 0)
                message = answer.message
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
        first_byte_s=[first / STREAM_SCALE for first, _ in waits],
        whole_s=[whole / STREAM_SCALE for _, whole in waits],
    )


class _Answer(NamedTuple):
    message: dict[str, Any]
    decision_id: str


def _ask(http: httpx.Client, body: dict[str, Any], waits: list[tuple[float, float]]) -> _Answer:
    """Ask once, and add the waits for the first output and the end in seconds."""
    started_s, first_s = time.perf_counter(), 0.0
    path, message = "/v1/chat/completions", dict[str, Any]()
    if not body["stream"]:
        response = http.post(path, json=body)
        response.raise_for_status()
        message = response.json()["choices"][0]["message"]
        return _Answer(message, response.headers["x-switchcraft-decision-id"])
    with http.stream("POST", path, json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            first_s = first_s or time.perf_counter() - started_s
            for choice in orjson.loads(line[len("data: ") :])["choices"]:
                message |= {name: value for name, value in choice["delta"].items() if value}
    for call in message.get("tool_calls", ()):
        call.pop("index", None)
    waits.append((first_s, time.perf_counter() - started_s))
    message.setdefault("content", None)
    return _Answer(message, response.headers["x-switchcraft-decision-id"])


IMAGE = "data:image/png;base64,iVBORw0KGgo="
UNVERIFIABLE: Mapping[str, dict[str, Any]] = {
    "Responses with `store` left out": {"path": "/v1/responses"},
    "Responses with `store: false`": {"path": "/v1/responses", "store": False},
    "Responses with the provider's web search": {
        "path": "/v1/responses",
        "store": False,
        "more": {"type": "web_search"},
    },
    "Chat with an image": {"path": "/v1/chat/completions", "image": True},
    "Chat with `n: 2`": {"path": "/v1/chat/completions", "n": 2},
}
"""Requests that agents send, some of which cannot be verified."""


def show_unverifiable(agent: Agent) -> None:
    """Print what happens to requests of an agent that cannot be verified, by default."""
    print("| request | model | `x-switchcraft-unverified` |")
    print("|---|---|---|")
    with gateway(Tally(agent, 0), "", speaks_all=True) as http:
        for name, given in UNVERIFIABLE.items():
            fields, tools = dict(given), list(agent.tools)
            path, more, has_image = fields.pop("path"), fields.pop("more", None), "image" in given
            fields.pop("image", None)
            question: Any = agent.script[0]["user"]
            if path.endswith("responses"):
                own = [{"type": "function", **tool["function"]} for tool in tools]
                own += [] if more is None else [more]
                body = {"instructions": agent.system, "input": question, "tools": own, **fields}
            else:
                if has_image:
                    parts = {"type": "image_url", "image_url": {"url": IMAGE}}
                    question = [{"type": "text", "text": question}, parts]
                system = {"role": "system", "content": agent.system}
                messages = [system, {"role": "user", "content": question}]
                body = {"messages": messages, "tools": tools, **fields}
            headers = http.post(path, json={"model": "switchcraft", **body}).headers
            unverified = headers.get("x-switchcraft-unverified", "")
            print(f"| {name} | {headers.get('x-switchcraft-model', '')} | {unverified} |")


SETTINGS = {
    "always the first model": ("", ""),
    "`switchcraft`, the defaults": ("switchcraft", ""),
    "`verified`, at the artifact's price": ("switchcraft:verified", ""),
    "without `conversations`": ("switchcraft", "router: {conversations: {enabled: false}}\n"),
    "`unfamiliar: best`": ("switchcraft", "router: {unfamiliar: best}\n"),
    "`switchcraft:fast`": ("switchcraft:fast", ""),
}


def _waiting(found: Run) -> str:
    """Return the columns of waiting times in seconds, if answers were streamed."""
    if not found.whole_s:
        return ""
    columns = (np.percentile(times, (50, 95)) for times in (found.first_byte_s, found.whole_s))
    return "".join(f" {p50:.1f}, {p95:.1f} |" for p50, p95 in columns)


def main() -> None:
    """Print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", nargs="+", default=["airline", "shop", "research"])
    parser.add_argument("--wrong", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="PROVIDER/MODEL")
    parser.add_argument("--stream", action="store_true", help="measure waiting times")
    parser.add_argument("--unverifiable", action="store_true", help="show requests of other kinds")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.unverifiable:
        show_unverifiable(Agent.read(args.agents[0]))
        return
    rows: list[dict[str, Any]] = []
    print(
        "| agent | cheaper models wrong | setting | cost | cached | asked | changes | escalations |"
        + (" first byte P50, P95, s | whole P50, P95, s |" if args.stream else "")
    )
    print("|---|---|---|--:|--:|--:|--:|--:|" + ("--:|--:|" if args.stream else ""))
    for agent, wrong in product(args.agents, args.wrong):
        dearest_usd = 0.0
        for name, (model, section) in SETTINGS.items():
            tally = Tally(Agent.read(agent), wrong, args.models)
            found = run(tally, model or _name(args.models[0]), section, stream=args.stream)
            dearest_usd = dearest_usd or found.usd
            rows.append({"agent": agent, "wrong": wrong, "setting": name, **vars(found)})
            how = f"1 of {wrong} calls" if wrong else "never"
            print(
                f"| {agent} | {how} | {name} | {found.usd / dearest_usd:.0%}"
                f" | {found.cached_share:.0%} | {found.candidates:.1f} | {found.changes}"
                f" | {found.escalations} |{_waiting(found)}",
                flush=True,
            )
    write_figures(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
