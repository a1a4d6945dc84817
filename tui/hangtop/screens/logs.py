"""Screen 8: the logs of ranks; the first error, its consequences, and one rank's lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Horizontal

from hangtop.screens.page import Page
from hangtop.terminal.spans import EMPTY, Line, line, plain
from hangtop.views import logs as views
from hangtop.views.common import find_rank
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from hangtop.keys import query
    from hangtop.views.logs import Logs, Stream

READ_AGAIN_S = 3.0
"""Seconds after which new log lines are read again, while the screen is open."""


class LogsPage(Page):
    """Errors, streams, and the lines of one stream."""

    CSS_PATH = "logs.tcss"
    NAME = "logs"
    PANES = ("streams", "output", "errors")
    PINNED = "errors"
    FILTERED = ("streams", "output")
    FIELDS: ClassVar[frozenset[str]] = frozenset({"rank", "node", "state", "path", "last", "size"})

    def __init__(self) -> None:
        super().__init__()
        self.following = True
        self.wrapped = False
        self.search = ""
        """The text that shown lines must contain."""
        self._too_slow = ""
        """A search that took too long as a pattern."""
        self._logs: tuple[object, Logs] | None = None
        self._errors: list[int] = []
        """The shown lines that begin an error."""
        self._asked = ("", 0.0)
        self._came_with: str | None = None
        """The rank that was chosen when the cursor was put where it is."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        yield ItemList("ERRORS", pane_id="errors")
        with Horizontal(id="lower"):
            yield LineTable[views.Stream](
                "STREAMS",
                pane_id="streams",
                columns=views.columns(0.0),
            )
            yield TextPane("OUTPUT", pane_id="output", wrapped=False, indent=4)

    @property
    def table(self) -> LineTable[Stream]:
        """The table of streams."""
        return self.query_one("#streams", LineTable)

    @property
    def output(self) -> TextPane:
        """The pane with the lines of the chosen stream."""
        return self.query_one("#output", TextPane)

    @property
    def logs(self) -> Logs | None:
        """Return what is known about the logs of the job, computed again after each reading."""
        snapshot, job = self.state.snapshot, self.state.job
        if snapshot is None or job is None:
            return None
        key = (
            job.key,
            tuple((rank.rank, rank.process.pid) for rank in job.ranks),
            tuple((o.node, o.inode, o.size, o.start, o.pids, o.why) for o in snapshot.outputs),
        )
        if self._logs is None or self._logs[0] != key:
            self._logs = (key, views.Logs(snapshot, job))
        return self._logs[1]

    # Showing

    def fill(self) -> None:
        """Fill the panes, and read new lines."""
        self._read()
        logs = self.logs
        self._fill_errors(logs)
        self.table.columns = views.columns(self.hangtop.now())
        empty = [line(("There is no training job whose logs could be read.", "dim"))]
        if logs is not None:
            self._choose(logs)
        self.table.retitle(line(("STREAMS  ", "title"), str(len(logs.streams) if logs else 0)))
        self.table.set_items(logs.streams if logs is not None else [], empty)
        self._fill_output()

    def _choose(self, logs: Logs) -> None:
        """Choose the first error's stream, until a rank is chosen, here or on another screen."""
        key = self.state.rank_key
        if not self.table.chosen:
            first = next((one.key for one in logs.streams if one.first), None)
            if self.hangtop.lead is None and first is not None:
                key = self.state.rank_key = first
        elif key == self._came_with:
            return
        self._came_with = key
        if key is not None:
            self.table.cursor_key, self.table.chosen = key, True

    def _fill_errors(self, logs: Logs | None) -> None:
        pane = self.query_one("#errors", ItemList)
        items = views.error_items(logs, self.hangtop.now()) if logs is not None else []
        lack = views.lack_lines(logs) if logs is not None else []
        count = sum(1 for item in items if not item.key.startswith("known"))
        note = line(("n N", "key"), (" from error to error", "dim")) if items else EMPTY
        pane.retitle(line(("ERRORS  ", "title"), str(count) if count else "none"), note)
        none = line(("No error in what was read of the logs.", "good"))
        if logs is not None and not logs.outputs:
            none = line(("No log of this job was read yet.", "dim"))
        pane.set_items(items, [none, *lack])
        most = 9 if self.app.size.height >= 34 else 6
        lines = sum(len(item.lines) for item in items) or 1 + len(lack)
        tall = max(min(lines + 2, most), 3)
        alone = self.has_class("-alone") and not pane.has_class("-pinned")
        pane.styles.height = "1fr" if alone else tall

    def _fill_output(self) -> None:
        logs, stream = self.logs, self.table.current
        pane = self.output
        pane.wrapped = self.wrapped
        self._errors = []
        if logs is None or stream is None:
            pane.set_lines([])
            return
        shown = self._searched(logs.lines(stream))
        self._errors = [index for index, one in enumerate(shown) if one.error]
        heading, note = views.title_of(stream, len(shown), pane.edge_room)
        hint = line(("F", "key"), (" following" if self.following else " not following", "dim"))
        pane.retitle(heading, note, hint)
        pane.follow = self.following
        pane.set_lines([one.line for one in shown] or self._nothing(logs, stream))

    def _searched(self, shown: list[views.Shown]) -> list[views.Shown]:
        """Return the matching lines; a pattern that took too long is not tried again."""
        if not self.search:
            return shown
        if self.search == self._too_slow:
            return []
        try:
            return views.searched(shown, self.search)
        except TimeoutError:
            self._too_slow = self.search
            return []

    def _nothing(self, logs: Logs, stream: Stream) -> list[Line]:
        if self.search:
            text = f"No line holds {self.search!r}, as text or as a pattern; Esc clears it."
            if self.search == self._too_slow:
                text = f"The pattern {self.search!r} takes too long; Esc clears it."
            return [line((text, "dim"))]
        if stream.rank is None:
            return [line(("Every line of this file is told to be some rank's.", "dim"))]
        if stream.shared:
            return views.shared_lines(stream)
        lack = views.lack_lines(logs) if stream.unread else []
        return lack or [line(("It has printed nothing that was read.", "dim"))]

    def path(self) -> list[str]:
        """Return the stream."""
        stream = self.table.current
        if stream is None:
            return ["logs"]
        return ["logs", names([stream.rank]) if stream.rank is not None else "no rank's"]

    # Reading

    def _read(self, now: bool = False) -> None:
        """Ask for new lines, not too often."""
        state, job = self.state, self.state.job
        if job is None or not state.live or state.paused or state.files:
            return
        at = self.hangtop.real_now()
        if not now and self._asked[0] == job.key and at - self._asked[1] < READ_AGAIN_S:
            return
        self._asked = (job.key, at)
        self.hangtop.requests.logs(job, state.rank, quiet=not now)

    def do_read_logs(self) -> None:
        """Read new lines now."""
        self._read(now=True)

    # Keys

    def do_follow_log(self) -> None:
        """Keep the end in view, or stop doing so."""
        self.following = not self.following
        told = "following the log" if self.following else "the log stays; F follows"
        self.hangtop.tell(told)
        self._fill_output()

    def do_wrap_log(self) -> None:
        """Wrap long lines, or cut them."""
        self.wrapped = not self.wrapped
        self.hangtop.tell("long lines are wrapped" if self.wrapped else "long lines are cut")
        self._fill_output()

    def do_next_error(self) -> None:
        """Go to the next error below the first shown line."""
        self._jump(1)

    def do_previous_error(self) -> None:
        """Go to the previous error."""
        self._jump(-1)

    def _jump(self, step: int) -> None:
        if not self._errors:
            self.hangtop.tell("no error in what this stream has printed", "warn")
            return
        self.following = False
        self._fill_output()
        here = self.output.first_shown()
        after = [index for index in self._errors if (index - here) * step > 0]
        wanted = (after[0] if step > 0 else after[-1]) if after else None
        if wanted is None:
            wanted = self._errors[0] if step > 0 else self._errors[-1]
        self.output.show_line(wanted)

    def _move(self, step: str, amount: int) -> None:
        if self.active == "output" and amount < 0 and self.following:
            # Further lines must not scroll the view of a user who reads above.
            self.following = False
            self._fill_output()
        super()._move(step, amount)

    def set_filter(self, text: str) -> str | None:
        """Filter the streams, or search the lines, as the place of the filter line says."""
        if self.filter_pane == "output":
            self.search = self.filter_text = text.strip()
            self.following = not self.search
            self._fill_output()
            self.show_bars()
            return None
        wrong = super().set_filter(text)
        self.fill()
        return wrong

    def row_facts(self, item: Stream) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a stream, for the filter."""
        fields: dict[str, str | float | None] = {
            "rank": item.rank,
            "node": item.node,
            "state": views.said(item),
            "path": item.path,
            "last": item.last,
            "size": item.size,
        }
        return fields, frozenset([item.rank]) if item.rank is not None else frozenset()

    def on_line_table_moved(self, event: LineTable.Moved) -> None:
        """Show the stream under the cursor."""
        if event.table is not self.table:
            return
        self.table.chosen = True
        if find_rank(self.state.job, event.item.key) is not None:
            self.state.rank_key = self._came_with = event.item.key
        self.following = True
        self._fill_output()
        self.show_bars()

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Go to the rank on Enter."""
        rank = find_rank(self.state.job, event.item.key)
        if rank is None:
            self.hangtop.tell("this is no single rank's, and has no page", "warn")
            return
        self.state.rank_key = event.item.key
        self.hangtop.follow("rank")

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        """Go from an error to its place in its rank's lines on Enter."""
        logs, error = self.logs, event.item.target
        rank = error.rank if error is not None else None
        stream = next((s for s in logs.streams if s.rank == rank), None) if logs else None
        if logs is None or error is None or stream is None:
            self.hangtop.tell("no rank has printed this; y copies it", "warn")
            return
        self.table.select(stream.key)
        self.following = False
        self._fill_output()
        found = [n for n, one in enumerate(logs.lines(stream)) if plain(one.line) == error.begin]
        self.focus_pane("output")
        if found:
            self.output.show_line(found[0])
        else:
            self.hangtop.tell("a line of a launcher told this, not the rank")
