"""Which requests are unfamiliar to an artifact, and what that says about its probabilities.

    python benchmarks/familiarity.py --data ../shared/data --workspace runs/work
        --agents .venv/agents/node_modules/.bin --out runs/familiarity.json

The held-out queries are those of the artifact's folds, in which their tools are unseen. Their
familiarity is measured without the tested fold, and the limit for each fold on the other folds. A
category is left out by fitting on the rows of the other categories, without its near-duplicates.

The other test cases are requests that the router has not learned from: MCPMark's tasks; every turn
of BFCL's multi-turn conversations, with the recorded calls and results before it (`bfcl-eval`);
BFCL's queries with further tools of BFCL; some requests written for this purpose, also in
other languages; and, with `--agents`, what Claude Code and Codex CLI send for a dozen tasks.

The last table has the outcomes of MCPMark's tasks by who answers. Three arms of the shipped
artifact were recorded there under the same name and effort.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from starlette.types import Message, Receive, Scope, Send

from benchmarks.stamp import stamp
from router_service import Router
from router_service.apis.conversation import Conversation, Json, parse_conversation
from router_service.apis.parts import Text
from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.predictor.familiarity import LIMIT, Familiarity, Sizes
from router_service.predictor.features import extract
from router_service.requests.parsing import parse_request
from switchcraft_training.config import RunConfig
from switchcraft_training.data.table import Floats
from switchcraft_training.dataset import load_dataset
from switchcraft_training.datasets.bfcl.recorded import read_source
from switchcraft_training.datasets.mcpmark import McpMark
from switchcraft_training.experiment import TrainingData, pack_table
from switchcraft_training.familiarity import SIZES, describe, distances
from switchcraft_training.models.encoders import load_encoder
from tests.agents import __main__ as agents
from tests.endpoints import MESSAGES, RESPONSES
from tests.providers.app import Play, Provider
from tests.providers.requests import ProviderRequest
from tests.serving import served

SAMPLED = 100
FAR = 0.01
"""A lower limit that was considered for `router.unfamiliar_below`."""
TOOL_COUNTS = (15, 25, 40, 60)
SAME_ARMS = {
    "claude-sonnet-4.5": "claude-sonnet-4-5",
    "gpt-5-mini": "gpt-5-mini-medium",
    "gpt-4.1-mini": "gpt-4-1-mini",
}
"""Arms of the shipped artifact by MCPMark's names."""
AGENT_TASKS = (
    "Fix the failing test in tests/test_parser.py", "hi", "What does this repository do?",
    "Add a --verbose flag to the CLI and document it in the README.", "Run the tests.", "commit",
    "Rename the function parse_line to read_line everywhere.", "Upgrade numpy and fix what breaks",
    "Schreibe einen Test für die Funktion read_config.", "Delete all .tmp files older than 7 days",
    "Why is CI failing? Look at the last run and open a pull request with a fix.",
    "Sort the numbers in numbers.txt into sorted.txt, and explain it in answer.md.",
)  # fmt: skip
QUESTIONS = {
    "plain English": (
        "What is the weather in Berlin tomorrow?", "Weather in Oslo?",
        "Book a flight from Hamburg to Madrid on May 3 for two.",
        "Compute the area of a triangle with base 10 and height 5.",
    ),
    "German, French": (
        "Wie wird das Wetter morgen in München?", "Réserve un vol de Lyon à Rome pour deux.",
        "Buche einen Flug von Hamburg nach Madrid am 3. Mai.", "Quel temps fera-t-il demain ?",
    ),
    "Chinese, Russian, Arabic, Hindi": (
        "明天北京的天气怎么样", "Какая завтра погода в Москве?",
        "كيف سيكون الطقس غدا في القاهرة", "कल दिल्ली में मौसम कैसा रहेगा",
    ),
}  # fmt: skip


def tool(name: str, description: str, **parameters: str) -> Json:
    """Return a tool with these parameters, all of them texts, and their descriptions."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": [*parameters]}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = (
    tool("get_weather", "Get the weather forecast for a city.", city="City", day="Day"),
    tool("book_flight", "Book a flight.", origin="City", destination="City", date="YYYY-MM-DD"),
    tool("triangle_area", "Compute the area of a triangle.", base="Base", height="Height"),
    tool("find_restaurants", "Find restaurants with free tables.", city="City", people="Number"),
)


def held_out(data: TrainingData, artifact: Artifact) -> dict[str, Json]:
    """Return figures of the held-out queries: by familiarity, by fold, and by category."""
    sizes = Sizes(SIZES, data.config.packing.features).of(
        np.array([row.features for row in data.table.packed])
    )
    grouped = data.grouped_by("tools")
    folds = np.full(len(sizes), -1)
    far = np.full(len(sizes), np.nan)
    for number, fold in enumerate(grouped.folds()):
        test = list(fold.test)
        folds[test] = number
        known = [*fold.train, *fold.validation, *fold.teaching]
        far[test] = distances(sizes[test], *describe(sizes[known]))
    measured = data.table.is_measured
    far, folds = far[measured], folds[measured]
    categories = np.array([example.category for example in data.table.examples])
    alarms = [
        float((far[folds == fold] > np.quantile(far[folds != fold], 1 - LIMIT)).mean())
        for fold in range(folds.max() + 1)
    ]
    limit = float(np.quantile(far, 1 - LIMIT))
    flagged = {
        category: {
            "queries": int((categories[measured] == category).sum()),
            "in folds": float((far[categories[measured] == category] > limit).mean()),
            "left out": left_out(sizes, categories == category, grouped.table.groups, measured),
        }
        for category in sorted(set(categories[measured].tolist()))
    }
    predictions = HeldOut.read(artifact.directory / HELD_OUT)
    rank = far.argsort().argsort() / len(far)
    rows = []
    for low, high in ((0, 0.5), (0.5, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1)):
        chosen = (rank >= low) & (rank < high)
        p, correct = predictions.probabilities[chosen], predictions.correct[chosen]
        rows.append(
            {
                "familiarity": f"{1 - high:.2f} to {1 - low:.2f}",
                "queries": int(chosen.sum()),
                "predicted": float(p.mean()),
                "correct": float(correct.mean()),
                "brier": float(((p - correct) ** 2).mean()),
            }
        )
    return {"by familiarity": rows, "false alarms by fold": alarms, "by category": flagged}


def left_out(
    sizes: Floats,
    is_category: NDArray[np.bool_],
    groups: NDArray[np.int64],
    measured: NDArray[np.bool_],
) -> float:
    """Return the share of a category's queries that are unfamiliar without that category.

    The limit is that of the other categories' queries among each other's rows.
    """
    others = ~np.isin(groups, groups[is_category])
    described = describe(sizes[others])
    limit = np.quantile(distances(sizes[others & measured], *described), 1 - LIMIT)
    return float((distances(sizes[is_category & measured], *described) > limit).mean())


def written() -> Iterator[tuple[str, Conversation]]:
    """Yield requests that were written for this purpose, with the names of their cases."""
    system = {"role": "system", "content": "You are a helpful assistant."}
    arguments = '{"city": "Rome", "day": "today"}'
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    result = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 25 C"},
    ]
    for name, questions in QUESTIONS.items():
        for question in questions:
            user = {"role": "user", "content": question}
            cases: dict[str, list[Json]] = {name: [user]}
            if name == "plain English":
                cases |= {
                    f"{name}, short system prompt": [system, user],
                    f"{name}, system prompt of 1,000 characters": [
                        {"role": "system", "content": "Ask for what is missing. " * 40},
                        user,
                    ],
                    f"{name}, after a tool's result": [user, *result],
                }
            for case, messages in cases.items():
                for count in (1, len(TOOLS)):
                    body = {"messages": messages, "tools": [*TOOLS[:count]]}
                    yield case, parse_conversation(body)


def recorded(data: TrainingData, mcpmark: Path) -> Iterator[tuple[str, Conversation]]:
    """Yield requests of benchmarks that the router has not learned from."""
    for example in McpMark(mcpmark).examples():
        yield "MCPMark", parse_conversation(example.request)
    for judged in read_source(Path("bfcl-eval"), lambda *_: None):
        example = judged.example
        if example.category.startswith("multi_turn"):
            turn = "first turn" if example.id.endswith(":0") else "later turns"
            yield f"BFCL multi-turn, {turn}", parse_conversation(example.request)
    rng = random.Random(1)  # noqa: S311 - a sample, not a secret
    examples = [data.table.examples[row] for row in data.table.measured_rows]
    by_name = {
        each["function"]["name"]: each for example in examples for each in example.request["tools"]
    }
    for count in TOOL_COUNTS:
        for example in rng.sample(examples, SAMPLED):
            own = {each["function"]["name"]: each for each in example.request["tools"]}
            others = [each for name, each in by_name.items() if name not in own]
            tools = [*own.values(), *rng.sample(others, count - len(own))]
            yield f"{count} tools", parse_conversation({**example.request, "tools": tools})


def of_agents(programs: Path) -> Iterator[tuple[str, Conversation]]:
    """Yield the requests with tools that coding agents send for `AGENT_TASKS`."""
    for agent in agents.AGENTS:
        for task in AGENT_TASKS:
            agents.TASK = task
            for number, (path, body) in enumerate(capture(agent, programs)):
                endpoint = MESSAGES if path.endswith("messages") else RESPONSES
                conversation = parse_request(endpoint, body).chat.conversation
                if conversation.has_tools:
                    request = "first request" if number == 0 else "later requests"
                    yield f"{agent.name}, {request}", conversation


def capture(agent: agents.Agent, programs: Path) -> list[tuple[str, bytes]]:
    """Return path and body of each request that an agent sends for `agents.TASK`."""
    found: list[tuple[str, bytes]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary, "task"), Path(temporary, "home")
        folder.mkdir()
        home.mkdir()
        (folder / "numbers.txt").write_text(agents.NUMBERS)
        calls = agent.calls(folder)

        def play(asked: ProviderRequest) -> Play:
            done = len(asked.results)
            return Play([calls[done]] if done < len(calls) else [Text(agents.DONE)])

        provider = Provider(play)

        async def record(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                messages: list[Message] = [await receive()]
                while messages[-1].get("more_body"):
                    messages.append(await receive())
                body = b"".join(message.get("body", b"") for message in messages)
                found.append((scope["path"], body))
                kept = iter(messages)

                async def again() -> Message:
                    return next(kept, None) or await receive()

                await provider(scope, again, send)
            else:
                await provider(scope, receive, send)

        with served(record) as url:
            arguments, environment = agent.start(programs / agent.program, url, home)
            environment = {**agents.inherited(), "HOME": str(home), **environment}
            subprocess.run(  # noqa: S603
                arguments,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=agents.LIMIT_S,
                check=True,
            )
    return found


def outcomes(artifact: Artifact, mcpmark: Path) -> list[Json]:
    """Return the success and cost of MCPMark's tasks by who answers, among `SAME_ARMS`."""
    source, profile = McpMark(mcpmark), artifact.manifest.profile
    examples = list(source.examples())
    runs: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for arm, name in SAME_ARMS.items():
        for run in source.outcomes(name):
            usd = profile[arm].price.cost_usd(run.input_tokens or 0, run.output_tokens or 0, 0.0)
            runs[run.example_id, arm].append((bool(run.correct), usd))
    router = Router(artifact, arms=SAME_ARMS)
    without = artifact.manifest.model_copy(update={"familiarity": None})
    before = Router(Artifact(artifact.directory, without, artifact.tokenizer), arms=SAME_ARMS)
    rates = artifact.manifest.base_rates
    best = max(SAME_ARMS, key=lambda arm: rates[arm])
    rules: dict[str, Callable[[Json], str]] = {
        f"always {arm}": partial(_always, arm) for arm in SAME_ARMS
    }
    for name, each in (("without familiarity", before), ("shrunk", router)):
        for policy in (str(artifact.manifest.choose_once.rule), "drift=0.05", "theta=0.9"):
            rules[f"{policy}, {name}"] = partial(_routed, each, policy)
    rules["`best`"] = partial(_always, best)
    table: list[Json] = []
    for name, choose in rules.items():
        results = [
            np.mean(runs[example.id, choose(example.request)], axis=0) for example in examples
        ]
        success, usd = np.mean(results, axis=0)
        table.append({"rule": name, "success": float(success), "usd": float(usd)})
    return table


def _always(arm: str, request: Json) -> str:
    del request
    return arm


def _routed(router: Router, policy: str, request: Json) -> str:
    return router.decide(request, policy).arm


def main() -> None:
    """Print the tables, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, default=SHIPPED)
    parser.add_argument("--data", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--workspace", type=Path, required=True, help="labels, which are reused")
    parser.add_argument("--agents", type=Path, help="folder of the programs `claude` and `codex`")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    artifact = Artifact.load(options.artifact)
    manifest = artifact.manifest
    config = RunConfig.model_validate(yaml.safe_load(manifest.provenance.config))
    table = load_dataset(config, options.data, options.workspace / "labels")
    config = config.model_copy(update={"packing": manifest.packing})
    data = pack_table(config, table, load_encoder(config.encoder.source), options.workspace)
    if manifest.familiarity is None:
        parser.error(
            "the artifact has no familiarity; add it with `switchcraft-train add-familiarity`"
        )
    familiarity = Familiarity(manifest.familiarity, manifest.packing.features)
    mcpmark = options.data / "mcpmark-2025-12"
    cases: Mapping[str, list[float]] = defaultdict(list)
    sources = [recorded(data, mcpmark), written()]
    if options.agents is not None:
        sources.append(of_agents(options.agents.resolve()))
    for source in sources:
        for name, conversation in source:
            features = extract(conversation, manifest.packing.features)
            cases[name].append(familiarity.of(features))
    result: dict[str, Any] = {
        **stamp("numpy"),
        "artifact": manifest.name,
        **held_out(data, artifact),
        "cases": {
            name: {
                "requests": len(found),
                "unfamiliar": float(np.mean(np.array(found) < LIMIT)),
                "far": float(np.mean(np.array(found) < FAR)),
                "median": float(np.median(found)),
            }
            for name, found in cases.items()
        },
    }
    if set(SAME_ARMS) <= set(manifest.arms):
        result["MCPMark"] = outcomes(artifact, mcpmark)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(yaml.safe_dump(result, sort_keys=False, width=120))


if __name__ == "__main__":
    main()
