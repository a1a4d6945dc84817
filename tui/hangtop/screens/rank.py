"""Screen 3: one rank with everything that is known about it, and a trace on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal

from hangtop.screens.page import Page
from hangtop.source.state import TRACE_FORMS
from hangtop.terminal.spans import labelled, line, plain
from hangtop.views.common import STATE_LETTERS, main_frames, rank_key
from hangtop.views.ranks import files
from hangtop.views.ranks import rank as views
from hangtop.views.ranks.numerics import has_numerics, numerics_lines, numerics_title
from hangtop.views.ranks.trace import trace_lines, trace_title
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from hangtop_core.analysis.ends import ends
from hangtop_core.model.frames import site

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from hangtop.keys import query
    from hangtop_core.model.snapshot import Rank

MAYBE = ("children", "numerics")
"""Panes that exist only when they have something to show."""
ROWS = {"files": "OPEN FILE", "threads": "THREAD", "children": "CHILD"}
"""The name of a row of each table."""
NOT_TAKEN = "nobody had asked for them when this picture was taken"
READ_AGAIN_S = 30.0
"""Seconds after which descriptors are read again, while the screen is open."""


class RankPage(Page):
    """Stack, process, files, threads, children, numerics, trace."""

    CSS_PATH = "rank.tcss"
    NAME = "rank"
    PANES = ("stack", "process", "files", "threads", "children", "numerics", "trace")
    FILTERED = ("files", "threads", "children")
    FIELDS: ClassVar[frozenset[str]] = frozenset({"fd", "kind", "target", "name", "state", "wchan"})

    def __init__(self) -> None:
        super().__init__()
        self._followed = ""
        """The rank whose sockets were followed to other nodes."""
        self._asked: tuple[str, float] = ("", 0.0)
        self._trace_ended: str | None = None
        self.following = True
        """Whether the end of a trace is kept in view."""

    def compose_body(self) -> Iterable[Widget]:
        """Yield the panes."""
        with Horizontal(id="upper"):
            yield TextPane("STACK", pane_id="stack", indent=4)
            yield TextPane("PROCESS", pane_id="process")
        with Horizontal(id="middle"):
            yield LineTable[files.FileRow](
                "OPEN FILES", pane_id="files", columns=files.FILE_COLUMNS
            )
            yield LineTable[views.ThreadRow](
                "THREADS", pane_id="threads", columns=views.THREAD_COLUMNS
            )
        with Horizontal(id="lower"):
            yield LineTable[views.ChildRow](
                "CHILDREN", pane_id="children", columns=views.CHILD_COLUMNS
            )
            yield TextPane("NUMERICS", pane_id="numerics", indent=4)
            yield TextPane("STRACE", pane_id="trace")

    def wanted(self, name: str) -> bool:
        """Return whether a pane has content; the pane of children gives way to a trace."""
        rank, trace = self.state.rank, self.state.trace
        if name == "numerics":
            return has_numerics(rank)
        if name != "children" or rank is None:
            return name != "children"
        return bool(rank.children) and not (trace and trace.rank_key == rank_key(rank))

    def do_filter(self) -> None:
        """Open the filter line, where there are rows."""
        if self.active in self.FILTERED:
            super().do_filter()
            return
        self.hangtop.tell("this pane has no rows to filter; Tab leads to others", "warn")

    def text(self, name: str) -> TextPane:
        """Return a text pane by id."""
        return self.query_one(f"#{name}", TextPane)

    def table(self, name: str) -> LineTable[Any]:
        """Return a table by id."""
        return self.query_one(f"#{name}", LineTable)

    def fill(self) -> None:
        """Fill the panes."""
        state, now = self.state, self.hangtop.now()
        rank, snapshot = state.rank, state.snapshot
        if rank is None or snapshot is None:
            self._nothing()
            return
        state.rank_key = rank_key(rank)
        if any(self.pane(name).display != self._room_for(name) for name in MAYBE):
            self.lay_out()
        self.text("stack").retitle(*views.stack_title(snapshot, rank, now))
        self.text("stack").set_lines(
            views.stack_lines(snapshot, rank.sample, all_threads=state.all_threads, cut=state.cut)
        )
        self.text("process").retitle(
            line(("PROCESS  ", "title"), str(rank.process.pid)), line(rank.node)
        )
        self.text("process").set_lines(views.process_lines(snapshot, rank, now))
        self._fill_tables(rank, now)
        self._fill_numerics(rank)
        self.show_trace()
        self._ask_files(rank)

    def _room_for(self, name: str) -> bool:
        alone = self.narrow or self.zoomed
        return self.wanted(name) and (not alone or self.active == name)

    def _fill_tables(self, rank: Rank, now: float) -> None:
        snapshot = self.state.snapshot
        table = self.table("files")
        why = self.state.unread.get(rank_key(rank), "" if self.state.live else NOT_TAKEN)
        table.retitle(*files.files_title(rank, now, why))
        asking = self._asked[0] == rank_key(rank)
        table.set_items(files.file_rows(rank, snapshot), files.files_empty(rank, asking, why))
        threads = views.thread_rows(rank)
        self.table("threads").retitle(line(("THREADS  ", "title"), str(len(threads))))
        gone = rank.process.denied or "No thread is seen: the process is gone or not readable."
        self.table("threads").set_items(threads, [line((gone, "dim"))])
        if snapshot is not None:
            children = views.child_rows(snapshot, rank)
            self.table("children").retitle(line(("CHILDREN  ", "title"), str(len(children))))
            self.table("children").set_items(children)

    def _fill_numerics(self, rank: Rank) -> None:
        told = rank.numerics
        found = has_numerics(rank) and told is not None and told.first is not None
        self.query_one("#lower").set_class(found, "-found")
        pane = self.text("numerics")
        pane.retitle(*numerics_title(rank))
        pane.set_lines(numerics_lines(rank, self.state.job))

    def _nothing(self) -> None:
        for name in ("stack", "process", "numerics", "trace"):
            self.text(name).set_lines([])
        for name in ("files", "threads", "children"):
            self.table(name).set_items([])
        self.text("stack").retitle(line(("STACK", "title")))
        self.text("stack").set_lines([line(("No rank to show: 1 says what was found.", "dim"))])

    def show_trace(self) -> None:
        """Show the trace of this rank, or how to start one."""
        if not self.is_mounted:
            return  # lines may arrive before the page is shown, and after it is closed
        trace = self.state.trace
        mine = trace if trace and trace.rank_key == self.state.rank_key else None
        pane = self.text("trace")
        ended = mine.ended if mine else None
        # The last lines name the file of the whole trace; the view of folded calls begins with it.
        last = mine is not None and ended != self._trace_ended
        flows = mine is not None and self.state.trace_form == "lines"
        pane.follow = flows and (last or (ended is None and self.following))
        self._trace_ended = ended
        self.query_one("#lower").set_class(mine is not None, "-traced")
        situation, form = self.state.situation(self.NAME), self.state.trace_form
        snapshot, rank = self.state.snapshot, self.state.rank
        names = ends(snapshot, rank) if mine and snapshot and rank else {}
        pane.retitle(*trace_title(mine, self.hangtop.real_now(), form))
        pane.set_lines(trace_lines(mine, rank, situation, form, names))

    def tick(self) -> None:
        """Update the countdown of a running trace."""
        super().tick()
        if self.state.tracing:
            self.show_trace()

    def _ask_files(self, rank: Rank) -> None:
        """Read descriptors of the shown rank, at once and then regularly."""
        if not self.state.live or self.state.paused or rank.ended:
            return
        key, now = rank_key(rank), self.hangtop.real_now()
        snapshot = self.state.snapshot
        if snapshot is not None and rank.descriptors is not None and self._followed != key:
            # Its own table shows which other ranks to ask.
            self._followed = key
            self.hangtop.requests.peers(snapshot, rank)
        if self._asked[0] == key and now - self._asked[1] < READ_AGAIN_S:
            return
        self._asked = (key, now)
        self.hangtop.requests.descriptors(rank, quiet=True)

    def path(self) -> list[str]:
        """Return node and rank."""
        rank = self.state.rank
        return [rank.node, rank.name] if rank else ["rank"]

    def do_next_rank(self) -> None:
        """Go to the next rank of the job."""
        self._step_rank(1)

    def do_previous_rank(self) -> None:
        """Go to the previous rank of the job."""
        self._step_rank(-1)

    def _step_rank(self, step: int) -> None:
        job, rank = self.state.job, self.state.rank
        if job is None or rank is None:
            return
        keys = [rank_key(one) for one in job.members]
        place = keys.index(rank_key(rank)) + step
        if not 0 <= place < len(keys):
            self.hangtop.tell("that was the last rank" if step > 0 else "this is the first rank")
            return
        self.state.rank_key = keys[place]
        for name in self.PANES:
            self.pane(name).top = 0
        self.show()

    def do_cut(self) -> None:
        """Show or hide library frames."""
        self.state.cut = not self.state.cut
        self.show()

    def do_threads(self) -> None:
        """Show all threads, or the main thread."""
        self.state.all_threads = not self.state.all_threads
        self.focus_pane("stack")
        rank = self.state.rank
        if rank is not None and rank.sample is not None and len(rank.sample.threads) == 1:
            self.hangtop.tell("no thread but the main one runs Python; THREADS shows the others")
        else:
            self.hangtop.tell("all threads" if self.state.all_threads else "the main thread only")

    def do_follow(self) -> None:
        """Keep the end of the trace in view, or stop doing so."""
        self.following = not self.following
        self.focus_pane("trace")
        if self.following:
            self.pane("trace").move_end(1)
        self.hangtop.tell("following the trace" if self.following else "the trace stays; F follows")

    def do_trace_form(self) -> None:
        """Show calls folded by thread, those of the network or of files, or the lines."""
        place = TRACE_FORMS.index(self.state.trace_form)
        self.state.trace_form = TRACE_FORMS[(place + 1) % len(TRACE_FORMS)]
        self.pane("trace").top = 0  # positions differ between lines and calls
        self.focus_pane("trace")

    def do_holders(self) -> None:
        """Ask which other processes have the file under the cursor open."""
        rank, row = self.state.rank, self.table("files").current
        if self.active != "files" or rank is None or row is None or row.item.fd < 0:
            self.hangtop.tell("choose an open file first: Tab leads to OPEN FILES")
            return
        self.hangtop.requests.holders(rank, row.item.fd)
        self.hangtop.tell(f"asking who else has fd {row.item.fd}…")

    def do_descriptors(self) -> None:
        """Read all descriptors again, and show them on the whole screen."""
        rank = self.state.rank
        if rank is not None and self.state.live:
            self._asked = (rank_key(rank), self.hangtop.real_now())
            self.hangtop.requests.descriptors(rank, quiet=False)
        if not (self.zoomed and self.active == "files"):
            self.zoomed = True
            self.focus_pane("files")

    def on_line_table_opened(self, event: LineTable.Opened) -> None:
        """Show all of a thread, file or child on Enter."""
        cells = ((column.title, column.cell(event.item)) for column in event.table.columns)
        lines = [labelled(title, cell, 10) for title, cell in cells if title and plain(cell)]
        whose = self.state.rank.name if self.state.rank else ""
        self.hangtop.read(ROWS[event.table.id or ""], lines, whose)

    def row_facts(self, item: Any) -> tuple[query.Fields, frozenset[int]]:
        """Return the fields of a descriptor, thread or child."""
        fields: dict[str, str | float | None] = {}
        if isinstance(item, files.FileRow):
            fields = {"fd": float(item.item.fd), "kind": item.item.kind, "target": item.item.target}
        elif isinstance(item, views.ThreadRow):
            fields = {
                "name": item.thread.name,
                "state": STATE_LETTERS.get(item.thread.state, item.thread.state),
                "wchan": item.thread.wchan,
                "target": item.target,
                "fd": None if item.thread.fd is None else float(item.thread.fd),
            }
        elif isinstance(item, views.ChildRow):
            state = item.process.state
            fields = {"name": item.process.label, "state": STATE_LETTERS.get(state, state)}
        return fields, frozenset()

    def editor_place(self) -> tuple[str, int] | None:
        """Return the user's innermost frame."""
        snapshot, rank = self.state.snapshot, self.state.rank
        if snapshot is None or rank is None:
            return None
        frame = site(main_frames(snapshot, rank.sample))
        return (frame.file, frame.line) if frame else None
