"""The app as pages, dialogs and handlers know it: what it holds, and what they ask of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from textual.app import App

from hangtop.keys.keymap import Keymap
from hangtop.source.bridge import Bridge
from hangtop.source.dump_files import NOTHING_RUNS, SCREENS
from hangtop.source.messages import Calculated
from hangtop.source.recordings import Recordings
from hangtop.source.requests import Requests
from hangtop.source.state import State
from hangtop.terminal.stylesheet import KeptStylesheet
from hangtop.terminal.terminal import Terminal
from hangtop_core.state.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.screen import Screen

    from hangtop.source.programs import Programs
    from hangtop.source.slurm_jobs import SlurmJobs
    from hangtop.source.source import Source
    from hangtop.terminal.spans import Line
    from hangtop.widgets.line_pane import LinePane
    from hangtop_core.analysis.flight.picture import Picture
    from hangtop_core.capture import Capture
    from hangtop_core.model.snapshot import Node


class BaseApp(App[None], inherit_bindings=False):
    """What is shared; a class above does what needs to know the pages."""

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
        self.bridge = Bridge(source, self.post_message)
        self.recordings = Recordings(lambda: self.post_message(Calculated()), files)
        self.requests = Requests(source, self.bridge, self.state, self.tell)

    def now(self) -> float:
        """Return the time ages are counted from: that of the snapshot, while paused or recorded."""
        if self.state.snapshot is not None and (self.state.paused or not self.state.live):
            return self.state.snapshot.at
        return self.real_now()

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

    def open_program(self, pid: int) -> None:
        """Leave, so that the app is opened on a Python program that is not a rank."""
        if self.programs is None:
            self.tell("programs can be opened while they are observed", "warn")
            return
        self.programs.chosen = pid
        self.exit()

    # What the classes above do

    def soon(self, work: Callable[[], object]) -> None:
        """Do something in a moment, after keys that wait."""
        raise NotImplementedError

    def tell(self, text: str, role: str = "") -> None:
        """Show one line for some seconds."""
        raise NotImplementedError

    def perform(self, name: str) -> None:
        """Do an action, or say why it is not possible."""
        raise NotImplementedError

    def read(self, title: str, lines: Sequence[Line], note: str = "") -> None:
        """Open a text."""
        raise NotImplementedError

    def show_node(self, name: str) -> None:
        """Show the ranks of one node, on Overview."""
        raise NotImplementedError

    def retry_nodes(self, nodes: Sequence[Node] | None) -> None:
        """Connect to nodes again, or to all, that do not answer."""
        raise NotImplementedError

    def copy_text(self, text: str, pane: LinePane | None = None, *, read: bool = False) -> None:
        """Copy a text in the characters that a screen shows."""
        raise NotImplementedError

    def page_text(self, text: str) -> None:
        """Show a text in the pager."""
        raise NotImplementedError


def app_of(screen: Screen[Any]) -> BaseApp:
    """Return the app that shows a screen."""
    return cast("BaseApp", screen.app)
