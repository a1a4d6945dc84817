"""The facade for screens and command line: start, look at the latest `Update`, ask for more.

A session owns two threads: the engine's, which moves bytes, and its own, which does everything
else. Nothing here blocks its caller except `Session.wait` and `Session.close`.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hangtop_core.asks import opened
from hangtop_core.attach.engine import ClusterShellEngine, Event
from hangtop_core.attach.local import Launcher, LocalLauncher
from hangtop_core.attach.timing import Moment, Timing
from hangtop_core.collector import Collector
from hangtop_core.errors import (
    ClosedError,
    HangtopError,
    ReadOnlyError,
    RequestCancelledError,
    RequestError,
)
from hangtop_core.gather import Gather, Sampled, answer, reject, report
from hangtop_core.judging import Judge
from hangtop_core.traces import StraceResult, Trace, begin, cancel
from hangtop_core.updates import Diagnose, Options, Update
from hangtop_core.watching import watching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.asks import Ask
    from hangtop_core.commandlog import CommandRecord
    from hangtop_core.descriptors import Openers
    from hangtop_core.model import DescriptorTable, Recorder
    from hangtop_core.outputs import Wanted
    from hangtop_core.ras import Ras
    from hangtop_core.tracked import Tracked

T = TypeVar("T")
log = logging.getLogger(__name__)
# Without a handler of the application's, Python would write warnings over the screen.
logging.getLogger("hangtop_core").addHandler(logging.NullHandler())

CLOSE_WAIT = 3.0
"""Seconds probes get to end by themselves before they are killed."""
URGENT_GAP = 0.2
"""Seconds between two updates when something came that should not wait."""
TURN_S = 0.5
"""Seconds after which what is due (pings, a new picture) does not wait for more to be read."""
DIAGNOSE_SHARE = 3.0
"""Updates are at least this many times as far apart as diagnosing takes."""

__all__ = ["Diagnose", "Options", "Sampled", "Session", "StraceResult", "Update"]


class Session:
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
        self._inbox: queue.SimpleQueue[Event | Callable[[], None]] = queue.SimpleQueue()
        self._engine = ClusterShellEngine(self._inbox.put)
        self._collector = Collector(self._engine, watching(options), timing)
        self._thread = threading.Thread(target=self._run, name="hangtop-session", daemon=True)
        self._state_lock = threading.Lock()
        self._news = threading.Condition()
        self._latest: Update | None = None
        self._subscribers: dict[int, Callable[[Update], None]] = {}
        self._last_subscriber = 0
        self._traces: list[Trace] = []
        self._closing = threading.Event()
        self._published = 0.0
        self._cost = 0.0

    # Life

    def start(self) -> None:
        """Start observing."""
        with self._state_lock:
            if self._closing.is_set():
                raise ClosedError("the session was closed")
            if self._thread.ident is None:
                self._engine.start()
                self._thread.start()

    def close(self) -> None:
        """End the probes and both threads; nothing is left afterwards. May be called twice."""
        with self._state_lock:
            self._closing.set()
            started = self._thread.ident is not None
        if started and threading.current_thread() is not self._thread:
            self._inbox.put(lambda: None)  # wakes the thread
            self._thread.join(CLOSE_WAIT + 10)
        with self._news:
            self._news.notify_all()

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Updates

    @property
    def latest(self) -> Update | None:
        """The newest update; None before the first."""
        return self._latest

    def subscribe(self, callback: Callable[[Update], None]) -> Callable[[], None]:
        """Call ``callback`` with every update, on the session's thread; return how to stop it.

        It must return soon. When it raises, that is logged and it is not called again.
        """
        with self._news:
            self._last_subscriber += 1
            number = self._last_subscriber
            self._subscribers[number] = callback

        def unsubscribe() -> None:
            with self._news:
                self._subscribers.pop(number, None)

        return unsubscribe

    def wait(self, predicate: Callable[[Update], bool], timeout: float) -> Update | None:
        """Wait at most ``timeout`` seconds for an update for which ``predicate`` holds.

        Return None when none came, or when the session was closed meanwhile.
        """
        until = time.monotonic() + timeout
        seen: Update | None = None
        while True:
            with self._news:
                while self._latest is seen:
                    left = until - time.monotonic()
                    if left <= 0 or self._closing.is_set():
                        return None
                    self._news.wait(left)
                seen = self._latest
            if seen is not None and predicate(seen):
                return seen

    # Requests

    def sample(
        self,
        pids: Mapping[str, Sequence[int]] | None = None,
        *,
        mode: Literal["nonblocking", "blocking", "native"] = "nonblocking",
        locals: bool = False,  # noqa: A002  # what py-spy and its users call them
        deadline: float = 10.0,
        on_node: Callable[[str], object] | None = None,
    ) -> Future[tuple[Sampled, ...]]:
        """Sample stacks now: of ``pids`` by node, or of all ranks.

        Every process asked for is in the result; one that gave no stack has a sample with the
        failure. ``blocking`` and ``native`` pause each target for some milliseconds.
        ``deadline`` is in seconds for each process. ``on_node`` gets the name of every node that
        has answered for all its processes, or never will, on the session's thread.
        """
        future: Future[tuple[Sampled, ...]] = Future()
        if mode != "nonblocking" and self._refused(future, f"{mode} stacks pause the ranks"):
            return future

        def work() -> None:
            wanted = self._collector.all_ranks() if pids is None else pids
            gather = Gather(self._collector, wanted, future, on_node)
            for node, some in wanted.items():
                gather.ask(node, some, mode, locals, deadline)
            gather.settle()

        return self._do(work, future)

    def descriptors(
        self, node: str, pids: Sequence[int]
    ) -> Future[dict[int, DescriptorTable | None]]:
        """Read the open descriptors of processes; None for one that is gone."""
        ask = self._collector.asks.descriptors(pids)
        return self._fold(node, pids, ask, lambda known: known.descriptors)

    def log(self, wanted: Wanted, window: int | None = None) -> Future[None]:
        """Read what processes of a node have printed; it is in `Snapshot.outputs` afterwards.

        ``window``: bytes from the end of each file; without it what is new since the last time.
        """
        ask = self._collector.asks.log(wanted.node, wanted.pids, wanted.paths, window=window)
        return self.ask(wanted.node, ask, lambda _: None)

    def numerics(self, node: str, pids: Sequence[int]) -> Future[None]:
        """Read what ranks have found that is not finite; it is in their `Rank` afterwards."""
        return self.ask(node, self._collector.asks.numerics(pids), lambda _: None)

    def recorder(
        self, node: str, pids: Sequence[int], *, trigger: bool = False, inject: bool = False
    ) -> Future[dict[int, Recorder | None]]:
        """Read the flight recorders of ranks; None for one that is gone.

        With ``trigger`` a rank with torch's dump pipe is made to write its file now. With
        ``inject`` gdb calls torch in a rank that cannot be read otherwise, where that is safe; it
        stops the rank for about a second. Fails with `ReadOnlyError` in a read-only session: a
        thread of the rank may have to answer.
        """
        future: Future[Any] = Future()
        if self._refused(future, "a flight recorder is answered by the rank"):
            return future
        ask = self._collector.asks.recorder(node, pids, trigger=trigger, inject=inject)
        return self._fold(node, pids, ask, lambda known: known.recorder)

    def ras(self, node: str, pids: Sequence[int], *, anyway: bool = False) -> Future[Ras]:
        """Ask NCCL's RAS for its report of a job, once, through one of its ranks on a node.

        Refused reports have a `failure`. ``anyway``: versions that are known to end jobs, too.
        """
        future: Future[Ras] = Future()
        if not self._refused(future, "NCCL's RAS is answered by all ranks"):
            self._do(lambda: report(self._collector, node, pids, anyway, future), future)
        return future

    def holders(self, node: str, pid: int, fd: int) -> Future[Openers]:
        """Find who else on a node has a descriptor of a process open."""
        return self.ask(node, self._collector.asks.holders(pid, fd), opened)

    def strace(
        self, node: str, pid: int, seconds: float, on_lines: Callable[[Sequence[str]], None]
    ) -> Future[StraceResult]:
        """Trace the system calls of one process for at most ``seconds`` (60 at most).

        ``on_lines`` gets cleaned lines on the session's thread; all lines go to a file, named in
        the result. Fails with `RefusedError` where tracing could leave the process stopped, and
        with `ReadOnlyError` in a read-only session.
        """
        future: Future[StraceResult] = Future()
        if not self._refused(future, "strace pauses the process at every system call"):
            trace = Trace(node, pid, seconds, on_lines, future)
            self._do(lambda: begin(trace, self._collector, self._traces), future)
        return future

    def cancel_strace(self, node: str, pid: int) -> None:
        """End the trace of a process early; its result comes as usual."""
        self._inbox.put(lambda: cancel(node, pid, self._collector, self._traces))

    def retry(self, node: str) -> None:
        """Connect to a node now that was lost, refused or unreachable."""
        self._inbox.put(lambda: self._collector.retry(node, _now()))

    def shell(self, node: str) -> list[str] | None:
        """Return the command for a person's shell on a node; None where none is known."""
        return next((one.shell() for one in self._launchers if one.node == node), None)

    def note_command(self, node: str, what: str) -> Callable[[str], None]:
        """Log what a person runs on a node from here; call the result with how it ended."""
        commands = self._collector.commands
        number = commands.begin(node, (), what, time.time(), by_itself=False)
        return lambda outcome: commands.end(number, time.time(), outcome)

    @property
    def commands(self) -> tuple[CommandRecord, ...]:
        """Everything that was run against nodes beyond reading /proc, oldest first."""
        return self._collector.commands.records()

    def ask(self, node: str, ask: Ask, result: Callable[[Any], T]) -> Future[T]:
        """Make a request; ``result`` makes what the future gets, of what was said at the end."""
        it: Future[T] = Future()
        return self._do(lambda: answer(self._collector, node, ask, result, it), it)

    def _refused(self, future: Future[Any], why: str) -> bool:
        if self.options.readonly:
            future.set_exception(ReadOnlyError(f"{why}, and this session is read-only"))
        return self.options.readonly

    def _do(self, work: Callable[[], None], future: Future[Any]) -> Future[Any]:
        """Run ``work`` on the session's thread; its error becomes the future's."""

        def guarded() -> None:
            try:
                work()
            except HangtopError as error:
                reject(future, error)
            except Exception as error:
                log.exception("a request failed")
                reject(future, RequestError(f"{type(error).__name__}: {error}"))

        if self._closing.is_set() or self._thread.ident is None:
            future.set_exception(ClosedError("the session is not running"))
        else:
            self._inbox.put(guarded)
        return future

    def _fold(
        self, node: str, pids: Sequence[int], ask: Ask, pick: Callable[[Tracked], Any]
    ) -> Future[Any]:
        def picked(_: object) -> dict[int, Any]:
            live = self._collector.store.nodes[node].live
            return {pid: pick(live[pid]) if pid in live else None for pid in pids}

        return self.ask(node, ask, picked)

    # The session's thread

    def _run(self) -> None:
        for launcher in self._launchers:
            self._collector.add(launcher, _now())
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception:
                log.exception("a turn of the session failed")
        self._finish()

    def _turn(self) -> None:
        """Handle what has come, do what is due, and publish when it is time."""
        self._handle_all(self._patience())
        now = _now()
        self._collector.tick(now)
        gap = max(URGENT_GAP if self._collector.urgent else self.options.interval, 0.1)
        if now.mono - self._published >= max(gap, self._cost * DIAGNOSE_SHARE):
            self._collector.urgent = False
            self._publish(now)

    def _patience(self) -> float:
        due = self._published + self.options.interval - time.monotonic()
        return min(max(due, 0.02), URGENT_GAP if self._collector.urgent else 0.5)

    def _handle_all(self, timeout: float) -> None:
        with contextlib.suppress(queue.Empty):
            item = self._inbox.get(timeout=timeout)
            until = time.monotonic() + TURN_S
            for _ in range(2000):
                self._handle(item)
                if time.monotonic() > until:
                    break
                item = self._inbox.get_nowait()

    def _handle(self, item: Event | Callable[[], None]) -> None:
        try:
            if callable(item):
                self._collector.set_time(_now())
                item()
            else:
                self._collector.handle(item, _now())
        except Exception:
            log.exception("an event could not be handled")

    def _publish(self, now: Moment) -> None:
        began = time.perf_counter()
        snapshot = self._collector.store.publish(now.epoch)
        self._collector.look_closer(snapshot)
        diagnoses = self._judge.judge(snapshot)
        self._collector.read_logs(snapshot, diagnoses)
        self._cost = time.perf_counter() - began
        self._published = now.mono
        update = Update(snapshot, diagnoses, round(self._cost, 4))
        with self._news:
            self._latest = update
            self._news.notify_all()
            subscribers = list(self._subscribers.items())
        for number, callback in subscribers:
            try:
                callback(update)
            except Exception:
                log.exception("a subscriber failed and is not called again")
                with self._news:
                    self._subscribers.pop(number, None)

    def _finish(self) -> None:
        self._collector.close(_now())
        until = time.monotonic() + CLOSE_WAIT
        while not self._collector.idle and time.monotonic() < until:
            self._handle_all(0.1)
            self._collector.tick(_now())
        self._engine.stop()
        self._handle_all(0.0)
        for trace in self._traces:
            reject(trace.future, RequestCancelledError("the session was closed"))


def _now() -> Moment:
    return Moment(time.time(), time.monotonic())
