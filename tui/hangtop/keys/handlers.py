"""Actions that belong to no single page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hangtop.keys import palette
from hangtop.keys.actions import page_names
from hangtop.keys.stopping import Stopping
from hangtop.screens.dialogs import Choice, Palette, Reader
from hangtop.terminal import clipboard, pager
from hangtop.terminal.spans import Line, line, plain_lines, twin
from hangtop.terminal.terminal import has_shell
from hangtop.views import texts
from hangtop.views.common import node_of, rank_key
from hangtop.views.jobs import job_items
from hangtop.views.ranks import diff
from hangtop_core.text.clean import plural
from hangtop_core.text.rank_sets import is_key, rank_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop.keys.items import Item
    from hangtop.widgets.line_pane import LinePane


class Handlers(Stopping):
    """Mixin of the app; one method for each action, `do_<id>`."""

    def reason(self, name: str, screen: str) -> str | None:
        """Return why an action is not possible on a screen now."""
        return self._app.keymap.by_id[name].possible(self._app.state.situation(screen))

    # Go

    def do_overview(self) -> None:
        """Show screen 1."""
        self._app.go("overview")

    def do_stacks(self) -> None:
        """Show screen 2."""
        self._app.go("stacks")

    def do_rank(self) -> None:
        """Show screen 3."""
        self._app.go("rank")

    def do_recorder(self) -> None:
        """Show screen 4."""
        self._app.go("recorder")

    def do_verdict(self) -> None:
        """Show screen 5."""
        self._app.go("verdict")

    def do_gpus(self) -> None:
        """Show screen 6."""
        self._app.go("gpus")

    def do_logs(self) -> None:
        """Show screen 8."""
        self._app.go("logs")

    def do_nodes(self) -> None:
        """Show screen 9, with the cursor on the current node."""
        node = self._app.state.node_on(self._page.NAME)
        if node is not None:
            self._app.state.node_name = node.name
        self._app.go("nodes")

    def do_jobs(self) -> None:
        """Choose a job; with Slurm, also one of Slurm's jobs."""
        if self._app.slurm is None:
            self.list_jobs()
            return
        self._app.tell("asking Slurm ...")
        self._app.run_worker(self._ask_slurm, thread=True, exclusive=True, group="slurm")

    def _ask_slurm(self) -> None:
        if self._app.slurm is not None:
            self._app.call_from_thread(self._slurm_answered, self._app.slurm.ask())

    def _slurm_answered(self, nothing: str) -> None:
        self._app.tell(nothing, "warn")
        snapshot = self._app.state.snapshot
        if not nothing or (snapshot is not None and len(snapshot.jobs) > 1):
            self.list_jobs()

    def list_jobs(self) -> None:
        """Open the list of the jobs that are known."""
        state, slurm = self._app.state, self._app.slurm

        def items() -> list[Item]:
            shown = state.shown
            here = job_items(shown.snapshot, shown.diagnoses) if shown else []
            return [*here, *(slurm.items() if slurm else ())]

        title = "JOBS ON THESE NODES, AND YOURS IN SLURM" if slurm else "JOBS ON THESE NODES"
        if items():
            self._app.push_screen(Choice(title, items, state.job_key), self._job_chosen)

    def _job_chosen(self, key: str | None) -> None:
        state, slurm = self._app.state, self._app.slurm
        if key is not None and slurm is not None and slurm.take(key):
            self._app.exit()
        elif key is not None:
            state.job_key, state.last_job, state.job_found = key, None, True
            state.rank_key, state.marks = None, frozenset()
            state.settle_on_job()
            self._app.show()

    def do_palette(self) -> None:
        """Open the `:` line."""
        state, page = self._app.state, self._page
        now, actions = state.situation(page.NAME), self._app.keymap.actions
        self._app.push_screen(
            Palette(lambda text: palette.suggest(text, state.job, state.snapshot, now, actions)),
            self._entered,
        )

    def _entered(self, text: str | None) -> None:
        if not text:
            return
        command = palette.parse(text, self._app.keymap.by_id)
        if command.kind == "action":
            self._app.perform(command.value)
        elif command.kind == "rank":
            self._go_rank(int(command.value))
        elif command.kind == "node":
            self._go_node(command.value)
        elif command.kind == "interval":
            self._interval(command.value)
        else:
            self._app.tell(f"{text!r} is no rank, node, screen or action", "warn")

    def _go_rank(self, number: int) -> None:
        job = self._app.state.job
        for rank in job.members if job else ():
            if number in (rank.rank, rank.process.pid if is_key(rank.rank) else None):
                self._app.state.rank_key = rank_key(rank)
                self._app.go("rank")
                self._app.show()
                return
        self._app.tell(f"{rank_name(number)} is not there", "warn")

    def _go_node(self, name: str) -> None:
        """Go to a node: to its ranks if it has any, else to Nodes."""
        job, snapshot = self._app.state.job, self._app.state.snapshot
        if job is not None and any(rank.node == name for rank in job.ranks):
            self.show_node(name)
        elif snapshot is not None and node_of(snapshot, name) is not None:
            self._app.state.node_name = name
            self._app.go("nodes")
        else:
            self._app.tell(f"there is no node {name!r}", "warn")

    def show_node(self, name: str) -> None:
        """Show the ranks of one node, on Overview."""
        self._app.go("overview")
        self._app.call_later(self._filter_node, name)

    def _filter_node(self, name: str) -> None:
        self._page.focus_pane("ranks")
        self._page.set_filter(f"node={name}")

    def _interval(self, text: str) -> None:
        if not self._app.state.live:
            self._app.tell("nothing moves here: there is no interval between pictures", "warn")
            return
        try:
            seconds = float(text.rstrip("s"))
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= 3600:
            self._app.tell(f"interval needs seconds between 0 and 3600, not {text!r}", "warn")
            return
        self._app.state.interval = seconds
        self._app.tell(f"a picture every {seconds:g} s; collection goes on every second", "good")

    # Arrange

    def do_pause(self) -> None:
        """Pause the screen, or follow live again."""
        state = self._app.state
        state.paused = not state.paused
        if not state.paused:
            state.take(state.newest)
        self._app.tell("held still; p goes on" if state.paused else "live again")
        self._app.show()

    def do_step_back(self) -> None:
        """Show the previous snapshot."""
        self._step(-1)

    def do_step_forward(self) -> None:
        """Show the next snapshot, or follow live."""
        self._step(1)

    def _step(self, count: int) -> None:
        state = self._app.state
        if not state.step(count):
            self._app.tell("this is the oldest picture that is kept", "warn")
            return
        self._stepped()

    def do_oldest(self) -> None:
        """Show the oldest kept snapshot."""
        self._app.state.step_to_end(-1)
        self._stepped()

    def do_newest(self) -> None:
        """Show the newest snapshot; follow live again, where there is a job."""
        self._app.state.step_to_end(1)
        self._stepped()

    def _stepped(self) -> None:
        state = self._app.state
        if not state.live:
            self._app.show()
            return
        kept = plural(len(state.history), "picture")
        text = f"held still, {kept} kept; [ ] step, p is live again"
        self._app.tell(text if state.paused else "live again")
        self._app.show()

    # Look

    def do_diff(self) -> None:
        """Show two stacks side by side."""
        state = self._app.state
        if state.snapshot is None or state.job is None or state.rank is None:
            return
        marked = [rank for rank in state.job.members if rank_key(rank) in state.marks]
        title, lines = diff.difference(
            state.snapshot, state.job, state.rank, marked,
            cut=state.cut, width=self._app.size.width - 4, now=self._app.now(),
        )  # fmt: skip
        self._app.push_screen(Reader("DIFF", lines, title, wide=True))

    def do_environment(self) -> None:
        """Show environment and command line."""
        rank = self._app.state.rank
        if rank is not None:
            self.read("ENVIRONMENT", texts.environment_lines(rank), rank.name)

    def do_information(self) -> None:
        """Show everything about a rank."""
        state = self._app.state
        if state.snapshot is not None and state.job is not None and state.rank is not None:
            lines = texts.rank_text(
                state.snapshot, state.job, state.diagnosis, state.rank, self._app.now()
            )
            self.read("EVERYTHING KNOWN", lines, state.rank.name)

    def do_help(self) -> None:
        """Show all keys."""
        page = self._page
        now = self._app.state.situation(page.NAME)
        self.read("KEYS", texts.help_lines(now, self._app.keymap.actions), page_names([page.NAME]))

    def do_commands(self) -> None:
        """Show the commands that ran on nodes."""
        lines = texts.command_lines(self._app.source.commands)
        self.read("COMMANDS", lines, "everything beyond reading /proc, newest first")

    def read(self, title: str, lines: Sequence[Line], note: str = "") -> None:
        """Open a text."""
        self._app.push_screen(Reader(title, lines, note))

    # Keep

    def do_copy(self) -> None:
        """Copy the line."""
        pane = self._page.active_pane
        if pane is not None:
            self.copy_text(pane.current_text(), pane)

    def do_copy_all(self) -> None:
        """Copy the pane."""
        pane = self._page.active_pane
        if pane is not None:
            self.copy_text(plain_lines(pane.text_lines()), pane)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy the selection of an input line: replaces Textual's own way."""
        self._app._clipboard = text  # Textual pastes from here
        self.copy_text(text, read=True)

    def copy_text(self, text: str, pane: LinePane | None = None, *, read: bool = False) -> None:
        """Copy a text in the characters on the screen, and show it where no pane does.

        The pane may hold all of it; with ``read`` all of it can be scrolled to.
        """
        lines = [twin(line(one), flat=self._app.ascii) for one in text.split("\n")]
        text = plain_lines(lines)
        self._to_clipboard(text)
        if not read and not (pane is not None and pane.shows(text)):
            count = plural(len(lines), "line")
            self.read("COPIED", lines, f"{count}, which the screen did not show whole")

    def _to_clipboard(self, text: str) -> None:
        """Copy on a thread: tmux may be slow."""
        lines = text.count("\n") + 1
        driver: Any = self._app._driver

        def work() -> None:
            places = clipboard.copy(
                text, lambda data: self._app.call_from_thread(driver.write, data)
            )
            told = f"copied {plural(lines, 'line')}: {places}"
            self._app.call_from_thread(self._app.tell, told, "good")

        self._app.run_worker(work, thread=True, exclusive=True, group="copy")

    def do_capture(self) -> None:
        """Write everything that is known, and the history, to a file, on a thread."""
        from hangtop.source.keep import capture  # imported late to keep the start fast

        capture(self._app)

    def do_pager(self) -> None:
        """Show the pane in the pager."""
        pane = self._page.active_pane
        if pane is not None:
            self.page_text(plain_lines(pane.text_lines()))

    def page_text(self, text: str) -> None:
        """Suspend the app and show a text in the pager."""
        self._outside(lambda: pager.page(text))

    def do_editor(self) -> None:
        """Suspend the app and open the editor at a frame."""
        place = self._page.editor_place()
        if place is None:
            self._app.tell("there is no frame with a file under the cursor", "warn")
            return
        self._outside(lambda: pager.edit(*place))

    # App

    def do_redraw(self) -> None:
        """Draw everything again, after another program wrote on the terminal."""
        self._app.screen.refresh(layout=True)

    def do_mouse(self) -> None:
        """Turn reports of the mouse on or off."""
        app = self._app
        app.mouse_on = not app.mouse_on
        driver: Any = app._driver
        method = "_enable_mouse_support" if app.mouse_on else "_disable_mouse_support"
        # The driver sends nothing while it believes there is no mouse.
        driver._mouse = True
        getattr(driver, method, lambda: None)()
        app.tell(
            "mouse on: M turns it off, and your terminal selects again"
            if app.mouse_on
            else "mouse off"
        )

    def do_suspend(self) -> None:
        """Suspend to the shell, if there is one."""
        if has_shell():
            self._app.action_suspend_process()
        else:
            self._app.tell("no shell waits here that could bring hangtop back; q leaves", "warn")

    def do_quit(self) -> None:
        """Close what is open, else leave."""
        page = self._page
        if page.zoomed or page.filter_text:
            page.do_back()
        else:
            self._app.exit()

    def do_leave(self) -> None:
        """Leave at once."""
        self._app.exit()
