"""Status, and reload of a gateway without a configuration file."""

from __future__ import annotations

import httpx


def test_reload_without_source_is_refused(http: httpx.Client) -> None:
    """An app that was created from settings has no file to reload, and the error says so."""
    answer = http.post("/admin/reload")
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("reload_refused", "invalid_request_error")
    assert error["message"].startswith("Nothing was changed: this gateway has no configuration")


def test_status_without_publication(http: httpx.Client) -> None:
    """Without a publication, the status has the artifact, what runs it, and what is in memory."""
    status = http.get("/admin/status").json()
    assert status.pop("held_memory")
    assert status == {
        "artifact": "fake",
        "execution": {"graph": "model.onnx", "provider": "CPUExecutionProvider", "warning": None},
        "publication": None,
        "tried": [],
        "open_circuits": [],
        "shared_state": "up",
        "database": {"place": "memory", "state": "up", "unreachable_s": 0.0, "cause": None},
        "last_refusal": None,
    }


def test_publication_series_exist_from_the_start(http: httpx.Client) -> None:
    """The series of publications exist before the first publication."""
    text = http.get("/metrics").text
    assert "switchcraft_shared_state_up 1.0" in text
    assert "switchcraft_publication_serial 0.0" in text
