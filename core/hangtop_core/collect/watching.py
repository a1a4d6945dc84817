"""The process tables of all nodes: requested from each connected node, folded into the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hangtop_core.attach.wire import messages
from hangtop_core.attach.wire.strings import MAX_STRINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.attach.connect.link import Link
    from hangtop_core.attach.connect.timing import Moment
    from hangtop_core.errors import HangtopError
    from hangtop_core.model.updates import Options
    from hangtop_core.scheduling.arrivals import Arrivals
    from hangtop_core.state.store import Store

REST, REST_NODE = 2.0, 1 / 16
"""Seconds between two pieces of a node without changes for long: minimum, and per node."""
SILENCE = 4.0
"""Factor by which a probe tolerates the absence of signs that the head listens."""
ENDING_S = 5.0
"""Seconds that the connection of an ending probe may take to end, too."""


class _Ending(NamedTuple):
    """A probe that has said that it ends."""

    generation: int
    until: float


class Nodes(Protocol):
    """The part of a collector that watching needs: all nodes and their state."""

    store: Store
    arrivals: Arrivals
    links: dict[str, Link]
    now: Moment
    urgent: bool


class Watching:
    """The `watch` requests of all nodes."""

    def __init__(self, collector: Nodes, options: Options) -> None:
        self._collector = collector
        self._options = options
        self._ending: dict[str, _Ending] = {}

    def begin(self, link: Link, now: Moment) -> None:
        """Let a probe that has said hello report its processes and their changes."""
        collector, options = self._collector, self._options
        if not options.watch:
            collector.arrivals.came(link.name, now.mono)
            return
        rest_s = max(REST, len(collector.links) * REST_NODE)
        silence = link.listens(max(link.timing.silence, rest_s * SILENCE))
        params = {**options.watch_request(), "silence": silence, "rest": rest_s}
        link.table_came(now, options.interval)

        def take(raw: Any) -> None:
            if self._take(link, messages.decode(raw, messages.WatchPiece)):
                link.send_again(request_id, "watch", {**params, "resync": True})

        def end(summary: Mapping[str, Any] | None, error: HangtopError | None) -> None:
            if link.can_ask:
                self._end(link, error)

        request_id = link.request("watch", params, on_piece=take, on_end=end)

    def _take(self, link: Link, piece: messages.WatchPiece) -> bool:
        """Fold one piece; return whether the whole table must be sent once more."""
        collector = self._collector
        store, now = collector.store, collector.now
        view = store.nodes[link.name]
        collector.urgent = collector.urgent or view.fresh
        if store.follow_clock(link.name, piece.at, now.epoch, piece.clock_set):
            link.note(f"a clock was set: there it is {view.skew:+.0f} s against here now")
        store.fold_watch(link.name, piece, link.note)
        collector.arrivals.came(link.name, now.mono)
        link.table_came(now, piece.pause)
        if len(view.strings) <= MAX_STRINGS:
            return False
        view.strings = {}
        return True

    def _end(self, link: Link, error: HangtopError | None) -> None:
        now = self._collector.now
        if error is not None:
            link.restart(now, f"the probe gave up watching: {error}")
        elif link.timing.ping is None:
            # It had all its orders, and a time limit: nothing is wrong with the node.
            link.restart(now, "its probe's time is over", "connecting")
        else:
            # Someone on the node ended it; the end of its connection may show who.
            self._ending[link.name] = _Ending(link.generation, now.mono + ENDING_S)

    def look(self, now: Moment) -> None:
        """Leave the connections that did not end although their probe has."""
        for name, ending in list(self._ending.items()):
            link = self._collector.links[name]
            again = link.generation != ending.generation
            if again or now.mono > ending.until:
                del self._ending[name]
                if not again:
                    link.restart(now, "its probe was ended there")
