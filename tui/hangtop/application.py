"""The Textual app: modes, keys, and the path of an update to the screen."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

from textual.events import InputEvent

from hangtop.handlers.handlers import Handlers
from hangtop.screens.gpus import GpusPage
from hangtop.screens.logs import LogsPage
from hangtop.screens.nodes import NodesPage
from hangtop.screens.overview import OverviewPage
from hangtop.screens.rank import RankPage
from hangtop.screens.recorder import RecorderPage
from hangtop.screens.stacks import StacksPage
from hangtop.screens.turns import PAUSE_S
from hangtop.screens.verdict import VerdictPage
from hangtop.source.lookup import find_rank
from hangtop.terminal.spans import line
from hangtop_core.analysis.openers import openers_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import App
    from textual.events import Event
    from textual.screen import Screen
    from textual.timer import Timer

    from hangtop.source.messages import Answered, TraceLines, Updated
    from hangtop_core.model.snapshot import Job, Snapshot

TELL_SECONDS = 8.0
SETTLE_S = 0.3
"""Seconds after which an unchanged size of the terminal counts as settled."""
SWITCH_S = 0.0005
"""Seconds after which a working thread lets other threads run. A key takes a dozen turns, and with
Python's own 0.005 it took 80 ms and more while the recorders of 1,024 ranks were combined.
"""
KEYS_S = 2.0
"""Seconds after a key in which further keys are expected, and get their pauses."""
START_S = 10.0
"""Seconds after which the start counts as finished in any case."""


def _settled(snapshot: Snapshot) -> bool:
    """Return whether there are jobs, and their number is final.

    While nodes are still connecting, and launchers have no ranks, a job is seen only in part.
    """
    arriving = any(node.state == "connecting" for node in snapshot.nodes)
    return bool(snapshot.jobs) and not arriving and all(job.ranks for job in snapshot.jobs)


def _set_aside() -> None:
    """Enable the garbage collector, and exempt all present objects, which will stay.

    No key is handled meanwhile: a quarter of a second with a thousand connections.
    """
    gc.freeze()
    gc.enable()


class HangtopApp(Handlers):
    """Shows updates of a source and passes requests back to it."""

    CSS_PATH = "base.tcss"
    TITLE = "hangtop"
    ENABLE_COMMAND_PALETTE = False
    DEFAULT_MODE = "overview"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "overview": OverviewPage,
        "stacks": StacksPage,
        "rank": RankPage,
        "recorder": RecorderPage,
        "verdict": VerdictPage,
        "gpus": GpusPage,
        "logs": LogsPage,
        "nodes": NodesPage,
    }

    _shown_at = 0.0
    _keyed_at = 0.0
    """Monotonic time of the last key."""
    _asked_for_job = False
    _settling: Timer | None = None

    def on_load(self) -> None:
        """Start tasks lazily, as with Python 3.11.

        From Python 3.12 on textual 8.2 starts them eagerly: the first page's filter line then is
        mounted while there is no page yet, and fails.
        """
        asyncio.get_running_loop().set_task_factory(None)

    def on_mount(self) -> None:
        """Start listening."""
        self.bridge.start()
        self.app_resume_signal.subscribe(self, self._resumed)
        self.set_interval(1.0, self._tick)
        self.set_timer(START_S, _set_aside)
        if self.slurm is not None and self.slurm.jobs:
            self.call_after_refresh(self.list_jobs)
        sys.setswitchinterval(SWITCH_S)

    def on_resize(self) -> None:
        """Draw everything again once the size is stable: drawing in between may be lost."""
        if self._settling is not None:
            self._settling.stop()
            self._settling = self.set_timer(SETTLE_S, self._draw_again)
        else:  # the first size is that of the start
            self._settling = self.set_timer(SETTLE_S, lambda: None)

    def _draw_again(self) -> None:
        if self.screen_stack:  # not while leaving
            self.do_redraw()

    def on_unmount(self) -> None:
        """Stop listening."""
        self.bridge.stop()

    def _resumed(self, _: App[Any]) -> None:
        """Redraw after the shell: the terminal has kept nothing of the screen."""
        self.call_later(self.do_redraw)

    # Time

    def _tick(self) -> None:
        if self.told[0] and self.real_now() - self._told_at > TELL_SECONDS:
            self.tell("")
        if self.page is not None:
            self.page.tick()

    # Updates

    def on_updated(self, event: Updated) -> None:
        """Take a newer update; show it unless paused, or limited by the interval."""
        state = self.state
        update = self.bridge.taken()
        if update is None:
            return
        state.note(update)
        self._let_go()
        if state.paused and state.shown is not None:
            return
        now = self.real_now()
        judged = state.shown is not None and state.shown.snapshot is update.snapshot
        due = not 0 <= now - self._shown_at < state.interval - 0.5
        if state.shown is not None and not (judged or due):
            return
        self._shown_at = now
        state.take(update)
        self._show_picture()
        settled = state.judged and _settled(update.snapshot)
        if settled and not self._asked_for_job:
            self._asked_for_job = True
            _set_aside()
            self._first_job(update.snapshot.jobs)

    def _let_go(self) -> None:
        """Release old updates, between keys."""
        if self.state.history.let_go():
            self.soon(self._let_go)

    def soon(self, work: Callable[[], object]) -> None:
        """Do something soon, after waiting keys; at once while no keys are pressed.

        Not with a timer of Textual: a timer whose task starts after its due time never fires
        (textual 8.2 textual/timer.py, `skip`), and a few milliseconds pass quickly on a busy
        machine.
        """
        keyed = time.monotonic() - self._keyed_at < KEYS_S
        asyncio.get_running_loop().call_later(keyed * PAUSE_S, self.call_later, work)

    async def on_event(self, event: Event) -> None:
        """Record the time of a user's input, before it is handled."""
        if isinstance(event, InputEvent):
            self._keyed_at = time.monotonic()
        await super().on_event(event)

    def _first_job(self, jobs: Sequence[Job]) -> None:
        """Let the user choose when there are several jobs, or the requested one does not exist."""
        name = self.state.job_name
        if name is None:
            if len(jobs) > 1:
                self.list_jobs()
        elif not self.state.job_found:
            self.tell(f"no job goes by {name!r} yet; this is another one", "warn")
            self.list_jobs()

    def on_answered(self, event: Answered) -> None:
        """Report how a request ended."""
        self.requests.answered(event)
        self.core_answered(event)
        if event.kind == "holders" and event.error is None:
            self.read_holders(event)
        if event.kind == "sample" and (rank := find_rank(self.state.job, event.about)):
            # Its frames have changed: the cursor follows them.
            self.lead = rank.rank
        self.show()

    def read_holders(self, event: Answered) -> None:
        """Open the list of other processes that have a file open."""
        self.tell("")  # clears the message of the request
        key, _, fd = event.about.rpartition(" ")
        rank, snapshot = find_rank(self.state.job, key), self.state.snapshot
        if rank is not None and snapshot is not None:
            text = openers_text(snapshot, rank, int(fd), event.result)
            self.read("WHO HAS IT OPEN", [line(one) for one in text], rank.name)

    def on_calculated(self) -> None:
        """Show the result of a finished calculation."""
        self.show()

    def on_trace_lines(self, event: TraceLines) -> None:
        """Add lines to the running trace."""
        if self.state.trace is not None:
            self.state.trace.add(event.lines)
            if isinstance(self.page, RankPage):
                self.page.show_trace()

    def _show_picture(self) -> None:
        """Update the page from a newer snapshot, between keys."""
        if (page := self.page) is not None:
            page.turns.begin()
        self.renew_dialog()


class FilesApp(HangtopApp):
    """The app on dump files."""

    DEFAULT_MODE = "recorder"
