"""The review in the terminal: one screen, one key a decision."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.visual import VisualType
from textual.widgets import Footer, Static

from switchcraft_training.datasets.corrections import (
    CorrectionKind,
    ErrorCategory,
    last_utterance,
    truth_of,
)
from switchcraft_training.review import panes
from switchcraft_training.review.dialogs import CategoryDialog, EditDialog, HelpDialog
from switchcraft_training.review.session import Session
from switchcraft_training.review.truths import problem_with, truth_from_text, truth_to_text

NOTICE_S = 3.0


class ReviewApp(App[None]):
    """Shows a session's entries and turns keys into its decisions."""

    CSS_PATH = "review.tcss"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012 - textual types it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "accept", "Accept"),
        Binding("d", "decline", "Decline"),
        Binding("s", "skip", "Skip"),
        Binding("e", "edit_truth", "Edit"),
        Binding("i", "edit_input", "Input"),
        Binding("c", "categorize", "Category"),
        Binding("u", "undo", "Undo"),
        Binding("j,right", "move(1)", "Next", show=False),
        Binding("k,left", "move(-1)", "Previous", show=False),
        Binding("question_mark", "help", "Help"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        """Lay out the panes."""
        with Horizontal(id="status"):
            yield Static(id="place")
            yield Static(id="progress")
        with Horizontal(id="context"):
            yield _pane("conversation", "Conversation")
            yield _pane("tools", "Tools (* required)")
        yield _pane("changes", "What changes")
        yield _pane("opinion", "Verifier")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Show the first open entry."""
        self.title = "Review"
        self._show()
        self.query_one("#conversation").focus()

    def action_accept(self) -> None:
        """Take the suggestion."""
        if not self.session.accept():
            self._notice("There is no suggestion to accept: decline, skip or edit.")
        self._show()

    def action_decline(self) -> None:
        """Keep the entry as it stands."""
        self.session.decline()
        self._show()

    def action_skip(self) -> None:
        """Leave the entry to round 2."""
        self.session.skip()
        self._show()

    def action_edit_truth(self) -> None:
        """Edit the expected calls, beginning with those suggested."""
        judged = self.session.current.judged
        outcome = self.session.outcome(CorrectionKind.TRUTH)
        present = truth_of(judged)
        wanted = outcome.change.expected if outcome else None

        def problem(text: str) -> str | None:
            try:
                truth = truth_from_text(text)
            except ValueError as exc:
                return str(exc)
            if truth == present:
                return "nothing is changed"
            return problem_with(judged, truth)

        def save(text: str | None) -> None:
            if text is not None:
                self.session.edit_truth(truth_from_text(text))
                self._show()

        text = truth_to_text(present if wanted is None else wanted)
        self.push_screen(EditDialog("Expected calls, as YAML or JSON", text, problem), save)

    def action_edit_input(self) -> None:
        """Edit the last user utterance, beginning with the one suggested."""
        present = last_utterance(self.session.current.judged.example)
        outcome = self.session.outcome(CorrectionKind.INPUT)
        if present is None:
            self._notice("What the user said last is no plain text, and cannot be edited here.")
            return

        def problem(text: str) -> str | None:
            if not text.strip():
                return "the user has to say something"
            return "nothing is changed" if text == present else None

        def save(text: str | None) -> None:
            if text is not None:
                self.session.edit_input(text)
                self._show()

        text = (outcome.change.utterance if outcome else None) or present
        self.push_screen(EditDialog("What the user says last", text, problem), save)

    def action_categorize(self) -> None:
        """Choose the category of the error."""

        def save(category: ErrorCategory | None) -> None:
            if category is not None:
                self.session.categorize(category)
                self._show()

        self.push_screen(CategoryDialog(self.session.kind, self.session.category), save)

    def action_undo(self) -> None:
        """Take back the last step and return to its entry."""
        step = self.session.undo()
        self._notice(f"Took back: {step.action} {step.id}" if step else "There is nothing to undo.")
        self._show()

    def action_move(self, by: int) -> None:
        """Go to another entry."""
        self.session.move(by)
        self._show()

    def action_help(self) -> None:
        """Show what every key does."""
        self.push_screen(HelpDialog())

    def _notice(self, text: str) -> None:
        self.notify(text, timeout=NOTICE_S)

    def _show(self) -> None:
        session = self.session
        self.query_one("#place", Static).update(panes.place(session))
        self.query_one("#progress", Static).update(panes.progress(session))
        self._fill("conversation", panes.conversation(session.current.judged))
        self._fill("tools", panes.tools(session))
        self._fill("changes", panes.changes(session))
        self._fill("opinion", panes.opinion(session.current))
        self.query_one("#conversation").scroll_end(animate=False)
        self.query_one("#opinion").border_title = f"Verifier: {session.category.display_name}"

    def _fill(self, pane: str, content: VisualType) -> None:
        scroll = self.query_one(f"#{pane}", VerticalScroll)
        scroll.query_one(Static).update(content)
        scroll.scroll_home(animate=False)


def _pane(identifier: str, title: str) -> VerticalScroll:
    pane = VerticalScroll(Static(), id=identifier, classes="pane")
    pane.border_title = title
    return pane
