"""The Textual app: modes, keys, and the path of an update to the screen."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App
from textual.events import InputEvent

from hangtop.keys.actions import key_name, page_names
from hangtop.keys.handlers import Handlers
from hangtop.keys.keymap import Keymap
from hangtop.keys.possible import needs_live
from hangtop.screens.dialogs import Dialog
from hangtop.screens.gpus import GpusPage
from hangtop.screens.logs import LogsPage
from hangtop.screens.nodes import NodesPage
from hangtop.screens.overview import OverviewPage
from hangtop.screens.page import Page
from hangtop.screens.rank import RankPage
from hangtop.screens.recorder import RecorderPage
from hangtop.screens.stacks import StacksPage
from hangtop.screens.turns import PAUSE_S
from hangtop.screens.verdict import VerdictPage
from hangtop.source.bridge import Bridge
from hangtop.source.dump_files import NOTHING_RUNS, SCREENS
from hangtop.source.messages import Calculated
from hangtop.source.recordings import Recordings
from hangtop.source.requests import Requests
from hangtop.source.state import State
from hangtop.terminal.spans import line
from hangtop.terminal.stylesheet import KeptStylesheet
from hangtop.terminal.terminal import Terminal
from hangtop.views.common import find_rank
from hangtop_core.analysis.openers import openers_text
from hangtop_core.state.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.events import Event
    from textual.screen import Screen
    from textual.timer import Timer

    from hangtop.source.messages import Answered, TraceLines, Updated
    from hangtop.source.programs import Programs
    from hangtop.source.slurm_jobs import SlurmJobs
    from hangtop.source.source import Source
    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.capture import Capture
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


class HangtopApp(Handlers, App[None], inherit_bindings=False):
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

    def __init__(
        self,
        source: Source,
        *,
        ascii: bool = False,  # noqa: A002 - as on the command line
        mouse: bool = False,
        readonly: bool = False,
        live: bool = True,
        files: Picture | None = None,
        capture: Capture | None = None,
        keymap: Keymap | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create it; with `files` for dump files, with `capture` for a capture, both not `live`."""
        super().__init__(ansi_color=True, driver_class=Terminal)
        self.stylesheet = KeptStylesheet(variables=self.get_css_variables())
        self.theme = "ansi-dark"
        self.keymap = keymap or Keymap()
        for key in self.keymap.all_keys():
            self.bind(key, f"press({key!r})", show=False)
        self.ascii = ascii
        self.mouse_on = mouse
        self.state = State(
            readonly=readonly, live=live, files=files is not None, keys=self.keymap.names()
        )
        if capture is not None:
            self.state.history = History(capture.pictures)
            self.state.taken = capture.header
            self.state.incomplete = capture.cut is not None
        self.source = source
        self.real_now = clock
        self.nettest: tuple[str, ...] = ()
        """The command that tests the network between the nodes; empty where none is known."""
        self.slurm: SlurmJobs | None = None
        """This user's jobs, where Slurm is on this machine."""
        self.programs: Programs | None = None
        """Where the program is recorded that is to be opened next."""
        self.told: tuple[str, str] = ("", "")
        self.trail: list[str] = []
        """Pages that led to this one, which Esc goes back through."""
        self.lead: int | None = None
        """The rank that the next page is opened for."""
        self.lead_pane: str | None = None
        """The pane that the next page is opened on."""
        self._told_at = 0.0
        self._shown_at = 0.0
        self._keyed_at = 0.0
        """Monotonic time of the last key."""
        self._asked_for_job = False
        self._settling: Timer | None = None
        self.bridge = Bridge(source, self.post_message)
        self.recordings = Recordings(lambda: self.post_message(Calculated()), files)
        self.requests = Requests(source, self.bridge, self.state, self.tell)

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

    def open_program(self, pid: int) -> None:
        """Leave, so that the app is opened on a Python program that is not a rank."""
        if self.programs is None:
            self.tell("programs can be opened while they are observed", "warn")
            return
        self.programs.chosen = pid
        self.exit()

    # Time

    def now(self) -> float:
        """Return the time ages are counted from: that of the snapshot, while paused or recorded."""
        if self.state.snapshot is not None and (self.state.paused or not self.state.live):
            return self.state.snapshot.at
        return self.real_now()

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

    @property
    def page(self) -> Page | None:
        """Return the page, also while a dialog is open over it."""
        return next((one for one in reversed(self.screen_stack) if isinstance(one, Page)), None)

    def show(self) -> None:
        """Update the page, and a dialog over it."""
        if (page := self.page) is None:
            return  # not yet, or not any more
        page.show()
        if isinstance(self.screen, Dialog):
            self.screen.renew()

    def _show_picture(self) -> None:
        """Update the page from a newer snapshot, between keys."""
        if (page := self.page) is not None:
            page.turns.begin()
        if isinstance(self.screen, Dialog):
            self.screen.renew()

    def tell(self, text: str, role: str = "") -> None:
        """Show one line for some seconds."""
        self.told = (text, role)
        self._told_at = self.real_now()
        if self.is_running and self.page is not None:
            self.page.show_bars()

    def go(self, name: str, rank: int | None = None, pane: str | None = None) -> None:
        """Show another page; Stacks puts its cursor on a rank's frame, Recorder on its group.

        With ``pane``, if the page has it, the cursor is there.
        """
        if self.recordings.from_files and name not in SCREENS:
            self.tell(NOTHING_RUNS, "warn")
            return
        self.trail.clear()
        self.lead = rank
        self.lead_pane = pane
        if self.current_mode != name:
            self.switch_mode(name)

    def follow(self, name: str, rank: int | None = None, pane: str | None = None) -> None:
        """Show another page that something on this one leads to; Esc comes back here."""
        trail = [*self.trail, self.current_mode]
        self.go(name, rank, pane)
        if self.current_mode == name != trail[-1]:
            self.trail = trail

    # Keys

    def action_press(self, key: str) -> None:
        """Do the action of a key on this page, or show why not."""
        page = self.screen
        if not isinstance(page, Page) or not page.is_mounted:
            return
        if self.told[0]:
            self.tell("")  # the message was about the key before
        action = self.keymap.find(key, page.NAME)
        if action is not None:
            self.perform(action.id)
            return
        other = self.keymap.elsewhere(key)
        if other is not None:
            where = f"{key_name(key)} works on {page_names(other.screens, 2)}: {other.help}"
            never = needs_live(self.state.situation(page.NAME)) if other.live else None
            self.tell(never or where, "dim")

    def perform(self, name: str) -> None:
        """Do an action, or show why it is not possible."""
        page = self.screen
        if not isinstance(page, Page):
            return
        reason = self.reason(name, page.NAME)
        if reason is not None:
            self.tell(reason, "warn")
            return
        handler = getattr(page, f"do_{name}", None) or getattr(self, f"do_{name}")
        handler()


class FilesApp(HangtopApp):
    """The app on dump files."""

    DEFAULT_MODE = "recorder"
