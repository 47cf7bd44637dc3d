"""The web page in a real browser: it shows what the gateway decides."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import openai
import pytest
from playwright.sync_api import Browser, Page, expect

from router_service.apis.conversation import Conversation, parse_conversation
from router_service.measurement.held_out import single_accuracies
from router_service.policies.registry import choose_once, parse_policy
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import DecisionLogSettings, Settings
from tests.bodies import ASK, TOOLS
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


def test_page_loads_and_routes_the_first_example(page: Page, shipped: Router) -> None:
    """The decision matches the router's, with a bar for every arm."""
    open_playground(page)
    decision = shipped.decide_conversation(shown_request(page))
    assert chosen_arm(page) == decision.arm
    for arm, probability in decision.probabilities.items():
        row = page.locator(f'.arms tr[data-arm="{arm}"]')
        expect(row).to_contain_text(f"{probability:.1%}")


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


def test_slider_sends_no_requests(page: Page) -> None:
    """The choices of other policies are already loaded."""
    open_playground(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("slider").press("End")
    page.get_by_role("slider").press("Home")
    assert asked == []


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


def test_unreadable_parts_are_listed(page: Page) -> None:
    """Their paths are shown, and the policy has no effect."""
    open_playground(page)
    choose_example(page, "Unreadable part")
    expect(page.locator("#verdict")).to_contain_text("messages[1], tools[1]")
    before = chosen_arm(page)
    page.get_by_role("slider").press("Home")
    assert chosen_arm(page) == before


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


def test_pasted_request_selects_its_api(page: Page) -> None:
    """A body that only one API has is sent to that API."""
    open_playground(page)
    bodies = {"Responses": '{"input": "x"}', "Anthropic Messages": '{"messages": [], "system": ""}'}
    for api, body in bodies.items():
        page.locator("#body").fill(body)
        expect(page.get_by_label(api)).to_be_checked()


def test_examples_keep_the_policy_of_the_slider(page: Page) -> None:
    """A moved slider stays where it is, until a request names another model."""
    open_playground(page)
    page.get_by_label("Cheapest above a threshold").check()
    page.get_by_role("slider").press("End")
    policy = page.locator("#policy-now").inner_text()
    choose_example(page, "Parallel calls")
    expect(page.locator("#policy-now")).to_have_text(policy)
    page.locator("#body").fill(
        page.locator("#body").input_value().replace('"switchcraft"', '"switchcraft:economy"')
    )
    with page.expect_response(lambda response: "/api/explain" in response.url):
        page.get_by_role("button", name="Route", exact=True).click()
    expect(page.locator("#policy-now")).not_to_have_text(policy)


def test_savings_are_those_against_the_best_single_model(page: Page, shipped: Router) -> None:
    """The share is computed from the expected costs of the request, and names the model."""
    open_playground(page)
    choose_example(page, "Parallel calls")
    page.get_by_role("slider").press("Home")
    decision = shipped.decide_conversation(shown_request(page))
    accuracies = single_accuracies(shipped.artifact)
    best = max(accuracies, key=lambda arm: accuracies[arm].value)
    share = 1 - decision.cost_usd[chosen_arm(page)] / decision.cost_usd[best]
    expect(page.locator("#savings")).to_have_text(f"saves {share:.0%}against {best}")


def test_labels_of_the_plot_do_not_overlap(page: Page) -> None:
    """Wherever the slider stands, no label covers another one or leaves the plot."""
    page.set_viewport_size({"width": 360, "height": 900})
    open_playground(page)
    slider = page.get_by_role("slider")
    slider.press("Home")
    for _ in range(int(slider.get_attribute("max") or 0) + 1):
        assert page.evaluate(OVERLAPS) == []
        slider.press("ArrowRight")


OVERLAPS = """() => {
  const plot = document.querySelector("#policy .frontier").getBoundingClientRect();
  const labels = [...document.querySelectorAll("#policy .now-label, #policy .reference-label")];
  const boxes = labels.map((label) => label.getBoundingClientRect());
  const outside = labels.filter((_, i) => boxes[i].right > plot.right || boxes[i].left < plot.left);
  const covered = labels.filter((_, i) => boxes.some((box, j) => j < i && box.left < boxes[i].right
    && box.right > boxes[i].left && box.top < boxes[i].bottom && box.bottom > boxes[i].top));
  return [...outside, ...covered].map((label) => label.textContent);
}"""


def test_narrow_page_shows_the_verdict_before_the_editor(page: Page) -> None:
    """At 360 pixels, the choice is visible without scrolling past the request."""
    page.set_viewport_size({"width": 360, "height": 900})
    open_playground(page)
    tops = page.evaluate(
        """() => ["#verdict", "#body"].map((at) =>
            document.querySelector(at).getBoundingClientRect().top)"""
    )
    assert tops == sorted(tops)
    expect(page.locator(".chosen")).to_be_in_viewport()


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


def test_paused_list_sends_no_requests(page: Page) -> None:
    """The list does not change while it is paused."""
    page.goto("/ui#live")
    expect(page.locator("#log, .empty").locator("visible=true").first).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)  # more than one poll, because the absence of a request has no event
    assert asked == []


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


def test_router_view_compares_pools_of_models(page: Page) -> None:
    """On demand, it shows the best pool of each size, choosing once and with verified answers."""
    page.goto("/ui#router")
    page.get_by_role("button", name="Compare the configured models").click()
    section = page.locator("section.card", has_text="Which models are enough")
    for kind in ("once", "verified"):
        rows = section.get_by_role("group", name=f"Best pool of each size: {kind}")
        expect(rows.locator("tbody tr").first).to_be_visible(timeout=120_000)
    expect(section).to_contain_text("The most accurate of 8 models alone is")


def test_router_view_hides_hashes_until_they_are_needed(page: Page, shipped: Router) -> None:
    """Full hashes and the training configuration are folded; names of methods are words."""
    page.goto("/ui#router")
    card, provenance = page.locator("#router-body"), shipped.artifact.manifest.provenance
    expect(card.locator(".plot svg")).to_be_visible()
    assert not re.search(r"[0-9a-f]{40}", card.inner_text())
    expect(card).not_to_contain_text("identity")
    card.locator("summary", has_text="train it again").click()
    expect(card.get_by_text(provenance.commit, exact=True)).to_be_visible()
    expect(card.get_by_text(provenance.data_sha256)).to_be_visible()


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
    browser: Browser, sandbox: Sandbox, tmp_path: Path, content: bool
) -> None:
    """With `decision_log.content`, the page does not say that prompts are not stored."""
    log = DecisionLogSettings(path=tmp_path / "log", content=content)
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    app = create_app(settings.model_copy(update={"decision_log": log}), FakeRouter())
    with served(app) as url, browser.new_context(base_url=url) as context:
        page = context.new_page()
        page.goto("/ui#live")
        kept = "This list has no prompts and answers, but the decision log keeps them."
        lead = page.locator("#live-lead")
        expect(lead).to_contain_text(kept if content else "Prompts and answers are not stored.")
        if content:
            expect(lead).not_to_contain_text("not stored")


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


def test_theme_survives_a_reload(page: Page) -> None:
    """The chosen theme overrides the system's after a reload."""
    page.emulate_media(color_scheme="light")
    open_playground(page)
    page.locator("#theme").click(click_count=2)
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect(page.locator("#theme")).to_have_text("Theme: dark")
