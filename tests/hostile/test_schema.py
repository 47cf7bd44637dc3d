"""Valid and invalid requests generated from the gateway's OpenAPI document cause no 500."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.fakes import FakeRouter
from tests.hostile.conftest import ADMIN_KEY

pytestmark = pytest.mark.slow


def no_server_error_in_time(context: Any, response: Any, case: Any) -> bool | None:  # noqa: ANN401 - schemathesis's own
    """Refuse status 5xx, except for a request whose own timeout has passed."""
    if response.status_code == 504 and "x-request-timeout" in (case.headers or {}):
        return None
    return not_a_server_error(context, response, case)


CHECKED = [
    no_server_error_in_time,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


# The document does not depend on the upstream, so it equals that of the served app.
schema = schemathesis.openapi.from_dict(
    create_app(Settings.sandbox("http://127.0.0.1:9/v1", ["small"]), FakeRouter()).openapi()
)


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_operation_answers_as_documented(case: Any, url: str) -> None:  # noqa: ANN401 - schemathesis's own
    """Each answer has a documented status, type and schema, and is never a 500."""
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    case.call_and_validate(base_url=url, headers=headers, checks=CHECKED, timeout=60)


def test_generated_requests_use_the_served_document(http: httpx.Client) -> None:
    """The requests are generated from the document that the gateway serves."""
    served = http.get("/openapi.json", headers={"authorization": f"Bearer {ADMIN_KEY}"})
    assert served.json() == schema.raw_schema
