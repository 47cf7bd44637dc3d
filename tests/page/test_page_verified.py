"""The page of a gateway whose artifact has a verifier."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from router_service.artifact import FrontierPoint, Measure
from router_service.serving.app import create_app
from router_service.settings import VerificationSettings
from router_service.verifier.graphs import VerifierSpec
from tests.bodies import BODY, CHAT
from tests.fakes import VerifyingRouter
from tests.gateways import VERIFIED, sandbox_settings
from tests.page.watching import WIDTHS, Problems, check, open_playground
from tests.sandbox import run_in_thread
from tests.serving import Sandbox, served

KEEP_ALIVE_S = 0.1
VERIFY = "Ask more models if it pays"
VERIFIED_POINTS = {"verified=0.0005": (0.8, 0.0002), "verified=0.002": (0.9, 0.0004)}
ONCE_POINTS = {"theta=0.2": (0.7, 0.0001), "theta=0.8": (0.8, 0.0011), "drift=0.1": (0.75, 0.0003)}


def point(policy: str, accuracy: float, cost_usd: float) -> FrontierPoint:
    """Return a measured point without intervals."""
    return FrontierPoint(
        policy=policy,
        accuracy=Measure(value=accuracy, stderr=0.01, n=100),
        cost_usd=Measure(value=cost_usd, stderr=0.00001, n=100),
    )


def with_manifest(router: VerifyingRouter, update: Mapping[str, object]) -> None:
    """Replace fields of the router's manifest."""
    manifest = router.artifact.manifest.model_copy(update=update)
    router.artifact = replace(router.artifact, manifest=manifest)


def verifying_router() -> VerifyingRouter:
    """Return a router that trusts only `medium` and `large`, with two measured prices."""
    router = VerifyingRouter(trust={"medium": 0.8})
    spec = VerifierSpec(
        graph="verifier.onnx",
        gain_graph="gain.onnx",
        candidate_features=(),
        gain_features=(),
        reliabilities=(0.3, 0.7, 0.9),
        price_usd=0.002,
    )
    with_manifest(
        router,
        {
            "verifier": spec,
            "frontier": tuple(point(name, *at) for name, at in ONCE_POINTS.items()),
            "verified_frontier": tuple(point(name, *at) for name, at in VERIFIED_POINTS.items()),
        },
    )
    return router


@pytest.fixture(scope="module")
def upstream() -> Iterator[Sandbox]:
    """Yield a sandbox of these tests, because they set faults."""
    with run_in_thread() as url:
        yield Sandbox(url)


@pytest.fixture(scope="module")
def verifying(upstream: Sandbox) -> Iterator[str]:
    """Serve a gateway that verifies; yield its address."""
    verification = VerificationSettings(keep_alive_s=KEEP_ALIVE_S)
    settings = sandbox_settings(upstream.base_url, verification=verification)
    with served(create_app(settings, verifying_router())) as url:
        yield url


@pytest.fixture
def page(browser: Browser, verifying: str) -> Iterator[Page]:
    """Yield a new tab, which must end without problems."""
    with browser.new_context(base_url=verifying) as context:
        tab = context.new_page()
        problems = Problems(tab)
        yield tab
        assert problems.found == []


@pytest.fixture
def failing_small(upstream: Sandbox) -> Iterator[None]:
    """Let the model `small` fail during a test."""
    upstream.set_faults("small", "status=500")
    yield
    upstream.set_faults("small", "")


def send(page: Page) -> None:
    """Send the request with the selected policy, and wait for the answer."""
    page.get_by_role("button", name="Send to model").click()
    expect(page.locator("#answer pre")).to_contain_text("completion")


def test_verified_answer_shows_its_steps(page: Page) -> None:
    """Each candidate has its cost, time, calls, estimate and decision, and agreement is shown.

    The last step says why the answer was delivered, in the words of the header.
    """
    open_playground(page)
    page.get_by_label(VERIFY).check()
    send(page)
    rows = page.locator("#verification tbody tr")
    expect(rows).to_have_count(2)
    small, medium = rows.all()
    expect(small).to_contain_text(re.compile(r"small\$[\d.]+, [\d.]+ m?s"))
    expect(small).to_contain_text("get_weather(")
    expect(small).to_contain_text("20.0%")
    expect(small).to_contain_text("Not enough; asked medium")
    expect(medium).to_contain_text("the same call as small")
    expect(medium).to_contain_text("80.0%")
    expect(medium).to_contain_text("Accepted")
    expect(page.locator("#verification")).to_contain_text("2 models asked. The calls agree.")
    walk = page.get_by_role("region", name="Step by step")
    for _ in range(4):
        walk.get_by_role("button", name="Next").click()
    expect(walk).to_contain_text("medium's answer is delivered")
    expect(walk).to_contain_text(
        "medium: the likeliest of 2 models' answers (80%), by the verifier"
    )


@pytest.mark.usefixtures("failing_small")
def test_failed_candidate_shows_its_failure(page: Page) -> None:
    """A candidate without an answer shows why, and which arm was asked instead."""
    open_playground(page)
    page.get_by_label(VERIFY).check()
    send(page)
    failed = page.locator('#verification tr[data-arm="small"]')
    expect(failed).to_contain_text("No answer: error status")
    expect(failed).to_contain_text("Asked medium")
    expect(page.locator("#verification")).to_contain_text("2 models asked, 1 without an answer.")


def test_list_says_of_failed_requests_only_how_many_models_were_asked(
    page: Page, verifying: str
) -> None:
    """Nothing was accepted, so the list does not say that the verifier has accepted an answer."""
    headers = VERIFIED | {"x-sandbox": "status=500"}
    assert httpx.post(verifying + CHAT, json=BODY, headers=headers).status_code == 500
    page.goto("/ui#live")
    row = page.locator("#log tbody tr").first
    expect(row).to_contain_text("error of the upstream; 3 models asked")
    expect(row).not_to_contain_text("accepted")


def test_slider_covers_measured_prices(page: Page) -> None:
    """The slider moves over the prices, apart from the rules that choose one model."""
    open_playground(page)
    once = page.get_by_role("group", name="One model per request")
    expect(once.get_by_role("radio")).to_have_count(2)
    page.get_by_role("group", name="Verified answers").get_by_label(VERIFY).check()
    slider = page.get_by_role("slider")
    seen = []
    for key in ("Home", "End"):
        slider.press(key)
        seen.append(page.locator("#policy-now").inner_text())
        assert "asks first small" in (slider.get_attribute("aria-valuetext") or "")
        expect(page.locator("#verdict-title")).to_have_text("Model that is asked first")
        expect(page.locator("#verdict .chosen")).to_have_text("small")
        expect(page.locator("#savings")).to_have_count(0)  # they depend on the answer
    assert seen == list(VERIFIED_POINTS)


@pytest.mark.usefixtures("failing_small")
def test_steps_are_accessible_and_fit_every_width(
    browser: Browser, verifying: str, axe: str
) -> None:
    """axe-core finds no fault in the steps, the slider and both curves, and nothing overflows."""
    # The page's policy would block axe itself.
    with browser.new_context(base_url=verifying, bypass_csp=True) as context:
        page = context.new_page()
        open_playground(page)
        page.evaluate(axe)
        page.get_by_label(VERIFY).check()
        send(page)
        expect(page.locator("#verification table")).to_be_visible()
        check(page, "playground", (*WIDTHS, 400))
        page.get_by_role("tab", name="Router").click()
        expect(page.locator("#router .frontier")).to_be_visible()
        check(page, "router", (*WIDTHS, 400))
        page.get_by_role("tab", name="Live traffic").click()
        page.locator("#log tbody button").first.click()
        walk = page.get_by_role("dialog").get_by_role("region", name="Step by step")
        for step in range(1, 6):
            expect(walk).to_contain_text(f"Step {step} of 5")
            check(page, f"step {step}", (*WIDTHS, 400) if step == 5 else (360, 1440))
            page.keyboard.press("ArrowRight")
