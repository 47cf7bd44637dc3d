"""The walk of a visitor of the page: an empty gateway, some traffic, and every tab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.bodies import CHAT, TOOLS
from tests.drills.processes import gateway
from tests.page.watching import Problems
from tests.sandbox import run_in_thread
from tests.walks.screens import Screens

pytestmark = pytest.mark.slow

CONFIG = """
model_list:
  - model_name: sonnet
    litellm_params: {{model: anthropic/claude-sonnet-4-5, api_base: {origin}, api_key: none}}
  - model_name: gpt-5.2
    litellm_params: {{model: openai/gpt-5.2, api_base: {origin}/v1, api_key: none}}
  - model_name: flash-lite
    litellm_params: {{model: gemini/gemini-2.5-flash-lite, api_base: {origin}/v1, api_key: none}}
  - model_name: gpt-5.6
    litellm_params: {{model: openai/gpt-5.6, api_base: {origin}/v1, api_key: none}}
    model_info: {{input_cost_per_token: 0.000002, output_cost_per_token: 0.000016}}
database:
  url: sqlite:///switchcraft.db
"""
TABS = ("Overview", "Live traffic", "Playground", "Router", "Keys", "API")
PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1440, "height": 900}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Run `switchcraft serve` with four models that a sandbox imitates; yield its address."""
    config = tmp_path / "gateway.yaml"
    with run_in_thread() as sandbox:
        config.write_text(CONFIG.format(origin=sandbox.removesuffix("/v1")))
        with gateway(config, tmp_path, cwd=tmp_path) as served:
            yield served.url


def send_traffic(url: str) -> str:
    """Send requests of several kinds; return the verified decision of a conversation's request."""
    city = "What is the weather in Oslo?"
    with httpx.Client(base_url=url) as http:

        def ask(text: str, model: str = "switchcraft", **more: object) -> httpx.Response:
            body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
            return http.post(CHAT, json=body)

        for number in range(8):
            for policy in ("", ":economy", ":quality", ":fast"):
                ask(f"{city} ({number})", f"switchcraft{policy}", tools=TOOLS)
            ask(f"Write a limerick. ({number})")
        ask(city, "gpt-5.6", tools=TOOLS, stream=True)
        assert ask(city, "gpt-9").status_code == 404
        first = ask(city, tools=TOOLS)
        answer = first.json()["choices"][0]["message"]
        result = {
            "role": "tool",
            "tool_call_id": answer["tool_calls"][0]["id"],
            "content": "12 degrees",
        }
        turns = [{"role": "user", "content": city}, answer, result]
        ask("And tomorrow?", messages=[*turns, {"role": "user", "content": "And tomorrow?"}],
            tools=TOOLS).raise_for_status()  # fmt: skip
        return first.headers["x-switchcraft-decision-id"]


def show(page: Page, tab: str) -> None:
    """Open a tab of the page."""
    page.get_by_role("tab", name=tab).click()
    expect(page.get_by_role("tabpanel", name=tab)).to_be_visible()


def test_visitor(browser: Browser, url: str, screens: Screens) -> None:
    """Each tab says what it will show; then it shows the traffic, a decision, and a stream."""
    with browser.new_context(base_url=url, viewport=DESKTOP, color_scheme="light") as context:
        page = context.new_page()
        problems = Problems(page)
        look_at_empty_tabs(page, screens)
        decision = send_traffic(url)
        page.reload()
        look_at_overview(page, screens)
        look_at_decision(page, screens, decision)
        ask_for_a_stream(page, screens)
        look_at_router(page, screens)
        create_a_team(page, screens)
        look_at_a_phone(page, screens)
        assert problems.found == []


def look_at_empty_tabs(page: Page, screens: Screens) -> None:
    """Open tabs of a gateway without requests, which say so."""
    page.goto("/ui")
    expect(page.locator("#overview .empty")).to_be_visible()
    expect(page.locator("#overview .empty")).to_contain_text("No requests")
    screens.page(page, "empty overview")
    show(page, "Live traffic")
    expect(page.locator("#live .empty")).to_contain_text(re.compile("^No (decisions|requests)"))
    screens.page(page, "empty live traffic")
    show(page, "Keys")
    expect(page.locator("#keys .empty")).to_contain_text("No keys in the database yet")
    screens.page(page, "empty keys")


def look_at_overview(page: Page, screens: Screens) -> None:
    """Read the overview, which counts also the request that was refused."""
    show(page, "Overview")
    expect(page.locator("#overview")).to_have_attribute("data-requests", "44")
    expect(page.locator("#overview")).to_contain_text("balanced (verified=")
    screens.page(page, "overview", is_full=True)


def look_at_decision(page: Page, screens: Screens, decision: str) -> None:
    """Open a decision from the list, follow its verification step by step, and go back."""
    show(page, "Live traffic")
    page.locator(f'#log [data-id="{decision}"]').get_by_role("button").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("balanced (verified=")
    expect(dialog).to_contain_text("Request 1 of 2 of this conversation")
    screens.page(page, "decision")
    walk = dialog.get_by_role("region", name="Step by step")
    while not walk.get_by_role("heading").inner_text().endswith("is delivered"):
        position = walk.locator(".hint").first.inner_text()
        page.keyboard.press("ArrowRight")
        expect(walk.locator(".hint").first).not_to_have_text(position)
    expect(walk).to_contain_text("likely to be correct")
    screens.page(page, "last step of the verification")
    page.go_back()
    expect(dialog).to_be_hidden()
    expect(page.locator("#live")).to_be_visible()


def ask_for_a_stream(page: Page, screens: Screens) -> None:
    """Send a request to a configured model, and see its call arrive."""
    show(page, "Playground")
    expect(page.locator(".chosen")).to_contain_text("gpt-5.2")
    page.get_by_label("Stream", exact=True).check()
    page.get_by_role("button", name="Send to model").click()
    expect(page.locator("#answer .calls")).to_contain_text('get_weather({"city":"Oslo"')
    expect(page.locator("#answer .ending")).to_have_text("The answer is complete.")
    screens.page(page, "streamed answer")


def look_at_router(page: Page, screens: Screens) -> None:
    """Read the policies by name; what the router was trained with has the same rules."""
    show(page, "Router")
    router = page.locator("#router-body")
    expect(router).to_contain_text("The default of this gateway is balanced (verified=")
    expect(router).to_contain_text("gpt-5.6")
    page.locator("summary", has_text="train it again").click()
    rule = re.compile(r"balanced: verified  # here (\w+=[\d.]+)")
    expect(router.locator("pre")).to_contain_text(rule)
    found = rule.search(router.locator("pre").inner_text())
    assert found is not None
    expect(router.get_by_role("table", name="Named policies")).to_contain_text(f"({found[1]})")
    screens.page(page, "router", is_full=True)


def create_a_team(page: Page, screens: Screens) -> None:
    """Create a team with a budget in a dialog."""
    show(page, "Keys")
    page.get_by_label("Teams").check()
    page.get_by_role("button", name="New team").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("search")
    dialog.get_by_label("Budget in USD").fill("20")
    screens.page(page, "new team")
    dialog.get_by_role("button", name="Create team").click()
    expect(page.locator(".accounts")).to_contain_text("$20.00 this month")
    screens.page(page, "teams")
    show(page, "API")
    expect(page.locator("#api .operation").first).to_be_visible()


def look_at_a_phone(page: Page, screens: Screens) -> None:
    """Open every tab on a phone, in the dark."""
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    for tab in TABS:
        show(page, tab)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], tab
        screens.page(page, f"phone {tab}")
