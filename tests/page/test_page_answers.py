"""Answers in the playground: streams of all three APIs, errors inside them, and stopping one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from router_service.serving.app import create_app
from tests.fakes import FakeRouter
from tests.gateways import sandbox_settings
from tests.page.watching import Problems, open_playground
from tests.sandbox import run_in_thread
from tests.serving import Sandbox, served, wait_for

APIS = ("Chat Completions", "Responses", "Anthropic Messages")
CHOSEN = "medium"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Sandbox]:
    """Yield a sandbox of these tests, because they set faults."""
    with run_in_thread() as url:
        yield Sandbox(url)


@pytest.fixture(scope="module")
def gateway(upstream: Sandbox) -> Iterator[str]:
    """Serve a gateway that chooses the model `medium`."""
    with served(create_app(sandbox_settings(upstream.base_url), FakeRouter())) as url:
        yield url


@pytest.fixture
def page(browser: Browser, gateway: str, upstream: Sandbox) -> Iterator[Page]:
    """Yield a tab whose requests ask for streams; the model has no faults afterwards."""
    with browser.new_context(base_url=gateway) as context:
        tab = context.new_page()
        open_playground(tab)
        tab.get_by_label("Stream", exact=True).check()
        yield tab
        upstream.set_faults(CHOSEN, "")


def send(page: Page, api: str) -> None:
    """Send the first example in an API."""
    with page.expect_response(lambda response: "/api/explain" in response.url):
        page.get_by_label(api).check()
        page.get_by_role("button", name="Route", exact=True).click()
    page.get_by_role("button", name="Send to model").click()


def test_streamed_answers_appear_while_they_arrive(page: Page, upstream: Sandbox) -> None:
    """In each API, a call is shown before its arguments are complete; events can be unfolded."""
    problems = Problems(page)
    for api in APIS:
        upstream.set_faults(CHOSEN, "multi_line,keep_alives,hang_after=3")
        send(page, api)
        calls = page.locator("#answer .calls")
        expect(calls).to_contain_text("get_weather(")
        expect(page.get_by_role("button", name="Stop")).to_be_visible()
        assert "Oslo" not in calls.inner_text() or "celsius" not in calls.inner_text()
        upstream.set_faults(CHOSEN, "multi_line,keep_alives")
        page.get_by_role("button", name="Send to model").click()  # replaces the answer that hangs
        expect(calls).to_have_text(re.compile(r"^get_weather\(\{.*Oslo.*\}\)$"))
        expect(page.locator("#answer .ending")).to_have_text("The answer is complete.")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        events = page.locator("#answer pre")
        expect(events).to_be_hidden()
        page.locator("#answer summary", has_text="Streamed events").click()
        expect(events).to_contain_text("data:")
    stopped = [each for each in problems.found if not each.startswith("failed:")]
    assert stopped == []  # only the requests that were replaced have failed


@pytest.mark.parametrize("fault", ["error_after=4", "cut_after=4"])
def test_errors_inside_a_stream_are_shown(page: Page, upstream: Sandbox, fault: str) -> None:
    """What arrived stays, and the error follows it."""
    upstream.set_faults(CHOSEN, fault)
    for api in APIS:
        send(page, api)
        expect(page.locator("#answer").get_by_role("alert")).to_contain_text("The answer failed")
        expect(page.locator("#answer dl")).to_contain_text(CHOSEN)
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_stop_cancels_the_request(page: Page, upstream: Sandbox) -> None:
    """What arrived stays, the upstream's connection is closed, and the focus is not lost."""
    page.get_by_role("button", name="Send to model").click()
    expect(page.locator("#answer .ending")).to_have_text("The answer is complete.")
    before = upstream.stats()["by_model"][CHOSEN]["cancelled"]
    upstream.set_faults(CHOSEN, "hang_after=3")
    send(page, APIS[0])
    expect(page.locator("#answer .calls")).to_contain_text("get_weather(")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#answer .ending")).to_contain_text("Stopped.")
    expect(page.locator("#answer .calls")).to_contain_text("get_weather(")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.get_by_role("button", name="Send to model")).to_be_focused()
    wait_for(
        lambda: upstream.stats()["by_model"][CHOSEN]["cancelled"] > before, "the gateway has left"
    )
