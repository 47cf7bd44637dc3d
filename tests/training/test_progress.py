"""Stages of a run, and their progress."""

from __future__ import annotations

import logging

import pytest

from switchcraft_training import progress
from switchcraft_training.progress import Bar, running, stage, step, track


def test_a_stage_is_logged_with_its_number_and_what_it_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log names each stage with its number when it starts, and its time and memory after it."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with running(("reading", "training")), stage("training"):
        pass
    started, ended = caplog.messages
    assert started == "stage 2 of 2, training"
    assert ended.startswith("stage 2 of 2, training: took 0:00:0")
    assert ended.endswith(" MB")


def test_steps_are_added_up_over_their_repetitions() -> None:
    """A repeated step has one usage with all of its time, and its stage has the highest peak."""
    with running(("training",)) as stages, stage("training"):
        for _ in range(3):
            with step("trees"):
                block = bytearray(50_000_000)
                del block
    trees, training = stages.usages["training", "trees"], stages.usages["training", ""]
    assert (trees.repetitions, training.repetitions) == (3, 1)
    assert training.seconds >= trees.seconds > 0
    assert training.peak_memory_mb >= trees.peak_memory_mb > 50


def test_a_part_of_a_run_works_without_stages(caplog: pytest.LogCaptureFixture) -> None:
    """Code with stages and steps can be used outside of a run."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with stage("training"), step("trees"):
        assert list(track("abc", "spelling", 3, "letters")) == ["a", "b", "c"]
    assert caplog.messages == ["spelling: 3 of 3 (letters), took 0:00:00"]


def test_a_log_has_lines_with_the_estimated_end(caplog: pytest.LogCaptureFixture) -> None:
    """Without a terminal, a loop logs how far it is and when it ends, but not for each item."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with running(("reading", "training")), stage("reading"):
        with Bar("labels", 4, "models", log_every_s=0.0) as bar:
            bar.update(2)
        with Bar("labels", 4, "models") as bar:
            bar.update(2)
    assert caplog.messages[1].startswith(
        "stage 1 of 2, reading: labels: 2 of 4 (models), ends about 2"
    )
    took = "stage 1 of 2, reading: labels: 2 of 4 (models), took 0:00:00"
    assert caplog.messages[2:4] == [took, took]
