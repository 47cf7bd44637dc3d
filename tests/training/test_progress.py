"""Stages of a run, and their progress."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta

import pytest

from switchcraft_training import progress
from switchcraft_training.progress import (
    Bar,
    Stages,
    Usage,
    each_part,
    running,
    stage,
    step,
    track,
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


def test_a_stage_within_a_stage_is_a_step() -> None:
    """The inner stage's time belongs to the outer one, which goes on after it."""
    with running(("outer", "inner")) as stages, stage("outer"):
        with stage("inner"):
            pass
        with step("after"):
            pass
    assert list(stages.usages) == [("outer", ""), ("outer", "inner"), ("outer", "after")]


def test_a_part_of_a_run_works_without_stages(caplog: pytest.LogCaptureFixture) -> None:
    """Code with stages and steps can be used outside of a run."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with stage("training"), step("trees"):
        assert list(track("abc", "spelling", 3, "letters")) == ["a", "b", "c"]
    assert caplog.messages == ["spelling: 3 of 3 letters, took 0:00:00"]


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


def test_titles_name_the_fold(caplog: pytest.LogCaptureFixture) -> None:
    """Every line of a fold has its number, and the stage's last line has none."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with running(("training",)), stage("training"):
        for fold in each_part("ab", "fold"):
            list(track(fold, "spelling", 1, "letters"))
    titles = [message.removeprefix("0:00:00  ") for message in caplog.messages]
    folds = [f"stage 1 of 1, training, fold {number} of 2" for number in (1, 2)]
    assert titles[1:5] == [
        folds[0],
        f"{folds[0]}: spelling: 1 of 1 letters, took 0:00:00",
        folds[1],
        f"{folds[1]}: spelling: 1 of 1 letters, took 0:00:00",
    ]
    assert titles[-1].startswith("stage 1 of 1, training: took")


@pytest.mark.parametrize(
    ("done_share", "left"),
    [(0.0, timedelta(hours=3)), (0.5, timedelta(hours=1, minutes=30))],
)
def test_end_of_the_run_is_estimated_from_finished_stages(
    caplog: pytest.LogCaptureFixture, done_share: float, left: timedelta
) -> None:
    """After a stage that takes a quarter of a run, three times its duration are left."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    shares = {"training": 1.0, "report": 3.0}
    usages = {
        ("reading", ""): Usage("reading", seconds=500),
        ("training", ""): Usage("training", seconds=3600),
    }
    stages = Stages(("reading", "training", "report"), usages, shares, "report")
    stages.done_share = done_share
    stages.stage_started_s = time.monotonic() - done_share * 3 * 3600
    before = datetime.now().astimezone()
    stages.log("half", with_end=True)
    after = datetime.now().astimezone()
    ends = {(moment + left).strftime("%H:%M") for moment in (before, after)}
    (message,) = caplog.messages
    assert message[-5:] in ends
    assert "half; the run ends about " in message


def test_end_of_the_run_is_unknown_before_a_part_is_finished(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Stages without a share do not count, because their results may be reused."""
    caplog.set_level(logging.INFO, logger=progress.__name__)
    with running(("reading", "training"), {"training": 1.0}):
        with stage("reading"):
            pass
        with stage("training"):
            list(each_part("ab", "fold"))
    has_end = ["the run ends" in message for message in caplog.messages]
    assert has_end == [False, False, False, False, True, False]
