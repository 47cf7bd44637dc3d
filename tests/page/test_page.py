"""The web page in a real browser: it shows what the gateway decides."""

from __future__ import annotations

import json
import re

import httpx
import openai
import pytest
from playwright.sync_api import Page, expect

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.policies.registry import choose_once, parse_policy
from router_service.router import Router
from tests.bodies import ASK, TOOLS
from tests.page.watching import choose_example, open_playground, tab_to


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


@pytest.mark.parametrize(
    ("name", "part"), [("Many tools", "tools"), ("Long conversation", "latest user turn")]
)
def test_cut_parts_are_marked(page: Page, name: str, part: str) -> None:
    """The text shows where and how much was cut, and the legend shows it too."""
    open_playground(page)
    choose_example(page, name)
    expect(page.locator("#packed .cut").first).to_contain_text("tokens cut")
    expect(page.locator("#packed .cut", has_text=part)).to_be_visible()
    expect(page.locator("#packed .legend .tag").first).to_be_visible()


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


@pytest.mark.parametrize("api", ["Chat Completions", "Responses", "Anthropic Messages"])
def test_each_api_gets_the_same_choice_and_an_answer(page: Page, shipped: Router, api: str) -> None:
    """An example is routed alike in every API, and its answer's calls are shown."""
    open_playground(page)
    decision = shipped.decide_conversation(shown_request(page))
    page.get_by_label(api).check()
    page.get_by_role("button", name="Send to model").click()
    expect(page.locator("#answer .calls")).to_have_text(re.compile(r"^get_weather\(\{.*Oslo"))
    expect(page.locator("#answer dl")).to_contain_text(decision.arm)
    assert chosen_arm(page) == decision.arm


def test_live_traffic_shows_a_clients_request(page: Page, origin: str) -> None:
    """A request of the OpenAI client appears in the list, and its details open."""
    page.goto("/ui#live")
    with openai.OpenAI(base_url=f"{origin}/v1", api_key="any") as client:
        raw = client.chat.completions.with_raw_response.create(
            model="switchcraft", messages=ASK, tools=TOOLS
        )
    decision_id = raw.headers["x-switchcraft-decision-id"]
    row = page.locator(f'#log tr[data-id="{decision_id}"]')
    expect(row).to_contain_text(raw.headers["x-switchcraft-model"])
    row.get_by_role("button").press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(decision_id)
    expect(dialog.get_by_role("table")).to_contain_text("(chosen)")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(row.get_by_role("button")).to_be_focused()


def test_router_view_shows_measurements(page: Page, shipped: Router) -> None:
    """It shows each model, and each measured policy in the plot and in a table."""
    page.goto("/ui#router")
    manifest = shipped.artifact.manifest
    card = page.locator("#router-body")
    expect(card).to_contain_text(f"{manifest.metrics['default_accuracy'].value:.1%} correct")
    measured = len(manifest.frontier) + len(manifest.verified_frontier)
    expect(card.locator(".dot")).to_have_count(measured)
    card.locator("summary", has_text="measured policies").click()
    rows = card.get_by_role("group", name="Measured policies").locator("tbody tr")
    expect(rows).to_have_count(measured)
    for arm in manifest.arms:
        expect(card.get_by_role("rowheader", name=arm, exact=True)).to_be_visible()
    expect(card).to_contain_text("CPU: model.int8.onnx by ONNX Runtime's CPUExecutionProvider")


def test_docs_show_every_operation(page: Page, origin: str) -> None:
    """`/docs` shows the gateway's OpenAPI document, with examples for this address."""
    page.goto("/docs")
    expect(page).to_have_url(f"{origin}/ui#api")
    with page.expect_download() as saving:
        page.get_by_role("link", name="openapi.json").click()
    assert saving.value.suggested_filename == "openapi.json"
    operations = page.locator("#api .operation")
    document = httpx.get(f"{origin}/openapi.json").json()
    expected = [(path, method) for path, item in document["paths"].items() for method in item]
    expect(operations).to_have_count(len(expected))
    shown = [operation.locator("summary").inner_text() for operation in operations.all()]
    for path, method in expected:
        assert any(text.split()[:2] == [method.upper(), path] for text in shown), path
    chat = operations.filter(has_text="/v1/chat/completions")
    chat.locator("summary").click()
    expect(chat.locator("pre")).to_contain_text(f"curl -X POST {origin}/v1/chat/completions")
    expect(chat.get_by_role("rowheader", name="messages[].role required")).to_be_visible()
    expect(chat.get_by_role("rowheader", name="x-switchcraft-why")).to_be_visible()


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
