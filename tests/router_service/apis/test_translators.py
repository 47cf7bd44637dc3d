"""Answers reach the vendors' SDKs with the same content, whichever API the upstream speaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_service.apis.answer_errors import (
    AnswerError,
    ForeignAnswerError,
)
from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.parts import Request
from tests import apis
from tests.apis import APIS, Api, UpstreamApi
from tests.dialect_answers import CASES, Content, Sdks, decode, events, whole

PAIRS = [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in apis.PAIRS]
REQUEST = Request("switchcraft", (), stop=("END",), shows_thinking=True, wants_usage=True)


@pytest.fixture(scope="module")
def sdks() -> Sdks:
    """Return the vendors' clients."""
    return Sdks()


def translator(source: UpstreamApi, target: Api, request: Request = REQUEST) -> AnswerTranslator:
    """Return a translator of one answer."""
    return AnswerTranslator(source, target, request, model="gpt-x", created_s=1_700_000_000)


def stream(translated: AnswerTranslator, sent: list[dict[str, Any]]) -> bytes:
    """Return the translated bytes of a whole stream."""
    return b"".join(map(translated.feed, sent)) + translated.end()


def expected(content: Content, source: UpstreamApi, target: Api) -> Content:
    """Return what the target's client reads. Not every API can express everything."""
    if source is apis.CONVERSE:
        content = replace(content, reasoning=0)
    if {source, target} & {apis.MESSAGES, apis.CONVERSE}:  # a refusal is a text with a stop reason
        text = content.text + content.refusal
        says_so = source in (apis.MESSAGES, apis.CONVERSE)
        is_filtered = content.stop in ("refusal", "filter") and says_so
        content = replace(content, text=text, refusal="")
        if target is not apis.MESSAGES and is_filtered:
            content = replace(content, stop="filter")
    if source is apis.RESPONSES and content.stop == "sequence":
        content = replace(content, stop="end", stop_text=None)
    if target is not apis.MESSAGES:
        stop = "end" if content.stop == "sequence" else content.stop
        content = replace(content, stop=stop, stop_text=None)
    elif content.stop == "filter":
        content = replace(content, stop="refusal")
    return content


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("name", CASES)
def test_whole_answers(sdks: Sdks, source: UpstreamApi, target: Api, name: str) -> None:
    """A whole answer has the same content, stop reason and usage in the target's SDK."""
    translated = orjson.loads(translator(source, target).whole(whole(CASES[name], source)))
    assert sdks.read(translated, target) == expected(CASES[name], source, target)


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 1000])
def test_streams(sdks: Sdks, source: UpstreamApi, target: Api, name: str, size: int) -> None:
    """A stream has the same content, stop reason and usage in the target's SDK.

    It does not matter how the upstream splits its texts.
    """
    data = stream(translator(source, target), events(CASES[name], source, size))
    assert sdks.read_stream(data, target) == expected(CASES[name], source, target)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn, source: UpstreamApi) -> list[Any]:
    """Draw a stream with some values replaced, and some events lost or repeated."""
    sent: list[Any] = copy.deepcopy(events(draw(st.sampled_from(list(CASES.values()))), source))
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(sent) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                del sent[index]
            case 1:
                sent.insert(index, draw(values))
            case 2:
                sent.insert(index, copy.deepcopy(draw(st.sampled_from(sent))))
            case _:
                replace_value(draw, sent[index])
        if not sent:
            break
    return sent


def replace_value(draw: Callable[[st.SearchStrategy[Any]], Any], holder: Any) -> None:  # noqa: ANN401
    """Replace or remove a value somewhere in an event."""
    while isinstance(holder, (dict, list)) and holder:
        places = list(holder) if isinstance(holder, dict) else range(len(holder))
        place: Any = draw(st.sampled_from(places))
        if not isinstance(holder[place], (dict, list)) or draw(st.booleans()):
            if draw(st.booleans()):
                holder[place] = draw(values)
            else:
                del holder[place]
            return
        holder = holder[place]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_streams(source: UpstreamApi, target: Api, data: st.DataObject) -> None:
    """Any JSON is translated to valid events, or raises ForeignAnswerError."""
    sent = data.draw(damaged(source))
    translated, written = translator(source, target), b""
    try:
        for event in sent:
            written += translated.feed(event)
        written += translated.end()
    except ForeignAnswerError:
        pass
    decode(written + translated.error(AnswerError(502, "The stream broke.")))


@given(value=values, dialect=st.sampled_from(APIS.of_upstreams))
def test_any_json(value: Any, dialect: UpstreamApi) -> None:  # noqa: ANN401
    """A value that is no answer raises ForeignAnswerError, and every error can be read."""
    target = apis.MESSAGES if dialect is apis.CHAT else apis.CHAT
    with pytest.raises(ForeignAnswerError):
        translator(dialect, target).whole(value)
    with pytest.raises(ForeignAnswerError):
        translator(dialect, target).feed(value)
    error = dialect.read_error(value, 200)
    assert 400 <= error.status < 600
    orjson.dumps(target.write_error(error))
