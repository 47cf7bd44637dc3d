"""An upstream with all APIs, whose answers to the next requests are scripted by model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import APIS, UpstreamApi
from tests.clouds.aws import converse_event
from tests.providers.answers import Reply, Usage, Written, data_of
from tests.providers.errors import ERROR_MESSAGE, error_body, error_event

MODELS = ("haiku", "sonnet", "opus", "other")
"""Parts of the upstream models' names by which the script knows them."""

_JSON = (b"content-type", b"application/json")
_STREAM_TYPES: dict[UpstreamApi, bytes] = {apis.CONVERSE: b"application/vnd.amazon.eventstream"}
_EVENTS_BEFORE_CUT = 8


USAGE = Usage()


@dataclass(frozen=True)
class Play:
    """What a model answers to one request."""

    parts: Sequence[Written] = ()
    status: int = 200
    is_cut: bool = False
    """Whether the connection breaks in the middle of the answer."""
    usage: Usage = USAGE
    has_error: bool = False
    """Whether an error follows the beginning of a stream, or is the body of status 200."""


FORECAST = '{"city": "Lisbon", "days": 1}'
TEXT = Play([Text("It will rain in Lisbon, 14 °C.")])
CALL = Play([Thinking("Lisbon.", "c2lnbmVk"), ToolUse("toolu_01", "get_forecast", FORECAST)])
# Calls that their tool's schema refuses.
WRONG_CALL = Play([ToolUse("toolu_02", "get_forecast", '{"days": "soon"}')])
OTHER_WRONG_CALL = Play([ToolUse("toolu_03", "get_forecast", '{"city": 7}')])
CUT = Play(TEXT.parts, is_cut=True)
ERROR = Play(status=500)
REFUSAL = Play(status=400)

Script = dict[str, list[Play]]
"""The next answers of each model."""


@dataclass(frozen=True)
class Received:
    """A request that the upstream got."""

    path: str
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass
class ScriptedUpstream:
    """The upstream: an ASGI app. A request that is not in the script gets status 418."""

    script: Script = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = await Request(scope, receive).body()
        path = scope["raw_path"].decode()
        query = scope["query_string"].decode()
        headers = sorted((name.decode(), value.decode()) for name, value in scope["headers"])
        self.received.append(Received(f"{path}?{query}" if query else path, headers, body))
        value = json.loads(body)
        asked = path if "/model/" in path else value["model"]
        plays = self.script.get(next((name for name in MODELS if name in asked), ""))
        play = plays.pop(0) if plays else Play(status=418)
        api: UpstreamApi = apis.CONVERSE
        if "/model/" not in path:
            api = next((each for each in APIS if path.endswith(each.path)), apis.CHAT)
        is_streamed = path.endswith("-stream") or value.get("stream", False)
        head, parts = _answer(play, api, value, is_streamed=is_streamed)
        await send({"type": "http.response.start", "status": play.status, "headers": head})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if not play.is_cut:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


Head = list[tuple[bytes, bytes]]


def _answer(
    play: Play, api: UpstreamApi, asked: dict[str, object], *, is_streamed: bool
) -> tuple[Head, Sequence[bytes]]:
    """Return the headers and the parts of the body of an answer."""
    head = [_JSON, (b"request-id", b"req_upstream"), (b"x-ratelimit-limit-requests", b"60")]
    if play.status >= 400:
        status = play.status if play.status in {400, 429, 500} else 500
        problem = f"The scripted upstream answers with status {play.status}."
        return head, [json.dumps(error_body(api, status, problem)).encode()]
    reply = Reply(api, str(asked.get("model", "bedrock")), play.parts, usage=play.usage)
    if not is_streamed:
        whole = error_body(api, 500, ERROR_MESSAGE) if play.has_error else reply.whole()
        body = json.dumps(whole, ensure_ascii=False).encode()
        return head, [body[: len(body) // 2] if play.is_cut else body]
    head[0] = (b"content-type", _STREAM_TYPES.get(api, b"text/event-stream"))
    events = reply.events()
    options = asked.get("stream_options")
    if not (isinstance(options, dict) and options.get("include_usage")):
        events = [event for event in events if b'"choices": [], "usage"' not in event]
    if play.is_cut or play.has_error:
        events = events[:_EVENTS_BEFORE_CUT]
    if play.has_error:
        events.append(error_event(api, len(events)))
    if api is apis.CONVERSE:
        events = [converse_event(*data_of(event).popitem()) for event in events]
    return head, events
