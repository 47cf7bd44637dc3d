"""Metrics of a request: times by stage, savings, and the decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from router_service.serving.app import create_app
from router_service.settings import RouterSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import ONE_TRY, Sandbox, served, wait_for

REQUESTS = "switchcraft_requests_total{"


def settings_of(sandbox: Sandbox, **router: object) -> Settings:
    """Return settings of a sandbox that serves the fake router's arms."""
    settings = Settings.sandbox(
        sandbox.base_url, list(FakeRouter().probabilities), upstreams=ONE_TRY
    )
    return settings.model_copy(update={"router": RouterSettings.model_validate(router)})


@contextmanager
def measured(settings: Settings) -> Iterator[tuple[httpx.Client, Metered]]:
    """Serve a gateway; yield its client and its metrics."""
    with (
        served(create_app(settings, FakeRouter())) as url,
        httpx.Client(base_url=url, timeout=10) as http,
    ):
        yield http, Metered(http)


class Metered:
    """Metrics of a gateway."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def after(self, requests: int) -> Mapping[str, float]:
        """Return values by series once this many requests are counted, just after their answers."""
        wait_for(lambda: self._requests() == requests, f"{requests} requests are counted")
        return self._series()

    def _requests(self) -> float:
        return sum(value for name, value in self._series().items() if name.startswith(REQUESTS))

    def _series(self) -> dict[str, float]:
        lines = self._http.get("/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if line[0] != "#")
        return {name: float(value) for name, _, value in pairs}


def test_routed_request_is_measured(sandbox: Sandbox) -> None:
    """A routed request has metrics of its decision; any planned request has the time of each stage.

    The fake chooses the arm with 0.7, while the best one has 0.9.
    """
    with measured(settings_of(sandbox)) as (http, metrics):
        http.post(CHAT, json=BODY)
        http.post(CHAT, json=BODY | {"model": "small"})
        http.post(CHAT, json=BODY | {"model": "nobody's"})
        series = metrics.after(3)
    arm = 'switchcraft_chosen_probability_bucket{arm="medium",le='
    assert (series[arm + '"0.6"}'], series[arm + '"0.7"}']) == (0, 1)
    assert series["switchcraft_expected_regret_sum"] == pytest.approx(0.2)
    assert series["switchcraft_expected_regret_count"] == 1
    assert series["switchcraft_packed_tokens_sum"] == 7
    assert series["switchcraft_request_bytes_count"] == 1
    assert 100 < series["switchcraft_request_bytes_sum"] < 1000
    # A request that names its model waits for no thread.
    for stage, requests in {"body": 2, "queue": 1, "parse": 2}.items():
        assert series[f'switchcraft_stage_seconds_count{{stage="{stage}"}}'] == requests
        assert 0 < series[f'switchcraft_stage_seconds_sum{{stage="{stage}"}}'] < 5


def test_savings_are_counted_against_the_baseline(sandbox: Sandbox) -> None:
    """The same tokens are priced as the baseline's, only for routed requests."""
    prices = {name: p.price for name, p in FakeRouter().artifact.manifest.profile.items()}
    with measured(settings_of(sandbox, baseline_model="large")) as (http, metrics):
        tokens = http.post(CHAT, json=BODY).json()["usage"]["total_tokens"]
        http.post(CHAT, json=BODY | {"model": "medium"})
        series = metrics.after(2)
    for name, paid in (("routed", "medium"), ("baseline", "large")):
        price = prices[paid].input_usd_per_mtok or 0.0
        counted = series[f'switchcraft_{name}_cost_usd_total{{model="medium"}}']
        assert counted == pytest.approx(tokens * price / 1e6)


def test_only_streams_have_a_time_to_first_token(sandbox: Sandbox) -> None:
    """In a whole answer, the client cannot see the first token before the others."""
    with measured(settings_of(sandbox)) as (http, metrics):
        http.post(CHAT, json=BODY)
        http.post(CHAT, json=BODY | {"stream": True})
        series = metrics.after(2)
    assert series['switchcraft_time_to_first_token_seconds_count{model="medium"}'] == 1
    assert series['switchcraft_upstream_seconds_count{model="medium"}'] == 2
