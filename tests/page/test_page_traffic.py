"""Signing in, the overview and live traffic, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.page.watching import Problems
from tests.serving import Sandbox, served, wait_for

ADMIN, TEAM_A, TEAM_B = new_key(), new_key(), new_key()
KEYS = KeySettings(
    api={"team-a": SecretStr(TEAM_A), "team-b": SecretStr(TEAM_B)}, admin=SecretStr(ADMIN)
)


@dataclass(frozen=True)
class Busy:
    """A gateway, and the ids of the decisions that it has made."""

    url: str
    routed_a: str
    chat_a: str
    routed_b: str


@pytest.fixture(scope="module")
def busy(
    sandbox: Sandbox, shipped: Router, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Busy]:
    """Serve a gateway that has answered two requests of team A and one of team B."""
    path = tmp_path_factory.mktemp("usage") / "switchcraft.db"
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    database = DatabaseSettings(url=SecretStr(f"sqlite:///{path}"))
    settings = settings.model_copy(update={"keys": KEYS, "database": database})

    def ask(url: str, key: str, policy: str, **changes: object) -> str:
        headers = {"x-api-key": key, "x-switchcraft-policy": policy}
        body = {**BODY, **changes}
        answer = httpx.post(url + CHAT, json=body, headers=headers)
        return answer.headers["x-switchcraft-decision-id"]

    with served(create_app(settings, shipped)) as url:
        asked = Busy(
            url,
            routed_a=ask(url, TEAM_A, "drift=0.05"),
            chat_a=ask(url, TEAM_A, "drift=0.05", tools=None),
            routed_b=ask(url, TEAM_B, "theta=0.9"),
        )

        def is_written() -> bool:
            rows = httpx.get(f"{url}/admin/usage", headers={"x-api-key": ADMIN}).json()["rows"]
            return sum(row["requests"] for row in rows) == 3

        wait_for(is_written, "their usage is written")
        yield asked


@pytest.fixture
def tab(browser: Browser, busy: Busy) -> Iterator[Page]:
    """Yield a new tab with the sign-in form."""
    with browser.new_context(base_url=busy.url, viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.goto("/ui")
        expect(page.get_by_label("Key of this gateway")).to_be_focused()
        problems = Problems(page)
        yield page
        assert problems.found == []


def sign_in(page: Page, key: str) -> None:
    """Enter a key, and wait until the overview has figures."""
    page.get_by_label("Key of this gateway").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator("#overview .tiles")).to_be_visible()


def fact(page: Page, name: str) -> str:
    """Return the value of one of the overview's figures."""
    term = page.locator("#overview .tiles dt").get_by_text(name, exact=True)
    return term.locator("xpath=following-sibling::dd").inner_text()


def test_session_lasts_until_signing_out(browser: Browser, busy: Busy) -> None:
    """A wrong key gets a message; a reload keeps the session, and signing out ends it."""
    with browser.new_context(base_url=busy.url) as context:
        page = context.new_page()
        page.goto("/ui")
        page.get_by_label("Key of this gateway").fill("sk-wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not valid here")
        expect(page.get_by_role("tablist")).to_be_hidden()
        sign_in(page, ADMIN)
        page.reload()
        expect(page.locator("#overview .tiles")).to_be_visible()
        assert ADMIN not in page.content()
        assert context.cookies() == []
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Key of this gateway")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_client_sees_its_own_views(tab: Page, busy: Busy) -> None:
    """A client's key opens the overview and live traffic, with that key's requests only."""
    sign_in(tab, TEAM_A)
    assert [each.inner_text() for each in tab.get_by_role("tab").all()] == [
        "Overview",
        "Live traffic",
        "API",
    ]
    assert fact(tab, "Requests").startswith("2\n")
    tab.get_by_role("tab", name="Live traffic").click()
    expect(tab.locator("#log tbody tr")).to_have_count(2)
    expect(tab.locator(f'#log tr[data-id="{busy.routed_b}"]')).to_have_count(0)


def test_overview_shows_spend_and_savings_and_can_be_filtered(tab: Page, shipped: Router) -> None:
    """The figures are those of the chosen period, key and policy."""
    sign_in(tab, ADMIN)
    expect(tab.locator("#overview")).to_have_attribute("data-requests", "3")
    assert f"{shipped.artifact.manifest.best_single_arm} alone" in fact(tab, "Saved")
    assert fact(tab, "Errors").startswith("0\n")
    expect(tab.locator(".headline .sentence")).to_have_text(re.compile(r"^3 requests; .* USD less"))
    tab.get_by_label("Last 30 days").check()
    tab.locator(".lists").get_by_role("button", name="team-a").click()
    expect(tab.locator("#overview")).to_have_attribute("data-requests", "2")
    tab.locator(".lists").get_by_role("button", name="drift=0.05").click()
    expect(tab.locator("#overview")).to_have_attribute("data-requests", "1")
    tab.get_by_role("button", name="Remove the filter Key: team-a").click()
    expect(tab.locator(".filters .chip")).to_have_count(1)
    for title in ("Requests", "Errors", "Spend", "Expected accuracy", "Latency"):
        expect(tab.get_by_role("img", name=f"{title} over time")).to_be_visible()
    tab.get_by_text("Show the values of the charts as a table").click()
    expect(tab.get_by_role("group", name="Values of the charts").locator("tbody tr")).to_have_count(
        1
    )


def test_live_traffic_is_filtered_and_explained(tab: Page, busy: Busy) -> None:
    """Filters by reason and by key leave the rows that match; a row's details explain it."""
    sign_in(tab, ADMIN)
    tab.get_by_role("tab", name="Live traffic").click()
    rows = tab.locator("#log tbody tr")
    expect(rows).to_have_count(3)
    expect(tab.locator("#live .decision")).to_have_count(3)
    tab.get_by_label("Reason").select_option("no tools in the request")
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-id", busy.chat_a)
    tab.get_by_label("Key", exact=True).select_option("team-b")
    expect(tab.locator("#live .empty")).to_contain_text("No request matches")
    tab.get_by_label("Reason").select_option("")
    expect(rows).to_have_attribute("data-id", busy.routed_b)
    expect(tab).to_have_url(re.compile("#live\\?key=team-b$"))
    rows.get_by_role("button").click()
    expect(tab.get_by_role("dialog").locator(".explanation")).to_contain_text("90%")
    tab.keyboard.press("Escape")
    tab.get_by_label("Key", exact=True).select_option("all")
    expect(rows).to_have_count(3)
    tab.get_by_label("Search").fill(busy.routed_a[-12:])
    expect(tab).to_have_url(re.compile(busy.routed_a[-12:]))
    expect(rows).to_have_count(1)
    tab.reload()
    expect(rows).to_have_count(1)
    expect(rows).to_have_attribute("data-id", busy.routed_a)


CHOOSE_ALL = """
  const select = document.querySelector("#live-key");
  select.value = "";
  select.dispatchEvent(new Event("change"));
"""
STEPS = {
    "filter before": (CHOOSE_ALL, "", "#live$"),
    "filter after": ("", CHOOSE_ALL, "#live$"),
    "tab": ("", "document.querySelector('#tab-router').click();", "#router$"),
    "link": ("", "location.hash = '#router';", "#router$"),
}
"""What happens before a dialog's event `close`, and after it, and the address that remains."""


@pytest.mark.parametrize("name", STEPS)
def test_step_taken_while_a_dialog_closes_is_kept(tab: Page, busy: Busy, name: str) -> None:
    """The step back that removes a closed dialog from the address undoes no filter and no view."""
    before, after, address = STEPS[name]
    sign_in(tab, ADMIN)
    tab.goto("/ui#live?key=team-b")
    rows = tab.locator("#log tbody tr")
    expect(rows).to_have_attribute("data-id", busy.routed_b)
    rows.get_by_role("button").click()
    expect(tab.get_by_role("dialog").locator(".explanation")).to_contain_text("90%")
    # The page's own listener for `close` begins the step back.
    tab.evaluate(
        f"""() => {{
          const dialog = document.querySelector("dialog[open]");
          dialog.addEventListener("close", () => {{ {after} }}, {{ once: true }});
          dialog.close();
          {before}
        }}"""
    )
    expect(tab).to_have_url(re.compile(address))
    if address == "#live$":
        expect(rows).to_have_count(3)
        expect(tab.get_by_label("Key", exact=True)).to_have_value("")
    else:
        expect(tab.locator("#router .tiles")).to_be_visible()
        expect(tab.locator("#live")).to_be_hidden()
