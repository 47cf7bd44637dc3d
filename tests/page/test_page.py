"""The web page in a real browser: it shows what the gateway decides."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.policies.registry import choose_once, parse_policy
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import DecisionLogSettings, Settings
from tests.fakes import FakeRouter
from tests.page.watching import choose_example, open_playground, tab_to
from tests.serving import Sandbox, served


def shown_request(page: Page) -> Conversation:
    """Return the request in the editor."""
    return parse_conversation(json.loads(page.locator("#body").input_value()))


def chosen_arm(page: Page) -> str:
    """Return the chosen arm, which the text and the table must agree on."""
    arm = page.locator(".chosen").inner_text()
    assert page.locator(".arms .is-chosen").get_attribute("data-arm") == arm
    return arm


def test_slider_chooses_like_the_router(page: Page, shipped: Router) -> None:
    """At every measured rule, the arm is the router's choice, and it changes."""
    open_playground(page)
    choose_example(page, "Parallel calls")
    conversation = shown_request(page)
    for rule in ("Cheapest above a threshold", "Cheapest within a margin"):
        page.get_by_label(rule).check()
        assert len(set(walk(page, shipped, conversation))) > 1


def walk(page: Page, shipped: Router, conversation: Conversation) -> list[str]:
    """Move the slider from end to end by the keyboard; return the arm at each step."""
    slider = page.get_by_role("slider")
    slider.press("Home")
    arms = []
    for _ in range(int(slider.get_attribute("max") or 0)):
        policy = choose_once(parse_policy(page.locator("#policy-now").inner_text()))
        arms.append(chosen_arm(page))
        assert arms[-1] == shipped.decide_conversation(conversation, policy).arm
        assert str(policy) in (slider.get_attribute("aria-valuetext") or "")
        slider.press("ArrowRight")
    return arms


def test_every_example_is_routed(page: Page) -> None:
    """No example is refused."""
    open_playground(page)
    for chip in page.locator("#examples button").all():
        with page.expect_response(lambda response: "/api/explain" in response.url) as explained:
            chip.click()
        assert explained.value.status == 200
    expect(page.locator("#explain-error")).to_be_hidden()


def test_sending_shows_the_answer(page: Page) -> None:
    """The answer comes into view, in words, under the slider's policy, and names the sandbox."""
    open_playground(page)
    page.get_by_role("slider").press("Home")
    policy = page.locator("#policy-now").inner_text()
    page.get_by_role("button", name="Send to model").click()
    expect(page.locator("#answer .calls")).to_contain_text("get_weather(")
    expect(page.locator("#answer .calls")).to_be_in_viewport()
    expect(page.locator("#answer dl")).to_contain_text(f"Policy{policy}")
    expect(page.locator("#answer dl")).not_to_contain_text("decision-id")
    expect(page.locator("#answer .notice")).to_contain_text("from a sandbox, not from the model")
    sentence = page.locator("#verdict .why").inner_text()
    expect(page.locator("#answer .why")).to_have_text(sentence)


def test_page_works_with_the_keyboard_only(page: Page) -> None:
    """Tabs, examples, the editor and the slider work without a mouse."""
    open_playground(page)
    tab_to(page, ".skip")
    tab_to(page, "#examples button:nth-child(2)")
    with page.expect_response(lambda response: "/api/explain" in response.url):
        page.keyboard.press("Space")
    tab_to(page, "#body")
    with page.expect_response(lambda response: "/api/explain" in response.url):
        page.keyboard.press("Control+Enter")
    tab_to(page, "#policy-slider")
    before = page.locator("#policy-now").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#policy-now").inner_text() != before
    page.locator("#tab-overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#live")).to_be_visible()
    expect(page.locator("#tab-live")).to_be_focused()


def test_router_page_says_one_thing_about_the_default(page: Page, origin: str) -> None:
    """The plain model name has the rule of this gateway's default policy, in text and table."""
    page.goto("/ui#router")
    rule = httpx.get(f"{origin}/ui/api/artifact").json()["policies"]["fast"]
    table = page.locator("#router-body table", has_text="Model name")
    expect(table).to_be_visible()
    rows = {
        row.locator("code").first.inner_text(): row.inner_text()
        for row in table.locator("tbody tr").all()
    }
    plain, fast = rows["switchcraft"], rows["switchcraft:fast"]
    assert plain.split("\n", 1)[-1] == fast.split("\n", 1)[-1]
    assert rule in plain
    expect(page.locator("#router-body")).to_contain_text(
        f"The default of this gateway is fast ({rule})."
    )


@pytest.mark.parametrize("content", [False, True])
def test_live_traffic_says_where_prompts_are_kept(
    browser: Browser, sandbox: Sandbox, tmp_path: Path, *, content: bool
) -> None:
    """With `decision_log.content`, the page does not say that prompts are not stored."""
    log = DecisionLogSettings(path=tmp_path / "log", content=content)
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    app = create_app(settings.model_copy(update={"decision_log": log}), FakeRouter())
    with served(app) as url, browser.new_context(base_url=url) as context:
        page = context.new_page()
        page.goto("/ui#live")
        lead = page.locator("#live-lead")
        expect(lead).to_contain_text("the decision log keeps them" if content else "are not stored")
        assert ("not stored" in lead.inner_text()) is not content


def test_models_are_compared_on_whole_tasks(page: Page) -> None:
    """The Router tab says which of the configured models to use for a kind, why, and at what cost.

    It fits a phone.
    """
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/ui")
    page.get_by_role("tab", name="Router").click()
    page.get_by_role("button", name="Coding").click()
    figures = page.get_by_role("table", name="Whole tasks: coding")
    chosen = figures.get_by_role("row").filter(has_text="(chosen)")
    expect(chosen).to_contain_text("gpt-5.2")
    expect(chosen).to_contain_text("SWE-bench Verified with OpenHands, 2025-12-11")
    expect(page.get_by_text("gpt-5.2 is the cheapest within 2 points of it")).to_be_visible()
    expect(page.get_by_text("Without figures: ")).to_contain_text("grok-4.1-fast")
    page.get_by_role("button", name="MCP servers").click()
    unpriced = page.get_by_role("table", name="Whole tasks: mcp")
    expect(unpriced.get_by_role("row").filter(has_text="(chosen)")).to_contain_text("unknown")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
