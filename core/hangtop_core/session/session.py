"""The facade for screens and command line: start, read the latest `Update`, make requests.

A session owns the engine, which moves bytes, and a thread of its own, which does everything else.
Nothing here blocks its caller except `Session.wait` and `Session.close`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from hangtop_core.attach.connect.apart import MANY, engine
from hangtop_core.attach.connect.timing import Moment, Timing
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.attach.wire.futures import reject
from hangtop_core.collect.collector import Collector
from hangtop_core.collect.fan_out import Sampled
from hangtop_core.collect.needs import Needs
from hangtop_core.collect.slurm_ends import SlurmEnds
from hangtop_core.errors import ClosedError, RequestCancelledError, StartError
from hangtop_core.judging.judging import Judge
from hangtop_core.model.updates import Diagnose, Options, Update
from hangtop_core.scheduling.ui_priority import SCREENS
from hangtop_core.session import starting
from hangtop_core.session.inbox import Inbox
from hangtop_core.session.observing import observed
from hangtop_core.session.queries import Asking
from hangtop_core.session.schedule import URGENT_GAP, Schedule
from hangtop_core.tools.strace_files import StraceResult, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangtop_core.attach.connect.engine import Event
    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.model.snapshot import Snapshot

log = logging.getLogger(__name__)
# Without a handler of the application, Python would write warnings over the screen.
logging.getLogger("hangtop_core").addHandler(logging.NullHandler())

CLOSE_WAIT = 3.0
"""Seconds that probes get to end before they are killed."""
REST_S, ASKED_S = 1.0, 10.0
"""Seconds that messages may wait while the job hangs with a verdict and nothing changes; seconds
after a request in which they may not."""
PATIENCE_S = 0.5
"""Maximum seconds between two checks of what is due, where nothing is handed out later."""
MANY_RANKS = 512
"""Number of ranks from which a verdict takes longer than a person should wait for a first view."""
UNJUDGED_S = 5.0
"""Seconds without a verdict that are tolerated while many nodes connect one after the other."""
DRAWN_S = 0.2
"""Maximum seconds that a verdict waits until its snapshot is on the screen."""
TURN_S = 0.5
"""Seconds after which due work (pings, a new snapshot) does not wait for further messages."""

__all__ = ["Diagnose", "Options", "Sampled", "Session", "StraceResult", "Update"]


class Session(Asking):
    """Observes nodes until it is closed. All methods may be called from any thread."""

    def __init__(
        self,
        options: Options,
        diagnose: Diagnose,
        launchers: Sequence[Launcher] | None = None,
        timing: Timing | None = None,
    ) -> None:
        """Prepare a session; without ``launchers`` on this machine.

        ``diagnose`` gets a snapshot, a job of it (None when there is none) and
        ``options.hang_after``; it runs on the session's thread and must be pure.
        """
        self.options = options
        self._judge = Judge(diagnose, options.hang_after)
        self._launchers = list(launchers) if launchers is not None else [LocalLauncher()]
        self._inbox = Inbox(self._goes_first)
        self._engine = engine(self._inbox.put, len(self._launchers))
        self._collector = Collector(self._engine, options, timing)
        self._needs = Needs(
            self._collector, readonly=options.readonly, allow_pause=options.allow_pause
        )
        self._thread = threading.Thread(target=self._run, name="hangtop-session", daemon=True)
        self._state_lock = threading.Lock()
        self._news = threading.Lock()
        self._waiting: set[queue.SimpleQueue[None]] = set()
        self._latest: Update | None = None
        self._subscribers: dict[int, tuple[Callable[[Update], None], bool]] = {}
        self._last_subscriber = 0
        self._traces: list[Trace] = []
        self._closing = threading.Event()
        self._slurm_ends = SlurmEnds(self._closing, self._ended_by_slurm)
        self._began: float | None = None
        self._schedule = Schedule(options.interval)
        self._asked = self._calm = 0.0
        self._judged = time.monotonic()
        self._behind = False
        """Whether more messages have arrived than could be handled in one turn."""

    # Life

    def start(self) -> None:
        """Start observing.

        Raises:
            StartError: this machine has not enough memory or threads for it.
        """
        with self._state_lock:
            if self._closing.is_set():
                raise ClosedError("the session was closed")
            if self._thread.ident is None:
                starting.check_memory()
                self._began = time.monotonic()
                try:
                    self._engine.start()
                    self._thread.start()
                except (RuntimeError, MemoryError, OSError) as error:
                    self._engine.stop()
                    raise StartError(f"cannot start the threads of a session: {error}") from error

    def close(self) -> None:
        """End the probes and all threads; nothing is left afterwards. May be called twice."""
        with self._state_lock:
            self._closing.set()
            started = self._thread.ident is not None
        if started and threading.current_thread() is not self._thread:
            self._inbox.put(lambda: None)  # wakes the thread
            self._thread.join(CLOSE_WAIT + 10)
        self._wake_waiting()

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Return whether the session was closed."""
        return self._closing.is_set()

    @property
    def age_s(self) -> float:
        """Return the seconds since the start; 0 before it."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    # Updates

    def snapshot(self, observe: float = 5.0) -> Snapshot:
        """Observe until enough is known of every job, and return the newest snapshot.

        That is once every node has answered or said why it cannot, the session is ``observe``
        seconds old, the state of each job is clear (`Options.hang_after` and 20 s at most, a minute
        more where first stacks are late), and the evidence that rules request has come: as in
        `hangtop diagnose`. The snapshot is returned in any case; a node that cannot be observed has
        a state with the reason.

        Raises:
            ClosedError: the session was closed.
            NoNodeError: no node has sent anything, not even a failure.
        """
        return observed(self, observe).snapshot

    @property
    def latest(self) -> Update | None:
        """Return the newest update; None before the first."""
        return self._latest

    def subscribe(
        self, callback: Callable[[Update], None], *, unjudged: bool = False
    ) -> Callable[[], None]:
        """Call ``callback`` with every update, on the session's thread; return a function to stop.

        The callback must return soon. When it raises, that is logged and it is not called again.
        With ``unjudged``, while nodes with many ranks connect, it is also called with snapshots
        without a diagnosis: the same snapshot comes once more with its diagnosis.
        """
        with self._news:
            self._last_subscriber += 1
            number = self._last_subscriber
            self._subscribers[number] = callback, unjudged

        def unsubscribe() -> None:
            with self._news:
                self._subscribers.pop(number, None)

        return unsubscribe

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> Update | None:
        """Wait at most ``timeout`` seconds for an update for which ``predicate`` holds.

        Return None without such an update, or when the session was closed meanwhile.
        """
        until = time.monotonic() + timeout
        latest: Update | None = None
        # No `threading.Condition`: Ctrl-C within its wait may leave it unlocked, which is an error.
        news: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._news:
            self._waiting.add(news)
        try:
            while True:
                if self._latest is not latest:
                    latest = self._latest
                    if latest is not None and predicate(latest):
                        return latest
                    continue
                left = until - time.monotonic()
                if left <= 0 or self._closing.is_set():
                    return None
                with contextlib.suppress(queue.Empty):
                    news.get(timeout=left)
        finally:
            with self._news:
                self._waiting.discard(news)

    def _wake_waiting(self) -> None:
        with self._news:
            for news in self._waiting:
                news.put(None)

    # The session's thread

    def _run(self) -> None:
        now = Moment.now()
        for launcher in self._launchers:
            self._collector.add(launcher, now)
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception:
                log.exception("a turn of the session failed")
        self._finish()

    def _turn(self) -> None:
        """Handle what has come, do what is due, and publish when it is time."""
        self._behind = self._handle_all(self._patience())
        now = Moment.now()
        self._collector.tick(now, self._behind)
        if self._wait(now.mono) <= 0:
            self._collector.urgent = False
            self._publish(now)
            self._collector.arrivals.shown(time.monotonic())
        waited_for = self._traces or now.mono - self._asked < ASKED_S
        self._calm = REST_S if self._rests and not waited_for else 0.0
        self._engine.rest(self._calm)

    def _wait(self, now: float) -> float:
        """Return the seconds until the next update is due."""
        arrivals = self._collector.arrivals
        if arrivals.over:
            return 0.0
        return self._schedule.wait(
            now,
            arriving=arrivals.pending(now),
            urgent=self._collector.urgent,
            rests=self._rests,
            behind=self._behind,
            settled=self._judge.settled,
            growth=self._collector.store.growth,
        )

    @property
    def _rests(self) -> bool:
        return self._judge.settled and not self._collector.store.news

    def _patience(self) -> float:
        due = self._wait(time.monotonic())
        limit = URGENT_GAP if self._collector.urgent else self._calm or PATIENCE_S
        return min(max(due, 0.02), limit)

    def _handle_all(self, timeout: float) -> bool:
        """Handle items, and wait for some; return whether there were too many for one turn."""
        arrivals, now = self._collector.arrivals, time.monotonic()
        until = now + max(timeout, TURN_S)
        while (item := self._inbox.take(timeout, first_only=arrivals.pending(now))) is not None:
            self._handle(item)
            timeout, now = 0.0, time.monotonic()
            if arrivals.over or now > until:
                break
        return not self._inbox.empty

    def _goes_first(self, item: Event | Callable[[], None]) -> bool:
        """Return whether an item is a call, or from a node without a process list yet."""
        return callable(item) or self._collector.is_new(item.conn)

    def _handle(self, item: Event | Callable[[], None]) -> None:
        try:
            SCREENS.give_way()
            if callable(item):
                self._collector.now = now = Moment.now()
                self._asked = now.mono
                item()
            else:
                self._collector.handle(item, Moment.now())
        except Exception:
            log.exception("an event could not be handled")

    def _publish(self, now: Moment) -> None:
        began, worked = time.perf_counter(), time.thread_time()
        arrivals = self._collector.arrivals
        comes_in = arrivals.over or arrivals.pending(now.mono)
        looks = arrivals.over or self._subscribers or self._waiting
        if comes_in and self._many and not looks:
            return  # no snapshot is needed yet
        snapshot = self._collector.store.publish(now.epoch)
        unjudged_update = Update(snapshot, self._judge.before(snapshot))
        is_shown = comes_in and self._many and self._tell(unjudged_update, unjudged=True)
        if is_shown and not (arrivals.over or now.mono > self._judged + UNJUDGED_S):
            # More is known in a moment: messages of nodes go before their analysis.
            self._schedule.made(now.mono, time.monotonic(), time.thread_time() - worked)
            return
        if is_shown:
            SCREENS.rest(DRAWN_S)
        SCREENS.give_way()
        self._collector.rounds.look_closer(snapshot)
        diagnoses = self._judge.judge(snapshot)
        self._collector.store.keep(self._judge.kept)
        self._slurm_ends.look(snapshot)
        self._judged = now.mono
        SCREENS.give_way()
        self._collector.rounds.read_logs(snapshot, diagnoses)
        diagnoses = self._needs.take(diagnoses, now.mono)
        self._schedule.made(now.mono, time.monotonic(), time.thread_time() - worked)
        cost, pause = time.perf_counter() - began, self._schedule.gap(rests=self._rests)
        update = Update(snapshot, diagnoses, round(cost, 4), round(pause, 1))
        with self._news:
            self._latest = update
        self._wake_waiting()
        self._tell(update)

    def _ended_by_slurm(self, key: str, how: str) -> None:
        """Note how Slurm has ended a job; may be called from any thread."""
        self._inbox.put(lambda: self._collector.store.ended_by_slurm(key, how))

    @property
    def _many(self) -> bool:
        """Return whether there is so much that a verdict takes a while."""
        return len(self._launchers) > MANY or self._collector.store.rank_count >= MANY_RANKS

    def _tell(self, update: Update, *, unjudged: bool = False) -> bool:
        """Give an update to subscribers, an unjudged one to some; return whether there were any."""
        with self._news:
            subscribers = [
                entry for entry in self._subscribers.items() if entry[1][1] or not unjudged
            ]
        for number, (callback, _) in subscribers:
            try:
                callback(update)
            except Exception:
                log.exception("a subscriber failed and is not called again")
                with self._news:
                    self._subscribers.pop(number, None)
        return bool(subscribers)

    def _finish(self) -> None:
        self._collector.close(Moment.now())
        until = time.monotonic() + CLOSE_WAIT
        while not self._collector.idle and time.monotonic() < until:
            self._handle_all(0.1)
            self._collector.tick(Moment.now())
        self._engine.stop()
        self._handle_all(0.0)
        for trace in self._traces:
            reject(trace.future, RequestCancelledError("the session was closed"))
