"""The terminal interface of the review: one screen, and one key for each decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.visual import VisualType
from textual.widgets import Footer, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from switchcraft_training.datasets.corrections import (
    CATEGORIES,
    CorrectionKind,
    ErrorCategory,
    last_utterance,
    truth_of,
)
from switchcraft_training.review import panes
from switchcraft_training.review.session import Session
from switchcraft_training.review.truths import find_problem, truth_from_text, truth_to_text

NOTICE_S = 3.0

_CATEGORY_MEANINGS: Final = {
    ErrorCategory.WRONG_FUNCTION: "not what the user wants, or what the conversation requires",
    ErrorCategory.INCORRECT_VALUE: "a wrong entity, number or reference to an earlier result",
    ErrorCategory.INCORRECT_CONTENT: "free text that differs from what the user said",
    ErrorCategory.FORMAT: "violates the tool's schema: type, enum, date format, white space",
    ErrorCategory.TEMPORAL: "a wrong date, time or UTC offset, or one that cannot be known",
    ErrorCategory.LOGICAL: "misreads the state of the conversation, or skips a step",
    ErrorCategory.AMBIGUOUS_TIME: "the user's words leave a date or time open",
    ErrorCategory.AMBIGUOUS_OTHER: "the user's words leave something else open",
}

HELP: Final = """\
[b]Decisions[/b]
  [b]a[/b]  accept the critic's suggestion
  [b]d[/b]  decline: keep the row as it is
  [b]s[/b]  skip: decide in round 2
  [b]e[/b]  edit the expected calls, as YAML or JSON
  [b]i[/b]  edit the input: the last user message
  [b]c[/b]  choose the category of the error
  [b]u[/b]  undo the last step; can be repeated

[b]Navigation[/b]
  [b]j[/b] [b]→[/b]  next row         [b]k[/b] [b]←[/b]  previous row
  [b]Tab[/b]  next pane       [b]↑ ↓ PgUp PgDn[/b]  scroll it
  [b]q[/b]  quit; every step is already saved

To correct both the expected calls and the input of a
row, go back to it with k. The last decision counts.
Round 2 shows rows skipped or edited in round 1.\
"""


class ReviewApp(App[None]):
    """Shows a session's entries, and turns keys into decisions."""

    CSS_PATH = "review.tcss"
    ENABLE_COMMAND_PALETTE = False
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012 - as in textual
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
            yield _create_pane("conversation", "Conversation")
            yield _create_pane("tools", "Tools (* required)")
        yield _create_pane("changes", "Changes")
        yield _create_pane("opinion", "Critic")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Show the first open entry."""
        self.title = "Review"
        self._refresh_panes()
        self.query_one("#conversation").focus()

    def action_accept(self) -> None:
        """Accept the suggestion."""
        if not self.session.accept():
            self._notify_briefly("There is no suggestion to accept: decline, skip or edit.")
        self._refresh_panes()

    def action_decline(self) -> None:
        """Keep the entry as it is."""
        self.session.decline()
        self._refresh_panes()

    def action_skip(self) -> None:
        """Leave the decision on the entry to round 2."""
        self.session.skip()
        self._refresh_panes()

    def action_edit_truth(self) -> None:
        """Edit the expected calls; the editor starts with the suggested calls if there are any."""
        judged = self.session.current.judged
        proposed = self.session.proposed_change(CorrectionKind.TRUTH)
        present = truth_of(judged)
        suggested = proposed.change.expected if proposed else None

        def problem(text: str) -> str | None:
            try:
                truth = truth_from_text(text)
            except ValueError as exc:
                return str(exc)
            if truth == present:
                return "nothing is changed"
            return find_problem(judged, truth)

        def save(text: str | None) -> None:
            if text is not None:
                self.session.edit_truth(truth_from_text(text))
                self._refresh_panes()

        text = truth_to_text(present if suggested is None else suggested)
        self.push_screen(EditDialog("Expected calls, as YAML or JSON", text, problem), save)

    def action_edit_input(self) -> None:
        """Edit the last user message; the editor starts with the suggested text if there is one."""
        present = last_utterance(self.session.current.judged.example)
        proposed = self.session.proposed_change(CorrectionKind.INPUT)
        if present is None:
            message = "The last user message is not plain text and cannot be edited here."
            self._notify_briefly(message)
            return

        def problem(text: str) -> str | None:
            if not text.strip():
                return "the message must not be empty"
            return "nothing is changed" if text == present else None

        def save(text: str | None) -> None:
            if text is not None:
                self.session.edit_input(text)
                self._refresh_panes()

        text = (proposed.change.utterance if proposed else None) or present
        self.push_screen(EditDialog("Last user message", text, problem), save)

    def action_categorize(self) -> None:
        """Choose the category of the error."""

        def save(category: ErrorCategory | None) -> None:
            if category is not None:
                self.session.categorize(category)
                self._refresh_panes()

        self.push_screen(CategoryDialog(self.session.kind, self.session.category), save)

    def action_undo(self) -> None:
        """Undo the last step and return to its entry."""
        step = self.session.undo()
        text = f"Undone: {step.action} {step.id}" if step else "There is nothing to undo."
        self._notify_briefly(text)
        self._refresh_panes()

    def action_move(self, by: int) -> None:
        """Go to another entry."""
        self.session.move(by)
        self._refresh_panes()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpDialog())

    def _notify_briefly(self, text: str) -> None:
        self.notify(text, timeout=NOTICE_S)

    def _refresh_panes(self) -> None:
        session = self.session
        self.query_one("#place", Static).update(panes.position_text(session))
        self.query_one("#progress", Static).update(panes.progress_text(session))
        contents: dict[str, VisualType] = {
            "conversation": panes.conversation_text(session.current.judged),
            "tools": panes.tools_text(session),
            "changes": panes.changes_table(session),
            "opinion": panes.opinion_text(session.current),
        }
        for name, content in contents.items():
            pane = self.query_one(f"#{name}", VerticalScroll)
            pane.query_one(Static).update(content)
            pane.scroll_home(animate=False)
        self.query_one("#conversation").scroll_end(animate=False)
        title = f"Critic: {session.category.display_name}"
        self.query_one("#opinion").border_title = title


def _create_pane(identifier: str, title: str) -> VerticalScroll:
    pane = VerticalScroll(Static(), id=identifier, classes="pane")
    pane.border_title = title
    return pane


class EditDialog(ModalScreen[str | None]):
    """An editor that shows the text's problem while the user types, and saves only valid texts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("ctrl+s", "save", "Save"),
        ("escape", "dismiss(None)", "Cancel"),
    ]

    def __init__(self, title: str, text: str, problem: Callable[[str], str | None]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._problem = problem

    def compose(self) -> ComposeResult:
        """Lay out the editor with its message below."""
        with Vertical(classes="dialog editor") as dialog:
            dialog.border_title = self._title
            dialog.border_subtitle = "ctrl+s save   esc cancel"
            yield TextArea(self._text, soft_wrap=True, tab_behavior="indent")
            yield Static(id="problem")

    def on_mount(self) -> None:
        """Put the cursor at the end, where a year is typically added."""
        editor = self.query_one(TextArea)
        editor.move_cursor(editor.document.end)

    def on_text_area_changed(self) -> None:
        """Show the problem of the text."""
        problem = self._problem(self.query_one(TextArea).text)
        line = Text(f"✗ {problem}", style="#ffb74d") if problem else Text("✓ can be saved")
        self.query_one("#problem", Static).update(line)

    def action_save(self) -> None:
        """Close with the text, unless it has a problem."""
        text = self.query_one(TextArea).text
        if self._problem(text) is None:
            self.dismiss(text)
        else:
            self.app.bell()


class CategoryDialog(ModalScreen[ErrorCategory | None]):
    """A list of the categories of one kind of correction; the present one is highlighted."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, kind: CorrectionKind, present: ErrorCategory) -> None:
        super().__init__()
        self._categories = CATEGORIES[kind]
        self._present = present

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        options = [
            Option(
                Text.assemble(
                    (category.display_name, "bold"), f"\n  {_CATEGORY_MEANINGS[category]}"
                ),
                id=category,
            )
            for category in self._categories
        ]
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Category"
            dialog.border_subtitle = "↑ ↓ enter choose   esc cancel"
            yield OptionList(*options)

    def on_mount(self) -> None:
        """Highlight the present category."""
        self.query_one(OptionList).highlighted = self._categories.index(self._present)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close the dialog and return the selected category."""
        self.dismiss(ErrorCategory(str(event.option_id)))


class HelpDialog(ModalScreen[None]):
    """The list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,question_mark,q", "dismiss(None)", "Close"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the text."""
        with Vertical(classes="dialog help") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "esc close"
            yield Static(HELP)
