"""Dialogs over a page: a text to read, a question, a choice, the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input

from hangtop.terminal.spans import EMPTY, Line, line, plain_lines
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.line_pane import LinePane
from hangtop.widgets.text_pane import TextPane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from hangtop.application import HangtopApp
    from hangtop.keys.items import Item

T = TypeVar("T")

MOVES: list[BindingType] = [
    Binding("up,k", "move(-1)", show=False),
    Binding("down,j", "move(1)", show=False),
    Binding("pageup", "page(-1)", show=False),
    Binding("pagedown,space", "page(1)", show=False),
    Binding("home,g", "end(-1)", show=False),
    Binding("end,G", "end(1)", show=False),
    Binding("escape,q,f10", "leave", show=False),
    Binding("y,Y", "copy", show=False),
    Binding("v", "pager", show=False),
    Binding("ctrl+c", "app.exit", show=False),
]


class Dialog(ModalScreen[T], Generic[T], inherit_bindings=False):
    """A pane over the page; Esc and q close it."""

    BINDINGS: ClassVar[list[BindingType]] = MOVES
    AUTO_FOCUS = "LinePane"

    @property
    def cuts_nothing(self) -> bool:
        """Whether scrolling shows everything that is copied from it."""
        return False

    @property
    def hangtop(self) -> HangtopApp:
        """The app."""
        return cast("HangtopApp", self.app)

    @property
    def pane(self) -> LinePane:
        """The pane with the text."""
        return self.query_one(LinePane)

    @property
    def box_width(self) -> int:
        """Cells of a line in a pane that is in the box."""
        return max(min(int(self.app.size.width * 0.9), BOX_CELLS) - FRAME_CELLS, 10)

    def renew(self) -> None:
        """Update from a newer snapshot; most texts stay as they were opened."""

    def action_move(self, count: int) -> None:
        """Scroll, or move the cursor."""
        self.pane.move(count)

    def action_page(self, direction: int) -> None:
        """Scroll by a page."""
        self.pane.move_page(direction)

    def action_end(self, direction: int) -> None:
        """Scroll to an end."""
        self.pane.move_end(direction)

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def action_copy(self) -> None:
        """Copy the whole text."""
        text = plain_lines(self.pane.text_lines())
        self.hangtop.copy_text(text, self.pane, read=self.cuts_nothing)

    def action_pager(self) -> None:
        """Show the whole text in the pager."""
        self.hangtop.page_text(plain_lines(self.pane.text_lines()))


FRAME_CELLS = 4
"""Cells that the frame of a pane takes."""
READER_CELLS, BOX_CELLS = 110, 90
"""Largest widths of dialogs, as in base.tcss."""
LEAST_LINES = 6
"""Least height: a text of a line or two does not look lost in so many lines."""
CLOSE_HINT = line(
    ("Esc", "key"),
    (" closes  ", "dim"),
    ("y", "key"),
    (" copies  ", "dim"),
    ("v", "key"),
    (" pager", "dim"),
)


class Reader(Dialog[None]):
    """A text to read, in a pane as high as the text."""

    def __init__(
        self, title: str, lines: Sequence[Line], note: str = "", *, wide: bool = False
    ) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._note = note
        self._wide = wide
        """Whether it takes the whole screen, with lines cut instead of wrapped."""

    @property
    def cuts_nothing(self) -> bool:
        """Whether its lines are wrapped."""
        return not self._wide

    def compose(self) -> ComposeResult:
        """Yield one pane."""
        yield TextPane(self._title, pane_id="text", indent=4, wrapped=not self._wide)

    def on_mount(self) -> None:
        """Fill it."""
        pane = self.query_one(TextPane)
        if self._wide:
            pane.styles.width, pane.styles.max_width = "100%", "100%"
        pane.retitle(line((self._title, "title")), line((self._note, "dim")), CLOSE_HINT)
        pane.set_lines(self._lines)
        self.on_resize()

    def on_resize(self) -> None:
        """Adapt the height, as text wrapped at another width needs another height."""
        if not self._wide:
            pane, width = (
                self.query_one(TextPane),
                min(int(self.app.size.width * 0.9), READER_CELLS),
            )
            pane.styles.height = max(pane.prepare(max(width - FRAME_CELLS, 10)) + 2, LEAST_LINES)


class Confirm(Dialog[bool]):
    """A confirmation: the command and its cost, asked once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("y,enter", "yes", show=False, priority=True),
        Binding("n", "leave", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Yield one pane, as high as its text."""
        with Vertical(id="box"):
            yield TextPane(self._title, pane_id="text", indent=2)

    def on_mount(self) -> None:
        """Fill it."""
        pane = self.query_one(TextPane)
        hint = line(
            ("y", "key"),
            " or ",
            ("Enter", "key"),
            " run it   ",
            ("n", "key"),
            " or ",
            ("Esc", "key"),
            " do not",
        )
        pane.set_lines([EMPTY, *self._lines, EMPTY])
        tall = pane.prepare(self.box_width) + 2
        pane.styles.height = min(tall, max(self.app.size.height, 3))
        pane.retitle(line((self._title, "title")), EMPTY, hint)
        pane.paint()

    def action_yes(self) -> None:
        """Confirm."""
        self.dismiss(True)


class Choice(Dialog[str]):
    """A choice of one of several items."""

    BINDINGS: ClassVar[list[BindingType]] = [*MOVES, Binding("enter", "choose", show=False)]

    def __init__(self, title: str, items: Callable[[], Sequence[Item]], chosen: str | None) -> None:
        super().__init__()
        self._title = title
        self._items = items
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """Yield one pane, as high as the items."""
        with Vertical(id="box"):
            yield ItemList(self._title, pane_id="list")

    def on_mount(self) -> None:
        """Fill it."""
        pane = self.query_one(ItemList)
        pane.cursor_key = self._chosen
        self.renew()
        hint = line(("Enter", "key"), (" chooses  ", "dim"), ("Esc", "key"), (" leaves", "dim"))
        pane.retitle(line((self._title, "title")), EMPTY, hint)
        pane.paint()

    def renew(self) -> None:
        """Ask for the items again; the cursor stays on its item. A single item is no choice."""
        pane = self.query_one(ItemList)
        items = self._items()
        if len(items) == 1 and len(pane.items) > 1:
            self.dismiss(items[0].key)
            return
        pane.set_items(items)
        tall = pane.prepare(self.box_width) + 2
        pane.styles.height = min(tall, max(self.app.size.height - 2, 3))

    def action_choose(self) -> None:
        """Take the item under the cursor."""
        item = self.query_one(ItemList).current
        self.dismiss(item.key if item else None)


class Palette(Dialog[str]):
    """The `:` line, with the suggestions for the typed text below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False, priority=True),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("tab", "complete", show=False, priority=True),
        Binding("ctrl+c", "app.exit", show=False, priority=True),
    ]
    AUTO_FOCUS = "Input"

    def __init__(self, suggest: Callable[[str], Sequence[Item]]) -> None:
        super().__init__()
        self._suggest = suggest

    def compose(self) -> ComposeResult:
        """Yield an input line, and a list."""
        with Vertical(id="box"):
            yield Input(
                id="line",
                placeholder="rank number, node, screen, interval 5, or an action",
                compact=True,
            )
            yield ItemList("GO TO", pane_id="list")

    def on_mount(self) -> None:
        """Show everything at first."""
        pane = self.query_one(ItemList)
        pane.styles.height = max(min(self.app.size.height - 6, 16), 3)
        entry = self.query_one(Input)
        entry.styles.height = 3
        entry.styles.border = ("ascii" if self.hangtop.ascii else "heavy", "ansi_cyan")
        self._fill("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow down the suggestions."""
        self._fill(event.value)

    def _fill(self, text: str) -> None:
        pane = self.query_one(ItemList)
        items = self._suggest(text)
        pane.cursor_key = items[0].key if items else None
        pane.top = 0
        hint = line(("Enter", "key"), (" goes  ", "dim"), ("Esc", "key"), (" leaves", "dim"))
        pane.retitle(line(("GO TO", "title")), EMPTY, hint)
        pane.set_items(items, [line(("nothing fits", "warn"))])

    def action_complete(self) -> None:
        """Put the suggestion under the cursor into the line."""
        item = self.query_one(ItemList).current
        if item is not None:
            entry = self.query_one(Input)
            entry.value = item.key
            entry.cursor_position = len(item.key)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the suggestion under the cursor, or the typed text."""
        item = self.query_one(ItemList).current
        self.dismiss(item.key if item else event.value)
