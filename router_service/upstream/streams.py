"""Answers of upstreams, whole or as streams of events: what they contain, and what is forwarded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from router_service.apis.answer_errors import (
    ForeignAnswerError,
    error_fields,
    is_error,
    read_error,
    unwrapped,
    write_openai_error,
)
from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.answers import AnswerIdentity, AnswerRecord
from router_service.apis.api import Api, UpstreamApi
from router_service.apis.conversation import Json
from router_service.apis.encoding import encode
from router_service.apis.frames import BLANK_LINE, TextFrame, data_of, is_comment, with_data
from router_service.apis.registry import APIS
from router_service.apis.usage import CHARACTERS_PER_TOKEN, Usage
from router_service.core.errors import Failure, UpstreamError, UpstreamRefusedError
from router_service.settings import Deployment, Model
from router_service.upstream.bodies import (
    BYTE_ORDER_MARK,
    UNCOUNTED_BYTES,
    UnreadableError,
    decode_json,
    read_json,
    skim,
)
from router_service.upstream.client import UpstreamAnswer
from router_service.upstream.connection import MAX_PASSED_BYTES, RawHeaders

MAX_HELD_BYTES = 4 * 1024 * 1024
"""Longest answer that is read to its end before it is forwarded. If such an answer breaks off,
another deployment can still answer. 128k tokens are about 1 MB."""

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""Longest answer that is not a stream. A longer one is cut off."""

MAX_ERROR_BYTES = 256 * 1024
"""Longest body of an error that is passed to clients. It may be long, because some servers quote
the request in validation errors."""

MAX_EVENT_BYTES = 1024 * 1024
"""An event longer than this is forwarded before it is complete, and is not read."""

MAX_READ_BYTES = MAX_PASSED_BYTES
"""Bytes of a stream that are read before other requests have their turn. When reading took twice as
long, 60 upstreams that send small events as fast as they can stalled the event loop for 0.04 s with
8 KB, and for 0.1 to 0.24 s with 64 KB."""

MAX_FRAMES = 8
"""How often a stream's events are compared with a new one after they have changed. Some providers
write the current time into each event."""

KEEP_ALIVE_HOLD_S = 5.0
"""How long comments before an answer's first event are held back, so that another deployment may
still answer. Clients wait longer than this for the first bytes."""

KEEP_ALIVE_HOLD_BYTES = 64 * 1024
"""Most bytes of comments before an answer's first event that are held back."""

ANOTHER_API = "answered in another API than it was asked in"

MAX_END_WAIT_S = 1.0
"""How long the end of a stream may come after its last event, if only the connection's reuse
depends on it: after a translated stream, and if the client leaves at the last event. Most upstreams
send both together."""

_UPSTREAMS_FAULT = {401, 407, 408, 429}
"""Statuses below 500 after which another deployment or model may succeed, because the cause is the
operator's key or a limit."""

_REFUSALS = {402, 403, 409}
"""Statuses after which another deployment or model may succeed, but which a client can cause: by
asking for more tokens than the account can pay for (402, OpenRouter), by content that is moderated
or blocked by a firewall (403), and by an idempotency key or a conversation that is in use (409)."""

_UNFIT_STATUSES = {404, 413}
"""Statuses of requests that are too large, or that refer to a missing object, such as a model.
Clients can cause these statuses, so they must not open a circuit for all other clients."""

_TOO_LARGE = b"Request too large"
"""The start of OpenAI's message for a single request that exceeds the tokens per minute. Its status
is 429, but waiting does not help."""

_UNFIT_CODES = {"request_too_large", "string_above_max_length"}

_TOO_LONG_CODE = "context_length_exceeded"
_TOO_LONG_MESSAGE = re.compile(
    "(?:prompt|input) is too long|exceed context limit|maximum context length|"
    "exceeds? the (?:model's )?(?:available )?context|input token count|too many (?:input )?tokens",
    re.IGNORECASE,
)
"""Messages of requests that exceed the context window, for providers without a code for it:
Anthropic and Bedrock (first two), vLLM and Mistral, OpenAI's Responses and llama.cpp, Gemini,
Cohere."""

_QUOTA_CODES = frozenset(
    "insufficient_quota billing_error billing_hard_limit_reached billing_not_active "
    "exceeded_current_quota_error insufficient_user_quota Arrearage".split()
)
"""Codes or types of errors about an account without credit, at OpenAI, Anthropic, Moonshot, One API
and Alibaba."""
_QUOTA_MESSAGE = "credit balance is too low"
"""What Anthropic says in an `invalid_request_error`."""

_NO_RETRY = (b"x-should-retry", b"false")
"""Header by which OpenAI's and Anthropic's clients do not repeat a request with status 429."""

MAX_MESSAGE = 500
"""Characters of an error's message that are searched. Servers may quote the request after them."""

_CLIENTS_CODES = frozenset(
    (
        "content_filter",
        "content_policy_violation",
        "empty_image_file",
        "failed_to_download_image",
        "unsupported_image_media_type",
    )
)
_CLIENTS_CODE_PREFIXES = ("invalid_image", "invalid_base64", "invalid_prompt", "image_")
"""Codes, and here beginnings of codes, for what is wrong with a request (API reference: "The
response object", error)."""

_NOT_CLIENTS_STATUSES = frozenset({401, 408, 429})

# Matches the events of most upstreams if their lines do not end with a carriage return. Finding the
# data in this way takes a fifth of the time that any event takes.
_PLAIN_EVENT = re.compile(rb"(?:event: .*+\n)?data: (\{.*+)\n\n\n*+")
_SEAM_BYTES = 2  # a blank line may begin in the last two of the buffered bytes
_DONE = b"[DONE]"


@dataclass(slots=True)
class StartedAnswer:
    """An answer that has started well: a whole answer, or the start of a stream."""

    model: Model
    deployment: Deployment
    status: int
    headers: RawHeaders
    body: bytes
    """The whole body, or what has arrived of a stream so far."""
    answer: UpstreamAnswer
    """The upstream's answer, whose connection `close` releases."""
    reader: EventReader | None = None
    """Reader for the rest of a stream, or None for a whole answer."""
    rest: AsyncIterator[bytes] | None = None
    """The parts that follow `body` in a whole answer that is too large to be buffered. The iterator
    raises UpstreamError if the answer breaks off."""
    value: Json = None
    """The whole body, decoded, or None if it is not JSON."""
    is_translated: bool = False
    """Whether the upstream speaks another API than the client. `body` is the client's, `value` the
    upstream's, and errors are still the upstream's."""
    api: UpstreamApi | None = None
    """The API of `value`; None for endpoints that are never translated, such as embeddings."""
    is_skimmed: bool = False
    """Whether `value` has only what `skim` found, because the body is too large to be decoded."""

    def __enter__(self) -> Self:
        """Return the answer, whose connection is released when the block is left."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Release the connection."""
        self.close(exc)

    def close(self, exc: BaseException | None = None) -> None:
        """Release the connection; `exc` is the exception that ended the answer, if any."""
        if self.reader is not None:
            self.reader.close()
        self.answer.close(exc)


async def read_whole(
    answer: UpstreamAnswer,
    started: StartedAnswer,
    *,
    expects_json: bool,
    api: UpstreamApi | None = None,
    translator: AnswerTranslator | None = None,
) -> None:
    """Read an answer that is not a stream into `started`, translated if there is a translator.

    `api` is the API that was asked; an answer in another one is unusable.

    Raise UpstreamError if the answer is unusable, so that another upstream can be tried. If the
    answer is too large to be buffered, `started.rest` yields the part that is still unread.
    """
    started.api = api
    if answer.status >= 400:
        started.body = await _read_error(answer)
        return
    # A megabyte of compressed data may become a gigabyte, so the limit for compressed answers is
    # lower. Regular upstreams do not compress such large answers without being asked to.
    limit_bytes = MAX_HELD_BYTES if answer.is_compressed else MAX_WHOLE_BYTES
    if answer.declared_bytes > limit_bytes:
        raise _too_long(answer, limit_bytes)
    parts, size_bytes = [], 0
    while part := await answer.read():
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise _too_long(answer, limit_bytes)
        if size_bytes > MAX_HELD_BYTES or not answer.reserve(size_bytes):
            if translator is not None:
                raise _too_long(answer, MAX_HELD_BYTES)
            started.rest = _read_rest(answer, limit_bytes - size_bytes)
            break
    started.body = b"".join(parts)
    if started.rest is not None:
        started.value, started.is_skimmed = skim(started.body), True
        return
    try:
        started.value = read_json(started.body, is_exact=True)
    except UnreadableError as exc:
        if exc.is_too_much and translator is None:
            started.value, started.is_skimmed = skim(started.body), True
        elif expects_json:
            problem = "sent an answer that is not valid JSON"
            raise UpstreamError(answer.model, problem, Failure.MALFORMED) from exc
        return
    if (isinstance(started.value, dict) or expects_json) and _reports_error(started.value, api):
        problem = "answered with an error, but with a success status"
        raise _reported_error(answer, started.value, api, problem)
    started.body = _in_clients_api(answer, started, api, translator)


async def _read_error(answer: UpstreamAnswer) -> bytes:
    """Return the body of an error for the client, or raise UpstreamRefusedError.

    Raise UpstreamRefusedError unless every upstream would refuse the request. The body is replaced
    by an empty one if it is too long, or if it contains the gateway's credentials, because then the
    error is about the operator's account.
    """
    parts = bytearray()
    while len(parts) <= MAX_ERROR_BYTES and (part := await answer.read()):
        parts += part
    body = b"" if len(parts) > MAX_ERROR_BYTES or answer.has_secrets else bytes(parts)
    value = unwrapped(decode_json(body))
    error = value.get("error", value) if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    status, headers = answer.status, answer.headers
    if _is_about_quota(error):
        failure, status, headers = Failure.QUOTA, 429, [*headers, _NO_RETRY]
        if isinstance(value, dict) and not isinstance(value.get("error"), dict):  # on top
            body = encode(write_openai_error(read_error(value, status)))
    elif answer.status in {400, 413, 422} and _is_too_long(error):
        failure = Failure.TOO_LONG
    elif answer.status == 429 and _TOO_LARGE in body:
        failure = Failure.UNFIT
    elif answer.status >= 500 or answer.status in _UPSTREAMS_FAULT:
        failure = Failure.STATUS
    elif answer.status in _REFUSALS:
        failure = Failure.REFUSED
    elif answer.status in _UNFIT_STATUSES or (isinstance(code, str) and code in _UNFIT_CODES):
        failure = Failure.UNFIT
    else:
        return body
    raise UpstreamRefusedError(
        answer.model,
        status,
        headers=headers,
        body=body,
        failure=failure,
        retry_after_s=answer.retry_after_s,
    )


def _is_too_long(error: Json) -> bool:
    """Return whether a decoded error says that the request exceeds the model's context window."""
    if not isinstance(error, dict):
        return False
    message = error.get("message")
    text = message[:MAX_MESSAGE] if isinstance(message, str) else ""
    return error.get("code") == _TOO_LONG_CODE or bool(_TOO_LONG_MESSAGE.search(text))


def _is_about_quota(error: Json) -> bool:
    """Return whether a decoded error says that the operator's account has no credit left."""
    if not isinstance(error, dict):
        return isinstance(error, str) and error in _QUOTA_CODES
    code, kind, message = (error.get(name) for name in ("code", "type", "message"))
    has_code = any(isinstance(each, str) and each in _QUOTA_CODES for each in (code, kind))
    return has_code or (isinstance(message, str) and _QUOTA_MESSAGE in message[:MAX_MESSAGE])


def _reported_error(
    answer: UpstreamAnswer, value: Json, api: UpstreamApi | None, problem: str
) -> UpstreamError:
    """Return the failure for an error in an answer with a success status.

    Clients get the message of one about the account, as if its status had been 429.
    """
    failure = failure_of_error(value, api)
    if failure is not Failure.QUOTA or answer.has_secrets:
        return UpstreamError(answer.model, problem, failure)
    error = read_error(value, 429) if api is None else api.read_error(value, 429)
    return UpstreamRefusedError(
        answer.model,
        429,
        headers=[*answer.headers, _NO_RETRY],
        body=encode(write_openai_error(error)),
        failure=failure,
    )


async def _read_rest(answer: UpstreamAnswer, left_bytes: int) -> AsyncIterator[bytes]:
    """Yield the parts that follow the buffered ones.

    The buffered parts have been forwarded by then, so their memory is released.
    """
    answer.reserve(0)
    while part := await answer.read():
        left_bytes -= len(part)
        if left_bytes < 0:
            raise _too_long(answer, MAX_WHOLE_BYTES)
        yield part


def _too_long(answer: UpstreamAnswer, limit_bytes: int) -> UpstreamError:
    problem = f"answered with more than {limit_bytes} bytes"
    if answer.is_compressed:
        problem += " in compressed form, although the gateway did not accept compression"
    return UpstreamError(answer.model, problem, Failure.MALFORMED)


def is_of_another_api(value: Json, api: UpstreamApi | None) -> bool:
    """Return whether an answer or an event is recognized as one of another API."""
    if api is None or not isinstance(value, dict):
        return api is not None  # no API answers with anything but objects
    return not api.recognizes(value) and APIS.recognize(value) is not None


def _in_clients_api(
    answer: UpstreamAnswer,
    started: StartedAnswer,
    api: UpstreamApi | None,
    translator: AnswerTranslator | None,
) -> bytes:
    """Return a whole answer in the client's API; raise UpstreamError if that is impossible."""
    if is_of_another_api(started.value, api):
        raise UpstreamError(answer.model, ANOTHER_API, Failure.MALFORMED)
    if translator is None:
        if api is not None and not api.has_calls(started.body):
            return api.without_call_reason(started.body)
        return started.body
    try:
        return translator.whole(started.value)
    except ForeignAnswerError as exc:
        raise _untranslatable(answer, exc) from exc


def _untranslatable(answer: UpstreamAnswer, exc: ForeignAnswerError) -> UpstreamError:
    problem = f"sent an answer of the {exc.source} API that {exc.problem}"
    return UpstreamError(answer.model, problem, Failure.MALFORMED)


def _reports_error(value: Json, api: UpstreamApi | None) -> bool:
    """Return whether a decoded body or event is an error; no API answers with non-objects."""
    if not isinstance(value, dict):
        return True
    return is_error(value) if api is None else api.is_error(value)


def failure_of_error(value: Json, api: UpstreamApi | None = None) -> Failure:
    """Return the kind of failure for an error in an answer with a success status.

    The error's code decides. OpenAI's codes are words, OpenRouter's codes are HTTP statuses, and
    Anthropic's errors have types instead.
    """
    error = error_fields(value) if api is None else api.error_fields(value)
    code = error.get("code") if isinstance(error, dict) else None
    if _is_about_quota(error) or code == 402:
        return Failure.QUOTA
    if _is_too_long(error):
        return Failure.TOO_LONG
    if isinstance(code, int):
        is_clients = 400 <= code < 500 and code not in _NOT_CLIENTS_STATUSES
    elif code is None and isinstance(value, dict) and value.get("type") == "error":
        kind = error.get("type") if isinstance(error, dict) else None
        is_clients = kind in ("invalid_request_error", "request_too_large")
    else:
        code = code if isinstance(code, str) else ""
        is_clients = code in _CLIENTS_CODES or code.startswith(_CLIENTS_CODE_PREFIXES)
    return Failure.REFUSED if is_clients else Failure.ERROR_BODY


async def start_stream(
    answer: UpstreamAnswer,
    started: StartedAnswer,
    *,
    expects_json: bool = True,
    api: UpstreamApi | None = None,
    translator: AnswerTranslator | None = None,
    on_proof: Callable[[str], None] | None = None,
) -> None:
    """Read events into `started` until the first output.

    Stop earlier if there are only comments for `KEEP_ALIVE_HOLD_S` or `KEEP_ALIVE_HOLD_BYTES`, or
    if nothing follows the beginning of an answer for the deployment's `hold_s`. Raise UpstreamError
    if an error comes before the output, if there is no output, or if the whole stream has arrived
    and does not say why it ended.
    """
    deployment = started.deployment
    reader = started.reader = EventReader(
        answer,
        expects_json=expects_json,
        api=api,
        translator=translator,
        on_proof=on_proof,
        needs_reason=deployment.sends_finish_reason,
    )
    loop, hold_s = asyncio.get_running_loop(), deployment.timeouts.hold_s
    latest_s = loop.time() + max(KEEP_ALIVE_HOLD_S, hold_s)
    events = reader.events
    part = await anext(events, None)
    while part is not None:
        started.body += part
        is_long = len(started.body) > KEEP_ALIVE_HOLD_BYTES
        is_held = not (reader.has_output or is_long or loop.time() > latest_s)
        if not (is_held or reader.has_failed_at_end):
            return
        if reader.error:
            raise reader.error
        if not reader.has_started:
            part = await anext(events, None)
            continue
        pending = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.wait({pending}, timeout=hold_s)
        except asyncio.CancelledError as exc:
            pending.cancel()
            with suppress(asyncio.CancelledError):
                await pending  # raises the upstream's timeout, if it still waited
            answer.raise_timeout(exc)
            raise
        if not pending.done():
            reader.resume(pending)
            return
        part = pending.result()
    raise UpstreamError(answer.model, "ended its answer without any output", Failure.BROKEN)


class EventReader:
    """Reader of server-sent events, which records their content in its attributes."""

    def __init__(
        self,
        answer: UpstreamAnswer,
        *,
        expects_json: bool = True,
        api: UpstreamApi | None = None,
        translator: AnswerTranslator | None = None,
        on_proof: Callable[[str], None] | None = None,
        needs_reason: bool = True,
    ) -> None:
        """Read an answer. Without `expects_json`, its events may contain anything.

        `api` is the API that was asked. An event of another one is a failure, and so is an end
        before the answer says that it is complete. With a translator, its events are translated.
        `on_proof` is called with each proof of the model's reasoning. Without `needs_reason`, the
        last event completes an answer that does not say why it ended.
        """
        self._answer = answer
        self.translator = translator
        self._translated: list[bytes] = []
        self._expects_json = expects_json
        self._api = api
        self._client_api = api if isinstance(api, Api) else None
        self._needs_reason = needs_reason
        self._has_unread = False
        """Whether an event was not read, which may have said why the answer ended."""
        self._has_begun = False
        self._held = bytearray()
        self._tail = b""
        self.is_within_event = False
        """Whether the last forwarded bytes were not the end of an event."""
        self._is_done = False
        self.accumulator = AnswerRecord() if self._client_api is None else self._client_api.record()
        """What the answer contains so far."""
        if translator is not None:
            self.accumulator = translator.record
        self.accumulator.on_proof = on_proof
        self._is_recognized = api is not None or translator is not None
        """Whether the API is known; that of another endpoint is recognized at its first event."""
        self.has_started = False
        """Whether any event has been read, even one that contains nothing of the answer."""
        self.has_output = False
        """Whether any event was output: not a comment, an error or the start of a message."""
        self.error: UpstreamError | None = None
        """The error that an event reported."""
        self.events: AsyncIterator[bytes] = self._read_events()
        """The stream's bytes, cut only between events; iterate over them once.

        Without a translator they are unchanged, except that events without data are left out, and
        that an answer without calls does not say that it calls tools.
        Because of the cuts, a client never gets half an event before the error that reports a
        broken stream. The iterator raises UpstreamError if the stream breaks, if an event before
        the first output cannot be read, or if a later event is cut off.
        """
        self._unreadable: UpstreamError | None = None
        self._frame: TextFrame | None = None
        self._frames_left = MAX_FRAMES
        self._is_cut = False
        """Whether a part of the last chunk has not been read yet."""
        self._pending: asyncio.Future[bytes | None] | None = None

    @property
    def usage(self) -> Usage | None:
        """The usage that the upstream has reported."""
        return self.accumulator.usage

    @property
    def identity(self) -> AnswerIdentity:
        """The id and the model that the answer names."""
        return self.accumulator.identity

    @property
    def response_id(self) -> str | None:
        """The id of a response that the upstream may store."""
        return self.accumulator.response_id

    @property
    def last_number(self) -> int:
        """The number of the last event, if events have one; -1 before the first."""
        return self.accumulator.last_number

    @property
    def written_tokens(self) -> int:
        """Return an estimate of how many tokens the events contained so far."""
        return -(-self.accumulator.written_characters // CHARACTERS_PER_TOKEN)

    @property
    def has_ended(self) -> bool:
        """Whether the last event has been read, and the answer is complete."""
        return self._is_done and self._unreadable is None and self.error is None

    @property
    def has_failed_at_end(self) -> bool:
        """Whether the last event that can be read makes the answer incomplete."""
        return self._is_done and self._unreadable is not None

    @property
    def has_arrived(self) -> bool:
        """Whether the whole stream has arrived, so that `events` does not wait any more."""
        return self._answer.has_arrived and not self._is_cut

    def pass_on(self, is_ready: Callable[[], bool], write: Callable[[bytes], None]) -> None:
        """Pass events that arrive while `events` waits to `write`, if `is_ready` returns True.

        `events` yields all others. Translated events are always yielded, because the translation
        ends the stream.
        """

        def is_short() -> bool:
            return len(self._held) <= MAX_READ_BYTES and is_ready()

        def take(part: bytes) -> UpstreamError | None:
            if ready := self._feed(part):
                write(ready)
            if self._unreadable is None:
                self._keep_if_possible()
            return self._unreadable

        if self.translator is None:
            self._answer.pass_on(is_short, take)

    async def _read_events(self) -> AsyncIterator[bytes]:
        while chunk := await self._read_part():
            for start in range(0, len(chunk), MAX_READ_BYTES):
                if start:
                    await asyncio.sleep(0)
                self._is_cut = start + MAX_READ_BYTES < len(chunk)
                ready = self._feed(chunk[start : start + MAX_READ_BYTES])
                if ready:
                    yield ready
                if self._unreadable:
                    raise self._unreadable
                if self.translator is not None and (self._is_done or self.error):
                    await self.leave()
                    return
                self._keep_if_possible()
        for rest in self._last_parts():
            yield rest
        if self._expects_json and not (self._is_done or self.error):
            self._check_end()

    async def _read_part(self) -> bytes:
        """Return the next part of the stream, or no bytes at its end.

        A connection that breaks or hangs after the last event takes nothing from the answer.
        """
        try:
            return await self._answer.read()
        except UpstreamError:
            if self.has_ended:
                return b""
            raise

    async def leave(self) -> None:
        """Wait for the end of the upstream's answer, so that its connection can be used again.

        An upstream that sends more is not read on, and the connection is closed.
        """
        with suppress(TimeoutError, UpstreamError):
            async with asyncio.timeout(MAX_END_WAIT_S):
                await self._answer.read()

    def _last_parts(self) -> Iterator[bytes]:
        """Yield what follows the last complete event."""
        if rest := bytes(self._held):
            instead = self._read_event(rest)
            if self._unreadable:
                raise self._unreadable
            if self.translator is None and instead != b"":
                yield rest if instead is None else instead
                self.is_within_event = instead is None  # no blank line ended it
        if self.translator is not None and not self.error:
            self._translate(partial(self.translator.end, is_marked=self._is_done))
            if self._unreadable:  # the answer is not complete
                raise self._unreadable
        if rest := self._take_translated():
            yield rest

    def resume(self, pending: asyncio.Future[bytes | None]) -> None:
        """Let `events` continue with a part that is awaited already."""
        self._pending, rest = pending, self.events

        async def resumed() -> AsyncIterator[bytes]:
            part = await pending
            while part is not None:
                yield part
                part = await anext(rest, None)

        self.events = resumed()

    def close(self) -> None:
        """Stop waiting for a part that is no longer read."""
        if self._pending is not None:
            self._pending.cancel()

    def _check_end(self) -> None:
        """Raise UpstreamError if a stream without a last event has ended too early."""
        if not self._answer.is_delimited:
            problem = "broke the connection while it answered"
            raise UpstreamError(self._answer.model, problem, Failure.BROKEN)
        if self._api is not None and not self.accumulator.has_stopped:
            problem = "ended its answer before it was complete"
            raise UpstreamError(self._answer.model, problem, Failure.BROKEN)

    def _feed(self, chunk: bytes) -> bytes:
        """Add a chunk to the buffer and return the bytes that can be forwarded.

        No byte is searched more than twice for the end of an event. Otherwise, an event of 1 MB
        that arrives in chunks of 1 KB would take seconds.
        """
        seam = self._tail + chunk
        self._tail = seam[-_SEAM_BYTES:]
        if b"\n\n" not in seam and not (b"\r" in seam and BLANK_LINE.search(seam)):
            return self._hold(chunk)
        data = bytes(self._held) + chunk if self._held else chunk
        self._held.clear()
        end, is_joined = 0, False
        changes: list[tuple[int, int, bytes]] = []
        """Start and end of events, and what is forwarded instead of them."""
        if b"\r" not in data and not self.is_within_event:
            while not self._is_done and (event := _PLAIN_EVENT.match(data, end)):
                self._has_begun = True
                instead = self._read_data(event[1])
                if self._unreadable:
                    break
                if instead is not None:
                    changes.append((end, event.end(), with_data(event[0], instead)))
                end = event.end()
                if self._frame is not None and not is_joined:
                    is_joined = True  # tried only once, because it may search all that follows
                    text, end = self._frame.texts_in(data, end)
                    self.accumulator.add_delta(text)
        if not self._unreadable:
            for blank in BLANK_LINE.finditer(data, end):
                instead = self._read_event(data[end : blank.end()])
                if self._unreadable:
                    break
                if instead is not None:
                    changes.append((end, blank.end(), instead))
                end = blank.end()
            else:
                self._held += data[end:]
                self._tail = data[end:][-_SEAM_BYTES:]
        if self.translator is not None:
            return self._take_translated()
        return _changed(data[:end], changes) if changes else data[:end]

    def _hold(self, chunk: bytes) -> bytes:
        """Buffer an incomplete event if it is short, or if memory for it can be reserved.

        Otherwise return what is buffered, to forward it.
        """
        self._held += chunk
        if len(self._held) <= MAX_EVENT_BYTES and self._reserve():
            return b""
        data = bytes(self._held)
        self._held.clear()
        if self.translator is not None:
            problem = "sent an event that is too long to be translated"
            self._unreadable = UpstreamError(self._answer.model, problem, Failure.MALFORMED)
            return b""
        self.is_within_event = self.has_output = True  # no comment is so long
        self.accumulator.is_incomplete = self._has_unread = True
        return data

    def _translate(self, step: Callable[[], bytes]) -> None:
        """Add what a step of the translation writes; record why it fails."""
        try:
            self._translated.append(step())
        except ForeignAnswerError as exc:
            self._is_done, self._unreadable = True, _untranslatable(self._answer, exc)

    def _take_translated(self) -> bytes:
        translated = b"".join(self._translated)
        self._translated.clear()
        return translated

    def _reserve(self) -> bool:
        """Reserve memory for what is buffered and for what is kept of the answer.

        Return False if there is too little. What was forwarded before has been sent by now.
        """
        kept_bytes = len(self._held) + self.accumulator.characters
        if kept_bytes <= UNCOUNTED_BYTES and not self._answer.reserved_bytes:
            return True
        return self._answer.reserve(kept_bytes if kept_bytes > UNCOUNTED_BYTES else 0)

    def _keep_if_possible(self) -> None:
        """Keep what was read of the answer only if there is memory for it."""
        if not self._reserve():
            self.accumulator.give_up()

    def _read_event(self, event: bytes) -> bytes | None:
        """Record one event (WHATWG HTML, "Interpreting an event stream").

        Return what is forwarded instead of it, or None if it is forwarded as it is.
        """
        if not self._has_begun:
            self._has_begun = True
            event = event.removeprefix(BYTE_ORDER_MARK)
        if self.is_within_event:
            self.is_within_event = False
            return None
        data = data_of(event)
        if not data and self._client_api is not None and not is_comment(event):
            return b""  # OpenAI's clients would fail to decode it
        if self._is_done:  # what follows the end is no part of the answer
            return None
        if not data or data == _DONE:
            if data:
                self._is_done = True
                # An answer that ends without content is an empty answer.
                self.has_output = self.has_output or self.has_started
            if self.translator is None:
                self._check_reason()
            elif not self.error:
                step = self.translator.ping if event.startswith(b":") else bytes
                self._translate(partial(self.translator.end, is_marked=True) if data else step)
            return None
        instead = self._read_data(data)
        return None if instead is None else with_data(event, instead)

    def _check_reason(self) -> None:
        """Record a failure if the answer has ended without saying why."""
        is_known = self._api is not None and self._needs_reason and not self._has_unread
        if self._is_done and is_known and not (self.accumulator.has_stopped or self.error):
            problem = "ended its answer without a reason, so it may be incomplete"
            remedy = (
                "Try again, or name another model. If the server never sends a reason, the operator"
                " can set model_info.sends_finish_reason: false."
            )
            self._unreadable = UpstreamError(
                self._answer.model, problem, Failure.BROKEN, remedy=remedy
            )

    def _read_data(self, data: bytes) -> bytes | None:
        """Record the data of an event that is neither empty nor the mark of the end.

        Return the data that is forwarded instead of it, or None if it is forwarded as it is.
        """
        if self._frame is not None and (text := self._frame.text_in(data)) is not None:
            self.accumulator.add_delta(text)
            return None
        try:
            content = read_json(data, is_exact=True)
        except UnreadableError as exc:
            self._skip_unreadable(data, exc)
            return None
        if not (self._expects_json or isinstance(content, dict)):
            self.has_output = self.accumulator.is_incomplete = True
            return None
        api = self._api
        is_recognized = api is not None and isinstance(content, dict) and api.recognizes(content)
        if not is_recognized and is_of_another_api(content, api):
            self._unreadable = UpstreamError(self._answer.model, ANOTHER_API, Failure.MALFORMED)
            return None
        if _reports_error(content, api):
            problem = "sent an error within its answer"
            self.error = _reported_error(self._answer, content, api, problem)
            if self.translator is not None:
                error = self.translator.source.read_error(content, 200)
                self._translate(partial(self.translator.error, error))
            return None
        self.has_started = True
        return self._read_content(data, content)

    def _read_content(self, data: bytes, content: dict[str, Json]) -> bytes | None:
        """Record the content of an event, which is passed through or translated."""
        if self.translator is not None:
            source = self.translator.source
            if source.ping_type and content.get("type") == source.ping_type:
                self._translate(self.translator.ping)
            if not self.error:
                self._translate(partial(self.translator.feed, content))
            if not (self.has_output or self._unreadable or self.error):
                self.has_output = not source.is_beginning(content)
            self._is_done = self._is_done or self.translator.record.is_done
            return None
        record = self._recognize(content)
        record.feed(content)
        if self._frames_left and (text := record.text_of(content)):
            self._frames_left -= 1
            self._frame = TextFrame.of(data, text, record.text_of)
        self.has_output = self.has_output or (record.has_output and self.error is None)
        if record.is_done and not self._is_done:
            self._is_done = True
            self._check_reason()
        if record.has_stopped and not (record.has_calls or self._has_unread):
            api = self._client_api
            changed = data if api is None else api.without_call_reason(data)
            return None if changed is data else changed
        return None

    def _recognize(self, content: dict[str, Json]) -> AnswerRecord:
        """Return the record of the answer, whose API its first event shows if it is not known."""
        if not self._is_recognized:
            self._is_recognized = True
            record = APIS.api_of(content).record()
            record.is_incomplete = self.accumulator.is_incomplete
            self.accumulator = record
        return self.accumulator

    def _skip_unreadable(self, data: bytes, exc: UnreadableError) -> None:
        """Forward an event that cannot be read, or record it as a failure.

        Before the first output, the event is a failure, because another deployment may still give
        a good answer. After it, the client gets all events, because it may be able to read more
        than the gateway. But if an event is cut off, a part of the answer is lost, so the client
        gets an error.
        """
        is_failure = exc.is_cut_off or not (self.has_output or exc.is_too_much)
        if self.translator is not None or (self._expects_json and is_failure):
            problem = "sent an event that cannot be read"
            # A caller raises the error when the event is out of scope. Otherwise, the traceback
            # would keep the event in memory.
            self._unreadable = UpstreamError(self._answer.model, problem, Failure.MALFORMED)
            return
        self.has_output = self.accumulator.is_incomplete = self._has_unread = True
        if exc.is_too_much:
            found = skim(data)
            self._recognize(found).note_skimmed(found)
            self._is_done = self._is_done or self.accumulator.is_done


def _changed(events: bytes, changes: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return events of which some are replaced, given their starts and ends in order."""
    parts, last = [], 0
    for start, end, instead in changes:
        parts += [events[last:start], instead]
        last = end
    return b"".join([*parts, events[last:]])
