"""Cost of recorded conversations with prompt caching, by how models are chosen.

    python benchmarks/conversations.py --data ../shared/data --out runs/conversations.json

The conversations are the multi-turn logs of gpt-oss-120b on BFCL v4: 588 conversations with 4 turns
of the user and 12 requests on average, as each step of a tool loop is one request. The shipped
router predicts for every request how probably each arm of the reference pool answers it correctly.
The predicted accuracy is the mean of these probabilities over all requests; no arm of the pool was
recorded on these conversations, so there is nothing else to measure.

Costs are simulated. A prompt has the recorded number of tokens for every arm, an answer the mean
number of output tokens of the arm's profile, and a cache behaves by its provider's rule
(`policies.caching.cache_rule`, which names the sources). Prices are those of `genai-prices`, and of
the artifact's profile for models that it does not list. A request follows the one before after the
recorded latency, and a turn of the user after a pause (`--pause`).

    best single   the arm with the highest predicted accuracy for all requests, with its cache
    per turn      the policy decides for every request by the profile's costs
    sticky        the policy decides for the first request of a conversation
    ours          `policies.caching`: the first request is decided in the same way; later turns of
                  the user change the arm if that pays, within a budget of 2% above `sticky`
    no budget     the same without a budget
    by length     like `ours`, but the length of its prompt decides about the first request
    by length, free   the same without a budget
    and in loops  the same without a budget, and with changes inside of tool loops

A second table gives the prompts the mean length that MCPMark's requests have. Arms whose
context window is too short for them are left out. The last table shows whether errors and repeated
calls are a reason to change the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from benchmarks.stamp import stamp
from router_service import Router
from router_service.apis.conversation import Json, parse_conversation
from router_service.artifact import Manifest
from router_service.checker.tool_checks import is_tool_error
from router_service.policies.base import Policy
from router_service.policies.caching import (
    ArmTerms,
    ConversationState,
    NextRequest,
    SwitchRule,
    cache_rule,
    choose_in_conversation,
    costs_over,
)
from router_service.policies.registry import choose_once, parse_policy
from router_service.prices import look_up
from switchcraft_training.datasets.bfcl.format import PACKAGE, question_files
from switchcraft_training.datasets.bfcl.recorded import read_files
from switchcraft_training.datasets.rows import read_lines
from switchcraft_training.records import Example

RECORDING = Path("bfcl-v4-gptoss/run-1")
MODEL = "openai_gpt-oss-120b"
SMALLER_MODEL = "openai_gpt-oss-20b"
MCPMARK_RUNS = Path("mcpmark-2025-12/runs.jsonl.gz")
ADDRESSES = {
    "gpt": "https://api.openai.com/v1",
    "claude": "https://api.anthropic.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "open-mistral": "https://api.mistral.ai/v1",
}
"""Addresses of the reference pool's providers, by the beginning of an arm's name."""
POLICIES = ("economy", "balanced", "quality", "utility=0.02", "utility=1")
PRICES_USD = tuple(np.geomspace(0.001, 100, 11).tolist())
"""Prices of the `utility` policies whose results are interpolated at equal predicted accuracy."""
UNLIMITED = 1e9


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a conversation; `probabilities` has a value for each arm."""

    prompt_tokens: int
    probabilities: tuple[float, ...]
    is_in_loop: bool
    """Whether the request continues a tool loop, so that its last message is a tool's result."""
    seconds: float
    """Latency of the recorded answer."""

    def sent(self, now_s: float) -> NextRequest:
        """Return what the gateway knows of the request when it arrives."""
        return NextRequest(self.prompt_tokens, now_s, has_markers=True)


Recorded = Sequence[RecordedRequest]
"""One conversation."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Signs that a recorded conversation went wrong."""

    errors: int
    """Steps with a tool's result that is an error."""
    repeats: int
    """Steps with the calls and the results of the step before."""
    succeeded: bool
    """The benchmark's verdict."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The arms, with what each charges, and its expected cost by the artifact's profile."""

    terms: Mapping[str, ArmTerms]
    profiled_usd: tuple[float, ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order of the probabilities."""
        return tuple(self.terms)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to choose the arm of each request."""

    name: str
    policy: Policy | None = None
    """None if `arm` serves all requests."""
    arm: str = ""
    is_sticky: bool = False
    rule: SwitchRule | None = None
    """The rule of `policies.caching`, if the strategy uses it."""
    weighs_first: bool = False
    """Whether the first request is decided by the length of its prompt."""
    changes_in_loops: bool = False

    def choose(
        self, pool: Pool, request: RecordedRequest, state: ConversationState, now_s: float
    ) -> str:
        """Return the arm of the next request."""
        if self.policy is None:
            return self.arm
        if state.arm is not None and self.is_sticky:
            return state.arm
        if state.arm is not None and request.is_in_loop and self.rule and not self.changes_in_loops:
            return state.arm
        arms, p = pool.arms, request.probabilities
        if self.rule is None or (state.arm is None and not self.weighs_first):
            return arms[self.policy.choose(p, pool.profiled_usd).arm]
        following = self.rule.expected_requests
        costs_usd = costs_over(arms, pool.terms, state, request.sent(now_s), following)
        return arms[choose_in_conversation(arms, p, costs_usd, self.policy, state, self.rule).arm]


@dataclass(frozen=True, slots=True)
class Result:
    """What a strategy costs on all conversations."""

    strategy: str
    usd: tuple[float, ...]
    """Cost of each conversation."""
    switches: float
    """Mean number of times that a conversation's arm changed."""
    cached_share: float
    """Share of the prompts' tokens that were read from a cache."""
    accuracy: float
    """Predicted accuracy."""

    @property
    def usd_per_1000(self) -> float:
        """Cost of a thousand conversations."""
        return 1000 * sum(self.usd) / len(self.usd)

    def row(self, sticky: Result | None) -> dict[str, Json]:
        """Return the figures, with those of `sticky` for comparison if it is given."""
        figures: dict[str, Json] = {
            "strategy": self.strategy,
            "usd_per_1000": self.usd_per_1000,
            "switches": self.switches,
            "cached_share": self.cached_share,
            "accuracy": self.accuracy,
        }
        if sticky is not None:
            ratios = np.array(self.usd) / np.array(sticky.usd)
            figures["of_sticky"] = self.usd_per_1000 / sticky.usd_per_1000
            figures["conversations_dearer_by_2_percent"] = float((ratios > 1.02).mean())
            figures["highest_ratio"] = float(ratios.max())
        return figures


def replay(
    conversations: Sequence[Recorded], pool: Pool, strategy: Strategy, pause_s: float
) -> Result:
    """Replay all conversations with simulated caches."""
    usd: list[float] = []
    correct: list[float] = []
    switches = cached = prompts = 0
    for conversation in conversations:
        state, now_s = ConversationState(id=""), 0.0
        for request in conversation:
            if state.requests and not request.is_in_loop:
                now_s += pause_s
            arm = strategy.choose(pool, request, state, now_s)
            terms = pool.terms[arm]
            hits = state.cached_tokens(arm, terms.rule, now_s)
            usage = terms.usage(request.prompt_tokens, hits, has_markers=True)
            cost_usd = terms.price.cost_of(usage, terms.seconds)
            state = state.after(request.sent(now_s), arm, usage, cost_usd, pool.terms)
            correct.append(request.probabilities[pool.arms.index(arm)])
            cached += usage.cached_tokens
            prompts += usage.prompt_tokens
            now_s += request.seconds
        usd.append(state.spent_usd)
        switches += state.switches
    return Result(
        strategy.name,
        tuple(usd),
        switches / len(conversations),
        cached / prompts,
        float(np.mean(correct)),
    )


def strategies(policy: Policy) -> list[Strategy]:
    """Return all strategies that follow a policy; the second one is `sticky`."""
    free = SwitchRule(budget_share=UNLIMITED)
    return [
        Strategy("per turn", policy),
        Strategy("sticky", policy, is_sticky=True),
        Strategy("ours", policy, rule=SwitchRule()),
        Strategy("no budget", policy, rule=free),
        Strategy("by length", policy, rule=SwitchRule(), weighs_first=True),
        Strategy("by length, free", policy, rule=free, weighs_first=True),
        Strategy("and in loops", policy, rule=free, weighs_first=True, changes_in_loops=True),
    ]


def best_single(conversations: Sequence[Recorded], pool: Pool, pause_s: float) -> list[Result]:
    """Return the results of each arm used alone, the one with the best predicted accuracy first."""
    results = [replay(conversations, pool, Strategy(arm, arm=arm), pause_s) for arm in pool.arms]
    return sorted(results, key=lambda result: -result.accuracy)


def usd_at(accuracy: float, results: Sequence[Result]) -> float | None:
    """Return the cost of a predicted accuracy, between the results of neighbouring policies.

    None if no policy reaches it.
    """
    points = sorted((result.accuracy, result.usd_per_1000) for result in results)
    least = [min(usd for other, usd in points if other >= found) for found, _ in points]
    if not points[0][0] <= accuracy <= points[-1][0]:
        return least[0] if accuracy < points[0][0] else None
    return float(np.interp(accuracy, [found for found, _ in points], least))


def read_conversations(data: Path, router: Router, limit: int | None = None) -> list[Recorded]:
    """Read the recorded logs, and predict every request; takes 45 s."""
    categories = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param")
    files = [file for file in question_files(Path(PACKAGE)) if file.category in categories]
    examples: dict[str, list[Example]] = {}
    for judged in read_files(files):
        examples.setdefault(judged.example.conversation, []).append(judged.example)
    found: list[Recorded] = []
    for path in sorted((data / RECORDING / "result" / MODEL / "multi_turn").glob("*.gz")):
        for row in read_lines(path, dict):
            # A conversation whose request failed has an error message in place of the log.
            if isinstance(row["result"], list) and row["id"] in examples:
                found.append(tuple(_read_requests(row, examples[row["id"]], router)))
            if limit is not None and len(found) >= limit:
                return found
    return found


def _read_requests(
    row: Mapping[str, Json], examples: Sequence[Example], router: Router
) -> Iterator[RecordedRequest]:
    """Yield the requests of a log; `examples` has the tools of each turn."""
    messages: list[Json] = []
    turns = [entry for entry in row["inference_log"] if isinstance(entry, dict)]
    for turn, entry in enumerate(turns):
        messages += entry["begin_of_turn_query"]
        tokens, seconds = row["input_token_count"][turn], row["latency"][turn]
        steps = [value for name, value in entry.items() if name.startswith("step_")]
        for step, logged in enumerate(steps[: len(tokens)]):
            request = {"messages": messages, "tools": examples[turn].request["tools"]}
            prediction = router.predict(parse_conversation(request))
            yield RecordedRequest(
                tokens[step], prediction.probabilities, step > 0, float(seconds[step])
            )
            answer = next(m["content"] for m in logged if m["role"] == "assistant")
            results = [m["content"] for m in logged if m["role"] == "tool"]
            if not isinstance(answer, list):
                messages.append({"role": "assistant", "content": str(answer)})
                continue
            calls = [(f"call_{turn}_{step}_{i}", c) for i, c in enumerate(answer)]
            functions = [
                {"id": identifier, "type": "function", "function": {"name": n, "arguments": a}}
                for identifier, call in calls
                for n, a in call.items()
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": functions})
            messages += [
                {"role": "tool", "tool_call_id": identifier, "content": result}
                for (identifier, _), result in zip(calls, results, strict=False)
            ]


def generate_conversations(arms: int, count: int, seed: int) -> list[Recorded]:
    """Return conversations whose difficulty changes from turn to turn; for tests."""
    rng = np.random.default_rng(seed)
    skill = np.linspace(1.0, 0.8, arms)  # the first arm is the best one
    found: list[Recorded] = []
    for _ in range(count):
        requests: list[RecordedRequest] = []
        prompt = int(rng.integers(2_000, 20_000))
        for _ in range(rng.integers(2, 6)):
            ease = rng.uniform(0.4, 1.0)
            for step in range(rng.integers(1, 6)):
                p = np.clip(ease * skill + rng.normal(0, 0.03, arms), 0.01, 0.99)
                prompt += int(rng.integers(50, 1_500))
                requests.append(RecordedRequest(prompt, tuple(p.tolist()), step > 0, 2.0))
        found.append(tuple(requests))
    return found


def reference_terms(manifest: Manifest, at: datetime) -> tuple[dict[str, ArmTerms], dict[str, int]]:
    """Return what the pool's arms charge at this time, and their context windows if known."""
    terms: dict[str, ArmTerms] = {}
    windows: dict[str, int] = {}
    for arm in manifest.arms:
        profile = manifest.profile[arm]
        name = arm.removesuffix("-Auto").removesuffix("-FC").removesuffix("-preview-0514")
        address = next(url for start, url in ADDRESSES.items() if arm.startswith(start))
        listing = look_up(address, name, at)
        price = listing.price if listing else None
        has_cache = price is not None and price.cached_input_usd_per_mtok is not None
        rule = cache_rule(listing.provider, name) if listing and has_cache else None
        terms[arm] = ArmTerms(price or profile.price, profile.output_tokens, profile.seconds, rule)
        if listing and listing.context_window_tokens:
            windows[arm] = listing.context_window_tokens
    return terms, windows


def measure_evidence(data: Path) -> list[dict[str, Json]]:
    """Print and return whether errors and repeated calls are a reason to change the model.

    Two models solved the same conversations in two runs. A conversation in which a model met
    evidence is compared in the other run: there the same model and the other model started anew.
    If the evidence were a reason to change the model, the other model's advantage would be larger
    among conversations with evidence than among those without.
    """
    runs: dict[tuple[int, str], dict[str, Evidence]] = {}
    for number in (1, 2):
        for model in (MODEL, SMALLER_MODEL):
            root = data / RECORDING.parent / f"run-{number}"
            known = runs[number, model] = {}
            for path in sorted((root / "result" / model / "multi_turn").glob("*.gz")):
                scores = (
                    root / "score" / model / "multi_turn" / path.name.replace("_result", "_score")
                )
                failed = {row["id"] for row in read_lines(scores, dict) if "id" in row}
                for row in read_lines(path, dict):
                    if isinstance(row["result"], list):
                        known[row["id"]] = _find_evidence(row, succeeded=row["id"] not in failed)
    found: list[dict[str, Json]] = []
    print("\nevidence in a conversation, and which model succeeds when it is started anew")
    kinds: dict[str, Callable[[Evidence], bool]] = {
        "no error": lambda seen: seen.errors == 0,
        "an error": lambda seen: seen.errors > 0,
        "three errors": lambda seen: seen.errors > 2,
        "no repeated call": lambda seen: seen.repeats == 0,
        "a repeated call": lambda seen: seen.repeats > 0,
    }
    for own, other in ((SMALLER_MODEL, MODEL), (MODEL, SMALLER_MODEL)):
        for kind, applies in kinds.items():
            pairs = np.array(
                [
                    (seen.succeeded, *(runs[3 - number, m][name].succeeded for m in (own, other)))
                    for number in (1, 2)
                    for name, seen in runs[number, own].items()
                    if applies(seen)
                    and name in runs[3 - number, own]
                    and name in runs[3 - number, other]
                ],
                dtype=float,
            )
            gain = pairs[:, 2] - pairs[:, 1]
            figures: dict[str, Json] = {
                "model": own,
                "evidence": kind,
                "n": len(pairs),
                "succeeded": float(pairs[:, 0].mean()),
                "same_anew": float(pairs[:, 1].mean()),
                "other_anew": float(pairs[:, 2].mean()),
                "gain": float(gain.mean()),
                "stderr": float(gain.std() / np.sqrt(len(gain))),
            }
            found.append(figures)
            print(
                f"{own.removeprefix('openai_'):<14}{kind:<18}{len(pairs):>5}"
                f"  succeeded {figures['succeeded']:.1%}, anew {figures['same_anew']:.1%}, other"
                f" model {figures['other_anew']:.1%}: {100 * figures['gain']:+.1f} points"
                f" ± {100 * figures['stderr']:.1f}"
            )
    return found


def _find_evidence(row: Mapping[str, Json], *, succeeded: bool) -> Evidence:
    """Return what a conversation's log shows."""
    errors = repeats = 0
    for entry in row["inference_log"]:
        steps = entry.values() if isinstance(entry, dict) else ()
        before = None
        for step in steps:
            calls = next((m["content"] for m in step if m["role"] == "assistant"), None)
            if not isinstance(calls, list) or not calls:
                continue
            results = [m["content"] for m in step if m["role"] == "tool"]
            errors += any(is_tool_error(result) for result in results)
            repeats += (calls, results) == before
            before = calls, results
    return Evidence(errors, repeats, succeeded)


def lengthen(conversations: Sequence[Recorded], mean_tokens: float) -> list[Recorded]:
    """Return the conversations with prompts that have this mean length."""
    factor = mean_tokens / np.mean([r.prompt_tokens for each in conversations for r in each])
    return [
        tuple(replace(r, prompt_tokens=round(r.prompt_tokens * factor)) for r in each)
        for each in conversations
    ]


def without(conversations: Sequence[Recorded], columns: Sequence[int]) -> list[Recorded]:
    """Return the conversations with only the probabilities of some arms."""
    return [
        tuple(replace(r, probabilities=tuple(r.probabilities[i] for i in columns)) for r in each)
        for each in conversations
    ]


def mcpmark_lengths(data: Path) -> dict[str, float]:
    """Return MCPMark's mean prompt tokens of a request, and how many requests follow."""
    runs = [
        (row["turns"], row["input_tokens"])
        for row in read_lines(data / MCPMARK_RUNS, dict)
        if row["turns"] and row["input_tokens"]
    ]
    turns, tokens = np.array(runs, dtype=float).T
    left = {f"left_after_{n}": float((turns[turns > n] - n).mean()) for n in (1, 5, 10, 20)}
    return {"prompt_tokens": float(tokens.sum() / turns.sum()), **left}


def measure(
    conversations: Sequence[Recorded], pool: Pool, policies: Mapping[str, Policy], pause_s: float
) -> dict[str, Json]:
    """Print and return the table of a scenario."""
    single = best_single(conversations, pool, pause_s)
    rows: list[dict[str, Json]] = []
    print(f"{'policy':<14}{'strategy':<16}{'USD/1000':>10}{'switches':>10}{'cached':>8}", end="")
    print(f"{'predicted':>11}{'of sticky':>11}{'dearer by 2%':>14}")
    for result in single[:3]:
        rows.append({"policy": "", **result.row(None)})
        _print_row(rows[-1])
    for name, policy in policies.items():
        results = [replay(conversations, pool, each, pause_s) for each in strategies(policy)]
        for result in results:
            rows.append({"policy": name, **result.row(results[1])})
            _print_row(rows[-1])
    kinds = [each.name for each in strategies(next(iter(policies.values())))]
    families = {
        kind: [
            replay(conversations, pool, strategies(choose_once(rule))[i], pause_s)
            for rule in (parse_policy(f"utility={price}") for price in PRICES_USD)
        ]
        for i, kind in enumerate(kinds)
    }
    equal: dict[str, Json] = {}
    for best in single[:3]:
        shares = {kind: usd_at(best.accuracy, found) for kind, found in families.items()}
        equal[best.strategy] = {
            kind: None if usd is None else usd / best.usd_per_1000 for kind, usd in shares.items()
        }
        print(f"as accurate as {best.strategy} ({best.accuracy:.4f}), share of its cost:", end="")
        for kind, share in equal[best.strategy].items():
            print(f"  {kind} {'-' if share is None else f'{share:.1%}'}", end="")
        print()
    return {"rows": rows, "at_equal_accuracy": equal}


def _print_row(row: Mapping[str, Json]) -> None:
    line = f"{row['policy']:<14}{row['strategy'][:15]:<16}{row['usd_per_1000']:>10.2f}"
    line += f"{row['switches']:>10.2f}{row['cached_share']:>8.1%}{row['accuracy']:>11.4f}"
    if "of_sticky" in row:
        line += f"{row['of_sticky']:>11.1%}{row['conversations_dearer_by_2_percent']:>14.1%}"
    print(line, flush=True)


def main() -> None:
    """Print the tables of both scenarios, and write them as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--pause", type=float, default=30.0, help="seconds before a user's turn")
    parser.add_argument("--limit", type=int, help="number of conversations (default: all)")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    router = Router.load()
    manifest = router.artifact.manifest
    terms, windows = reference_terms(manifest, datetime.now(UTC))
    profiled = manifest.costs_usd({arm: each.price for arm, each in terms.items()})
    recorded = read_conversations(arguments.data, router, arguments.limit)
    lengths = mcpmark_lengths(arguments.data)
    longer = lengthen(recorded, lengths["prompt_tokens"])
    longest = max(request.prompt_tokens for each in longer for request in each)
    wide = [i for i, arm in enumerate(manifest.arms) if windows.get(arm, longest) >= longest]
    policies = {name: choose_once(router.policy(name)) for name in POLICIES}
    run = partial(measure, policies=policies, pause_s=arguments.pause)
    requests = np.array([len(each) for each in recorded])
    print(f"{len(recorded)} conversations of {requests.mean():.1f} requests; MCPMark: {lengths}")
    for after in (1, 5, 10):
        left = requests[requests > after] - after
        print(f"requests that follow after {after}: {left.mean():.1f} on average")
    print("\nprompts as recorded")
    short = run(recorded, Pool(terms, tuple(profiled)))
    print(f"\nprompts of {lengths['prompt_tokens']:,.0f} tokens on average, as in MCPMark")
    kept = {manifest.arms[i]: terms[manifest.arms[i]] for i in wide}
    long = run(without(longer, wide), Pool(kept, tuple(profiled[i] for i in wide)))
    evidence = measure_evidence(arguments.data)
    if arguments.out:
        figures = {"recorded": short, "evidence": evidence, "mcpmark": long, "lengths": lengths}
        row = {"pause_s": arguments.pause, **figures, **stamp("genai-prices", "numpy")}
        arguments.out.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
