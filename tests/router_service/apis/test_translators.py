"""Answers reach the vendors' SDKs with the same content, whichever API the upstream speaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from router_service.apis.answer_translation import AnswerTranslator
from router_service.apis.parts import Request
from tests import apis
from tests.apis import Api, UpstreamApi
from tests.dialect_answers import CASES, Content, Sdks, events, whole

PAIRS = [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in apis.PAIRS]
REQUEST = Request("switchcraft", (), stop=("END",), shows_thinking=True, wants_usage=True)


@pytest.fixture(scope="module")
def sdks() -> Sdks:
    """Return the vendors' clients."""
    return Sdks()


def translator(source: UpstreamApi, target: Api) -> AnswerTranslator:
    """Return a translator of one answer."""
    return AnswerTranslator(source, target, REQUEST, model="gpt-x", created_s=1_700_000_000)


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
