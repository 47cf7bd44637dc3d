"""The page of a gateway with a policy that its JavaScript does not know."""

from __future__ import annotations

from dataclasses import replace

from playwright.sync_api import Browser, expect

from router_service.artifact import FrontierPoint, Measure
from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.fakes import FakeRouter
from tests.page.watching import Problems, open_playground
from tests.serving import ONE_TRY, Sandbox, served
from tests.toy_policy import Ratio, registered

MEASURED = {"theta=0.8": (0.8, 0.011), "ratio=0.7": (0.75, 0.002), "ratio=0.9": (0.85, 0.012)}


def measured_router() -> FakeRouter:
    """Return a router with three measured policies."""
    points = tuple(
        FrontierPoint(
            policy=policy,
            accuracy=Measure(value=accuracy, stderr=0.01, n=100),
            cost_usd=Measure(value=cost_usd, stderr=0.0001, n=100),
        )
        for policy, (accuracy, cost_usd) in MEASURED.items()
    )
    router = FakeRouter()
    policies = {**router.artifact.manifest.policies, "fair": "ratio=0.9"}
    update = {"frontier": points, "policies": policies}
    manifest = router.artifact.manifest.model_copy(update=update)
    router.artifact = replace(router.artifact, manifest=manifest)
    return router


def test_new_policy_can_be_chosen_and_is_explained(browser: Browser, sandbox: Sandbox) -> None:
    """Its control is offered, its slider moves over its values, and its name has a meaning."""
    arms = list(FakeRouter().probabilities)
    settings = Settings.sandbox(sandbox.base_url, arms, upstreams=ONE_TRY)
    with (
        registered(),
        served(create_app(settings, measured_router())) as url,
        browser.new_context(base_url=url) as context,
    ):
        page = context.new_page()
        problems = Problems(page)
        open_playground(page)
        page.get_by_label(f"{Ratio.control.title} (ratio)").check()
        slider = page.get_by_role("slider")
        chosen = {}
        for key in ("Home", "End"):
            slider.press(key)
            chosen[page.locator("#policy-now").inner_text()] = page.locator(".chosen").inner_text()
        assert chosen == {"ratio=0.7": "medium", "ratio=0.9": "large"}
        expect(page.locator("#verdict .why")).to_contain_text("has at least 90% of the best model")
        expect(page.locator("#arms caption")).to_contain_text("minimum probability")
        page.get_by_role("tab", name="Router").click()
        expect(page.locator("#router .plot-legend")).to_contain_text(Ratio.control.legend)
        expect(page.locator("#router-body")).to_contain_text(
            "The cheapest model with 90% of the highest probability (ratio=0.9)"
        )
        assert problems.found == []
