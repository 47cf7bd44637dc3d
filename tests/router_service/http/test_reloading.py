"""What a gateway that cannot be reloaded says, and what it shows of itself."""

from __future__ import annotations

import httpx


def test_a_gateway_without_an_origin_is_not_reloaded(http: httpx.Client) -> None:
    """An app that was made of values has no file to read anew, and says so."""
    answer = http.post("/admin/reload")
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("reload_refused", "invalid_request_error")
    assert error["message"].startswith("Nothing was changed: this gateway was started without")


def test_status(http: httpx.Client) -> None:
    """Without a publication the status is the artifact alone."""
    assert http.get("/admin/status").json() == {
        "artifact": "fake",
        "publication": None,
        "tried": [],
        "left_alone": [],
        "shared_state": "up",
        "last_refusal": None,
    }


def test_releases_are_counted(http: httpx.Client) -> None:
    """The series of what is published are there from the start."""
    text = http.get("/metrics").text
    assert "switchcraft_shared_state_up 1.0" in text
    assert "switchcraft_publication_serial 0.0" in text
