"""Dialogs in the page's address and history, and the steps of a verified answer in a dialog."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from router_service.serving.app import create_app
from router_service.settings import ConversationSettings
from tests.bodies import BODY, CHAT
from tests.gateways import VERIFIED, sandbox_settings
from tests.page.test_page_verified import verifying_router
from tests.page.watching import Problems
from tests.sandbox import run_in_thread
from tests.serving import served


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """Serve a gateway that verifies answers and follows conversations."""
    with run_in_thread() as sandbox:
        settings = sandbox_settings(sandbox, conversations=ConversationSettings(enabled=True))
        with served(create_app(settings, verifying_router())) as url:
            yield url


@pytest.fixture(scope="module")
def conversation(gateway: str) -> list[str]:
    """Ask twice in one conversation; return the ids of the decisions."""
    with httpx.Client(base_url=gateway, headers=VERIFIED) as http:
        first = http.post(CHAT, json=BODY)
        answer = first.json()["choices"][0]["message"]
        (call,) = answer["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "12 degrees"}
        turns = [*BODY["messages"], answer, result]
        second = http.post(CHAT, json=BODY | {"messages": turns})
        return [each.headers["x-switchcraft-decision-id"] for each in (first, second)]


@pytest.fixture
def page(browser: Browser, gateway: str) -> Iterator[Page]:
    """Yield a tab that must end without problems."""
    with browser.new_context(base_url=gateway) as context:
        tab = context.new_page()
        problems = Problems(tab)
        yield tab
        assert problems.found == []


def test_verified_steps_can_be_walked_through(page: Page, conversation: list[str]) -> None:
    """Arrow keys and buttons go through answers and verdicts, and on to the next request."""
    page.goto(f"/ui#live?open={conversation[0]}")
    dialog = page.get_by_role("dialog")
    walk = dialog.get_by_role("region", name="Step by step")
    expect(walk).to_contain_text("Step 1 of 5")
    expect(walk).to_contain_text("One more correct answer is worth $0.0020")
    expected = [
        ("small is asked", "By the router's estimate, it answers correctly"),
        ("The verifier judges", "small: 20.0% likely to be correct"),
        ("medium is asked", "is expected to add 10.0 points"),
        ("medium's answer is delivered", "medium: 80.0% likely to be correct"),
    ]
    for number, (title, text) in enumerate(expected):
        if number % 2:
            walk.get_by_role("button", name="Next").click()
        else:
            page.keyboard.press("ArrowRight")
        expect(walk.get_by_role("heading")).to_have_text(title)
        expect(walk).to_contain_text(text)
    expect(walk).to_contain_text("medium: the likeliest of 2 models' answers (80%)")
    page.keyboard.press("ArrowLeft")
    expect(walk.get_by_role("heading")).to_have_text("medium is asked")
    expect(dialog).to_contain_text("Request 1 of 2 of this conversation")
    page.keyboard.press("ArrowRight")
    walk.get_by_role("button", name="Next request").click()
    expect(dialog).to_contain_text("Request 2 of 2 of this conversation")
    expect(dialog).to_contain_text(conversation[1])
    page.keyboard.press("ArrowLeft")
    expect(dialog).to_contain_text(conversation[0])
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page).to_have_url(re.compile(r"/ui#live$"))
