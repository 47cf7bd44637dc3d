"""The windows over the review: an editor, the categories, the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from switchcraft_training.datasets.corrections import CATEGORIES, CorrectionKind, ErrorCategory

_MEANINGS: Final = {
    ErrorCategory.WRONG_FUNCTION: "not what the user wants, or what the conversation calls for",
    ErrorCategory.INCORRECT_VALUE: "a wrong entity, number or reference to an earlier result",
    ErrorCategory.INCORRECT_CONTENT: "free text that is not what the user said",
    ErrorCategory.FORMAT: "violates the tool's schema: type, enum, date format, white space",
    ErrorCategory.TEMPORAL: "a wrong date, time or UTC offset, or one that cannot be known",
    ErrorCategory.LOGICAL: "misreads the state of the conversation, or skips a step",
    ErrorCategory.AMBIGUOUS_TIME: "the user's words leave a date or time open",
    ErrorCategory.AMBIGUOUS_OTHER: "the user's words leave something else open",
}

HELP: Final = """\
[b]On each entry[/b]
  [b]a[/b]  accept what the verifier suggests
  [b]d[/b]  decline: the entry stays as it stands
  [b]s[/b]  skip: leave it to round 2
  [b]e[/b]  edit the expected calls, as YAML or JSON
  [b]i[/b]  edit the input: what the user said last
  [b]c[/b]  choose the category of the error
  [b]u[/b]  undo the last step, as often as you like

[b]Moving[/b]
  [b]j[/b] [b]→[/b]  next entry       [b]k[/b] [b]←[/b]  previous entry
  [b]Tab[/b]  next pane       [b]↑ ↓ PgUp PgDn[/b]  scroll it
  [b]q[/b]  quit: every step is saved already

An entry may have a truth and an input corrected: go back
to it with k. What you decide last stands. Round 2 shows
what was skipped or edited in round 1.\
"""


class EditDialog(ModalScreen[str | None]):
    """An editor that says what is wrong as one types; it closes on a text without a problem."""

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
        """Begin at the end, where a year is added."""
        editor = self.query_one(TextArea)
        editor.move_cursor(editor.document.end)

    def on_text_area_changed(self) -> None:
        """Say what is wrong with the text as it is."""
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
    """The categories of one kind of correction; the present one is highlighted."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, kind: CorrectionKind, present: ErrorCategory) -> None:
        super().__init__()
        self._categories = CATEGORIES[kind]
        self._present = present

    def compose(self) -> ComposeResult:
        """Lay out the list."""
        options = [Option(_described(category), id=category) for category in self._categories]
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Category"
            dialog.border_subtitle = "↑ ↓ enter choose   esc cancel"
            yield OptionList(*options)

    def on_mount(self) -> None:
        """Highlight the present category."""
        self.query_one(OptionList).highlighted = self._categories.index(self._present)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the choice."""
        self.dismiss(ErrorCategory(str(event.option_id)))


class HelpDialog(ModalScreen[None]):
    """What every key does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,question_mark,q", "dismiss(None)", "Close"),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the text."""
        with Vertical(classes="dialog help") as dialog:
            dialog.border_title = "Help"
            dialog.border_subtitle = "esc close"
            yield Static(HELP)


def _described(category: ErrorCategory) -> Text:
    return Text.assemble((category.display_name, "bold"), f"\n  {_MEANINGS[category]}")
