"""Requests made from the gateway's own OpenAPI document, valid and invalid ones, find no 500."""

from __future__ import annotations

from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from router_service.http.app import create_app
from router_service.settings import Settings
from tests.fakes import FakeRouter
from tests.hostile.conftest import ADMIN_KEY

CHECKED = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


# The document does not depend on the upstream: it is the one that the served app tells.
schema = schemathesis.openapi.from_dict(
    create_app(Settings.sandbox("http://127.0.0.1:9/v1", ["small"]), FakeRouter()).openapi()
)


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_operation(case: Any, url: str) -> None:  # noqa: ANN401 - schemathesis's own
    """Each answer is one that the document names, of its type and schema, and never a 500."""
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    case.call_and_validate(base_url=url, headers=headers, checks=CHECKED, timeout=10)


def test_the_document_is_the_served_one(http: httpx.Client) -> None:
    """What the cases are made from is what the gateway says of itself."""
    served = http.get("/openapi.json", headers={"authorization": f"Bearer {ADMIN_KEY}"})
    assert served.json() == schema.raw_schema
