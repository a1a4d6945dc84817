"""Requests that a session offers beyond its updates: one method for each."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hangtop_core.attach.connect.timing import Moment
from hangtop_core.attach.wire.futures import reject
from hangtop_core.collect.fan_out import Gather, Sampled, answer, ask_ras
from hangtop_core.collect.requests import opened
from hangtop_core.collect.sampling import all_ranks
from hangtop_core.errors import ClosedError, HangtopError, ReadOnlyError, RequestError
from hangtop_core.tools.strace_files import Order, StraceResult, begin, cancel

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.collect.collector import Collector
    from hangtop_core.collect.requests import Ask
    from hangtop_core.model.descriptors import Openers
    from hangtop_core.model.recorder.ras import Ras
    from hangtop_core.model.snapshot import DescriptorTable, Recorder
    from hangtop_core.model.updates import Options
    from hangtop_core.session.inbox import Inbox
    from hangtop_core.state.outputs import Wanted
    from hangtop_core.state.tracked import Tracked
    from hangtop_core.tools.strace_files import Trace

T = TypeVar("T")
log = logging.getLogger(__name__)


class Asking:
    """The requests of a session; they are made on its thread, and answered by futures."""

    options: Options
    _collector: Collector
    _launchers: list[Launcher]
    _traces: list[Trace]
    _inbox: Inbox
    _thread: threading.Thread
    _state_lock: threading.Lock
    """Held while the session starts or begins to close: items queued before that are answered."""
    _closing: threading.Event

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

        Every requested process is in the result; one without a stack has a sample with the failure.
        ``blocking`` and ``native`` pause each target for some milliseconds. ``deadline`` is in
        seconds for each process. ``on_node`` gets the name of every node that is finished, on the
        session's thread.
        """
        future: Future[tuple[Sampled, ...]] = Future()
        if mode != "nonblocking" and self._refused(future, f"{mode} stacks pause the ranks"):
            return future

        def work() -> None:
            wanted = all_ranks(self._collector.store.nodes) if pids is None else pids
            gather = Gather(self._collector, wanted, future, on_node)
            for node, node_pids in wanted.items():
                gather.ask(node, node_pids, mode, locals, deadline)
            gather.settle()

        return self._do(work, future)

    def descriptors(
        self, node: str, pids: Sequence[int]
    ) -> Future[dict[int, DescriptorTable | None]]:
        """Read the open descriptors of processes; None for a process that is gone."""
        asks = self._collector.asks
        return self._fold(
            node, pids, lambda: asks.descriptors(pids), lambda tracked: tracked.descriptors
        )

    def log(self, wanted: Wanted, window: int | None = None) -> Future[None]:
        """Read the output of processes of a node into `Snapshot.outputs`.

        ``window`` is the number of bytes from the end of each file; without it only new text is
        read.
        """
        node, pids, paths = wanted.node, wanted.pids, wanted.paths
        asks = self._collector.asks
        return self._made(node, lambda: asks.log(node, pids, paths, window=window), lambda _: None)

    def numerics(self, node: str, pids: Sequence[int]) -> Future[None]:
        """Read the non-finite values that ranks have detected into their `Rank`."""
        return self.ask(node, self._collector.asks.numerics(pids), lambda _: None)

    def recorder(
        self, node: str, pids: Sequence[int], *, trigger: bool = False, inject: bool = False
    ) -> Future[dict[int, Recorder | None]]:
        """Read the flight recorders of ranks; None for a rank that is gone.

        With ``trigger`` a rank with torch's dump pipe is made to write its file now. With
        ``inject`` gdb calls torch in a rank that cannot be read otherwise, where that is safe; this
        stops the rank for about a second. Fails with `ReadOnlyError` in a read-only session: a
        thread of the rank may have to answer.
        """
        future: Future[Any] = Future()
        if self._refused(future, "a flight recorder is answered by the rank"):
            return future
        asks = self._collector.asks

        def make() -> Ask:
            return asks.recorder(node, pids, trigger=trigger, inject=inject)

        return self._fold(node, pids, make, lambda tracked: tracked.recorder)

    def ras(self, node: str, pids: Sequence[int], *, anyway: bool = False) -> Future[Ras]:
        """Ask NCCL's RAS for its report of a job, once, through one of its ranks on a node.

        Refused reports have a `failure`. ``anyway`` includes versions that are known to end jobs.
        """
        future: Future[Ras] = Future()
        if not self._refused(future, "NCCL's RAS is answered by all ranks"):
            self._do(lambda: ask_ras(self._collector, node, pids, anyway, future), future)
        return future

    def holders(self, node: str, pid: int, fd: int) -> Future[Openers]:
        """Find the other processes on a node that have a descriptor of a process open."""
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
        if self._refused(future, "strace pauses the process at every system call"):
            return future

        def work() -> None:
            begin(Order(node, pid, seconds, on_lines, future), self._collector, self._traces)

        return self._do(work, future)

    def cancel_strace(self, node: str, pid: int) -> None:
        """End the trace of a process early; its result comes as usual."""
        self._inbox.put(lambda: cancel(node, pid, self._collector, self._traces))

    def retry(self, node: str) -> None:
        """Connect now to a node that was lost, refused or unreachable."""
        self._inbox.put(lambda: self._collector.retry(node, Moment.now()))

    def shell(self, node: str) -> list[str] | None:
        """Return the command for a person's shell on a node; None where none is known."""
        return next(
            (launcher.shell() for launcher in self._launchers if launcher.node == node), None
        )

    def note_command(self, node: str, what: str) -> Callable[[str], None]:
        """Log a command that a person runs on a node; call the result with the outcome."""
        commands = self._collector.commands
        number = commands.begin(node, (), what, time.time(), by_itself=False)
        return lambda outcome: commands.end(number, time.time(), outcome)

    @property
    def commands(self) -> tuple[CommandRecord, ...]:
        """Return all commands that were run against nodes beyond reading /proc, oldest first."""
        return self._collector.commands.records()

    def ask(self, node: str, ask: Ask, result: Callable[[Any], T]) -> Future[T]:
        """Make a request; the future gets ``result`` of the end of the answer."""
        future: Future[T] = Future()
        if ask.pauses and self._refused(future, f"{ask.op} pauses the process"):
            return future
        return self._made(node, lambda: ask, result)

    def _made(self, node: str, make: Callable[[], Ask], result: Callable[[Any], T]) -> Future[T]:
        """Make a request that is described on the session's thread, where the store is read."""
        future: Future[T] = Future()
        return self._do(lambda: answer(self._collector, node, make(), result, future), future)

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

        with self._state_lock:
            runs = self._thread.ident is not None and not self._closing.is_set()
            if runs:
                self._inbox.put(guarded)
        if not runs:
            future.set_exception(ClosedError("the session is not running"))
        return future

    def _fold(
        self,
        node: str,
        pids: Sequence[int],
        make: Callable[[], Ask],
        pick: Callable[[Tracked], Any],
    ) -> Future[Any]:
        def picked(_: object) -> dict[int, Any]:
            live = self._collector.store.nodes[node].live
            return {pid: pick(live[pid]) if pid in live else None for pid in pids}

        return self._made(node, make, picked)
