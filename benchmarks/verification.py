"""Time to verify candidate answers, beside the time of the router's prediction.

    python benchmarks/verification.py --out runs/verification.json

For each canary request of the shipped artifact, the candidates are calls of the request's tools
with values from the conversation. A step reads the request and its candidates, compares them,
estimates whether each is correct, and chooses what to do next (`Router.next_step`). Predictions and
steps for one, two and three candidates take turns, so that their ratios are valid on a shared
machine. The prediction does not use the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import orjson

from benchmarks.stamp import write_figures
from router_service.apis.answers import ParsedAnswer, WrittenCall
from router_service.apis.conversation import Json, as_list, parse_conversation, unwrap_tool
from router_service.artifact import CANARIES, SHIPPED
from router_service.policies.verified import Verified
from router_service.router import Router
from router_service.verifier.answer_features import Question
from router_service.verifier.steps import ArmAnswer, VerificationState

MAX_CANDIDATES = 3


def main() -> None:
    """Measure, print and write the percentiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="rounds over all requests")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    router = Router.load(SHIPPED)
    policy = router.policy("verified")
    if not isinstance(policy, Verified):
        raise TypeError(f"{policy} is not a verified policy")
    lines = (SHIPPED / CANARIES).read_text().splitlines()
    requests = [orjson.loads(line)["request"] for line in lines]
    bodies = [body for body in requests if body.get("tools")]
    times: dict[str, list[float]] = {}
    for round_number in range(arguments.rounds + 1):
        for body in bodies:
            conversation = parse_conversation(body)
            started = time.perf_counter()
            router.predict_batch([conversation])
            spent = {"prediction": time.perf_counter() - started}
            prediction = router.predict(conversation)
            for count in range(1, MAX_CANDIDATES + 1):
                candidates = [
                    ArmAnswer(arm, answer_with_call(body, number))
                    for number, arm in enumerate(router.arms[:count])
                ]
                started = time.perf_counter()
                question = Question(conversation, as_list(body["tools"]))
                state = VerificationState(policy, router.arms, candidates)
                router.next_step(question, prediction, state)
                spent[f"{count} candidates"] = time.perf_counter() - started
            if round_number:  # the first round warms up
                for name, seconds in spent.items():
                    times.setdefault(name, []).append(seconds)
    found = {
        name: {f"p{q}_ms": float(np.percentile(seconds, q) * 1e3) for q in (50, 95, 99)}
        for name, seconds in times.items()
    }
    for name, percentiles in found.items():
        print(f"{name:<14}", *(f"{key} {value:7.3f}" for key, value in percentiles.items()))
    write_figures(arguments.out, {"n": len(bodies) * arguments.rounds, "figures": found})


def answer_with_call(body: Mapping[str, Json], number: int) -> ParsedAnswer:
    """Return a call of the first tool that has a word of the query for each of its parameters."""
    tool = next(filter(None, map(unwrap_tool, body["tools"])))
    words = str(body["messages"][-1].get("content") or "").split() or ["nothing"]
    names = (tool.get("parameters") or {}).get("properties") or {}
    arguments = {name: words[(i + number) % len(words)] for i, name in enumerate(names)}
    return ParsedAnswer((WrittenCall("", tool["name"], orjson.dumps(arguments).decode()),))


if __name__ == "__main__":
    main()
