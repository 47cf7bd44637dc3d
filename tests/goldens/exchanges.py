"""The exchanges whose bytes are kept: what clients ask, and what the upstream answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.goldens.scripted import (
    CALL,
    CUT,
    ERROR,
    FORECAST,
    OTHER_WRONG_CALL,
    REFUSAL,
    TEXT,
    WRONG_CALL,
    Play,
    Script,
)

Json = Any

POLICY = "x-switchcraft-policy"
ONCE = {POLICY: "theta=0.5"}
"""The cheapest arm is chosen once; its probability is far above this."""

VERIFIED = {POLICY: "verified=0.03"}
"""Good calls are accepted and wrong ones are not, whatever a processor adds to the estimates."""

ASK = "What will the weather be in Lisbon tomorrow?"
SYSTEM = "You answer in one sentence. Grüße!"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "days": {"type": "integer", "description": "Days ahead. Default is 1"},
    },
    "required": ["city"],
}
ABOUT = "Weather forecast for a city."
CALL_ID = "call_0123456789"


@dataclass(frozen=True)
class Exchange:
    """What a client sends, and what the upstream's models answer."""

    name: str
    path: str
    body: bytes
    script: Mapping[str, Sequence[Play]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"

    def fresh_script(self) -> Script:
        """Return the script, whose lists the upstream empties."""
        return {model: list(plays) for model, plays in self.script.items()}


def write(value: Json) -> bytes:
    """Write JSON unlike the gateway does: with spaces, and with escaped characters."""
    return json.dumps(value).encode()


def ask(api: Api, model: str, *, stream: bool, has_history: bool = False) -> dict[str, Json]:
    """Return a request with a tool; its history has a call and the result."""
    body = {apis.CHAT: _chat, apis.RESPONSES: _response}.get(api, _message)(has_history)
    return {"model": model, **body, "stream": stream}


def _chat(has_history: bool) -> dict[str, Json]:
    function = {"name": "get_forecast", "description": ABOUT, "parameters": SCHEMA}
    call = {"name": "get_forecast", "arguments": FORECAST}
    history = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": CALL_ID, "content": "Rain, 14 °C"},
    ]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}]
    return {
        "messages": [*messages, *(history if has_history else ())],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0.20,
        "max_completion_tokens": 300,
        "tool_choice": "auto",
    }


def _response(has_history: bool) -> dict[str, Json]:
    call = {"type": "function_call", "call_id": CALL_ID, "name": "get_forecast"}
    result = {"type": "function_call_output", "call_id": CALL_ID, "output": "Rain, 14 °C"}
    history = [{**call, "arguments": FORECAST}, result]
    tool = {"type": "function", "name": "get_forecast", "description": ABOUT}
    return {
        "instructions": SYSTEM,
        "input": [{"role": "user", "content": ASK}, *(history if has_history else ())],
        "tools": [{**tool, "parameters": SCHEMA, "strict": False}],
        "temperature": 0.20,
        "max_output_tokens": 300,
        "store": False,
    }


def _message(has_history: bool) -> dict[str, Json]:
    call = {"type": "tool_use", "id": CALL_ID, "name": "get_forecast"}
    result = {"type": "tool_result", "tool_use_id": CALL_ID, "content": "Rain, 14 °C"}
    history = [
        {"role": "assistant", "content": [{**call, "input": json.loads(FORECAST)}]},
        {"role": "user", "content": [result]},
    ]
    return {
        "system": [{"type": "text", "text": SYSTEM}],
        "messages": [{"role": "user", "content": ASK}, *(history if has_history else ())],
        "tools": [{"name": "get_forecast", "description": ABOUT, "input_schema": SCHEMA}],
        "temperature": 0.20,
        "max_tokens": 300,
    }


def exchanges_of(upstream: UpstreamApi, client: Api) -> Iterator[Exchange]:
    """Yield the exchanges of a client's API with a gateway whose models speak one API."""
    for stream in (False, True):
        kind = "streamed" if stream else "whole"

        def exchange(
            name: str,
            model: str,
            script: Mapping[str, Sequence[Play]],
            *,
            headers: Mapping[str, str] = {},
            has_history: bool = False,
            stream: bool = stream,
            kind: str = kind,
        ) -> Exchange:
            title = f"{client.name}-{upstream.name}-{kind}-{name}"
            body = ask(client, model, stream=stream, has_history=has_history)
            return Exchange(title, f"/v1{client.path}", write(body), script, headers)

        yield exchange("text", "haiku", {"haiku": [TEXT]}, has_history=True)
        yield exchange("routed-call", "switchcraft", {"haiku": [CALL]}, headers=ONCE)
        yield exchange("verified", "switchcraft", {"haiku": [CALL]})
        escalation = {"haiku": [WRONG_CALL], "sonnet": [CALL], "opus": [CALL]}
        yield exchange("escalated", "switchcraft", escalation, headers=VERIFIED)
        # The second deployment of `haiku` is tried before its fallback.
        yield exchange("fallback", "haiku", {"haiku": [ERROR, ERROR], "opus": [CALL]})
        yield exchange("cut", "sonnet", {"sonnet": [CUT] if stream else [CUT, CUT]})
        # Errors do not depend on whether the answer was to be streamed.
        if stream:
            yield exchange("error", "sonnet", {"sonnet": [ERROR, ERROR]})
        else:
            yield exchange("refused", "sonnet", {"sonnet": [REFUSAL]})


def exchanges_of_mixed_apis() -> Iterator[Exchange]:
    """Yield exchanges with a gateway whose models speak different APIs."""
    for client in APIS:
        for stream in (False, True):
            kind = "streamed" if stream else "whole"
            title, path = f"{client.name}-mixed-{kind}", f"/v1{client.path}"
            routed = write(ask(client, "switchcraft", stream=stream))
            named = write(ask(client, "haiku", stream=stream, has_history=True))
            failing = {"haiku": [ERROR, ERROR], "sonnet": [TEXT], "opus": [TEXT]}
            yield Exchange(f"{title}-fallback", path, named, failing)
            yield Exchange(f"{title}-failed-candidate", path, routed, failing)
            wrong = {"haiku": [WRONG_CALL], "opus": [OTHER_WRONG_CALL], "sonnet": [CALL]}
            dear = {POLICY: "verified=0.5"}
            yield Exchange(f"{title}-three-candidates", path, routed, wrong, dear)
            failing = {"haiku": [ERROR, ERROR], "sonnet": [ERROR, ERROR], "opus": [REFUSAL]}
            yield Exchange(f"{title}-no-candidate", path, routed, failing)


def exchanges_of_policies() -> Iterator[Exchange]:
    """Yield requests that name policies, limits and models in all ways."""
    answers = {model: [CALL, CALL] for model in ("haiku", "sonnet", "opus")}
    path = f"/v1{apis.CHAT.path}"
    for model in (
        *("switchcraft:fast", "switchcraft:economy", "switchcraft:balanced"),
        *("switchcraft:nothing", "claude-some-alias", "nothing"),
    ):
        body = write(ask(apis.CHAT, model, stream=False))
        yield Exchange(f"model-{model.replace(':', '-')}", path, body, answers)
    body = write(ask(apis.CHAT, "switchcraft", stream=False))
    for policy in ("theta=0.999", "drift=0.1", "utility=0.0001", "verified=0.01", "theta=2"):
        yield Exchange(f"policy-{policy}", path, body, answers, {POLICY: policy})
    wrong = {"haiku": [WRONG_CALL], "sonnet": [WRONG_CALL], "opus": [WRONG_CALL]}
    limits = {"x-switchcraft-max-candidates": "1"}
    yield Exchange("one-candidate", path, body, wrong, limits)
    yield Exchange("cheap", path, body, wrong, {"x-switchcraft-max-cost-usd": "0.0000001"})
    yield Exchange("deadline", path, body, answers, {"x-request-timeout": "never"})
    yield Exchange("idempotent", path, body, answers, {"idempotency-key": "a-key"})
    plain = {"model": "switchcraft", "messages": [{"role": "user", "content": "Say hello."}]}
    texts = {"haiku": [TEXT], "sonnet": [TEXT], "opus": [TEXT]}
    yield Exchange("no-tools", path, write(plain), texts)
    several = {**ask(apis.CHAT, "switchcraft", stream=False), "n": 2}
    yield Exchange("several-choices", path, write(several), answers)
    for name, model in (("text", "switchcraft"), ("text-of-quality", "switchcraft:quality")):
        greeting = ask(apis.CHAT, model, stream=name == "text")
        greeting["messages"] = [{"role": "user", "content": "Hello! How are you today?"}]
        yield Exchange(f"expected-{name}", path, write(greeting), texts)
    yield Exchange("own-request-id", path, body, answers, {"x-request-id": ""})
    stored = ask(apis.RESPONSES, "switchcraft", stream=False) | {"store": True}
    yield Exchange("stored-response", f"/v1{apis.RESPONSES.path}", write(stored), answers)
    unknown = {"x_unknown": {"kept": [1.0, "\u20ac"]}, **ask(apis.CHAT, "haiku", stream=False)}
    yield Exchange("unknown-field", path, write(unknown), answers)
    for name, bad in {
        "no-json": b'{"model": "haiku", ',
        "no-object": b"[]",
        "no-model": write({"messages": []}),
        "no-messages": write({"model": "switchcraft"}),
        "wrong-type": write({"model": "switchcraft", "messages": "hello"}),
    }.items():
        for client in APIS:
            yield Exchange(f"{client.name}-{name}", f"/v1{client.path}", bad)
    tokens = {"model": "haiku", "messages": [{"role": "user", "content": "Hello"}]}
    yield Exchange("count-tokens", "/v1/messages/count_tokens", write(tokens), texts)
    embedded = {"model": "haiku", "input": "Hello"}
    yield Exchange("embeddings", "/v1/embeddings", write(embedded), {"haiku": [TEXT]})
    completed = {"model": "haiku", "prompt": "Hello"}
    yield Exchange("completions", "/v1/completions", write(completed), {"haiku": [TEXT]})
    yield Exchange("models", "/v1/models", b"", method="GET")
    yield Exchange("files", "/v1/files", b"", method="GET")
    yield Exchange("wrong-method", path, b"", method="GET")
    yield Exchange("no-decision", "/v1/decisions/dec_none", b"", method="GET")


KEYS: dict[str, dict[str, Json]] = {
    **{f"limited-{api.name}": {"requests_per_minute": 1} for api in APIS},
    "without-budget": {"budget": {"usd": 0, "period": "total"}},
    "one-model": {"models": ["sonnet", "switchcraft"]},
    "one-policy": {"policies": ["fast"]},
}
"""The keys of the database, with what limits them."""


def exchanges_of_keys() -> Iterator[tuple[str, Exchange]]:
    """Yield the names of keys with what they send; no name is no key."""
    for client in APIS:
        path = f"/v1{client.path}"
        named = write(ask(client, "haiku", stream=False))
        routed = write(ask(client, "switchcraft", stream=False))
        answers = {model: [CALL] for model in ("haiku", "sonnet", "opus")}
        for key, name, body in (
            ("", "no-key", named),
            ("unknown", "unknown-key", named),
            ("allowed", "allowed", routed),
            (f"limited-{client.name}", "within-the-limit", named),
            (f"limited-{client.name}", "beyond-the-limit", named),
            ("without-budget", "without-budget", named),
            ("one-model", "model-not-allowed", named),
            ("one-model", "one-model-routed", routed),
            ("one-policy", "policy-not-named", routed),
        ):
            yield key, Exchange(f"{client.name}-{name}", path, body, answers)
        policy = {POLICY: "quality"}
        yield "one-policy", Exchange(f"{client.name}-policy-not-allowed", path, routed, {}, policy)
    yield "allowed", Exchange("admin-status", "/admin/status", b"", method="GET")
    yield "", Exchange("unknown-path", "/v1/nothing", b"", method="GET")
