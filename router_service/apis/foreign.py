"""How the fields of one API carry values that only another API has.

Answers are translated to the client's API, and the client sends them back in its next request. So
what is written here into an answer is read here from a request, and the upstream gets its own
values back.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

import orjson

from router_service.apis.conversation import Json
from router_service.apis.encoding import encode, fits_inside, fix_surrogates
from router_service.apis.parts import Thinking, ToolUse
from router_service.core import strict_json
from router_service.core.errors import InvalidRequestError

SEAL = "switchcraft."
"""Start of a proof that another provider made, or of a signature for thinking without a proof. A
provider rejects a proof that is not its own."""

INVALID_JSON = "INVALID_JSON"
"""Key of arguments that are not a JSON object. Anthropic recommends it ("Fine-grained tool
streaming", handling invalid JSON)."""

CUSTOM_INPUT = "input"
"""The only parameter of a function that stands for a custom tool, whose input is free text."""

ATTACHED = ("extra_content", "provider_specific_fields")
"""What providers add to a call of Chat Completions: Gemini's compatible API and LiteLLM. Gemini 3
refuses a call without the signature of the thought that led to it."""

_ATTACHMENT = re.compile(r"_switchcraft_([a-zA-Z0-9_-]+)\Z")
_ATTACHMENTS = re.compile(rb'_switchcraft_([a-zA-Z0-9_-]+)(?=")')
"""The attachment at the end of a call's id, in an id and in a body."""

_MAX_RATIO = 4
"""Most bytes to which each byte of an attachment unpacks. Clients can send any id, of which each
byte could unpack to a thousand. Signatures are random and hardly shrink."""

_SUMMARY = f"{SEAL}summary."

_SAFE_LEVELS = 200
"""Levels of arguments that can be written within an answer without a check."""

_SEALED = re.compile(r"switchcraft\.([a-z0-9_]*)(-hidden)?\.(.*)", re.DOTALL)


def read_text(value: Json) -> str:
    """Return a text that can be encoded, or an empty one for any other value."""
    return fix_surrogates(value) if isinstance(value, str) else ""


def seal(thinking: Thinking, target: str) -> str:
    """Return the proof as the API `target` carries it: unchanged if it is its own, or marked."""
    if thinking.origin == target and thinking.proof:
        return thinking.proof
    return f"{SEAL}{thinking.origin or ''}{'-hidden' * thinking.is_hidden}.{thinking.proof}"


def unseal(text: str, carried: str, carrier: str, *, is_hidden: bool = False) -> Thinking:
    """Return the thinking whose text and proof an API carried; the inverse of `seal`."""
    sealed = _SEALED.fullmatch(carried) if carried.startswith(SEAL) else None
    if sealed is None:
        return Thinking(text, carried, is_hidden=is_hidden, origin=carrier)
    return Thinking(text, sealed[3], is_hidden=bool(sealed[2]), origin=sealed[1] or None)


def seal_summary(text: str) -> str:
    """Return a summary of a conversation as a client of Responses keeps it.

    OpenAI's is encrypted. This one is not, so that every model of the pool can go on from it.
    """
    return f"{_SUMMARY}{urlsafe_b64encode(text.encode()).decode()}"


def unseal_summary(carried: Json) -> str | None:
    """Return the summary that `seal_summary` has sealed, or None if it is a provider's."""
    if not isinstance(carried, str) or not carried.startswith(_SUMMARY):
        return None
    try:
        return urlsafe_b64decode(carried.removeprefix(_SUMMARY)).decode()
    except (Base64Error, UnicodeDecodeError):
        return None


def carry_attached(call: ToolUse) -> str:
    """Return the id of a call, with what its provider attached to it.

    Every client sends the ids of calls back, and nothing else of a call that is not its API's.
    LiteLLM does the same. The id is then longer than providers accept, so they get it without.
    """
    if not call.attached:
        return call.id
    plain = encode([call.provider, orjson.Fragment(call.attached)])
    packed = zlib.compress(plain)
    if len(plain) > _MAX_RATIO * len(packed):
        packed = zlib.compress(plain, 0)
    return f"{call.id}_switchcraft_{urlsafe_b64encode(packed).decode().rstrip('=')}"


def read_attached(call_id: str) -> ToolUse:
    """Return a call with the id and the attachment of an id; the inverse of `carry_attached`."""
    found = _ATTACHMENT.search(call_id)
    attached = _unpack(found[1]) if found else None
    if found is None or attached is None:
        return ToolUse(call_id, "", "")
    provider, fields = attached
    text = encode({name: fields[name] for name in ATTACHED if name in fields}).decode()
    return ToolUse(call_id[: found.start()], "", "", attached=text, provider=provider)


def without_attached(body: bytes) -> bytes:
    """Return a body whose ids of calls have no attachments."""
    if b"_switchcraft_" not in body:
        return body
    return _ATTACHMENTS.sub(lambda found: b"" if _unpack(found[1].decode()) else found[0], body)


def _unpack(text: str) -> tuple[str, dict[str, Json]] | None:
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        value = orjson.loads(zlib.decompressobj().decompress(packed, _MAX_RATIO * len(packed)))
    except (Base64Error, zlib.error, orjson.JSONDecodeError):
        return None
    match value:
        case [str(provider), dict(fields)]:
            return provider, fields
    return None


def to_input(arguments: str) -> dict[str, Json]:
    """Return a call's arguments as the object that Messages requires.

    Arguments that are not an object, or that parsers would read differently, are kept as text below
    `INVALID_JSON`.
    """
    if not arguments or arguments.isspace():
        return {}
    try:
        value = strict_json.decode_exactly(arguments)
    except InvalidRequestError:
        return {INVALID_JSON: arguments}
    if value is None:  # some providers write it for a call without arguments
        return {}
    if arguments.count("[") + arguments.count("{") > _SAFE_LEVELS and not fits_inside(value):
        return {INVALID_JSON: arguments}
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def from_input(value: Json) -> str:
    """Return the JSON text of a call's `input`; the inverse of `to_input`.

    Raises UnwritableError, which only an upstream's answer can cause.
    """
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get(INVALID_JSON), str):
        text: str = value[INVALID_JSON]
        return text
    return encode(value).decode()


def wrap_custom(text: str) -> str:
    """Return the arguments of a function that stands for a custom tool."""
    return encode({CUSTOM_INPUT: text}).decode()


def unwrap_custom(arguments: str) -> str:
    """Return the custom tool's input; text that `wrap_custom` has not written is returned as is."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) and len(value) == 1 else None
    return text if isinstance(text, str) else arguments
