"""Unattended requests to nodes: when they are due, and for which processes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from hangtop_core.analysis.peers import sought
from hangtop_core.attach.wire import messages
from hangtop_core.collect import sample_rate, sampling
from hangtop_core.scheduling.pace import Pace
from hangtop_core.scheduling.ui_priority import SCREENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hangtop_core.attach.connect.link import Link
    from hangtop_core.attach.connect.timing import Moment
    from hangtop_core.collect.answers import Answers
    from hangtop_core.collect.requests import Ask, Asks
    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Snapshot
    from hangtop_core.model.updates import Options
    from hangtop_core.state.store import Store

ROUND = 0.5
"""Seconds between two checks of what is due."""
ROUND_NODES = 256
"""Number of nodes above which checks are rarer, so that they stay cheap."""
CALM = 4.0
"""Factor between checks while nothing changes anywhere."""

_NOBODY: frozenset[int] = frozenset()


class Nodes(Protocol):
    """The part of a collector that rounds need: all nodes, and requests to each."""

    store: Store
    answers: Answers
    asks: Asks
    links: dict[str, Link]

    def may_ask(self, link: Link) -> bool:
        """Return whether a node may get a request now."""

    def ask_unattended(
        self, link: Link, ask: Ask, summary: Callable[[object], None] | None = None
    ) -> None:
        """Make an unattended request."""

    def read_log(self, link: Link, ask: Ask) -> None:
        """Request a log, beside the rounds."""


class Rounds:
    """Checks what is due on all nodes, and lets a collector request it."""

    def __init__(self, collector: Nodes, options: Options) -> None:
        self._collector = collector
        self._options = options
        self._pace = Pace()
        self._last = 0.0
        self._outliers: Mapping[str, frozenset[int]] = {}
        self._stalls = False
        self._sample_cost: dict[str, float] = defaultdict(lambda: sample_rate.SAMPLE_COST_S)
        """CPU seconds of a node for one sample, as reported last."""

    def look_closer(self, snapshot: Snapshot) -> None:
        """Note ranks whose descriptors matter most: with rare stacks, or awaited by other nodes."""
        outliers, asked = self._collector.store.outlier_ranks(), sought(snapshot)
        self._outliers = {
            n: outliers.get(n, _NOBODY) | asked.get(n, _NOBODY) for n in {*outliers, *asked}
        }

    def read_logs(self, snapshot: Snapshot, diagnoses: Mapping[str, Diagnosis]) -> None:
        """Read the logs of jobs that stall or fail."""
        collector = self._collector
        self._stalls = sample_rate.stalls(diagnoses.values())
        for outputs in collector.store.outputs.due(snapshot, diagnoses, snapshot.at):
            link = collector.links[outputs.node]
            if link.can_ask and "log" not in link.unsupported:
                ask = collector.asks.log(outputs.node, outputs.pids, outputs.paths, by_itself=True)
                collector.read_log(link, ask)

    def look(self, now: Moment) -> None:
        """Make the requests that are due, unless this was checked a moment ago."""
        links, store = self._collector.links, self._collector.store
        many = max(1.0, len(links) / ROUND_NODES)
        if now.mono - self._last < ROUND * many * (CALM if many > 1.0 and not store.news else 1.0):
            return
        self._last = now.mono
        self._pace.begin()
        for name, link in links.items():
            if self._collector.may_ask(link):
                state = store.nodes[name].changes, self._outliers.get(name)
                if self._pace.due(name, state, now.mono):
                    SCREENS.give_way()
                    self._look_at(link, now.epoch)

    def _look_at(self, link: Link, now: float) -> None:
        collector, options = self._collector, self._options
        view = collector.store.nodes[link.name]
        if view.at is None:
            return
        cost = self._sample_cost[link.name]
        if sample_rate.gpus_are_idle(view.node.gpus, now, options.rest):
            cost = 0.0
        rate = sample_rate.rate(
            options, len(collector.links), cost, view.pause, stalls=self._stalls
        )
        read_at = min(view.at, now)
        outliers = self._outliers.get(link.name, _NOBODY)
        plan = sampling.plan(view.live.values(), now, rate, outliers, read_at)
        asks, ask = collector.asks, collector.ask_unattended
        for pid in plan.renew:
            collector.answers.renew(link.name, pid, read_at)
        if plan.sample:
            stacks = asks.stacks(plan.sample, by_itself=True)
            ask(link, stacks, lambda end: self._note_cost(link, end))
        if plan.descriptors:
            ask(link, asks.descriptors(plan.descriptors, by_itself=True))
        if plan.numerics:
            for pid in plan.numerics:
                view.live[pid].numerics_asked = now
            ask(link, asks.numerics(plan.numerics, by_itself=True))
        if plan.recorder and not options.readonly:
            for pid in plan.recorder:  # older data are not sent again
                view.live[pid].recorder_asked = now
            ask(link, asks.recorder(link.name, plan.recorder, by_itself=True))

    def _note_cost(self, link: Link, end: object) -> None:
        spent = messages.decode(end, messages.Sampled)
        if spent.cpu_s and spent.pids:  # processes that have not run since cost nothing
            self._sample_cost[link.name] = min(spent.cpu_s / spent.pids, sample_rate.MAX_COST_S)
