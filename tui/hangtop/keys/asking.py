"""Actions that send a request to a node, or open a shell there."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.app import SuspendNotSupported

from hangtop.keys import pauses
from hangtop.screens.dialogs import Confirm, Reader
from hangtop.terminal import pager
from hangtop.terminal.spans import Line, line
from hangtop.views.ranks.dumping import dump_lines
from hangtop.views.ranks.trace import COST, strace_command
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import plural
from hangtop_core.text.commands import spelt_or_why

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangtop.application import HangtopApp
    from hangtop.screens.page import Page
    from hangtop_core.model.snapshot import Job, Node


PORTS = (29500, 29511, 29522)
"""Ports to test with: torch's default, and others where the job's own store has that."""


def _port_beside(job: Job | None) -> int:
    """Return a port that the job's own store does not use."""
    taken = {rank.process.env.get("MASTER_PORT") for rank in (job.ranks if job else ())}
    return next((port for port in PORTS if str(port) not in taken), PORTS[-1])


class Asking:
    """Mixin of the app; one method for each action, `do_<id>`."""

    @property
    def _app(self) -> HangtopApp:
        return cast("HangtopApp", self)

    @property
    def _page(self) -> Page:
        return cast("Page", self._app.page)

    def do_sample(self) -> None:
        """Take stacks of the chosen or the marked ranks."""
        self._app.requests.sample(self._app.state.targets())

    def do_sample_all(self) -> None:
        """Take stacks of all ranks."""
        self._app.requests.sample(None)

    def do_read_recorders(self) -> None:
        """Read the flight recorders of all ranks again."""
        self._app.requests.recorders()

    def do_dump_recorders(self) -> None:
        """Let all ranks dump their flight recorders; ask once, or show why no rank can."""
        job = self._app.state.job
        can, lines = dump_lines(job.ranks if job is not None else ())
        if not can:
            self._app.push_screen(Reader("NO RANK CAN BE ASKED TO DUMP", lines))
            return
        self._once(
            "dump",
            "ASK ALL RANKS TO DUMP THEIR FLIGHT RECORDERS",
            lines,
            lambda: self._app.requests.recorders(trigger=True),
        )

    def do_native(self) -> None:
        """Take stacks with C frames; ask once."""
        targets = list(self._app.state.targets())
        pids = " ".join(str(rank.process.pid) for rank in targets)

        def run() -> None:
            self._app.state.cut = False
            self._app.requests.sample(targets, "native")

        lines = [
            line(("py-spy dump --native --pid ", "code"), (pids, "code")),
            line(
                f"It stops {'one rank after the other' if len(targets) > 1 else 'the rank'} "
                f"({pauses.NATIVE}), and checks afterwards that it runs again."
            ),
        ]
        self._once("native", "STACKS WITH C FRAMES", lines, run)

    def do_strace(self) -> None:
        """Trace the chosen rank; ask once."""
        rank = self._app.state.rank
        if rank is None:
            return
        stop = self._app.keymap.shown("stop")
        lines = [
            line((strace_command(rank.process.pid), "code")),
            line(f"For 10 s on {rank.node}{f'; {stop} stops it before' if stop else ''}. {COST}"),
            line("All lines are saved, a file for each thread; where is shown."),
        ]

        def run() -> None:
            self._app.requests.strace(rank, self._app.real_now())
            if "trace" in self._page.PANES and not self._page.pane("trace").display:
                self._page.focus_pane("trace")  # where only one pane fits
            self._app.show()

        self._once("strace", f"STRACE OF {rank.name.upper()}", lines, run)

    def _once(self, kind: str, title: str, lines: Sequence[Line], run: Callable[[], None]) -> None:
        """Ask for confirmation before the first action of a kind."""
        confirmed = self._app.state.confirmed
        if kind in confirmed:
            run()
            return

        def answered(yes: bool | None) -> None:
            if yes:
                confirmed.add(kind)
                run()
            else:
                self._app.tell("not run")

        self._app.push_screen(Confirm(title, lines), answered)

    def do_stop(self) -> None:
        """Stop the trace."""
        self._app.requests.stop_trace()

    def do_refresh(self) -> None:
        """Show the newest snapshot and reconnect to lost nodes."""
        state = self._app.state
        lost = self._app.requests.retry()
        if not state.paused:
            state.take(state.newest)
        self._app.tell(
            f"connecting to {nodesets.fold(lost)} again…" if lost else "refreshed; no node is lost"
        )
        self._app.show()

    def do_retry_all(self) -> None:
        """Reconnect to every node that does not respond."""
        self.retry_nodes(None)

    def retry_nodes(self, nodes: Sequence[Node] | None) -> None:
        """Reconnect to nodes, or to all, that do not respond."""
        lost = nodesets.fold(self._app.requests.retry(nodes))
        self._app.tell(f"connecting to {lost} again…" if lost else "nothing to try again", "info")

    def do_nettest(self) -> None:
        """Give the terminal to a test of the network between all nodes; ask every time."""
        if not self._app.nettest:
            self._app.tell("hangtop was not started on nodes that could be tested", "warn")
            return
        command = [*self._app.nettest, f"--port={_port_beside(self._app.state.job)}"]
        snapshot = self._app.state.snapshot
        nodes = len(snapshot.nodes) if snapshot is not None else 0
        lines = [
            line((spelt_or_why(command[2:]), "code")),
            line(
                f"Opens two ports on {plural(nodes, 'node')} for some seconds, and starts a small "
                "job of torch there, beside yours. Ctrl-C ends it, and leaves nothing on any node."
            ),
        ]

        def answered(yes: bool | None) -> None:
            if not yes:
                self._app.tell("not run")
                return
            ended = self._app.source.note_command("all nodes", spelt_or_why(command[2:]))
            wrong = self._outside(lambda: pager.report(command, "tests the network"))
            ended(wrong or "done")

        self._app.push_screen(Confirm("TEST THE NETWORK BETWEEN THE NODES", lines), answered)

    def do_shell(self) -> None:
        """Give the terminal to the user's shell on a node, until it exits."""
        node = self._app.state.node_on(self._page.NAME)
        if node is None:
            return
        command = self._app.source.shell(node.name)
        if command is None:
            self._app.tell(f"hangtop knows no command for a shell on {node.name}", "warn")
            return
        ended = self._app.source.note_command(node.name, spelt_or_why(command))
        where = f"your shell on {node.name}"
        if self._app.state.readonly:
            where += "; --readonly binds hangtop, not you"
        wrong = self._outside(lambda: pager.shell(command, where))
        ended(wrong or "done")

    def _outside(self, run: Callable[[], str | None]) -> str | None:
        """Give the terminal to another program for a while."""
        try:
            with self._app.suspend():
                wrong = run()
        except SuspendNotSupported:
            wrong = "this terminal cannot be given to another program"
        self._app.refresh(layout=True)
        if wrong is not None:
            self._app.tell(wrong, "warn")
        return wrong
