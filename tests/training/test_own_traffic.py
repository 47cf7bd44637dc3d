"""The complete loop: a log of decisions trains the artifact that a gateway takes up next."""

from __future__ import annotations

import json
import logging
import runpy
from pathlib import Path

import pytest
import yaml

from router_service.artifact import SHIPPED
from router_service.router import Router
from router_service.store.pointers import Pointer
from switchcraft_training.cli import main
from tests.training.conftest import CITIES
from tests.training.decisions.cases import (
    Line,
    call,
    content,
    decision,
    expects,
    right,
    write_log,
    wrong,
)

pytestmark = pytest.mark.slow

JOB = Path(__file__).parents[2] / "examples" / "retraining_job.py"
PRICES_USD = {"large": 10, "small": 1}


def lines_of(number: int, arm: str) -> tuple[Line, Line]:
    """Return a decision and its feedback: the small model fails every third question."""
    name, city = f"{arm}-{number}", CITIES[number]
    asked = content(f"Weather in {city}?", (call(city),))
    logged = decision(name, arm, content=asked, propensity=0.5, reason="explored")
    if number == 1:  # the checker judges this one
        return logged, expects(name, call(city))
    is_right = arm == "large" or number % 3 > 0
    return logged, right(name) if is_right else wrong(name)


def test_log_trains_the_next_artifact(
    config: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job of the examples trains from the log, and publishes a canary, which replay judges."""
    pairs = [lines_of(number, arm) for number in range(len(CITIES)) for arm in PRICES_USD]
    log = write_log(tmp_path / "log", [line for pair in pairs for line in pair])
    values = yaml.safe_load(config.read_text())
    values["source"] = {"format": "decisions", "path": str(log)}
    values["pool"] = [
        {"arm": arm, "price": {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}}
        for arm, usd in PRICES_USD.items()
    ]
    values["auxiliary_arms"] = "none"
    values["training"] = {"shares": {"forest": 1}}  # the fastest branch
    # With theta=0.5 the small model, which is right in two of three cases, would always answer.
    values["policies"]["default"] = "theta=0.9"
    config.write_text(yaml.safe_dump(values))
    published = tmp_path / "published"
    assert main(["publish", str(SHIPPED), "--to", str(published)]) == 0
    options = ["--work", str(tmp_path / "out"), "--publish-to", str(published)]
    monkeypatch.setattr("sys.argv", ["retraining_job.py", str(config), str(tmp_path), *options])
    with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOB), run_name="__main__")
    assert ended.value.code == 0
    publication = Pointer(published).read()
    assert publication is not None
    assert publication.canary is not None
    assert publication.canary.release.name == "made-up"
    asked = len(pairs)
    assert f"{asked} of {asked} decisions give labels for {len(CITIES)} queries" in caplog.text
    artifact = tmp_path / "out" / "artifact"
    assert Router.load(artifact).arms == tuple(PRICES_USD)
    options = ["--artifact", str(artifact), "--policy", "theta=0", "--out", str(tmp_path)]
    assert main(["replay", str(log), *options]) == 0
    found = json.loads((tmp_path / "replay.json").read_bytes())
    assert found["overlap"] == {"queries": asked, "learned": asked, "share": 1.0}
    cheapest = found["accuracy"]["policies"]["theta=0"]
    assert cheapest["dr"]["value"] < found["accuracy"]["chosen"]["value"] + 0.05
