"""Whatever an upstream sends, the gateway answers its client and still serves everybody."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bodies import CHAT
from tests.hostile.raw import Answer, request
from tests.hostile.target import FILE, Attack, Target, auth_headers, check_answer, new_nonce
from tests.hostile.upstream import BEHAVIOURS
from tests.hostile.upstream_server import BEHAVIOUR_HEADER, Behaviour, Expected, Surface, dumps

pytestmark = pytest.mark.slow

READ_BYTES = 16 * 1024 * 1024
"""Of an answer that need not be good; then the client leaves, for some have no end."""

_MESSAGES = [{"role": "user", "content": "Hello"}]
_CHAT = {"model": "m", "messages": _MESSAGES}
_RESPONSES = {"model": "m", "input": "Hello"}
_REQUESTS: dict[Surface, tuple[str, str, dict[str, Any] | None]] = {
    Surface.CHAT: ("POST", CHAT, _CHAT),
    Surface.CHAT_STREAM: ("POST", CHAT, _CHAT | {"stream": True}),
    Surface.RESPONSES: ("POST", "/v1/responses", _RESPONSES),
    Surface.RESPONSES_STREAM: ("POST", "/v1/responses", _RESPONSES | {"stream": True}),
    Surface.PASSED_GET: ("GET", FILE, None),
    Surface.PASSED_POST: ("POST", "/v1/files", {"purpose": "none"}),
}


def check(expected: Expected, answer: Answer, nonce: str) -> None:
    """Assert that an answer is of the expected kind."""
    check_answer(answer)
    if expected is Expected.GOOD:
        assert answer.status == 200, f"a good answer became {answer.status}: {answer.body[:300]!r}"
        assert answer.is_whole, f"a good answer was cut: {answer.body[-300:]!r}"
        assert nonce.encode() in answer.body, f"the answer is another one: {answer.body[:300]!r}"
    elif expected is Expected.FAILS and answer.is_whole:
        is_error = answer.status in {502, 503, 504} or b'"error"' in answer.body[-1000:]
        assert is_error, f"a bad answer became {answer.status}: {answer.body[-300:]!r}"
    assert b"smuggled" not in answer.body, (
        f"left-over bytes reached a client: {answer.body[:300]!r}"
    )


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_malicious_upstream_harms_only_the_request_that_it_answers(
    target: Target, behaviour: Behaviour
) -> None:
    """Each kind of malicious answer harms only the request that it answers."""

    def exchange(attack: Attack, surface: Surface) -> None:
        method, path, fields = _REQUESTS[surface]
        nonce = new_nonce()
        headers = auth_headers(x_request_id=nonce) | {BEHAVIOUR_HEADER: behaviour.name}
        body = None
        if fields is not None:
            headers["content-type"] = "application/json"
            padding = {"user": "x" * behaviour.body_bytes} if behaviour.body_bytes else {}
            body = dumps(fields | padding)
        connection = attack.connect()
        connection.send(request(method, path, headers, body))
        is_good = behaviour.expected is Expected.GOOD
        answer = connection.read_answer(limit_bytes=2**30 if is_good else READ_BYTES)
        try:
            assert answer is not None, "the gateway hung up without an answer"
            check(behaviour.expected, answer, nonce)
        except AssertionError as exc:
            raise AssertionError(f"{surface}: {exc}") from exc
        if not connection.is_usable:
            connection.close()
        attack.target.wait_for_upstream()

    def attack(attack: Attack) -> None:
        for surface in behaviour.surfaces:
            exchange(attack, surface)

    target.withstand(attack)
