"""Keys, teams and budgets on the page, in a real browser with a real database."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from pydantic import SecretStr
from sqlalchemy import insert

from router_service.access.allowance import Allowance
from router_service.access.hooks import ExpectedCost, Grant, IncomingRequest, Outcome
from router_service.access.key import BudgetPeriod
from router_service.core.keys import new_key
from router_service.core.money import NANO
from router_service.database import schema
from router_service.database.engine import Database
from router_service.measurement.operating_points import OperatingPoints
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.clients.installed import INSTALL_S
from tests.page.accessibility import check
from tests.page.watching import Problems
from tests.serving import WAIT_S, Sandbox, served, wait_for

ADMIN = new_key()
MANY = 10_000
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
        return httpx.post(self.url + CHAT, json=BODY, headers=headers, timeout=WAIT_S).status_code


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
        httpx.Client(base_url=url, headers=headers, timeout=WAIT_S) as api,
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


def test_administrator_can_rotate_the_own_key(browser: Browser, gateway: Gateway) -> None:
    """The page goes on with the new secret, although the old one is refused at once."""
    first = gateway.create("keys", name="self", is_admin=True)["secret"]
    with browser.new_context(
        base_url=gateway.url, permissions=["clipboard-read", "clipboard-write"]
    ) as context:
        page = context.new_page()
        problems = Problems(page)
        page.goto("/ui#keys?search=self")
        page.get_by_label("Key of this gateway").fill(first)
        problems.found.clear()  # the first question without a key
        page.keyboard.press("Enter")
        open_account(page, "self").get_by_role("button", name="Rotate").click()
        page.get_by_label("How long the old secret stays valid").select_option("Not at all")
        page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
        second = take_secret(page)
        expect(page.get_by_text("Rotated the key self.")).to_be_visible()
        with page.expect_response(lambda response: response.url.endswith("search=sel")) as listed:
            page.get_by_label("Search").fill("sel")
        assert listed.value.ok
        assert [gateway.ask(first), gateway.ask(second)] == [401, 200]
        assert problems.found == []


def test_complaints_are_at_their_fields(context: BrowserContext, gateway: Gateway) -> None:
    """What the browser or the gateway refuses is said at the field, which gets the focus."""
    gateway.create("keys", name="taken")
    page = context.new_page()
    open_list(page)
    page.get_by_role("button", name="New key").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Requests per minute").fill("0")
    form.get_by_role("button", name="Create key").click()
    expect(form.locator('[data-field="name"] .problem')).not_to_be_empty()
    expect(form.locator('[data-field="requests_per_minute"] .problem')).not_to_be_empty()
    expect(form.get_by_label("Name")).to_be_focused()
    form.get_by_label("Name").fill("taken")
    form.get_by_label("Requests per minute").fill("1")
    form.get_by_role("button", name="Create key").click()
    expect(form.locator('[data-field="name"] .problem')).to_contain_text("exists already")
    form.get_by_label("Name").fill("other")
    form.get_by_label("Team").fill("nobody")
    form.get_by_role("button", name="Create key").click()
    expect(form.locator('[data-field="team"] .problem')).to_contain_text("no team with the name")
    expect(form.get_by_label("Team")).to_be_focused()
    expect(form.locator('[data-field="name"] .problem')).to_be_empty()
    form.get_by_label("Team").fill("")
    form.get_by_label("All models").uncheck()
    form.get_by_role("button", name="Create key").click()
    expect(form.locator('[data-field="models"] .problem')).to_contain_text("at least one")
    assert gateway.api.get("/admin/keys/other").status_code == 404


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
    tab.evaluate("location.hash = 'keys?list=teams'")
    expect(rows).to_have_count(gateway.api.get("/admin/teams").json()["total"])
    check_layout()


def test_dialogs_of_accounts_are_in_the_history(tab: Page, gateway: Gateway) -> None:
    """Back closes details and forms, a link opens them, and a secret that was not copied stays."""
    gateway.create("teams", name="linked/team")
    gateway.create("keys", name="linked", team="linked/team")
    tab.goto("/ui#keys?list=teams&open=linked%2Fteam")
    dialog = tab.get_by_role("dialog")
    expect(dialog.get_by_role("heading", level=2)).to_have_text("linked/team")
    tab.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    tab.goto("/ui#keys?search=linked")
    open_account(tab, "linked")
    expect(tab).to_have_url(re.compile(r"#keys\?search=linked&open=linked$"))
    tab.go_back()
    expect(dialog).to_be_hidden()
    expect(tab.get_by_role("button", name="linked", exact=True)).to_be_focused()
    expect(tab).to_have_url(re.compile(r"#keys\?search=linked$"))
    tab.go_forward()
    expect(dialog.get_by_role("heading", level=2)).to_have_text("linked")
    dialog.get_by_role("button", name="Rotate").click()
    dialog.get_by_role("button", name="Rotate").click()
    expect(dialog.get_by_text("cannot be shown again")).to_be_visible()
    tab.go_back()
    expect(tab).to_have_url(re.compile("open=linked"))
    take_secret(tab)
    expect(tab).to_have_url(re.compile(r"#keys\?search=linked$"))
    tab.get_by_role("button", name="New key").click()
    tab.go_back()
    expect(dialog).to_be_hidden()


def test_many_keys_are_shown_in_pages(tab: Page, gateway: Gateway) -> None:
    """Of 10,000 keys, the document has 50 rows at any time; search and paging reach all."""
    rows = [
        {
            "name": f"many-{number:05}", "digest": f"{number:064x}", "hint": "abcd",
            "search": f"many-{number:05}\n", "is_admin": False, "metadata": {}, "created_s": 0.0,
            "revision": 1,
        }
        for number in range(MANY)
    ]  # fmt: skip
    with gateway.database.write() as connection:
        connection.execute(insert(schema.keys), rows)
    shown = open_list(tab, "?search=many-")
    expect(shown).to_have_count(50)
    expect(tab.locator(".pager")).to_contain_text("1 to 50 of 10,000")
    expect(tab.get_by_role("button", name="Previous")).to_be_disabled()
    elements = tab.evaluate("document.querySelectorAll('*').length")
    for start in (51, 101, 151):
        tab.get_by_role("button", name="Next").click()
        expect(tab.locator(".pager")).to_contain_text(f"{start} to {start + 49} of 10,000")
    expect(shown.first).to_contain_text("many-00150")
    assert tab.evaluate("document.querySelectorAll('*').length") == elements
    tab.get_by_role("button", name="Previous").click()
    expect(shown.first).to_contain_text("many-00100")
    tab.get_by_label("Search").fill("MANY-09999")
    expect(shown).to_have_count(1)
    expect(tab).to_have_url(re.compile("search=MANY-09999"))
    expect(tab.get_by_role("button", name="Next")).to_be_hidden()
    tab.get_by_label("Search").fill("")
    tab.get_by_label("Status").select_option("revoked")
    expect(tab.locator("#keys")).not_to_have_attribute("data-shown", "keys 1 of 1")


def test_clients_see_their_own_budgets(browser: Browser, gateway: Gateway) -> None:
    """A client's key sees the budgets of its key and its team on the Overview, and no list."""
    gateway.create("teams", name="own", budget={"usd": 80, "period": "day"})
    created = gateway.create(
        "keys", name="own/1", team="own", budget={"usd": 10, "period": "total"},
        requests_per_minute=60,
    )  # fmt: skip
    gateway.spend("key:own/1", BudgetPeriod.TOTAL, 2.5)
    assert gateway.ask(created["secret"]) == 200
    with browser.new_context(base_url=gateway.url) as context:
        page = context.new_page()
        problems = Problems(page)
        page.goto("/ui")
        page.get_by_label("Key of this gateway").wait_for()
        problems.found.clear()  # the first question without a key
        page.get_by_label("Key of this gateway").fill(created["secret"])
        page.keyboard.press("Enter")
        card = page.get_by_role("region", name="Budget")
        expect(card.get_by_role("meter", name="Your key's budget")).to_have_attribute(
            "aria-valuenow", "25"
        )
        expect(card).to_contain_text("$2.50 of $10.00 in total")
        expect(card.get_by_role("meter", name="Budget of the team own")).to_be_visible()
        expect(card).to_contain_text("60 requests/min")
        expect(page.get_by_role("tab", name="Keys")).to_have_count(0)
        assert problems.found == []
    headers = {"x-api-key": created["secret"]}
    own = httpx.get(f"{gateway.url}/ui/api/traffic/account", headers=headers).json()
    assert own["name"] == "own/1"
    assert httpx.get(f"{gateway.url}/admin/keys", headers=headers).status_code == 403
    # A key of the configuration file has no limits.
    assert gateway.api.get("/ui/api/traffic/account").json() is None


def test_overview_is_filtered_by_team_and_key(context: BrowserContext, gateway: Gateway) -> None:
    """The lists set the filters, the page's address keeps them, and a key's details link to it."""
    gateway.create("teams", name="used")
    secrets = [gateway.create("keys", name=f"used/{n}", team="used")["secret"] for n in (1, 2)]
    for secret in (*secrets, secrets[0]):
        assert gateway.ask(secret) == 200
    page = context.new_page()
    page.goto("/ui#overview")
    overview = page.locator("#overview")
    teams = page.get_by_role("table", name="Requests by team")
    teams.get_by_role("button", name="used", exact=True).click()
    expect(overview).to_have_attribute("data-requests", "3")
    expect(page).to_have_url(re.compile(r"#overview\?team=used$"))
    keys = page.get_by_role("table", name="Requests by key")
    expect(keys.locator("tbody th")).to_have_text(["used/1", "used/2"])
    keys.get_by_role("button", name="used/1").click()
    expect(overview).to_have_attribute("data-requests", "2")
    page.reload()
    expect(overview).to_have_attribute("data-requests", "2")
    page.get_by_role("tab", name="Live traffic").click()
    page.get_by_role("tab", name="Overview").click()
    expect(page.locator(".filters .chip")).to_contain_text(["Team: used", "Key: used/1"])
    open_list(page, "?team=used")
    open_account(page, "used/2").get_by_role("link", name="Show usage").click()
    expect(overview).to_have_attribute("data-requests", "1")
    expect(page.get_by_label("Last 30 days")).to_be_checked()
    page.go_back()
    expect(page.locator(".accounts tbody tr")).to_have_count(2)


class ScarceBudget:
    """Hooks that let a quarter of the usual cost of a request be spent."""

    def __init__(self, allowance: Allowance) -> None:
        """Allow the same to every request."""
        self.allowance = allowance

    async def admit(self, request: IncomingRequest) -> Grant:
        """Admit the request."""
        del request
        return Grant(allowance=self.allowance)

    async def reserve(self, request: IncomingRequest, grant: Grant, cost: ExpectedCost) -> float:
        """Reserve nothing."""
        del request, grant, cost
        return math.inf

    def settle(self, request: IncomingRequest, grant: Grant, outcome: Outcome) -> None:
        """Settle nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


def test_decision_shows_what_a_budget_has_changed(
    browser: Browser, sandbox: Sandbox, shipped: Router
) -> None:
    """The details have the sentence, and both policies with their measured accuracy and cost."""
    points = OperatingPoints.of(shipped.artifact.manifest, (), "theta=0.5")
    allowance = Allowance("team:poor", 100.0, 12.0, time.time() + 3600, points, max_share=0.25)
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    app = create_app(settings, shipped, hooks=ScarceBudget(allowance))
    with served(app) as url, browser.new_context(base_url=url) as context:
        asked = {"x-switchcraft-policy": "theta=0.95"}
        applied = httpx.post(url + CHAT, json=BODY, headers=asked, timeout=WAIT_S).headers
        policy = applied["x-switchcraft-budget-policy"]
        page = context.new_page()
        page.goto("/ui#live")
        page.locator("#log tbody button").click()
        details = page.get_by_role("dialog")
        expect(details.locator(".explanation")).to_contain_text("budget of the team poor has 12%")
        rows = details.get_by_role("table", name="What the budget changed").locator("tbody tr")
        expect(rows.locator("th")).to_have_text(
            ["theta=0.95 (without the budget)", f"{policy} (applied)"]
        )
        accuracy = float(applied["x-switchcraft-expected-accuracy"])
        expect(rows.last.locator("td").first).to_have_text(f"{accuracy:.1%}")


def test_unavailable_database_is_announced_and_recovers(
    browser: Browser, sandbox: Sandbox, shipped: Router, tmp_path: Path
) -> None:
    """While the database fails, the page says so; afterwards it shows the list by itself."""
    address = f"sqlite:///{tmp_path}/switchcraft.db"
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    changes = {"database": DatabaseSettings(url=SecretStr(address))}
    database = Database(address)
    with (
        served(create_app(settings.model_copy(update=changes), shipped)) as url,
        browser.new_context(base_url=url) as context,
    ):
        page = context.new_page()
        page.clock.install()
        open_list(page)
        with database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE keys RENAME TO hidden")
        page.clock.run_for(10_000)
        alert = page.locator("#keys-error")
        expect(alert).to_contain_text("database cannot be used")
        with database.write() as connection:
            connection.exec_driver_sql("ALTER TABLE hidden RENAME TO keys")
        wait_for(lambda: httpx.get(f"{url}/admin/keys").is_success, "the database answers")
        page.clock.run_for(10_000)
        expect(alert).to_be_hidden()
    database.close()


def test_first_key_of_an_open_gateway_is_an_admin_key(
    browser: Browser, sandbox: Sandbox, shipped: Router
) -> None:
    """The form proposes an admin key; afterwards the page asks for it."""
    settings = Settings.sandbox(sandbox.base_url, list(shipped.arms))
    with (
        served(create_app(settings, shipped)) as url,
        browser.new_context(
            base_url=url, permissions=["clipboard-read", "clipboard-write"]
        ) as context,
    ):
        page = context.new_page()
        open_list(page)
        page.get_by_role("button", name="New key").click()
        form = page.get_by_role("dialog")
        expect(form.get_by_label("May administer the gateway")).to_be_checked()
        form.get_by_label("Name").fill("root")
        form.get_by_role("button", name="Create key").click()
        secret = take_secret(page)
        page.get_by_label("Key of this gateway").fill(secret)
        page.keyboard.press("Enter")
        expect(page.locator(".accounts tbody th")).to_have_text(["root"])


@pytest.mark.timeout(INSTALL_S)
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
