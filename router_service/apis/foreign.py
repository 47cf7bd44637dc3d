"""How the fields of one API carry values that only another API has.

Answers are translated to the client's API, and the client sends them back in its next request. So
what is written here into an answer is read here from a request, and the upstream gets its own
values back.
"""

from __future__ import annotations

import re

import orjson

from router_service.apis.conversation import Json
from router_service.apis.encoding import encode, fits_inside
from router_service.apis.parts import Thinking
from router_service.apis.surrogates import fix_surrogates
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
