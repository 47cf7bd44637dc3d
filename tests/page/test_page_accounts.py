"""Keys, teams and budgets on the page, in a real browser with a real database."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from pydantic import SecretStr
from sqlalchemy import insert

from router_service.access.key import BudgetPeriod
from router_service.core.keys import new_key
from router_service.core.money import NANO
from router_service.database import schema
from router_service.database.engine import Database
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.page.watching import Problems, check
from tests.serving import Sandbox, served

ADMIN = new_key()
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '=HYPERLINK("http://example.com","x")',
    "</td></table><script>alert(2)</script>",
    "😀" * 100,
    "long" * 50,
    "مفتاح البحث",
    "Z" + "\u0337\u0321\u031b" * 40,
    "team/with/slashes?and=more#parts",
)


@dataclass(frozen=True)
class Gateway:
    """A gateway with a database, and clients with the admin key."""

    url: str
    database: Database
    api: httpx.Client

    def create(self, kind: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Create a key or a team with the admin API."""
        response = self.api.post(f"/admin/{kind}", json=fields)
        assert response.status_code == 201, response.text
        created: dict[str, Any] = response.json()
        return created

    def spend(self, subject: str, period: BudgetPeriod, usd: float) -> None:
        """Record that a key or a team has spent something in the present period."""
        start_s, _ = period.bounds_s(time.time())
        values = {
            "subject": subject, "period": period, "start_s": start_s,
            "spent_nusd": int(usd * NANO), "wanted_until_s": 0,
        }  # fmt: skip
        with self.database.write() as connection:
            connection.execute(insert(schema.spending).values(values))

    def ask(self, secret: str) -> int:
        """Send a request with a key, and return the status of the answer."""
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.post(self.url + CHAT, json=BODY, headers=headers).status_code


@pytest.fixture(scope="module")
def gateway(
    sandbox: Sandbox, shipped: Router, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """Serve a gateway with an admin key and an SQLite file."""
    address = f"sqlite:///{tmp_path_factory.mktemp('database')}/switchcraft.db"
    changes = {
        "keys": KeySettings(admin=SecretStr(ADMIN)),
        "database": DatabaseSettings(url=SecretStr(address)),
    }
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms)).model_copy(update=changes)
    headers = {"x-api-key": ADMIN}
    with (
        served(create_app(settings, shipped)) as url,
        httpx.Client(base_url=url, headers=headers) as api,
    ):
        database = Database(address)
        yield Gateway(url, database, api)
        database.close()


@pytest.fixture
def context(browser: Browser, gateway: Gateway) -> Iterator[BrowserContext]:
    """Yield a browser's context that is signed in as the administrator, and may copy."""
    with browser.new_context(
        base_url=gateway.url,
        viewport={"width": 1440, "height": 900},
        permissions=["clipboard-read", "clipboard-write"],
    ) as made:
        made.add_init_script(signed_in(ADMIN))
        yield made


@pytest.fixture
def tab(context: BrowserContext) -> Iterator[Page]:
    """Yield a tab, which must end without an error, a failed request or a policy violation."""
    page = context.new_page()
    problems = Problems(page)
    yield page
    assert problems.found == []


def signed_in(key: str) -> str:
    """Return a script that signs a page in before its own scripts run."""
    store = f"sessionStorage.setItem('switchcraft-key', '{key}')"
    return f"if (location.protocol !== 'about:') {store}"


def open_list(page: Page, filters: str = "") -> Locator:
    """Open the list of keys, or another one; return its rows once they are shown."""
    page.goto("about:blank")
    page.goto(f"/ui#keys{filters}")
    rows = page.locator(".accounts tbody tr")
    expect(rows.or_(page.locator("#keys .empty")).locator("visible=true").first).to_be_visible()
    return rows


def open_account(page: Page, name: str) -> Locator:
    """Open the details of a key or a team in the list."""
    page.locator(".accounts").get_by_role("button", name=name, exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading", level=2)).to_have_text(name)
    return dialog


def take_secret(page: Page) -> str:
    """Copy the secret that the dialog shows, close the dialog, and return the secret."""
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("cannot be shown again")).to_be_visible()
    page.keyboard.press("Escape")  # would lose the secret, so it does nothing
    expect(dialog).to_be_visible()
    secret = dialog.get_by_role("group", name="Secret").inner_text()
    dialog.get_by_role("button", name="Copy").first.click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    assert f"OPENAI_API_KEY={secret}" in dialog.inner_text()
    dialog.get_by_role("button", name="Done").click()
    expect(dialog).to_be_hidden()
    return secret


def places_of_secrets(page: Page) -> str:
    """Return everything that a page keeps: its document, its storage, and its history's state."""
    return str(
        page.evaluate(
            """() => [document.documentElement.outerHTML, JSON.stringify({...sessionStorage}),
                JSON.stringify({...localStorage}), JSON.stringify(history.state), location.href]
                .join()"""
        )
    )


def test_key_is_created_used_and_changed(tab: Page, gateway: Gateway) -> None:
    """A new key's secret works, and is nowhere after its dialog; only what was edited is sent."""
    gateway.create("teams", name="life")
    open_list(tab)
    tab.get_by_role("button", name="New key").click()
    form = tab.get_by_role("dialog")
    form.get_by_label("Name").fill("life/agent")
    form.get_by_label("Team").fill("life")
    form.get_by_label("Owner").fill("ana@example.com")
    form.get_by_label("Valid through").fill("2099-12-31")
    form.get_by_label("Requests per minute").fill("600")
    form.get_by_label("Budget in USD").fill("12.5")
    form.get_by_label("Period of the budget").select_option("a week")
    form.get_by_label("All policies").uncheck()
    form.get_by_role("checkbox", name="economy").check()
    form.get_by_role("button", name="Add metadata").click()
    form.get_by_label("Name", exact=True).last.fill("app")
    form.get_by_label("Value").fill("search")
    form.get_by_role("button", name="Create key").click()
    secret = take_secret(tab)
    assert secret not in places_of_secrets(tab)
    assert gateway.ask(secret) == 200
    key = gateway.api.get("/admin/keys/life/agent").json()
    assert key["expires"] == "2100-01-01T00:00:00Z"
    assert (key["team"], key["owner"], key["requests_per_minute"]) == (
        "life",
        "ana@example.com",
        600,
    )
    assert key["budget"] == {"usd": 12.5, "period": "week"}
    assert (key["policies"], key["models"], key["metadata"]) == (
        ["economy"],
        None,
        {"app": "search"},
    )

    dialog = open_account(tab, "life/agent")
    dialog.get_by_role("button", name="Edit").click()
    expect(dialog.get_by_label("Valid through")).to_have_value("2099-12-31")
    dialog.get_by_label("Requests per minute").fill("")
    dialog.get_by_label("Parallel requests").fill("7")
    with tab.expect_request(lambda request: request.method == "PATCH") as sent:
        dialog.get_by_role("button", name="Save").click()
    assert sent.value.post_data_json == {"requests_per_minute": None, "parallel_requests": 7}
    expect(tab.get_by_text("Changed life/agent.")).to_be_visible()
    row = tab.locator(".accounts tr", has_text="life/agent")
    expect(row.locator('[data-name="Limits"]')).to_have_text("7 parallel")


def test_key_is_rotated_and_revoked(tab: Page, gateway: Gateway) -> None:
    """The old secret works for the chosen time, or not at all; a revoked key is refused."""
    first = gateway.create("keys", name="rotated")["secret"]
    open_list(tab, "?search=rotated")
    row = tab.locator(".accounts tbody tr")
    open_account(tab, "rotated").get_by_role("button", name="Rotate").click()
    tab.get_by_label("How long the old secret stays valid").select_option("1 hour")
    tab.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    second = take_secret(tab)
    assert second != first
    assert [gateway.ask(first), gateway.ask(second)] == [200, 200]
    expect(row.locator(".badge", has_text="rotating")).to_be_visible()
    open_account(tab, "rotated").get_by_role("button", name="Rotate").click()
    tab.get_by_label("How long the old secret stays valid").select_option("Not at all")
    tab.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    third = take_secret(tab)
    assert [gateway.ask(first), gateway.ask(second), gateway.ask(third)] == [401, 401, 200]

    open_account(tab, "rotated").get_by_role("button", name="Revoke").click()
    expect(tab.get_by_role("button", name="Cancel")).to_be_focused()
    tab.get_by_role("button", name="Revoke this key").click()
    expect(row.locator(".badge")).to_have_text("revoked")
    assert gateway.ask(third) == 401
    expect(open_account(tab, "rotated").get_by_role("button", name="Edit")).to_have_count(0)


def test_team_has_a_budget_bar_and_is_deleted_without_keys(
    context: BrowserContext, gateway: Gateway
) -> None:
    """A team is created and edited; its bar tells the forecast; with a key it cannot be deleted."""
    page = context.new_page()
    open_list(page, "?list=teams")
    page.get_by_role("button", name="New team").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill("barred")
    form.get_by_label("Budget in USD").fill("100")
    form.get_by_role("button", name="Create team").click()
    expect(page.get_by_text("Created the team barred.")).to_be_visible()
    gateway.create("keys", name="of-barred", team="barred")
    gateway.spend("team:barred", BudgetPeriod.MONTH, 100.5)
    open_list(page, "?list=teams&search=barred")
    row = page.locator(".accounts tbody tr")
    meter = row.get_by_role("meter", name="Budget of barred")
    expect(meter).to_have_attribute("aria-valuenow", "100")
    expect(row.locator(".budget")).to_contain_text("$100.50 of $100.00 this month")
    expect(row.locator(".budget.spent")).to_contain_text("spent until 1 ")

    open_account(page, "barred").get_by_role("button", name="Edit").click()
    form.get_by_label("Budget in USD").fill("1000000")
    form.get_by_role("button", name="Save").click()
    expect(row.locator(".budget.lasts")).to_contain_text("lasts until 1 ")

    open_account(page, "barred").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete this team").click()
    expect(page.get_by_role("alert").filter(has_text="has 1 key")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    row.get_by_role("link", name="1 keys of barred").click()
    expect(page.locator(".accounts tbody th")).to_have_text(["of-barred"])
    open_account(page, "of-barred").get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke this key").click()
    page.get_by_label("Teams").check()
    open_account(page, "barred").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete this team").click()
    expect(page.get_by_text("Deleted the team barred.")).to_be_visible()
    assert gateway.api.get("/admin/teams/barred").status_code == 404


def test_hostile_names_are_text(tab: Page, gateway: Gateway) -> None:
    """Markup, formulas, emoji and long names are shown as they are, and break no layout."""
    tab.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    for name in HOSTILE:
        gateway.create("teams", name=name, owner=name, metadata={name: name})
        gateway.create("keys", name=name, team=name, owner=name, metadata={name: name})
    rows = open_list(tab)

    def check_layout(*parts: Locator) -> None:
        for width in (390, 1440):
            tab.set_viewport_size({"width": width, "height": 900})
            for part in (tab.locator("html"), *parts):
                assert part.evaluate("part => part.scrollWidth <= part.clientWidth"), (name, width)

    for name in HOSTILE:
        # Only the address changes, which the page follows without a reload.
        tab.evaluate("hash => { location.hash = hash; }", f"keys?{httpx.QueryParams(team=name)}")
        expect(rows.get_by_role("button")).to_have_text([name])
        expect(rows.get_by_role("button")).to_have_attribute("title", name)
        dialog = open_account(tab, name)
        check_layout(dialog, rows.first)
        dialog.get_by_role("button", name="Edit").click()
        expect(dialog.get_by_label("Owner")).to_have_value(name)
        check_layout(dialog)
        tab.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        # Closing steps back in the history, which takes effect after the dialog is hidden.
        expect(tab).to_have_url(re.compile(r"^(?!.*[?&]open=)"))
    tab.evaluate("location.hash = 'keys?list=teams'")
    expect(rows).to_have_count(gateway.api.get("/admin/teams").json()["total"])
    check_layout()


def test_views_of_accounts_are_accessible_and_fit_every_width(
    browser: Browser, gateway: Gateway, axe: str
) -> None:
    """axe-core finds no fault in the lists and dialogs, and none scrolls sideways."""
    name = "axe"
    limits = {"budget": {"usd": 10, "period": "month"}, "tokens_per_minute": 1000}
    gateway.create("teams", name=name, owner="ana@example.com", **limits)
    created = gateway.create("keys", name=name, team=name, metadata={"app": "axe"}, **limits)
    gateway.spend(f"key:{name}", BudgetPeriod.MONTH, 9.99)
    gateway.create("keys", name=f"{name}-revoked", team=name)
    gateway.api.post(f"/admin/keys/{name}-revoked/revoke")
    assert gateway.ask(created["secret"]) == 200
    with browser.new_context(
        base_url=gateway.url,
        bypass_csp=True,  # which would block axe itself
    ) as context:
        page = context.new_page()
        page.add_init_script(signed_in(ADMIN))
        open_list(page, f"?search={name}")
        page.evaluate(axe)
        check(page, "keys")
        dialog = open_account(page, name)
        check(page, "key")
        dialog.get_by_role("button", name="Edit").click()
        dialog.get_by_label("All models").uncheck()
        dialog.get_by_label("All policies").uncheck()
        expect(dialog.get_by_role("checkbox", name="economy")).to_be_visible()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.locator('[data-field="models"] .problem')).not_to_be_empty()
        check(page, "form")
        page.keyboard.press("Escape")
        open_account(page, name).get_by_role("button", name="Rotate").click()
        check(page, "rotate")
        page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
        expect(dialog.get_by_text("cannot be shown again")).to_be_visible()
        check(page, "secret")
        secret = dialog.get_by_role("group", name="Secret").inner_text()
        open_list(page, f"?list=teams&search={name}")
        page.evaluate(axe)
        check(page, "teams")
        open_account(page, name)
        check(page, "team")
        page.add_init_script(signed_in(secret))
        page.goto("about:blank")
        page.goto("/ui#overview")
        page.evaluate(axe)
        expect(page.get_by_role("meter").first).to_be_visible()
        expect(page.locator("#overview .tiles")).to_be_visible()
        check(page, "own budget")
