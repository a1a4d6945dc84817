"""Answers that are combined from several nodes, and their futures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hangtop_core.attach.wire import messages, reports
from hangtop_core.attach.wire.futures import reject, resolve
from hangtop_core.attach.wire.messages import BadPieceError
from hangtop_core.errors import HangtopError, RefusedError, RequestError
from hangtop_core.model.recorder.ras import Ras
from hangtop_core.model.snapshot import Failure, StackSample
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from hangtop_core.collect.collector import Collector
    from hangtop_core.collect.requests import Ask

T = TypeVar("T")


class Sampled(NamedTuple):
    """The requested sample of one process."""

    node: str
    pid: int
    sample: StackSample


class Gather:
    """Collects the samples of one `Session.sample` over nodes."""

    def __init__(
        self,
        collector: Collector,
        wanted: Mapping[str, Sequence[int]],
        future: Future[tuple[Sampled, ...]],
        on_node: Callable[[str], object] | None,
    ) -> None:
        self._collector = collector
        self._future = future
        self._on_node = on_node
        self._got: dict[tuple[str, int], Sampled] = {}
        self._wanted = [(node, pid) for node, pids in wanted.items() for pid in pids]
        self._waiting = 1

    def ask(
        self, node: str, pids: Sequence[int], mode: str, want_locals: bool, deadline: float
    ) -> None:
        """Request the samples of one node."""
        if not pids:
            return
        link = self._collector.link(node)
        self._waiting += 1

        def done(error: HangtopError | None) -> None:
            missing = error or RequestError("the probe gave no answer for this process")
            failed = failed_sample(time.time(), missing)
            for pid in pids:
                if (node, pid) not in self._got:
                    self._got[node, pid] = Sampled(node, pid, failed)
                    self._collector.answers.failure(node, pid, failed)
            self._collector.urgent = True
            if self._on_node is not None:
                self._on_node(node)
            self.settle()

        def got(node: str, pid: int, sample: StackSample) -> None:
            self._got[node, pid] = Sampled(node, pid, sample)

        ask = self._collector.asks.stacks(pids, mode, want_locals, deadline, got=got)
        self._collector.ask(link, ask, done)

    def settle(self) -> None:
        """Count one part as done; the last one resolves the future."""
        self._waiting -= 1
        if self._waiting == 0:
            samples = (self._got[key] for key in self._wanted if key in self._got)
            resolve(self._future, tuple(samples))


def answer(
    collector: Collector,
    node: str,
    ask: Ask,
    result: Callable[[Any], T],
    future: Future[T],
) -> None:
    """Make a request; the future gets ``result`` of the end of the answer."""
    ends: list[object] = []

    def done(error: HangtopError | None) -> None:
        collector.urgent = True
        if error is not None:
            reject(future, error)
            return
        try:
            resolve(future, result(ends[0] if ends else None))
        except BadPieceError as wrong:
            reject(future, RequestError(f"{ask.op}: its answer cannot be read: {wrong}"))

    collector.ask(collector.link(node), ask, done, ends.append)


def ask_ras(
    collector: Collector, node: str, pids: Sequence[int], anyway: bool, future: Future[Ras]
) -> None:
    """Ask NCCL's RAS through a rank of a node; the future gets the report, or why there is none."""
    parts: list[str] = []
    ends: list[object] = []

    def done(error: HangtopError | None) -> None:
        collector.urgent = True
        try:
            if error is None:
                end = messages.decode(ends[0] if ends else None, reports.RasEnd)
                resolve(future, collector.answers.ras(node, end, "".join(parts)))
                return
        except BadPieceError as wrong:
            error = RequestError(f"its end cannot be read: {wrong}")
        fix = error.help if isinstance(error, RefusedError) else None
        asked = not isinstance(error, RefusedError) or error.kind in ("timeout", "error")
        failed = Ras(
            time.time(),
            asked=asked,
            failure=clean(str(error).removeprefix("ras: "), 300),
            fix=clean(fix) if fix else None,
        )
        collector.answers.note_ras(node, pids[0], failed)
        resolve(future, failed)

    ask = collector.asks.ras(pids, parts, anyway=anyway)
    collector.ask(collector.link(node), ask, done, ends.append)


def failed_sample(at: float, error: HangtopError) -> StackSample:
    """Return the sample of a process whose node could not be asked."""
    kind = error.kind if isinstance(error, RefusedError) else "error"
    return StackSample(at, 0.0, "nonblocking", (), Failure(kind, str(error), error.help or None))
