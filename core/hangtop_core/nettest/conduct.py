"""The test itself, phase by phase: who is there, names, ports, then a real job with torch.

Every phase asks all nodes at once and is bounded in time; what it finds goes into `Facts`, which
are whole at any moment, so that a test that is interrupted still tells what it knows.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import TYPE_CHECKING

from hangtop_core.attach.wire.messages import decode
from hangtop_core.model.node.states import FAILED, OBSERVED
from hangtop_core.nettest import said, schedule
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
"""Seconds for all nodes to answer, and to tell of their interfaces and Pythons."""
NAMES_S = 10.0
"""Seconds that a node tries to resolve names, and to tell its time."""
LISTEN_S = 600.0
"""Seconds after which a node closes its ports by itself, whatever became of us."""
CONNECT_MORE_S = 5.0
"""Seconds by which a node may exceed what its connections take."""
MAX_NODES = 512
"""Every node is asked for every other one: beyond, chosen nodes tell as much."""


class Conductor:
    """Conducts one test; `facts` is what it knows."""

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
        """Do all of it; an interrupt ends it with what is known by then.

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
        """Find out only where nodes would be tested."""
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
        pieces, failed = self._nodes.each(asked, said.Look, "looking at interfaces", LOOK_S)
        self.facts.missing |= failed
        self.facts.looked = {node: pieces[node][0] for node in self.facts.nodes if pieces.get(node)}
        self._names()
        named = {
            address
            for known in self.facts.names.values()
            for found in known.names.values()
            for address in (found if isinstance(found, tuple) else ())
        }
        self.facts.spots = spots(self.facts.looked, self._wanted.interface, named)
        for node in self.facts.looked:
            if node not in self.facts.spots:
                self.facts.failed[node] = "it has no address that others could reach"

    def _clocks(self) -> None:
        """Ask every node what time it is there."""
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
        """Ask every node for the way to the addresses of all, and for their names."""
        addresses = [spot.address for spot in self.facts.spots.values()]
        self._resolve({"addresses": addresses}, "resolving addresses")

    def _resolve(self, params: Mapping[str, Any], what: str) -> None:
        params = {"do": "names", "seconds": NAMES_S, **params}
        asked = dict.fromkeys(self.facts.present, params)
        pieces, failed = self._nodes.each(asked, said.NamesPiece, what, NAMES_S + 10)
        self.facts.failed.update(failed)
        for node, some in pieces.items():
            known = self.facts.names.setdefault(node, Names())
            for one in some:
                known.names.update(one.names)
                known.reverse.update(one.reverse)
                known.sources.update(one.sources)

    def _ports(self) -> None:
        """Open ports on all nodes, have everybody connect to everybody, close them."""
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
        self, end: tuple[str, said.ListenEnd], listening: Mapping[str, Future[Any]]
    ) -> None:
        node, told = end
        if told.strangers and node in listening:
            self.facts.strangers[node] = told.strangers

    def _listen(self, token: str) -> dict[str, Future[Any]]:
        """Open the ports; return, by node, what ends when they are closed."""
        inbox = Inbox()
        found: dict[str, Future[Any]] = {}
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

            def take(piece: said.OpenedPiece, node: str = node) -> None:
                inbox.put((node, piece.opened))

            def end(summary: Any, node: str = node) -> tuple[str, said.ListenEnd]:
                return node, decode(summary, said.ListenEnd)

            found[node] = self._nodes.start(
                node, params, said.OpenedPiece, what, LISTEN_S + 10, take, end
            )
        until = time.monotonic() + 15.0
        while time.monotonic() < until:
            waiting = [n for n, future in found.items() if not future.done()]
            if all(node in self.facts.opened for node in waiting):
                break
            self._nodes.tell(f"opening port {self.facts.port} on {len(found)} nodes")
            item = inbox.take(until)
            if item is not None:
                self.facts.opened[item[0]] = item[1]
        for node, future in found.items():
            if future.done() and (error := future.exception()) is not None:
                self.facts.failed[node] = f"no port could be opened: {reason(error)}"
        return found

    def _call(self, token: str) -> None:
        """Have every node connect to the open ports of all others; alone, to its own."""
        rows: list[Row] = []
        facts = self.facts
        nodes = list(facts.spots)
        order = schedule.orders(nodes) if len(nodes) > 1 else {n: [n] for n in nodes}
        for source, others in order.items():
            for target in others:
                for kind, port in _ports_of(facts.opened.get(target, ())):
                    rows.append((source, target, kind, port))
        limit = self._wanted.connect_limit
        what = f"connecting {len(nodes)} nodes with each other"
        facts.ways = self._connected(token, rows, limit, what)
        late = [way for way in facts.ways if way.how in ("timed-out", "late")]
        if late and are_slow(facts.ways, limit):
            some = [(way.source, way.target, way.kind, way.port) for way in late]
            what = f"connecting once more, with more time: {len(some)} ways"
            again = self._connected(token, some, limit * MORE, what)
            tried = {(way.source, way.target, way.kind): way for way in again}
            facts.ways = [tried.get((w.source, w.target, w.kind), w) for w in facts.ways]

    def _connected(self, token: str, rows: Sequence[Row], limit: float, what: str) -> list[Way]:
        """Have nodes connect to each other, every node to its targets in this order."""
        targets: dict[str, list[Any]] = {}
        for number, (source, target, _, port) in enumerate(rows):
            address = self.facts.spots[target].address
            targets.setdefault(source, []).append([number, address, port])
        asked = {
            node: self._call_params(token, node, some, limit) for node, some in targets.items()
        }
        seconds = max((one["seconds"] for one in asked.values()), default=0.0)
        pieces, failed = self._nodes.each(asked, said.CalledPiece, what, seconds + 10.0)
        self.facts.failed.update(failed)
        found = []
        for node, some in pieces.items():
            calls = {call.id: call for piece in some for call in piece.calls}
            for number, call in calls.items():
                if number < len(rows) and rows[number][0] == node:
                    found.append(Way(*rows[number], clean(call.how, 100), call.took))
        return found

    def _call_params(
        self, token: str, source: str, targets: list[Any], limit: float
    ) -> dict[str, Any]:
        # Eight at a time: all of them time out where a node drops everything.
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
"""From which node, to which, to which kind of port, to which port."""
MORE = 5.0
"""How many times the limit a way gets the second time."""
SLOW = 0.05
"""Share of the limit that working ways take where machines, and not the network, are slow."""


def _why_missing(node: Node | None) -> str:
    """Return why a node takes no part: its reason, else the state it has stayed in."""
    if node is None:
        return "connecting"
    return clean(node.reason or node.state, 300)


def are_slow(ways: Sequence[Way], limit: float) -> bool:
    """Whether even the ways that work take long, so that one which was late says nothing yet.

    A firewall that drops one way leaves the others at a millisecond.
    """
    took = [way.took for way in ways if way.ok]
    return bool(took) and statistics.median(took) > limit * SLOW


def _ports_of(opened: Sequence[said.Opened]) -> list[tuple[Kind, int]]:
    """The ports of a node that are open: the chosen one, and any."""
    return [
        ("any" if one.asked == 0 else "chosen", one.port) for one in opened if one.port is not None
    ]
