"""The network test, phase by phase: nodes, names, ports, then a real job with torch.

Every phase asks all nodes at once and is limited in time; its results go into `Facts`, which are
consistent at any moment, so that an interrupted test still reports its results.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import TYPE_CHECKING

from hangtop_core.attach.wire.messages import decode
from hangtop_core.model.node.states import FAILED, OBSERVED
from hangtop_core.nettest import answers, schedule
from hangtop_core.nettest.asking import Inbox, Nodes, reason
from hangtop_core.nettest.choose import spots
from hangtop_core.nettest.facts import Facts, Kind, Names, Wanted, Way
from hangtop_core.nettest.jobs import Jobs
from hangtop_core.session.examine import measure_clock
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any

    from hangtop_core.model.snapshot import Node
    from hangtop_core.session.session import Session

LOOK_S = 120.0
"""Seconds for all nodes to connect, and to report their interfaces and Pythons."""
NAMES_S = 10.0
"""Seconds for a node to resolve names, and to report its time."""
LISTEN_S = 600.0
"""Seconds after which a node closes its ports even if hangtop is gone."""
CONNECT_MORE_S = 5.0
"""Seconds by which a node may exceed the time for its connections."""
MAX_NODES = 512
"""Maximum number of nodes: every node is asked about every other one."""


class Conductor:
    """Conduct one test; `facts` are its results."""

    def __init__(
        self,
        session: Session,
        names: Sequence[str],
        wanted: Wanted,
        tell: Callable[[str], None],
    ) -> None:
        self.facts = Facts(nodes=tuple(names), port=wanted.port)
        self._session = session
        self._wanted = wanted
        self._nodes = Nodes(session, tell)

    def run(self) -> Facts:
        """Run all phases; an interrupt ends the test with the results so far.

        Raises:
            UsageError: when no node has the interface that was asked for.
        """
        began = time.monotonic()
        try:
            self._connect()
            self._look()
            self._clocks()
            self._routes()
            self._ports()
            if self._wanted.job:
                self._job()
        except KeyboardInterrupt:
            self.facts.interrupted = True
        self.facts.took_s = time.monotonic() - began
        return self.facts

    def choose(self) -> Facts:
        """Determine only the addresses at which nodes would be tested."""
        self._connect()
        self._look()
        return self.facts

    def _connect(self) -> None:
        """Wait until every node has answered or failed."""
        names = self.facts.nodes
        wanted = set(names)

        def settled(update: Any) -> bool:
            states = [node.state for node in update.snapshot.nodes if node.name in wanted]
            ready = sum(state in OBSERVED for state in states)
            self._nodes.tell(f"connecting: {ready} of {len(wanted)} nodes")
            return len(states) == len(wanted) and all(
                state in OBSERVED or state in FAILED for state in states
            )

        update = self._session.wait(settled, LOOK_S) or self._session.latest
        nodes = {node.name: node for node in update.snapshot.nodes} if update is not None else {}
        for name in names:
            if name not in nodes or nodes[name].state not in OBSERVED:
                self.facts.missing[name] = _why_missing(nodes.get(name))

    def _look(self) -> None:
        params = {"do": "look", "python": self._wanted.python}
        asked = {n: params for n in self.facts.nodes if n not in self.facts.missing}
        pieces, failed = self._nodes.each(asked, answers.Look, "looking at interfaces", LOOK_S)
        self.facts.missing |= failed
        self.facts.looked = {node: pieces[node][0] for node in self.facts.nodes if pieces.get(node)}
        self._names()
        named = {
            address
            for table in self.facts.names.values()
            for addresses in table.names.values()
            for address in (addresses if isinstance(addresses, tuple) else ())
        }
        self.facts.spots = spots(self.facts.looked, self._wanted.interface, named)
        for node in self.facts.looked:
            if node not in self.facts.spots:
                self.facts.failed[node] = "it has no address that others could reach"

    def _clocks(self) -> None:
        """Ask every node for its time."""
        asked = {measure_clock(self._session, node): node for node in self.facts.present}
        for future in self._nodes.over(asked, NAMES_S, "looking at clocks"):
            if (clock := future.result()) is not None:
                self.facts.clocks[asked[future]] = clock

    def _names(self) -> None:
        """Ask every node for the names of all."""
        hostnames = map(self.facts.hostname, self.facts.present)
        names = sorted({*self.facts.present, *hostnames})
        self._resolve({"names": names}, "resolving names")

    def _routes(self) -> None:
        """Ask every node for the routes to all addresses, and for their names."""
        addresses = [spot.address for spot in self.facts.spots.values()]
        self._resolve({"addresses": addresses}, "resolving addresses")

    def _resolve(self, params: Mapping[str, Any], what: str) -> None:
        params = {"do": "names", "seconds": NAMES_S, **params}
        asked = dict.fromkeys(self.facts.present, params)
        pieces, failed = self._nodes.each(asked, answers.NamesPiece, what, NAMES_S + 10)
        self.facts.failed.update(failed)
        for node, received in pieces.items():
            table = self.facts.names.setdefault(node, Names())
            for piece in received:
                table.names.update(piece.names)
                table.reverse.update(piece.reverse)
                table.sources.update(piece.sources)

    def _ports(self) -> None:
        """Open ports on all nodes, connect all pairs of nodes, close the ports."""
        token = secrets.token_hex(24)
        began = time.monotonic()
        listening = self._listen(token)
        try:
            self._call(token)
        finally:
            for node in listening:
                self._nodes.stop(node, "ports")
            for future in self._nodes.over(listening.values(), 5.0, "closing ports"):
                if future.exception() is None and future.result() is not None:
                    self._note_strangers(future.result(), listening)
            self.facts.listened_s = time.monotonic() - began

    def _note_strangers(
        self, end: tuple[str, answers.ListenEnd], listening: Mapping[str, Future[Any]]
    ) -> None:
        node, summary = end
        if summary.strangers and node in listening:
            self.facts.strangers[node] = summary.strangers

    def _listen(self, token: str) -> dict[str, Future[Any]]:
        """Open the ports; return by node the future that ends when they are closed."""
        inbox = Inbox()
        futures: dict[str, Future[Any]] = {}
        for node, spot in self.facts.spots.items():
            params = {
                "do": "listen",
                "name": "ports",
                "address": spot.address,
                "ports": [self.facts.port, 0],
                "token": token,
                "seconds": LISTEN_S,
            }
            what = f"open port {self.facts.port} on {spot.address}, for this test"

            def take(piece: answers.OpenedPiece, node: str = node) -> None:
                inbox.put((node, piece.opened))

            def end(summary: Any, node: str = node) -> tuple[str, answers.ListenEnd]:
                return node, decode(summary, answers.ListenEnd)

            futures[node] = self._nodes.start(
                node, params, answers.OpenedPiece, what, LISTEN_S + 10, take, end
            )
        until = time.monotonic() + 15.0
        while time.monotonic() < until:
            waiting = [n for n, future in futures.items() if not future.done()]
            if all(node in self.facts.opened for node in waiting):
                break
            self._nodes.tell(f"opening port {self.facts.port} on {len(futures)} nodes")
            item = inbox.take(until)
            if item is not None:
                self.facts.opened[item[0]] = item[1]
        for node, future in futures.items():
            if future.done() and (error := future.exception()) is not None:
                self.facts.failed[node] = f"no port could be opened: {reason(error)}"
        return futures

    def _call(self, token: str) -> None:
        """Connect every node to the open ports of all others; a single node to its own."""
        rows: list[Row] = []
        facts = self.facts
        nodes = list(facts.spots)
        order = schedule.orders(nodes) if len(nodes) > 1 else {n: [n] for n in nodes}
        for source, targets in order.items():
            for target in targets:
                for kind, port in _ports_of(facts.opened.get(target, ())):
                    rows.append((source, target, kind, port))
        limit = self._wanted.connect_limit
        what = f"connecting {len(nodes)} nodes with each other"
        facts.ways = self._connected(token, rows, limit, what)
        late = [connection for connection in facts.ways if connection.how in ("timed-out", "late")]
        if late and are_slow(facts.ways, limit):
            late_rows = [
                (connection.source, connection.target, connection.kind, connection.port)
                for connection in late
            ]
            what = f"connecting once more, with more time: {len(late_rows)} ways"
            again = self._connected(token, late_rows, limit * MORE, what)
            tried = {
                (connection.source, connection.target, connection.kind): connection
                for connection in again
            }
            facts.ways = [tried.get((w.source, w.target, w.kind), w) for w in facts.ways]

    def _connected(self, token: str, rows: Sequence[Row], limit: float, what: str) -> list[Way]:
        """Connect nodes to each other, every node to its targets in this order."""
        targets: dict[str, list[Any]] = {}
        for number, (source, target, _, port) in enumerate(rows):
            address = self.facts.spots[target].address
            targets.setdefault(source, []).append([number, address, port])
        asked = {
            node: self._call_params(token, node, calls_of_node, limit)
            for node, calls_of_node in targets.items()
        }
        seconds = max((params["seconds"] for params in asked.values()), default=0.0)
        pieces, failed = self._nodes.each(asked, answers.CalledPiece, what, seconds + 10.0)
        self.facts.failed.update(failed)
        connections = []
        for node, received in pieces.items():
            calls = {call.id: call for piece in received for call in piece.calls}
            for number, call in calls.items():
                if number < len(rows) and rows[number][0] == node:
                    connections.append(Way(*rows[number], clean(call.how, 100), call.took))
        return connections

    def _call_params(
        self, token: str, source: str, targets: list[Any], limit: float
    ) -> dict[str, Any]:
        # Eight at a time: all of them time out if a node drops everything.
        seconds = limit * 2 * (1 + len(targets) / 8) + CONNECT_MORE_S
        return {
            "do": "connect",
            "targets": targets,
            "token": token,
            "source": self.facts.spots[source].address,
            "limit": limit,
            "seconds": seconds,
        }

    def _job(self) -> None:
        jobs = Jobs(self._nodes, self.facts, self._wanted)
        try:
            jobs.run()
        finally:
            jobs.close()


Row = tuple[str, str, Kind, int]
"""Source node, target node, kind of port, port."""
MORE = 5.0
"""Factor by which the limit grows for the second attempt of a connection."""
SLOW = 0.05
"""Share of the limit that working connections take if machines, not the network, are slow."""


def _why_missing(node: Node | None) -> str:
    """Return why a node takes no part: its reason, else its last state."""
    if node is None:
        return "connecting"
    return clean(node.reason or node.state, 300)


def are_slow(connections: Sequence[Way], limit: float) -> bool:
    """Whether even working connections take long, so that a late one proves nothing yet.

    A firewall that drops one connection leaves the others at a millisecond.
    """
    took = [connection.took for connection in connections if connection.ok]
    return bool(took) and statistics.median(took) > limit * SLOW


def _ports_of(opened: Sequence[answers.Opened]) -> list[tuple[Kind, int]]:
    """Return the open ports of a node: the chosen one, and any."""
    return [
        ("any" if port.asked == 0 else "chosen", port.port)
        for port in opened
        if port.port is not None
    ]
