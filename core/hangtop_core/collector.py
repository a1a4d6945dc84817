"""Everything that runs on the session's thread: links, store, and what is asked by itself.

The collector takes events of the engine and the passing of time, and never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hangtop_core import sampling
from hangtop_core.analysis.peers import sought
from hangtop_core.answers import Answers
from hangtop_core.arrivals import Arrivals
from hangtop_core.asks import GRACE, Ask, Asks
from hangtop_core.attach import messages
from hangtop_core.attach.engine import Closed, Engine, Event
from hangtop_core.attach.link import Link
from hangtop_core.attach.local import boot_id
from hangtop_core.attach.router import Router
from hangtop_core.attach.strings import MAX_STRINGS
from hangtop_core.attach.timing import Moment, Timing
from hangtop_core.attach.turns import Turns
from hangtop_core.commandlog import CommandLog
from hangtop_core.errors import HangtopError, RefusedError, UnknownNodeError
from hangtop_core.pace import Pace
from hangtop_core.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hangtop_core.attach.launcher import Launcher
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model import Snapshot
    from hangtop_core.tracked import Tracked
    from hangtop_core.updates import Options

LOOK = 0.002
"""Seconds per node between two looks at its waits: what comes from many nodes keeps the thread
turning, and each turn would look at all of them."""
ROUND = 0.5
"""Seconds between two looks at what is due."""
ROUND_NODES = 256
"""Above this many nodes one looks less often, so that looking stays cheap."""
CALM = 4.0
"""How many times as far apart they are while nothing is new anywhere."""
REST, REST_NODE = 2.0, 1 / 32
"""Seconds between two pieces of a node that has had nothing to tell for long: at least, and for
each node that there is."""
LATE = 2.0
"""Seconds between two ticks that count as waited for nodes: in more of them nobody listened."""
ENDING_S = 5.0
"""Seconds that the connection of a probe that ends may take to end, too."""


class Ending(NamedTuple):
    """A probe that has said that it ends."""

    generation: int
    until: float


class Collector:
    """Keeps the nodes watched and sampled. All methods belong to the session's thread."""

    def __init__(self, engine: Engine, options: Options, timing: Timing | None = None) -> None:
        self.store = Store()
        self.answers = Answers(self.store)
        self.asks = Asks(self)
        self.commands = CommandLog()
        self.links: dict[str, Link] = {}
        self.urgent = False
        """Set when something came that should not wait for the next tick."""
        self._router = Router(engine, self.commands)
        self._options = options
        self._timing = timing
        self._by_conn: dict[int, Link] = {}
        self._now = Moment(0.0, 0.0)
        self._ticked = self._late = self._last_round = self._next_look = 0.0
        self._busy: dict[str, set[str]] = {}
        self._reading: dict[str, list[Ask]] = {}
        """Nodes that are asked for logs."""
        self._rest: dict[str, float] = {}
        self._rested: dict[str, float] = {}
        """From when on a node may be asked again by itself."""
        self.arrivals, self._turns, self._pace = Arrivals(), Turns(), Pace()
        self._boot_id = boot_id()
        self._pushed: set[str] = set()
        """Nodes whose probe was given all it is to do, and a time for it."""
        self._ending: dict[str, Ending] = {}
        """Nodes whose probe has said that it ends."""
        self._odd: Mapping[str, frozenset[int]] = {}
        self._stalls = False
        self._sample_cost: dict[str, float] = {}
        """CPU seconds of a node for one sample, as it has told last."""

    def set_time(self, now: Moment) -> None:
        """Say what time it is, before anything else is asked of the collector."""
        self._now = now

    # Nodes

    def add(self, launcher: Launcher, now: Moment) -> None:
        """Start watching a node."""
        self._now = now
        channel = launcher.channel
        timing = (channel.timing if channel is not None else None) or self._timing
        link = Link(launcher, self._router, self, timing, self._turns.may_start)
        self._rest[link.name] = timing.rest if timing is not None else 0.0
        if timing is not None and timing.ping is None:
            self._pushed.add(link.name)
        self.links[link.name] = link
        self._busy[link.name] = set()
        self.store.add_node(link.name, now.epoch)
        self.arrivals.expect(link.name, now.mono)
        link.start_in_turn(now)
        self._index(link)

    def is_new(self, conn: int) -> bool:
        """Whether it is the connection of a node that has told nothing yet, or of many nodes."""
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
        """Whether no process of ours is left."""
        return all(link.idle for link in self.links.values())

    def close(self, now: Moment) -> None:
        """Let all probes end."""
        self.arrivals = Arrivals()  # nobody is waited for any more
        for link in self.links.values():
            link.close(now)

    def handle(self, event: Event, now: Moment) -> None:
        """Take what the engine reports."""
        self._now = now
        for one in self._router.take(event):
            self._hand_on(one, now)

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
        """Do what is due; ``behind``: what nodes have said waits to be handled."""
        late = now.mono - self._ticked - (0.0 if behind else LATE) if self._ticked else 0.0
        self._now, self._ticked = now, now.mono
        self._late += max(late, 0.0)  # stopped, or no time for us: no node is to blame
        for event in self._router.due(now.mono):
            self._hand_on(event, now)
        for name, ending in list(self._ending.items()):
            link = self.links[name]
            if link.generation != ending.generation or now.mono > ending.until:
                del self._ending[name]
                if link.generation == ending.generation:
                    link.restart(now, "its probe was ended there")
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
        arrives = self.arrivals.over or self.arrivals.pending(now.mono)  # a picture goes first
        many = max(1.0, len(self.links) / ROUND_NODES)
        apart = ROUND * many * (CALM if many > 1.0 and not self.store.news else 1.0)
        if now.mono - self._last_round >= apart and not arrives:
            self._last_round = now.mono
            for link in self.links.values():
                rested = now.mono >= self._rested.get(link.name, 0.0)
                if link.can_ask and rested and not self._busy[link.name]:
                    told = self.store.nodes[link.name].told, self._odd.get(link.name)
                    if self._pace.due(link.name, told, now.mono):
                        self._round(link)
        self._router.flush()

    def look_closer(self, snapshot: Snapshot) -> None:
        """Note whose descriptors tell most: of odd stacks, and whom other nodes may wait for."""
        odd, asked, none = self.store.odd_ranks(), sought(snapshot), frozenset[int]()
        self._odd = {n: odd.get(n, none) | asked.get(n, none) for n in {*odd, *asked}}

    def read_logs(self, snapshot: Snapshot, diagnoses: Mapping[str, Diagnosis]) -> None:
        """Read the logs of jobs that stall or fail."""
        self._stalls = sampling.stalls(diagnoses.values())
        for one in self.store.outputs.due(snapshot, diagnoses, self._now.epoch):
            link = self.links[one.node]
            if link.can_ask and "log" not in link.unsupported:
                self.read_log(link, self.asks.log(one.node, one.pids, one.paths, by_itself=True))

    def read_log(self, link: Link, ask: Ask) -> None:
        """Ask beside the rounds, of a node one after the other: no file system holds up stacks."""
        waiting = self._reading.setdefault(link.name, [])
        waiting += [ask] if len(waiting) < 16 else []  # else asked again later
        if len(waiting) == 1:
            self.ask(link, ask, lambda _: self._next_log(link, waiting))

    def _next_log(self, link: Link, waiting: list[Ask]) -> None:
        del waiting[: 1 if link.can_ask else None]
        if waiting:
            self.ask(link, waiting[0], lambda _: self._next_log(link, waiting))

    # What links report

    def link_changed(self, link: Link, changes: Mapping[str, Any]) -> None:
        """Fields of a node have changed."""
        self.store.change_node(link.name, changes)
        self.urgent = self.urgent or "state" in changes
        if "generation" in changes and not link.on_its_way(self._now):
            self._turns.done(link)
        if not (link.can_ask or link.state == "connecting"):
            self.arrivals.came(link.name, self._now.mono)

    def link_ready(self, link: Link, hello: messages.Hello, now: Moment) -> None:
        """A probe said hello: watch it."""
        same = hello.boot_id is not None and hello.boot_id == self._boot_id
        self.store.connected(link.name, hello.clock, same, now.epoch)
        self._busy[link.name].clear()
        self._start_next(now)
        options = self._options
        if not options.watch:
            self.arrivals.came(link.name, now.mono)
            return
        rest = max(REST, len(self.links) * REST_NODE)
        params = {**options.watch_request(), "silence": link.silence, "rest": rest}
        link.table_came(now, options.interval)

        def take(raw: Any) -> None:
            piece = messages.decode(raw, messages.WatchPiece)
            view = self.store.nodes[link.name]
            self.urgent = self.urgent or view.fresh
            if self.store.follow_clock(link.name, piece.at, self._now.epoch, piece.clock_set):
                link.note(f"a clock was set: there it is {view.skew:+.0f} s against here now")
            self.store.fold_watch(link.name, piece, link.note)
            self.arrivals.came(link.name, self._now.mono)
            link.table_came(self._now, piece.pause)
            if len(view.strings) > MAX_STRINGS:
                view.strings = {}
                link.send_again(request_id, "watch", {**params, "resync": True})

        def end(summary: Mapping[str, Any] | None, error: HangtopError | None) -> None:
            if link.can_ask and error is None and link.name in self._pushed:
                # It has only so much time, and nothing is wrong with the node.
                link.restart(self._now, "its probe's time is over", "connecting")
            elif link.can_ask and error is None:
                # It was told to end there; how its connection ends may tell by whom.
                self._ending[link.name] = Ending(link.generation, self._now.mono + ENDING_S)
            elif link.can_ask:
                link.restart(self._now, f"the probe gave up watching: {error}")

        request_id = link.request("watch", params, on_piece=take, on_end=end)

    # What is asked by itself

    def _round(self, link: Link) -> None:
        view = self.store.nodes[link.name]
        if view.at is None:
            return
        odd = self._odd.get(link.name, frozenset())
        now, options = self._now.epoch, self._options
        cost = self._sample_cost.get(link.name, sampling.SAMPLE_COST_S)
        if sampling.gpus_stand_still(view.node.gpus, now, options.rest):
            cost = 0.0
        rate = sampling.rate(options, len(self.links), cost, view.pause, stalls=self._stalls)
        read_at = min(view.at, now)
        plan = sampling.plan(view.live.values(), now, rate, odd, read_at)
        for pid in plan.renew:
            self.answers.renew(link.name, pid, read_at)
        if plan.sample:
            ask = self.asks.stacks(plan.sample, by_itself=True)
            self.ask_by_itself(link, ask, lambda said: self._note_cost(link, said))
        if plan.descriptors:
            self.ask_by_itself(link, self.asks.descriptors(plan.descriptors, by_itself=True))
        for pid in plan.numerics:
            view.live[pid].numerics_asked = now
        if plan.numerics:
            self.ask_by_itself(link, self.asks.numerics(plan.numerics, by_itself=True))
        if plan.recorder and not self._options.readonly:
            for pid in plan.recorder:  # what was said before is not said again
                view.live[pid].recorder_asked = now
            self.ask_by_itself(link, self.asks.recorder(link.name, plan.recorder, by_itself=True))

    def _note_cost(self, link: Link, said: object) -> None:
        spent = messages.decode(said, messages.Sampled)
        if spent.cpu_s and spent.pids:  # what has not run since costs nothing
            self._sample_cost[link.name] = min(spent.cpu_s / spent.pids, sampling.MAX_COST_S)

    def busy(self, name: str) -> AbstractSet[str]:
        """What a node is being asked for by itself."""
        return self._busy[name] | ({"log"} if self._reading.get(name) else frozenset())

    def ask_by_itself(
        self, link: Link, ask: Ask, summary: Callable[[object], None] | None = None
    ) -> None:
        """Ask what nobody has asked for: no round of requests begins meanwhile."""
        if ask.op in link.unsupported:
            return
        busy = self._busy[link.name]
        busy.add(ask.op)
        self._rested[link.name] = self._now.mono + self._rest[link.name]
        self.ask(link, ask, lambda _: busy.discard(ask.op), summary)

    # Requests

    def ask(
        self,
        link: Link,
        ask: Ask,
        done: Callable[[HangtopError | None], None],
        summary: Callable[[object], None] | None = None,
    ) -> int | None:
        """Make one request and log it; return its id.

        ``done`` is called once, when it is over; before it ``summary``, with what the probe said
        at the end, unless it failed.
        """
        number = self.commands.begin(
            link.name,
            ask.pids,
            ask.what,
            self._now.epoch,
            by_itself=ask.by_itself,
            pauses=ask.pauses,
        )
        held = ask.pids if ask.pauses else ()
        params, stacks = ask.params, self.store.stacks
        edition = stacks.lend() if ask.op == "stacks" else None
        if edition is not None:
            params = {**params, "edition": edition}
        for known in self._known(link, held):
            known.disturb(self._now.epoch)

        def end(said: Mapping[str, Any] | None, error: HangtopError | None) -> None:
            if edition is not None:
                stacks.give_back(edition)
            for known in self._known(link, held):
                known.let_go(self._now.epoch)
            if summary is not None and error is None:
                try:
                    summary(said)
                except messages.BadPieceError as wrong:
                    link.note(f"{ask.op}: {wrong}")
            self.commands.end(number, self._now.epoch, "done" if error is None else str(error))
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
            deadline=self._now.mono + ask.deadline + GRACE,
        )

    def _known(self, link: Link, pids: Sequence[int]) -> list[Tracked]:
        found = (self.store.live(link.name, pid) for pid in pids)
        return [known for known in found if known is not None]

    def link(self, name: str) -> Link:
        """Return the link to a node.

        Raises:
            UnknownNodeError: when there is none of that name.
        """
        if name not in self.links:
            raise UnknownNodeError(f"there is no node {name!r} in this session")
        return self.links[name]

    def begin_anew(self, name: str, why: str) -> None:
        """Connect to a node once more, because what it said cannot be trusted."""
        self.links[name].restart(self._now, why)
