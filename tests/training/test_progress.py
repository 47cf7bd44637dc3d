"""Stages of a run, and their progress."""

from __future__ import annotations

import logging

import pytest

from switchcraft_training import progress
from switchcraft_training.progress import (
    Bar,
    running,
    stage,
)


def test_a_stage_is_logged_with_its_number_and_what_it_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names each stage with its number when it starts, and its time and memory after it."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with running(("reading", "training")), stage("training"):
        pass
    started, ended = caplog.messages
    assert started == "0:00:00  stage 2 of 2, training"
    assert ended.startswith("0:00:00  stage 2 of 2, training: took 0:00:0")
    assert ended.endswith(" MB")


def test_a_log_has_lines_with_the_estimated_end(caplog: pytest.LogCaptureFixture) -> None:
    """Without a terminal, a loop logs how far it is and when it ends, but not for each item."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with running(("reading", "training")), stage("reading"):
        with Bar("judged", 4, "models", log_every_s=0.0) as bar:
            bar.update(2)
        with Bar("judged", 4, "models") as bar:
            bar.update(2)
    state = "0:00:00  stage 1 of 2, reading: judged: 2 of 4 models"
    assert caplog.messages[1].startswith(f"{state}, until about ")
    assert caplog.messages[2:4] == [f"{state}, took 0:00:00"] * 2
