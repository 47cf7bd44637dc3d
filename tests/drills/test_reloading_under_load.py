"""Under load, a configuration is reloaded completely or not at all, without losing requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.bodies import BODY, CHAT
from tests.drills.processes import gateway, write_config
from tests.serving import Sandbox

TAKEN = 'switchcraft_reloads_total{kind="config",outcome="taken"}'


def test_open_stream_completes_across_a_reload(tmp_path: Path, upstream: Sandbox) -> None:
    """A stream that is open during a reload completes."""
    config = write_config(tmp_path / "config.yaml", upstream.base_url)
    with gateway(config, tmp_path) as served:
        slow = {"x-sandbox": "chunk_delay_s=0.5"}
        with served.http.stream("POST", CHAT, json=BODY | {"stream": True}, headers=slow) as answer:
            parts = answer.iter_bytes()
            text = next(parts)
            write_config(config, upstream.base_url, router={"model_name": "other"})
            served.send_sighup()
            served.wait_for_metric(TAKEN, 1)
            assert upstream.stats()["completed"] == 0
            text += b"".join(parts)
        assert text.endswith(b"data: [DONE]\n\n")
        assert b"error" not in text
    assert upstream.stats()["completed"] == 1


def test_reload_reports_changes_and_settings_that_need_a_restart(
    tmp_path: Path, upstream: Sandbox
) -> None:
    """The answer names the changed settings and those that need a restart, but no values."""
    config = write_config(tmp_path / "config.yaml", upstream.base_url)
    with gateway(config, tmp_path) as served:
        router = {"model_name": "other", "publication": str(tmp_path)}
        bound: dict[str, Mapping[str, object]] = {
            "server": {"max_decisions": 5},
            "decision_log": {"content": True},
            "usage": {"retention_days": 7},
            "logging": {"level": "debug"},
        }
        write_config(config, upstream.base_url, router=router, **bound)
        tree = yaml.safe_load(config.read_text())
        tree["model_list"][0]["litellm_params"]["api_key"] = "planted-secret"
        free = {"input_cost_per_token": 0, "output_cost_per_token": 0}
        added = {"model_name": "added", "model_info": free}
        tree["model_list"].append({**tree["model_list"][1], **added})
        config.write_text(yaml.safe_dump(tree))
        answer = served.http.post("/admin/reload")
        assert answer.status_code == 200, answer.text
        report = answer.json()
        first = tree["model_list"][0]["model_name"]
        assert set(report["changed"]) == {
            f"model_list.{first}", "model_list.added", "router.model_name",
        }  # fmt: skip
        assert set(report["needs_restart"]) == {
            "router.publication", "server.max_decisions", "decision_log.content",
            "usage.retention_days", "logging.level",
        }  # fmt: skip
        assert "planted-secret" not in answer.text + served.log.read_text()
        names = [m["id"] for m in served.http.get("/v1/models").json()["data"]]
        assert {"other", "added"} <= set(names)
        assert "switchcraft" not in names
