"""The links to all nodes, and every request to them, on the session's thread.

The collector handles events of the engine and the passing of time, and never waits.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hangtop_core.attach.connect.engine import Closed, Engine, Event
from hangtop_core.attach.connect.link import Link
from hangtop_core.attach.connect.timing import Moment, Timing
from hangtop_core.attach.connect.turns import Turns
from hangtop_core.attach.ways.local import boot_id
from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.command_log import CommandLog
from hangtop_core.attach.wire.router import Router
from hangtop_core.collect.answers import Answers
from hangtop_core.collect.requests import GRACE, Ask, Asks
from hangtop_core.collect.rounds import Rounds
from hangtop_core.collect.watching import Watching
from hangtop_core.errors import HangtopError, RefusedError, UnknownNodeError
from hangtop_core.scheduling.arrivals import Arrivals
from hangtop_core.state.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.model.updates import Options
    from hangtop_core.state.tracked import Tracked

LOOK = 0.002
"""Seconds per node between two checks of its waits: messages of many nodes keep the thread turning,
and each turn would check all of them."""
LATE = 2.0
"""Seconds between two ticks that count as waiting for nodes: beyond this hangtop was not
listening."""
MAX_LOGS = 16
"""Maximum requests for logs that wait for one node; the others are made again later."""


class _Unattended:
    """Unattended requests to one node."""

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.logs: list[Ask] = []
        self.rests_until = 0.0


class Collector:
    """Keeps the nodes watched and sampled. All methods belong to the session's thread."""

    def __init__(self, engine: Engine, options: Options, timing: Timing | None = None) -> None:
        self.store = Store()
        self.answers = Answers(self.store)
        self.commands = CommandLog()
        self.links: dict[str, Link] = {}
        self.asks = Asks(self.store, self.answers, self.links, self.begin_anew)
        self.urgent = False
        """Set when a message arrived that should not wait for the next tick."""
        self.now = Moment(0.0, 0.0)
        """The present time; set before each call into the collector."""
        self.arrivals, self._turns = Arrivals(), Turns()
        self.rounds, self._watching = Rounds(self, options), Watching(self, options)
        self._router = Router(engine, self.commands)
        self._timing = timing
        self._by_conn: dict[int, Link] = {}
        self._ticked = self._late = self._next_look = 0.0
        self._unattended: dict[str, _Unattended] = defaultdict(_Unattended)
        self._boot_id = boot_id()

    # Nodes

    def add(self, launcher: Launcher, now: Moment) -> None:
        """Start watching a node."""
        self.now = now
        channel = launcher.channel
        timing = (channel.timing if channel is not None else None) or self._timing
        link = Link(launcher, self._router, self, timing, self._turns.may_start)
        self.links[link.name] = link
        self.store.add_node(link.name, now.epoch)
        self.arrivals.expect(link.name, now.mono)
        link.start_in_turn(now)
        self._index(link)

    def is_new(self, conn: int) -> bool:
        """Return whether a connection is of a node without a process list yet, or of many nodes."""
        link = self._by_conn.get(conn)
        return link is None or link.name in self.arrivals

    def _start_next(self, now: Moment) -> None:
        for link in self._turns.come(now):
            self._index(link)

    def _index(self, link: Link) -> None:
        if link.conn is not None:
            self._by_conn[link.conn] = link

    def retry(self, name: str, now: Moment) -> None:
        """Connect to a node again now."""
        link = self.links.get(name)
        if link is not None:
            link.retry(now)
            self._index(link)

    @property
    def idle(self) -> bool:
        """Return whether no process of hangtop is left."""
        return all(link.idle for link in self.links.values())

    def close(self, now: Moment) -> None:
        """Let all probes end."""
        self.arrivals = Arrivals()  # no node is expected any more
        for link in self.links.values():
            link.close(now)

    def handle(self, event: Event, now: Moment) -> None:
        """Handle an event of the engine."""
        self.now = now
        for part in self._router.take(event):
            self._hand_on(part, now)

    def _hand_on(self, event: Event, now: Moment) -> None:
        link = self._by_conn.get(event.conn)
        if isinstance(event, Closed):
            self._by_conn.pop(event.conn, None)
            if link is not None:
                link.on_closed(event, now)
            return
        if link is not None:
            link.on_lines(event.conn, event.lines, now)
        self._router.consumed(event.conn, event.size)

    def tick(self, now: Moment, behind: bool = False) -> None:
        """Do what is due; ``behind`` says that messages of nodes still wait to be handled."""
        late = now.mono - self._ticked - (0.0 if behind else LATE) if self._ticked else 0.0
        self.now, self._ticked = now, now.mono
        self._late += max(late, 0.0)  # stopped, or without CPU time: no fault of a node
        for event in self._router.due(now.mono):
            self._hand_on(event, now)
        self._watching.look(now)
        self._start_next(now)
        if now.mono >= self._next_look:
            self._next_look = now.mono + LOOK * len(self.links)
            late, self._late = self._late, 0.0
            for link in self.links.values():
                if late:
                    link.forgive(late, now)
                if now.mono >= link.due:
                    link.tick(now)
                    self._index(link)
        arrives = self.arrivals.over or self.arrivals.pending(now.mono)  # a snapshot goes first
        if not arrives:
            self.rounds.look(now)
        self._router.flush()

    # What links report

    def link_changed(self, link: Link, changes: Mapping[str, Any]) -> None:
        """Store the changed fields of a node."""
        self.store.change_node(link.name, changes)
        self.urgent = self.urgent or "state" in changes
        if "generation" in changes and not link.on_its_way(self.now):
            self._turns.done(link)
        if not (link.can_ask or link.state == "connecting"):
            self.arrivals.came(link.name, self.now.mono)

    def link_ready(self, link: Link, hello: messages.Hello, now: Moment) -> None:
        """Watch a node whose probe has said hello."""
        same = hello.boot_id is not None and hello.boot_id == self._boot_id
        self.store.connected(link.name, hello.clock, same, now.epoch)
        self._unattended[link.name].busy.clear()
        self._start_next(now)
        self._watching.begin(link, now)

    # Unattended requests

    def may_ask(self, link: Link) -> bool:
        """Return whether a node answers, has rested, and has no unattended request."""
        own = self._unattended[link.name]
        return link.can_ask and self.now.mono >= own.rests_until and not own.busy

    def busy(self, name: str) -> AbstractSet[str]:
        """Return the unattended requests of a node by name."""
        own = self._unattended[name]
        return own.busy | ({"log"} if own.logs else frozenset())

    def ask_unattended(
        self, link: Link, ask: Ask, summary: Callable[[object], None] | None = None
    ) -> None:
        """Make an unattended request; meanwhile no round of requests begins."""
        if ask.op in link.unsupported:
            return
        own = self._unattended[link.name]
        own.busy.add(ask.op)
        own.rests_until = self.now.mono + link.timing.rest
        self.ask(link, ask, lambda _: own.busy.discard(ask.op), summary)

    def read_log(self, link: Link, ask: Ask) -> None:
        """Read logs beside the rounds, one at a time per node: slow files delay no stacks."""
        waiting = self._unattended[link.name].logs
        if len(waiting) < MAX_LOGS:
            waiting.append(ask)
        if len(waiting) == 1:
            self.ask(link, ask, lambda _: self._next_log(link, waiting))

    def _next_log(self, link: Link, waiting: list[Ask]) -> None:
        del waiting[: 1 if link.can_ask else None]
        if waiting:
            self.ask(link, waiting[0], lambda _: self._next_log(link, waiting))

    # Requests

    def ask(
        self,
        link: Link,
        ask: Ask,
        done: Callable[[HangtopError | None], None],
        summary: Callable[[object], None] | None = None,
    ) -> int | None:
        """Make one request and log it; return its id.

        ``done`` is called once, when the request is over; before it ``summary``, with the probe's
        end of the answer, unless the request failed.
        """
        number = self.commands.begin(
            link.name,
            ask.pids,
            ask.what,
            self.now.epoch,
            by_itself=ask.by_itself,
            pauses=ask.pauses,
        )
        held = ask.pids if ask.pauses else ()
        params, stacks = ask.params, self.store.stacks
        edition = stacks.lend() if ask.op == "stacks" else None
        if edition is not None:
            params = {**params, "edition": edition}
        for process in self._live(link, held):
            process.disturb(self.now.epoch)

        def end(summary_data: Mapping[str, Any] | None, error: HangtopError | None) -> None:
            if edition is not None:
                stacks.give_back(edition)
            for process in self._live(link, held):
                process.let_go(self.now.epoch)
            if summary is not None and error is None:
                try:
                    summary(summary_data)
                except messages.BadPieceError as wrong:
                    link.note(f"{ask.op}: {wrong}")
            self.commands.end(number, self.now.epoch, "done" if error is None else str(error))
            done(error)
            self.urgent = self.urgent or self.store.news
            unsupported = isinstance(error, RefusedError) and error.kind == "unsupported"
            if unsupported and ask.by_itself:
                link.unsupported.add(ask.op)

        return link.request(
            ask.op,
            params,
            on_piece=lambda raw: ask.take(link.name, raw),
            on_end=end,
            deadline=self.now.mono + ask.deadline + GRACE + link.timing.login,
        )

    def _live(self, link: Link, pids: Sequence[int]) -> list[Tracked]:
        live = (self.store.live(link.name, pid) for pid in pids)
        return [process for process in live if process is not None]

    def link(self, name: str) -> Link:
        """Return the link to a node.

        Raises:
            UnknownNodeError: there is no node of that name.
        """
        if name not in self.links:
            raise UnknownNodeError(f"there is no node {name!r} in this session")
        return self.links[name]

    def begin_anew(self, name: str, why: str) -> None:
        """Reconnect to a node, because its messages cannot be trusted."""
        self.links[name].restart(self.now, why)
