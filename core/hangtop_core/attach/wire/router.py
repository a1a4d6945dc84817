"""Connections that share one child: a command that serves many nodes, as a broadcast srun does.

A link opens, writes to and closes a connection of its own, whether or not others use the same
child. Links see the router as their engine: it starts the shared child once its nodes have asked
for it, sorts the child's output by node, joins data for nodes, and closes a connection when its
node ends, or the child does.

A `channel.Channel` defines a shared command (its arguments, its labels, how one node of it is
addressed). Connections of their own pass through unchanged. All code here belongs to the session's
thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from hangtop_core.attach.connect.channel import Carrying, Pushed
from hangtop_core.attach.connect.engine import Closed, Errors, Lines
from hangtop_core.attach.slurm.shared_run import Aside, Carry, Complaints, Run
from hangtop_core.text import node_sets
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.attach.connect.channel import Orders, Part
    from hangtop_core.attach.connect.engine import Engine, Event
    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.attach.wire.command_log import CommandLog

log = logging.getLogger(__name__)

LINGER_S = 0.5
"""Seconds after the end of a node's part in which its output may still arrive."""
GATHER_S = 0.3
"""Seconds that a shared child waits for more of its nodes, from the first request."""


class Connections(Protocol):
    """The interface with which links open their connections; the rest is as in `Engine`."""

    def connect(self, launcher: Launcher) -> int:
        """Connect to a node by its launcher, and return the connection's number."""

    def write(self, conn: int, data: bytes) -> None:
        """Write to the probe; dropped when the connection is over."""

    def close_input(self, conn: int) -> None:
        """End the probe's input, once all that was written has gone out."""

    def kill(self, conn: int) -> None:
        """End the connection in any case; `Closed` follows."""

    def clogged(self, conn: int | None) -> bool:
        """Return whether an abandoned node may block data for others."""

    def pid(self, conn: int | None) -> int | None:
        """Return the process that is this connection's alone, if there is one."""


class Router:
    """`Connections` over an engine: its numbers for single children, negative ones for shares."""

    def __init__(self, engine: Engine, commands: CommandLog) -> None:
        self._engine = engine
        self._commands = commands
        self._gathering: list[Run] = []
        self._running: dict[int, Run] = {}
        self._asides: dict[int, Aside] = {}
        self._carries: dict[int, Carry] = {}
        self._places: dict[int, tuple[Run, str]] = {}
        self._pending: list[Event] = []
        self._last = 0

    # As links see it

    def connect(self, launcher: Launcher) -> int:
        """Start a child for one node, or add the node to a shared one that has not begun."""
        channel, node = launcher.channel, launcher.node
        if channel is None:
            return self._engine.open(node, launcher.argv())
        run = next((run for run in self._gathering if run.channel is channel), None)
        if run is None or node in run.members:
            run = Run(channel)
            self._gathering.append(run)
        self._last -= 1
        run.members[node] = self._last
        self._places[self._last] = (run, node)
        return self._last

    def write(self, conn: int, data: bytes) -> None:
        """Write to a node; data for a channel are sent by `flush`."""
        if conn >= 0:
            self._engine.write(conn, data)
        elif conn in self._places:
            run, node = self._places[conn]
            run.writes.append((node, data))

    def close_input(self, conn: int) -> None:
        """End a node's input, and a shared child's with that of its last node."""
        if conn >= 0:
            self._engine.close_input(conn)
        elif conn in self._places:
            run, node = self._places[conn]
            run.ended.add(node)
            if not run.conn:
                self._leave(conn, None)
            else:
                run.writes.append((node, None))
                self._close_when_unused(run)

    def kill(self, conn: int) -> None:
        """Abandon a node: its share is over, but the child is only killed for the last one."""
        if conn >= 0:
            self._engine.kill(conn)
        elif conn in self._places:
            run, _ = self._places[conn]
            if run.conn and len(run.members) == 1:
                self._engine.kill(run.conn)
            else:
                run.given_up = True
                self._leave(conn, None)
                self._close_when_unused(run)

    def clogged(self, conn: int | None) -> bool:
        """Return whether an abandoned node may block the others of its run."""
        return conn in self._places and self._places[conn][0].given_up

    def pid(self, conn: int | None) -> int | None:
        """Return the child of one node."""
        return self._engine.pid(conn) if conn is not None and conn >= 0 else None

    def consumed(self, conn: int, size: int) -> None:
        """Hand back credit; that of shared children was handed back when lines were sorted."""
        if conn >= 0:
            self._engine.consumed(conn, size)

    # Driven by the session's thread

    def take(self, event: Event) -> list[Event]:
        """Return the events for links that an event of the engine causes, in order."""
        if event.conn in self._asides:
            self._take_aside(event)
            return self._handed_out()
        if event.conn in self._carries:
            self._take_carry(event)
            return self._handed_out()
        run = self._running.get(event.conn)
        if run is None:
            return [event]
        if isinstance(event, Closed):
            self._finish(run, event)
        else:
            self._sort(run, event)
            self._engine.consumed(event.conn, event.size)
        return self._handed_out()

    def due(self, mono: float) -> list[Event]:
        """Start the children whose nodes have gathered; return the events for links."""
        for run in list(self._gathering):
            if run.since is None:
                run.since = mono
            if run.channel.nodes <= run.members.keys() or mono - run.since >= GATHER_S:
                self._gathering.remove(run)
                self._begin(run)
        for run in list(self._running.values()):
            self._act(run, mono)
            self._let_go(run, mono)
            if run.kill_at is not None and mono >= run.kill_at:
                self._engine.kill(run.conn)
        for conn, carry in self._carries.items():
            if mono > carry.until:
                self._engine.kill(conn)
        return self._handed_out()

    def _let_go(self, run: Run, mono: float) -> None:
        """End the connections of nodes whose part of the command has ended."""
        over = [node for node, (_, until) in run.over.items() if mono >= until]
        for node in over:
            code, _ = run.over.pop(node)
            if node in run.members:
                self._leave(run.members[node], code)
        if over:
            self._close_when_unused(run)

    def flush(self) -> None:
        """Send the data that were written to nodes of shared children since the last call."""
        for run in self._running.values():
            if run.writes or run.waiting:
                self._flush(run)

    def _handed_out(self) -> list[Event]:
        pending, self._pending = self._pending, []
        return pending

    def _begin(self, run: Run) -> None:
        if not run.members:
            return
        nodes = tuple(run.members)
        run.shared = run.channel.begin(nodes)
        run.conn = self._engine.open(
            f"{nodes[0]} and {len(nodes) - 1} more", run.shared.argv, errors=True
        )
        self._running[run.conn] = run
        if run.shared.opening:
            self._engine.write(run.conn, run.shared.opening)

    def _flush(self, run: Run) -> None:
        """Write queued data: in order for each node, and once for several nodes."""
        writes, run.writes = run.writes, []
        if isinstance(run.shared, Pushed):
            self._order(run, run.shared.orders(writes))
            return
        queues, run.waiting = run.waiting, {}
        for node, data in writes:
            queues.setdefault(node, deque()).append(data)
        while queues:
            same: dict[bytes | None, list[str]] = {}
            for node in list(queues):
                if isinstance(run.shared, Carrying) and run.shared.waits(node, queues[node][0]):
                    run.waiting[node] = queues.pop(node)
                    continue
                same.setdefault(queues[node].popleft(), []).append(node)
                if not queues[node]:
                    del queues[node]
            for data, nodes in same.items():
                self._engine.write(run.conn, run.shared.frame(nodes, data))
        if run.waiting:
            self._act(run, time.monotonic())

    def _act(self, run: Run, mono: float) -> None:
        """Do the work for data that reach the nodes of a run outside its input."""
        if not isinstance(run.shared, Carrying):
            return
        action = run.shared.act(mono)
        if action.write:
            self._engine.write(run.conn, action.write)
        for outcome in action.outcomes:
            self._log(run, action.what)
            self._commands.end(run.record, time.time(), outcome)
            run.record = 0
        if action.argv is not None:
            self._log(run, action.what)
            conn = self._engine.open(action.what, action.argv)
            self._carries[conn] = Carry(run, mono + action.seconds)

    def _log(self, run: Run, what: str) -> None:
        if not run.record:
            name = node_sets.fold(run.members)
            run.record = self._commands.begin(name, (), what, time.time(), by_itself=True)

    def _take_carry(self, event: Event) -> None:
        if not isinstance(event, Closed):
            self._engine.consumed(event.conn, event.size)
            return
        run = self._carries.pop(event.conn).run
        if isinstance(run.shared, Carrying):
            wrong = run.shared.acted(event.code, event.stderr.decode("utf-8", "replace"))
            for line in wrong:
                run.complaints.add(None, line)
            if wrong and run.conn in self._running:
                self._act(run, time.monotonic())
                for conn in list(run.members.values()):
                    self._leave(conn, None)
                self._engine.close_input(run.conn)  # readers end in order
                run.kill_at = time.monotonic() + LINGER_S
        if run.record and run.conn not in self._running:
            self._commands.end(run.record, time.time(), "ended with its step")

    def _order(self, run: Run, orders: Orders) -> None:
        for node, line in orders.answers:
            self._answer(run, node, [line])
        for order in orders.commands:
            conn = self._engine.open(f"{len(order.requests)} nodes", order.argv, errors=True)
            self._asides[conn] = Aside(run, order, Complaints(), {})
            run.asides.add(conn)

    def _answer(self, run: Run, node: str, lines: list[bytes]) -> None:
        if node in run.members:
            self._pending.append(Lines(run.members[node], lines, 0))

    def _take_aside(self, event: Event) -> None:
        """Hand on the answers; requests without an answer at the end were refused."""
        aside = self._asides[event.conn]
        run = aside.run
        if not isinstance(event, Closed):
            for part in self._parts(run, event, aside.complaints):
                if part.over:
                    aside.codes[part.node] = part.code
            self._engine.consumed(event.conn, event.size)
            return
        del self._asides[event.conn]
        run.asides.discard(event.conn)
        if not aside.complaints and event.stderr:
            aside.complaints.add(None, event.stderr.rstrip(b"\n"))
        for node, requests in aside.order.requests.items():
            code, reason = aside.codes.get(node, event.code), aside.complaints.about(node)
            if isinstance(run.shared, Pushed):
                refused = [run.shared.refusal(request, code, reason) for request in requests]
                self._answer(run, node, refused)

    def _parts(self, run: Run, event: Lines | Errors, complaints: Complaints) -> Iterator[Part]:
        """Hand lines out to their nodes and keep complaints; yield the parts."""
        by_node: dict[str, list[bytes]] = {}
        parts: list[Part] = []
        for line in event.lines:
            if isinstance(event, Errors):
                part = run.shared.error_part(line)
                complaints.add(part.node if part is not None else None, line)
            elif (part := run.shared.output_part(line)) is None:
                log.info("of no node: %s", clean(line.decode("utf-8", "replace"), 200))
            elif part.line is not None:
                by_node.setdefault(part.node, []).append(part.line)
            if part is not None:
                parts.append(part)
        for node, lines in by_node.items():
            self._answer(run, node, lines)
        yield from parts

    def _sort(self, run: Run, event: Lines | Errors) -> None:
        for part in self._parts(run, event, run.complaints):
            if part.over:
                run.over.setdefault(part.node, (part.code, time.monotonic() + LINGER_S))

    def _finish(self, run: Run, event: Closed) -> None:
        del self._running[event.conn]
        for conn in run.asides:
            self._engine.interrupt(conn)
        for conn, carry in self._carries.items():
            if carry.run is run:
                self._engine.kill(conn)
        if not run.complaints and event.stderr:
            run.complaints.add(None, event.stderr.rstrip(b"\n"))
        for node, conn in list(run.members.items()):
            code, _ = run.over.get(node, (event.code, 0.0))
            self._leave(conn, code, event.unstarted)

    def _leave(self, conn: int, code: int | None, unstarted: int | None = None) -> None:
        """Remove a node from its run, and notify its link."""
        run, node = self._places.pop(conn)
        del run.members[node]
        run.waiting.pop(node, None)
        self._pending.append(Closed(conn, code, run.complaints.about(node), unstarted))

    def _close_when_unused(self, run: Run) -> None:
        if run.conn and run.ended >= run.members.keys() and run.conn in self._running:
            if run.has_input:
                self._flush(run)
                self._engine.close_input(run.conn)
            else:
                for conn in (*run.asides, run.conn):
                    self._engine.interrupt(conn)
