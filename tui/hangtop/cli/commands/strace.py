"""`hangtop strace`: trace the system calls of some ranks for some seconds, fold and save them."""

from __future__ import annotations

import sys
import time
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from hangtop.cli.arguments.arguments import complete
from hangtop.cli.arguments.strace import MAX_SECONDS
from hangtop.cli.jobs.observe import chosen_ranks
from hangtop.cli.jobs.targets import launchers, session_options
from hangtop.cli.output import redacting
from hangtop.cli.output.output import StatusLine
from hangtop_core.analysis.ends import ends
from hangtop_core.analysis.peers import peers, unread
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import HangtopError, UsageError
from hangtop_core.model.snapshot import pids_of
from hangtop_core.session.session import Session
from hangtop_core.text.clean import clean, plural, size
from hangtop_core.text.rank_sets import rank_label
from hangtop_core.tools.strace import Calls, explained, in_place, table, thread_of
from hangtop_core.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import Future

    from hangtop_core.model.snapshot import Rank, Snapshot
    from hangtop_core.session.session import StraceResult

SCHEMA = "hangtop.strace/1"
COST = "every system call of theirs stops for an instant at its start and end"
ENDING_S = 15.0
"""Seconds that a node gets to end a trace."""
ANSWER_S = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    arguments = complete(arguments)
    if arguments.readonly:
        raise UsageError("strace pauses ranks, and --readonly forbids that")
    if not 0 < arguments.for_s <= MAX_SECONDS:
        raise UsageError(f"--for: more than 0 and at most {MAX_SECONDS:.0f} seconds")
    with Session(session_options(arguments), diagnose, launchers(arguments)) as session:
        ranks = chosen_ranks(session, arguments, ",".join(arguments.rank))
        names = socket_ends(session, ranks)
        traces = [
            Traced(rank, names.get((rank.node, rank.process.pid), {}), arguments) for rank in ranks
        ]
        print(
            f"strace -f -tt -T -yy -s 64 of {plural(len(ranks), 'rank')} for "
            f"{arguments.for_s:g} s: {COST}",
            file=sys.stderr,
        )
        for trace in traces:
            trace.start(session)
        follow(session, traces, arguments.for_s)
    if arguments.json:
        ended = [trace.document() for trace in traces]
        document = {"schema": SCHEMA, "hangtop": __version__, "ranks": ended}
        print(to_json(document).decode())
    else:
        for trace in traces:
            trace.print()
    return 0 if all(trace.result is not None for trace in traces) else 1


def socket_ends(session: Session, ranks: Sequence[Rank]) -> dict[tuple[str, int], dict[str, str]]:
    """Return the other ends of sockets, by node and pid of their rank.

    They are derived from the descriptors open now; ranks that do not answer in time are left out.
    """
    pids = pids_of(ranks)
    chosen = {(node, pid) for node, node_pids in pids.items() for pid in node_pids}
    snapshot = _read(session, pids)
    if snapshot is None:
        return {}
    # The other end of a socket to another node is in the tables of that node.
    far: dict[str, set[int]] = {}
    known_peers = peers(snapshot)
    for rank in _of(snapshot, chosen):
        for node, node_pids in unread(snapshot, rank, known_peers).items():
            far.setdefault(node, set()).update(node_pids)
    snapshot = _read(session, far) or snapshot if far else snapshot
    return {(rank.node, rank.process.pid): ends(snapshot, rank) for rank in _of(snapshot, chosen)}


def _read(session: Session, pids: Mapping[str, Collection[int]]) -> Snapshot | None:
    """Have descriptors read; return the snapshot with those that arrived in time."""
    wait(
        [session.descriptors(node, list(node_pids)) for node, node_pids in pids.items()],
        timeout=ANSWER_S,
    )
    at = time.time()
    update = session.wait(lambda update: update.snapshot.at >= at, ANSWER_S)
    return None if update is None else update.snapshot


def _of(snapshot: Snapshot, chosen: Collection[tuple[str, int]]) -> list[Rank]:
    every = (rank for job in snapshot.jobs for rank in job.ranks)
    return [rank for rank in every if (rank.node, rank.process.pid) in chosen]


def follow(session: Session, traces: Sequence[Traced], seconds: float) -> None:
    """Wait until all traces are over; Ctrl-C ends them early."""
    until = time.monotonic() + seconds + ENDING_S
    with StatusLine() as status:
        try:
            while time.monotonic() < until:
                futures = [trace.future for trace in traces if trace.future is not None]
                if not wait(futures, timeout=0.2).not_done:
                    break
                status.show(f"{sum(trace.count for trace in traces)} lines ... (Ctrl-C: enough)")
        except KeyboardInterrupt:
            for trace in traces:
                session.cancel_strace(trace.rank.node, trace.rank.process.pid)
            wait([trace.future for trace in traces if trace.future is not None], timeout=ENDING_S)
    for trace in traces:
        trace.end()


class Traced:
    """One rank's trace."""

    def __init__(self, rank: Rank, names: dict[str, str], arguments: argparse.Namespace) -> None:
        self.rank = rank
        self.count = 0
        self.future: Future[StraceResult] | None = None
        self.result: StraceResult | None = None
        self.error: str | None = None
        self._renamer = redacting.of(arguments)
        self._names: dict[str, str] = self._renamer.data(names)
        self._arguments = arguments
        self._calls = Calls(rank.process.pid)

    def start(self, session: Session) -> None:
        """Start the trace."""
        rank, seconds = self.rank, self._arguments.for_s
        self.future = session.strace(rank.node, rank.process.pid, seconds, self._take)

    def _take(self, lines: Sequence[str]) -> None:
        self.count += len(lines)
        if self._renamer.names:  # the saved trace is not redacted
            lines = self._renamer.lines(list(lines))
        pid = self.rank.process.pid
        for text_line in lines:
            self._calls.add(text_line)
            if self._arguments.lines and self._calls.fits(text_line, self._arguments.filter):
                tid, text = thread_of(text_line, pid)
                resolved = in_place(text_line if text is None else text, self._names)
                print(f"[{rank_label(self.rank.rank)}:{tid}] {resolved}", flush=True)

    def end(self) -> None:
        """Take its result."""
        try:
            self.result = self.future.result(0) if self.future is not None else None
        except (HangtopError, TimeoutError) as error:
            self.error = str(error) or "the node has not said how it ended"
            fix = getattr(error, "help", None)
            self.error += f"\n    {clean(fix)}" if fix else ""

    def print(self) -> None:
        """Print the trace, and where it is saved."""
        say = partial(print, file=sys.stderr) if self._arguments.lines else print
        pid = self.rank.process.pid
        head = f"{self.rank.name}  pid {pid} on {clean(self._renamer.text(self.rank.node))}"
        if self.error is not None:
            print(f"{head}: {self.error}", file=sys.stderr)
        if not self._arguments.lines:
            print(head)
            threads = {thread.tid: thread.name for thread in self.rank.process.threads}
            for row in table(self._calls, self._arguments.filter, self._names, threads):
                print(f"  {row}")
        end = self.result
        if end is None:
            return
        say(
            f"  {plural(end.lines, 'line')} in {end.seconds:g} s, saved in "
            f"{self._renamer.text(end.path)}: "
            f"{plural(end.files, 'file')}, {size(end.size)}"
        )
        if end.unsaved is not None:
            print(f"  lines are missing from the files: {end.unsaved}", file=sys.stderr)
        lost = f"{plural(end.dropped, 'line')} lost" if end.dropped else ""
        polls = f"{plural(end.idle_polls, 'poll')} that timed out" if end.idle_polls else ""
        if lost or polls:
            say(f"  not saved: {', '.join(filter(None, (lost, polls)))}")
        if end.running_again is False:
            print(
                f"  {self.rank.name} does NOT run again: kill -CONT {pid}",
                file=sys.stderr,
            )

    def document(self) -> dict[str, Any]:
        """Return the trace, for programs."""
        rows = [
            {**msgspec.to_builtins(row), "other_end": self._far_end(row.on)}
            for row in self._calls.rows(self._arguments.filter)
        ]
        return {
            "rank": self.rank.rank,
            "node": self._renamer.text(self.rank.node),
            "pid": self.rank.process.pid,
            "calls": rows,
            "error": self._renamer.data(self.error),
            "saved": self._renamer.data(self.result),
        }

    def _far_end(self, target: str) -> str | None:
        explanation = explained(target, self._names)
        return explanation[len(target) + 3 :] if explanation != target else None
