"""Credentials that expire: who waits for them, and what a failed renewal does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from router_service.core.errors import CredentialsError
from router_service.upstream.platforms.credentials import (
    FAILURE_HOLD_S,
    RETRY_S,
    Credentials,
    CredentialSource,
    secrets_of_environment,
)
from tests.clock import Clock
from tests.serving import wait_for

SECRET = "a-secret-that-nobody-may-see"


class Vendor:
    """A library that makes numbered tokens which live for 1000 s, or fails."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls = 0
        self.fails = False
        self.gate: Callable[[], object] = lambda: None
        self.threads: set[str] = set()

    def __call__(self) -> Credentials[str]:
        """Return a new token."""
        self.threads.add(threading.current_thread().name)
        self.gate()
        self.calls += 1
        if self.fails:
            raise OSError(f"the token endpoint quotes {SECRET}")
        token = f"token-number-{self.calls:05d}"
        return Credentials(token, (token,), self.clock() + 1000)


@pytest.fixture
def clock() -> Clock:
    """Return a clock."""
    return Clock()


@pytest.fixture
def vendor(clock: Clock) -> Vendor:
    """Return a library of a vendor."""
    return Vendor(clock)


@pytest.fixture
def source(vendor: Vendor, clock: Clock) -> CredentialSource[str]:
    """Return a source of the vendor's tokens."""
    return CredentialSource("Cloud", vendor, "Check the key", secrets=[SECRET], clock=clock)


def test_requests_share_the_first_fetch_in_a_thread(
    source: CredentialSource[str], vendor: Vendor
) -> None:
    """Ten requests wait for one fetch, which does not run on the event loop."""
    assert source.current() is None

    async def ask() -> list[Credentials[str]]:
        return await asyncio.gather(*(source.wait() for _ in range(10)))

    found = asyncio.run(ask())
    assert {each.value for each in found} == {"token-number-00001"}
    assert vendor.calls == 1
    assert vendor.threads == {"credentials"}


def test_credentials_are_renewed_before_they_expire_and_nobody_waits(
    source: CredentialSource[str], vendor: Vendor, clock: Clock
) -> None:
    """While the renewal runs, requests use the old token; then they use the new one."""
    asyncio.run(source.wait())
    clock.now_s += 749
    assert source.current() is not None
    assert vendor.calls == 1
    clock.now_s += 2
    gate = threading.Event()
    vendor.gate = gate.wait
    for _ in range(3):
        found = source.current()
        assert found is not None
        assert found.value == "token-number-00001"
    gate.set()
    wait_for(lambda: getattr(source.current(), "value", "") == "token-number-00002", "renewed")
    assert vendor.calls == 2


def test_failed_renewal_keeps_the_old_credentials_until_they_expire(
    source: CredentialSource[str],
    vendor: Vendor,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failure is logged with what to do and without secrets; afterwards requests fail."""
    asyncio.run(source.wait())
    vendor.fails = True
    clock.now_s += 800
    assert source.current() is not None
    wait_for(lambda: vendor.calls == 2, "the renewal was tried")
    wait_for(lambda: "No credentials for Cloud" in caplog.text, "the failure was logged")
    assert "Check the key." in caplog.text
    assert SECRET not in caplog.text
    assert source.current() is not None
    assert vendor.calls == 2  # not again at once
    clock.now_s += RETRY_S
    assert source.current() is not None
    wait_for(lambda: caplog.text.count("No credentials") == 2, "the renewal was tried again")
    assert vendor.calls == 3
    clock.now_s += 200
    assert source.current() is None
    with pytest.raises(CredentialsError, match="the token endpoint quotes"):
        asyncio.run(source.wait())
    with pytest.raises(CredentialsError):
        asyncio.run(source.wait())
    assert vendor.calls == 4  # the failure answers for a while
    vendor.fails = False
    clock.now_s += FAILURE_HOLD_S
    assert asyncio.run(source.wait()).value == "token-number-00005"


def test_waiting_request_can_leave(source: CredentialSource[str], vendor: Vendor) -> None:
    """A request that is cancelled does not cancel the fetch that others wait for."""
    gate = threading.Event()
    vendor.gate = gate.wait

    async def ask() -> Credentials[str]:
        leaving = asyncio.ensure_future(source.wait())
        staying = asyncio.ensure_future(source.wait())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.set()
        return await staying

    assert asyncio.run(ask()).value == "token-number-00001"


TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJnYXRld2F5MSJ9.c2lnbmF0dXJlNDI"


@pytest.mark.parametrize("is_noted", [True, False])
def test_error_does_not_quote_a_token_from_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_noted: bool,
) -> None:
    """A server may quote what it got, also a token that only the vendor's library has read."""
    file = tmp_path / "token"
    written = "a-token-in-words" if is_noted else TOKEN
    file.write_text(f"{written}\n")
    monkeypatch.setenv("WEB_IDENTITY_TOKEN_FILE", str(file))

    def fetch() -> Credentials[str]:
        if is_noted:
            source.note_secrets(*secrets_of_environment("WEB_IDENTITY_TOKEN_FILE"))
        raise OSError(f"invalid token {written} of the role gateway")

    source = CredentialSource("Cloud", fetch, "Check the role")
    with pytest.raises(CredentialsError, match=r"invalid token \[redacted\] of the role gateway"):
        asyncio.run(source.wait())
    assert written not in caplog.text
