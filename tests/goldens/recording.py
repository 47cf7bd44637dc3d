"""Run the exchanges, and write what happened as text that people can compare.

Values that differ between two runs are replaced. Values that differ between two kinds of processors
are written with `~`, and compared with a tolerance.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from router_service.artifact import ARTIFACTS
from router_service.cli import main
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import Settings, read_settings
from router_service.telemetry.logs import JsonFormatter
from tests import apis
from tests.apis import APIS, UpstreamApi
from tests.goldens.exchanges import (
    KEYS,
    Exchange,
    exchanges_of,
    exchanges_of_keys,
    exchanges_of_mixed_apis,
    exchanges_of_policies,
)
from tests.goldens.lines import POLICIES, lines_of
from tests.goldens.scripted import Received, ScriptedUpstream
from tests.serving import served, wait_for
from tests.stored_keys import bearer

FOLDER = Path(__file__).parent
ARTIFACT = ARTIFACTS / "frontier-2025-12"
ADMIN_KEY = "admin-key-of-the-goldens"

Json = Any

VARYING: Sequence[tuple[str, str]] = (
    (r"\bdec_[0-9a-f]{24}\b", "dec_ID"),
    (r"\bsk-[\w-]{20,}", "sk-KEY"),
    (r"\b(chatcmpl-|msg_|resp_|rs_|fc_|call_|toolu_)[0-9a-f]{24,32}(?![0-9a-f])", r"\1ID"),
    (r"@[0-9a-f]{8}\b", "@HASH"),
    (r"\b127\.0\.0\.1:\d+", "HOST"),
    (r"\bswitchcraft/\d[\w.]*", "switchcraft/VERSION"),
    (r'(?<="created":)(?!179000000)\d{10}\b', "TIME"),
    (r'(?<=_at":)(?!179000000)\d{10}\b', "TIME"),
    (r"(?m)^(x-switchcraft-(?:familiarity|p-correct): )", r"\1~"),
    (r"(?<![\w.~])(\d+(?:\.\d+)?%)(?![0-9A-F]{2})", r"~\1"),
    (r"(?m)^(date|retry-after(?:-ms)?|[\w-]*ratelimit[\w-]*reset[\w-]*): .*", r"\1: TIME"),
    (r"(?m)^content-length: .*", "content-length: LENGTH"),
    (r"Try again in [\d.]+ s", "Try again in TIME"),
)
"""What differs between two runs, or between two kinds of processors: regular expressions with their
replacements."""

TIMES = frozenset("time ms created latency_s first_byte_s seconds".split())
"""Fields of records and log lines whose values are times."""

PROBABILITIES = frozenset(
    "probabilities p_correct first_p_correct expected_gain familiarity".split()
)
"""Fields whose numbers come from the artifact's graphs."""

TOLERANCE = 0.02
"""Largest difference of two probabilities that counts as none, as for the artifact's canaries:
processors compute the graphs with different instructions."""

_APPROXIMATE = re.compile(r"~(\d+(?:\.\d+)?)(%?)")


def settled(value: Json, name: str = "", *, is_probability: bool = False) -> Json:
    """Return a value without times, and with rounded numbers."""
    is_probability = is_probability or name in PROBABILITIES
    match value:
        case None:
            return None
        case _ if name in TIMES:
            return "TIME"
        case dict():
            return {
                key: settled(each, key, is_probability=is_probability)
                for key, each in value.items()
            }
        case list():
            return [settled(each, is_probability=is_probability) for each in value]
        case float():
            return f"~{value:.3f}" if is_probability else round(value, 12)
    return value


def without_varying(text: str) -> str:
    """Return a text with replacements for what differs between two runs."""
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text


def is_same(line: str, other: str) -> bool:
    """Return whether two lines are equal, apart from small differences of probabilities."""
    if line == other:
        return True
    if _APPROXIMATE.sub("~", line) != _APPROXIMATE.sub("~", other):
        return False
    pairs = zip(_APPROXIMATE.findall(line), _APPROXIMATE.findall(other), strict=True)
    return all(
        abs(float(a) - float(b)) <= TOLERANCE * (100 if percent else 1)
        for (a, percent), (b, _) in pairs
    )


def configuration(upstream: str, speaks: Mapping[str, UpstreamApi], *, has_keys: bool) -> str:
    """Return a gateway's file; `speaks` has the API of each of the three models."""
    entries = "".join(
        _entry(f"{upstream}/{name}-{number}", name, speaks[name], weight=2 - number)
        for name in ("haiku", "sonnet", "opus")
        for number in ((1, 2) if name == "haiku" else (1,))
    )
    keys = f"keys: {{admin: {ADMIN_KEY}, api: {{allowed: key-allowed}}}}\n" if has_keys else ""
    return f"""model_list:
{entries}
router_settings: {{fallbacks: [{{haiku: [opus]}}]}}
router: {{artifact: {ARTIFACT}, verification: {{keep_alive_s: 600}}}}
upstreams:
  retries: {{max_retries: 1, budget_floor_per_s: 1000, backoff_s: 0.001}}
  breaker: {{allowed_fails: 1000}}
  timeouts: {{hold_s: 60}}
{keys}"""


_DATES = {"haiku": "20251001", "sonnet": "20250929", "opus": "20251101"}


def _entry(url: str, name: str, api: UpstreamApi, *, weight: int) -> str:
    info = "{}"
    if api is apis.CONVERSE:
        model = f"bedrock/converse/us.anthropic.claude-{name}-4-5-{_DATES[name]}-v1:0"
        params = f"aws_region_name: us-west-2, aws_bedrock_runtime_endpoint: {url}"
    elif api is apis.MESSAGES:
        model, params = f"anthropic/claude-{name}-4-5", f"api_base: {url}/v1"
    else:
        model, params = f"openrouter/anthropic/claude-{name}-4.5", f"api_base: {url}/v1"
        info = f"{{supported_endpoints: [/v1{api.path}]}}"
    key = f"key-of-{url.rpartition('/')[2]}"
    return f"""  - model_name: {name}
    litellm_params: {{model: "{model}", {params}, api_key: {key}, weight: {weight}}}
    model_info: {info}
"""


def read_configuration(text: str) -> Settings:
    """Return the settings of a gateway's file; its database is in memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gateway.yaml")
        path.write_text(text)
        settings = read_settings(path, environ={})
    database = settings.database.model_copy(update={"url": None})
    return settings.model_copy(update={"database": database})


@dataclass
class Recorded:
    """What one gateway did: its exchanges as text, and the series of its metrics."""

    exchanges: dict[str, str]
    series: set[str]


def record_gateway(
    router: Router,
    upstream: ScriptedUpstream,
    url: str,
    speaks: Mapping[str, UpstreamApi],
    exchanges: Iterable[tuple[str | None, Exchange]],
) -> Recorded:
    """Run exchanges with a gateway. Each has the name of its key; None if there are no keys."""
    exchanges = list(exchanges)
    has_keys = any(key is not None for key, _ in exchanges)
    app = create_app(read_configuration(configuration(url, speaks, has_keys=has_keys)), router)
    with request_log() as log, served(app) as address, httpx.Client(base_url=address) as http:
        http.timeout, http.headers = 60, {}
        # Before, answers are not counted by how probably they are correct.
        (planner,) = app.state.gateway.engine.releases.planners
        wait_for(lambda: planner.policy_errors is not None, "the artifact's errors are measured")
        secrets = {None: "", "": "", "unknown": "key-unknown", "allowed": "key-allowed"}
        for name in KEYS if has_keys else ():
            created = http.post(
                "/admin/keys",
                json={"name": name, **KEYS[name]},
                headers=bearer(ADMIN_KEY),
            )
            secrets[name] = created.json()["secret"]
        answers = [_ask(http, upstream, secrets[key], each) for key, each in exchanges]
        ids = [answer.headers["x-request-id"] for answer, _ in answers]
        wait_for(lambda: log.keys() >= {*ids}, "all log lines are written")
        found = {
            each.name: _written(each, *answer, _decision(http, answer[0]), log[id_])
            for (_, each), answer, id_ in zip(exchanges, answers, ids, strict=True)
        }
        metrics = http.get("/metrics", headers=bearer(ADMIN_KEY) if has_keys else {}).text
    return Recorded(found, set(_series(metrics)))


def _ask(
    http: httpx.Client, upstream: ScriptedUpstream, secret: str, exchange: Exchange
) -> tuple[httpx.Response, Sequence[Received]]:
    """Send what the client of an exchange sends; return its answer, and what the upstream got."""
    upstream.script, upstream.received = exchange.fresh_script(), []
    headers = {
        "x-request-id": exchange.name,
        **exchange.headers,
        **(bearer(secret) if secret else {}),
    }
    if exchange.body:
        headers["content-type"] = "application/json"
    answer = http.request(
        exchange.method, exchange.path, content=exchange.body or None, headers=headers
    )
    return answer, upstream.received


def _decision(http: httpx.Client, answer: httpx.Response) -> Json:
    """Return the decision record of an answer, or None if it has none."""
    decision = answer.headers.get("x-switchcraft-decision-id")
    if decision is None:
        return None
    path = f"/v1/decisions/{decision}"
    wait_for(lambda: http.get(path, headers=bearer(ADMIN_KEY)).is_success, "there is a record")
    return http.get(path, headers=bearer(ADMIN_KEY)).json()


def _written(
    exchange: Exchange,
    answer: httpx.Response,
    received: Sequence[Received],
    record: Json,
    line: str,
) -> str:
    """Return the text of an exchange."""
    sent = "".join(f"{name}: {value}\n" for name, value in exchange.headers.items())
    parts = [f"> {exchange.method} {exchange.path}\n{sent}", _text(exchange.body)]
    for each in received:
        headers = "".join(
            f"{name}: {value}\n" for name, value in each.headers if name not in _FRAMING
        )
        parts += [f"| {each.path}\n{headers}", _text(each.body)]
    headers = "".join(f"{name}: {value}\n" for name, value in sorted(answer.headers.items()))
    parts += [f"< {answer.status_code}\n{headers}", _text(answer.content)]
    if record is not None:
        fields = settled(record)
        given = "".join(
            f"{name}: {_json(value)}\n" for name, value in fields.items() if value is not None
        )
        absent = " ".join(name for name, value in fields.items() if value is None)
        parts.append(f"decision\n{given}null: {absent}\n")
    parts.append(f"log\n{_json(settled(json.loads(line)))}\n")
    return without_varying("".join(parts))


_FRAMING = frozenset("host content-length accept-encoding connection".split())


def _text(body: bytes) -> str:
    return body.decode() + ("" if body.endswith(b"\n") or not body else "\n")


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def request_log() -> Iterator[dict[str, str]]:
    """Yield the log lines of requests by their ids; lines are added as they come."""
    lines: dict[str, str] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = JsonFormatter().format(record)
            lines[json.loads(line)["request_id"]] = line

    logger, handler = logging.getLogger("switchcraft.request"), Handler()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


_PROCESS = ("python_", "process_")


def _series(metrics: str) -> Iterator[str]:
    """Yield the name and the labels of each series; a histogram's buckets are one series."""
    for line in metrics.splitlines():
        if line and not line.startswith(("#", *_PROCESS)):
            name = line.rpartition(" ")[0]
            yield without_varying(re.sub(r'le="[^"]*",?', "", name).replace("{}", ""))


def record_route() -> Iterator[tuple[str, str]]:
    """Yield what `switchcraft route` prints for each policy."""
    for policy in POLICIES:
        options = [] if policy is None else ["--policy", policy]
        given = io.TextIOWrapper(io.BytesIO(b"".join(line + b"\n" for line in lines_of(policy))))
        printed = io.TextIOWrapper(io.BytesIO())
        with patch.object(sys, "stdin", given), redirect_stdout(printed):
            assert main(["route", "--artifact", str(ARTIFACT), *options]) == 0
        lines = printed.buffer.getvalue().decode().splitlines()
        yield (
            policy or "none",
            "".join(f"{_json(settled(json.loads(line)))}\n" for line in lines),
        )


def record() -> dict[str, str]:
    """Return the text of each golden file by its name."""
    router, upstream = Router.load(ARTIFACT), ScriptedUpstream()
    found = Recorded({}, set())
    files: dict[str, dict[str, str]] = {"route": dict(record_route())}
    with served(upstream) as url:

        def run(
            file: str,
            speaks: Mapping[str, UpstreamApi],
            exchanges: Iterable[tuple[str | None, Exchange]],
        ) -> None:
            recorded = record_gateway(router, upstream, url, speaks, exchanges)
            for name, text in recorded.exchanges.items():
                files.setdefault(file or name.partition("-")[0], {})[name] = text
            found.series.update(recorded.series)

        for api in APIS.of_upstreams:
            exchanges = [(None, each) for client in APIS for each in exchanges_of(api, client)]
            run("", dict.fromkeys(("haiku", "sonnet", "opus"), api), exchanges)
        mixed = {"haiku": apis.MESSAGES, "sonnet": apis.CHAT, "opus": apis.CONVERSE}
        run("", mixed, [(None, each) for each in exchanges_of_mixed_apis()])
        all_chat = dict.fromkeys(mixed, apis.CHAT)
        run("policies", all_chat, [(None, each) for each in exchanges_of_policies()])
        run("keys", all_chat, exchanges_of_keys())
    written = {
        f"{file}.txt": "".join(f"=== {name}\n{text}" for name, text in texts.items())
        for file, texts in files.items()
    }
    written["metrics.txt"] = "".join(f"{series}\n" for series in sorted(found.series))
    return written


def keeping_approximations(text: str, before: str) -> str:
    """Return a text with the lines of an earlier one where these are the same."""
    lines, old = text.splitlines(), before.splitlines()
    if len(lines) != len(old):
        known = {_APPROXIMATE.sub("~", line): line for line in old}
        old = [known.get(_APPROXIMATE.sub("~", line), line) for line in lines]
    kept = (was if is_same(line, was) else line for line, was in zip(lines, old, strict=True))
    return "".join(f"{line}\n" for line in kept)
