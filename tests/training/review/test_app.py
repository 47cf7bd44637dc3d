"""The terminal interface: real key presses, and what each saves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Static, TextArea

from router_service.core.errors import DataError
from switchcraft_training.datasets.corrections import CorrectionKind, ErrorCategory
from switchcraft_training.review.app import EditDialog, ReviewApp
from switchcraft_training.review.journal import Action, Journal, Ledger, Step, read_entries
from switchcraft_training.review.session import Session, entries_of_round
from tests.training.review.cases import (
    CHRISTMAS,
    FINDINGS,
    ROWS,
    SAVINGS,
    UTTERANCE,
    VERDICTS,
    finding,
)

ROWS_FILE = Path("rows.jsonl")
Play = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the decisions."""
    return tmp_path / "decisions.jsonl"


@asynccontextmanager
async def opened(path: Path, round_: int, size: tuple[int, int]) -> AsyncIterator[Pilot[None]]:
    """Open the review of the small benchmark as the command does."""
    with Journal(path, Step) as journal:
        ledger = Ledger(journal.entries)
        found = tuple(entries_of_round(ROWS, ROWS_FILE, FINDINGS, ledger, round_))
        app = ReviewApp(Session(found, journal, "ann", round_))
        async with app.run_test(size=size) as pilot:
            yield pilot


def play(path: Path, script: Play, round_: int = 1, size: tuple[int, int] = (80, 24)) -> None:
    """Open the review, run a script of key presses, and quit."""

    async def run() -> None:
        async with opened(path, round_, size) as pilot:
            await script(pilot)

    asyncio.run(run())


def press(path: Path, *keys: str, round_: int = 1) -> None:
    """Open the review, press keys, and quit."""

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)

    play(path, script, round_)


def steps(path: Path) -> list[tuple[str, Action]]:
    """Return the saved steps: entry and action of each."""
    return [(step.id, step.action) for step in read_entries(path, Step)]


def text_of(pilot: Pilot[None], pane: str) -> str:
    """Return the visible text of a pane."""
    app = pilot.app
    widget = app.query_one(f"#{pane}")
    region = widget.region
    lines = app.screen._compositor.render_strips()
    return "\n".join(
        strip.crop(region.x, region.right).text for strip in lines[region.y : region.bottom]
    )


def test_each_decision_is_saved_before_the_next_key(path: Path) -> None:
    """Accept, decline, skip and undo are saved one by one."""

    async def script(pilot: Pilot[None]) -> None:
        done: list[tuple[str, Action]] = []
        for key, *added in (
            ("a", ("savings", Action.ACCEPT)),
            ("d", ("christmas", Action.DECLINE)),
            ("s", ("unknown", Action.SKIP)),
            ("u", ("unknown", Action.UNDO)),
            ("u", ("christmas", Action.UNDO)),
            ("u", ("savings", Action.UNDO)),
        ):
            await pilot.press(key)
            done += added
            assert steps(path) == done
        await pilot.press("u")
        assert steps(path) == done

    play(path, script)
    assert Ledger(read_entries(path, Step)).steps == ()


def test_decision_records_everything_a_correction_needs(path: Path) -> None:
    """Reviewer, round, hash of the row in the file, category and change."""
    press(path, "a")
    (step,) = read_entries(path, Step)
    assert (step.reviewer, step.round, step.id) == ("ann", 1, "savings")
    assert step.row_sha256 == FINDINGS[0].row_sha256
    assert (step.kind, step.category) == (CorrectionKind.TRUTH, ErrorCategory.INCORRECT_VALUE)
    assert step.change is not None
    assert step.change.expected is not None
    assert step.change.expected[0].arguments == {"account": ["S-204"]}
    assert step.explanation.startswith("The user asks for the savings account")


def test_new_session_starts_at_first_open_entry(path: Path) -> None:
    """A new session can also undo the last step of the previous session."""
    press(path, "a", "q")

    async def script(pilot: Pilot[None]) -> None:
        assert "christmas" in text_of(pilot, "place")
        assert "1/4 decided" in text_of(pilot, "progress")
        await pilot.press("u")
        assert "○ open  savings" in text_of(pilot, "place")

    play(path, script)
    assert steps(path) == [("savings", Action.ACCEPT), ("savings", Action.UNDO)]


def test_unusable_suggestion_cannot_be_accepted(path: Path) -> None:
    """The suggestion is shown with its problem, and `a` decides nothing."""

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("j", "j", "a")
        assert "no tool 'close_account' is offered" in text_of(pilot, "opinion").replace("\n", "")
        assert "○ open  unknown" in text_of(pilot, "place")

    play(path, script, size=(120, 40))
    assert steps(path) == []


async def edit(pilot: Pilot[None], key: str, text: str) -> str:
    """Open an editor, enter a text, and try to save; return the message."""
    await pilot.press(key)
    dialog = pilot.app.screen
    assert isinstance(dialog, EditDialog)
    dialog.query_one(TextArea).load_text(text)
    await pilot.pause()
    message = str(dialog.query_one("#problem", Static).render())
    await pilot.press("ctrl+s")
    return message


def test_editor_saves_only_valid_text(path: Path) -> None:
    """The editor shows the problem, stays open until it is fixed, and then saves."""

    async def script(pilot: Pilot[None]) -> None:
        call = "- {name: get_balance, arguments: {account: [%s]}}"
        assert "line 1" in await edit(pilot, "e", "- name: [")
        assert isinstance(pilot.app.screen, EditDialog)
        await pilot.press("escape")
        assert "204 is not of type 'string'" in await edit(pilot, "e", call % 204)
        await pilot.press("escape")
        assert "nothing is changed" in await edit(pilot, "e", call % "C-881")
        await pilot.press("escape")
        assert steps(path) == []
        assert "can be saved" in await edit(pilot, "e", call % "S-204, s204")

    play(path, script)
    (step,) = read_entries(path, Step)
    assert step.action is Action.EDIT
    assert step.change is not None
    assert step.change.expected is not None
    assert step.change.expected[0].arguments == {"account": ["S-204", "s204"]}


def test_keys_typed_in_the_editor_are_text(path: Path) -> None:
    """In an editor, the keys of decisions are letters; the editor starts with the suggestion."""

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("j", "i", "space", "a", "d", "s")
        assert pilot.app.screen.query_one(TextArea).text == f"{UTTERANCE} ads"
        await pilot.press("ctrl+s")

    play(path, script)
    (step,) = read_entries(path, Step)
    assert (step.id, step.action, step.kind) == ("christmas", Action.EDIT, CorrectionKind.INPUT)
    assert step.change is not None
    assert step.change.utterance == f"{UTTERANCE} ads"


def test_expected_calls_and_input_can_both_change(path: Path) -> None:
    """Going back to an entry adds a second change, which is independent of the first."""

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("a", "k")
        await edit(pilot, "i", "The savings one, of 2023.")
        await pilot.press("k")
        shown = text_of(pilot, "changes")
        assert "of 2023" in shown
        assert "S-204" in shown

    play(path, script, size=(120, 40))
    changes = Ledger(read_entries(path, Step)).changes("savings", 1)
    assert {kind: step.action for kind, step in changes.items()} == {
        CorrectionKind.TRUTH: Action.ACCEPT,
        CorrectionKind.INPUT: Action.EDIT,
    }


def test_category_can_be_chosen_and_undone(path: Path) -> None:
    """The proposed category is highlighted; a choice is saved before any decision."""
    press(path, "c", "down", "enter")
    ledger = Ledger(read_entries(path, Step))
    proposed = ErrorCategory.INCORRECT_VALUE
    assert (
        ledger.category("savings", CorrectionKind.TRUTH, proposed)
        is ErrorCategory.INCORRECT_CONTENT
    )
    assert ledger.decision("savings", 1) is None
    press(path, "a", "u", "u")
    assert (
        Ledger(read_entries(path, Step)).category("savings", CorrectionKind.TRUTH, proposed)
        is proposed
    )


def test_arrow_keys_and_letters_navigate(path: Path) -> None:
    """Navigation decides nothing and stops at the first and last entry."""

    async def script(pilot: Pilot[None]) -> None:
        for key, shown in (
            ("k", "1 of 4"),
            ("j", "2 of 4"),
            ("right", "3 of 4"),
            ("left", "2 of 4"),
            ("j", "3 of 4"),
            ("j", "4 of 4"),
            ("j", "4 of 4"),
        ):
            await pilot.press(key)
            assert shown in text_of(pilot, "place")
        await pilot.press("question_mark")
        assert "Help" in str(pilot.app.screen.query_one(".dialog").border_title)

    play(path, script)
    assert steps(path) == []


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_one_screen_shows_everything_a_decision_needs(path: Path, size: tuple[int, int]) -> None:
    """The last message, the tool, the calls before and after, and the explanation are visible."""

    async def script(pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert "The savings one, please." in text_of(pilot, "conversation")
        assert "account* string" in text_of(pilot, "tools")
        (changed,) = [s for s in text_of(pilot, "changes").splitlines() if "account" in s]
        assert re.search(r"-     account: \[C-881\] .* \+     account: \[S-204\]", changed)
        assert "incorrect parameter value" in text_of(pilot, "opinion")
        assert "The user asks for the savings account" in text_of(pilot, "opinion")

    play(path, script, size=size)


def round_one(path: Path) -> None:
    """Accept the first entry, edit the second's input, skip the third, decline the fourth."""

    async def script(pilot: Pilot[None]) -> None:
        await pilot.press("a")
        await edit(pilot, "i", UTTERANCE)
        await pilot.press("s", "d")

    play(path, script)


def test_round_two_shows_skipped_and_edited_rows(path: Path) -> None:
    """Entries appear as round 1 left them, and decisions of round 2 override round 1."""
    round_one(path)

    async def script(pilot: Pilot[None]) -> None:
        assert "Round 2   1 of 2  ○ open  christmas" in text_of(pilot, "place")
        assert "December 2023" in " ".join(text_of(pilot, "conversation").split())
        assert "has not seen" in text_of(pilot, "opinion")
        await pilot.press("d")
        assert "unknown" in text_of(pilot, "place")
        await edit(pilot, "e", "[]")
        await pilot.press("u", "u", "u", "u")

    play(path, script, round_=2)
    taken_back = [step for step in read_entries(path, Step) if step.action is Action.UNDO]
    assert [(step.id, step.round) for step in taken_back] == [("unknown", 2), ("christmas", 2)]
    press(path, "d", "d", round_=2)
    ledger = Ledger(read_entries(path, Step))
    assert set(ledger.changes("christmas", 2)) == {CorrectionKind.INPUT}
    assert set(ledger.changes("savings", 2)) == {CorrectionKind.TRUTH}
    assert not ledger.changes("unknown", 2)


def test_opinion_of_round_two_is_shown_only_in_round_two(path: Path) -> None:
    """An opinion on a row as changed in round 1 is shown in round 2, and not in round 1."""
    round_one(path)
    ledger = Ledger(read_entries(path, Step))
    revised = ledger.revised(CHRISTMAS, 1)
    again = (*FINDINGS, finding(revised, '{"verdict": "right", "explanation": "So."}', 2))
    second = list(entries_of_round(ROWS, ROWS_FILE, again, ledger, 2))
    assert [(e.id, e.opinion and e.opinion.is_flagged) for e in second] == [
        ("christmas", False),
        ("unknown", True),
    ]
    first = list(entries_of_round(ROWS, ROWS_FILE, again, ledger, 1))
    assert [e.id for e in first] == ["savings", "christmas", "unknown", "garbled"]


def test_rows_changed_since_review_are_refused(path: Path) -> None:
    """If the file changed after its review or verification, the error says what to do."""
    press(path, "a")
    ledger = Ledger(read_entries(path, Step))
    changed = SAVINGS._replace(expected=CHRISTMAS.expected)
    with pytest.raises(DataError, match="savings has changed since it was reviewed"):
        list(entries_of_round([changed, *ROWS[1:]], ROWS_FILE, FINDINGS, ledger, 1))
    with pytest.raises(
        DataError, match="1 rows have changed since they were verified, such as savings"
    ):
        list(entries_of_round([changed, *ROWS[1:]], ROWS_FILE, FINDINGS, Ledger([]), 1))
    newer = (*FINDINGS, finding(changed, VERDICTS["right"]))
    found = list(entries_of_round([changed, *ROWS[1:]], ROWS_FILE, newer, Ledger([]), 1))
    assert [e.id for e in found] == ["christmas", "unknown", "garbled"]
