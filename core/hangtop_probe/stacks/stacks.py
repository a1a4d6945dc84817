"""Take stacks of processes with py-spy, without stopping them unless that was asked for.

Source of the formats and of the refusals: py-spy 0.4.3, see `parse`. A target that must not
be traced (`tracing`) is only read non-blocking.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, List, Optional, Sequence, Set, Tuple

from ..node import node, permission
from ..proc import procfs, rest
from ..ranks import learned
from ..ranks.rows import Row, Sample
from ..secrets.mask import mask_name, mask_path
from ..wire import fixes
from ..wire.requests import Message, Refused, Request, clock, failure, pids_of
from ..wire.tools import MAX_OUTPUT, Done, Tools
from . import otherends, sources, tracing
from .programthread import program_thread

if TYPE_CHECKING:
    from ..table import table
    from ..table.entry import Identity

MODES = ("nonblocking", "blocking", "native")
MAX_LOCAL = 200
MAX_NAME = 2000
MAX_LINE = 2**31 - 1
MAX_THREADS = 4096
"""Most threads of an interpreter that py-spy 0.4.3 reads (stack_trace.rs)."""
_MAX_TOLD = 20000
"""Most stacks remembered as sent; beyond it all are forgotten and sent again."""
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors that `parse` raises."""


def sample(
    tools: Tools, pid: int, mode: str, want_locals: bool, seconds: float, cancel: threading.Event
) -> Sample:
    """Take one sample of ``pid``.

    A torn read is repeated once; a process that is stopped for it is stopped once, and for
    `tracing.MAX_PAUSE_S` at most.
    """
    spy = node.find_py_spy()
    if spy is None:
        why = "py-spy is not on this node"
        return Sample([], {}, failure("missing", why, fixes.PY_SPY))
    argv = [spy, "dump", "--json", "--pid", str(pid)]
    argv += {"nonblocking": ["--nonblocking"], "native": ["--native"]}.get(mode, [])
    argv += ["--locals"] if want_locals else []
    deadline = time.monotonic() + seconds
    pause, stops = tracing.Pause(pid), mode != "nonblocking"
    for attempt in (1, 2):
        left = max(0.1, deadline - time.monotonic())
        try:
            if stops:
                done = tools.run(argv, left, cancel, is_overdue=pause.is_too_long)
            else:
                done = tools.run(argv, left, cancel)
        except OSError as error:
            return Sample([], {}, failure("missing", "py-spy does not start: %s" % error))
        if done.code == 0:
            try:
                return parse(done.out)
            except _UNREADABLE as error:
                where = type(error).__name__.encode()
                done = done._replace(code=1, err=b"py-spy gave an unreadable answer: " + where)
        reason = explain(pid, done, seconds)
        if attempt == 2 or stops or reason["kind"] != "error" or time.monotonic() > deadline:
            break
    return Sample([], {}, reason)


def parse(data: bytes) -> Sample:
    """Parse the output of `py-spy dump --json`.

    Per thread: thread_name, os_thread_id, active, owns_gil and frames, innermost first, each
    with name, filename, short_filename, module (native frames), line and locals.
    """
    threads, stacks = [], {}
    for thread in json.loads(data):
        rows = [_row(frame) for frame in thread["frames"]]
        key = stack_key(rows)
        stacks[key] = rows
        tid, name = thread.get("os_thread_id"), thread.get("thread_name")
        threads.append(
            {
                "tid": tid if isinstance(tid, int) else None,
                "name": mask_name(name)[:MAX_NAME] if isinstance(name, str) else None,
                "active": bool(thread.get("active")),
                "gil": bool(thread.get("owns_gil")),
                "stack": key,
                "locals": [_locals(frame) for frame in thread["frames"]],
            }
        )
    return Sample(threads, stacks)


def _row(frame: Message) -> Row:
    name, file = str(frame.get("name") or "?"), str(frame.get("filename") or "")
    native = bool(frame.get("module"))
    short = frame.get("short_filename") or sources.shorten(file)
    if native and not file:
        file = str(frame["module"])
    if native and name.startswith("0x"):
        name = "??"  # load addresses differ between processes, so no two stacks would be equal
    # A frame of a running program may be read while it changes.
    line = min(max(int(frame.get("line") or 0), 0), MAX_LINE)
    return [name[:MAX_NAME], file[:MAX_NAME], str(short)[:MAX_NAME], line, native, None, None, None]


def _masked(rows: Sequence[Row]) -> List[Row]:
    """Return frames with masked paths for the head; lines of code are read by the real paths."""
    return [[row[0], *map(mask_path, row[1:3]), *row[3:]] for row in rows]


def _locals(frame: Message) -> List[Message]:
    return [
        {
            "name": str(local.get("name")),
            "value": str(local.get("repr"))[:MAX_LOCAL],
            "argument": bool(local.get("arg")),
        }
        for local in frame.get("locals") or []
    ]


def stack_key(rows: Sequence[Row]) -> str:
    """Return a hash of names, files and lines, equal for equal stacks on all nodes."""
    text = "\n".join("%s\t%s\t%d\t%d" % (r[0], r[1], r[3], r[4]) for r in rows)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=9).hexdigest()


def explain(pid: int, done: Done, seconds: float) -> Message:
    """Return why py-spy failed, from its message (0.4.3) and the state of the process."""
    stat = procfs.read_stat(pid)
    too_many = None
    if stat is not None and stat.threads > MAX_THREADS:
        told = "it has %d threads; py-spy reads no process that has more than %d of Python"
        too_many = failure("unsupported", told % (stat.threads, MAX_THREADS))
    stopped = _why_ended(done, seconds)
    if stopped is not None:
        return too_many if too_many and done.timed_out and not done.overdue else stopped
    said = procfs.text(done.err[: 1 << 16]).strip().split("\nStack backtrace")[0]
    if not os.path.exists("/proc/%d" % pid) or "No such process" in said:
        return failure("gone", "the process is gone")
    if stat is not None and stat.state == "Z":
        return failure("gone", "the process has exited and is a zombie")
    if re.search(r"permission denied|operation not permitted", said, re.IGNORECASE):
        why, fix = permission.why_denied(pid, permission.rights())
        return failure("denied", why, fix)
    return too_many or _complaint(said, done.code)


def _why_ended(done: Done, seconds: float) -> Optional[Message]:
    """Return why py-spy was ended before it answered, or None."""
    if done.overdue:
        why = "py-spy was ended: it had stopped the process for %g s, the most that is allowed; "
        return failure("timeout", (why + "its node may be busy") % tracing.MAX_PAUSE_S)
    if done.timed_out:
        return failure("timeout", "py-spy gave no answer in %g s and was ended" % seconds)
    if done.flooded:
        return failure("error", "py-spy wrote more than %d MiB and was ended" % (MAX_OUTPUT >> 20))
    return failure("error", "cancelled") if done.cancelled else None


def _complaint(said: str, code: Optional[int]) -> Message:
    """Return the failure that py-spy itself reports."""
    if "find python version" in said or "find a python" in said.lower():
        return failure("not-python", "py-spy finds no Python interpreter in it")
    line = " ".join(said.split())[:300] or "py-spy %s and said nothing" % ended(code)
    if "nsupported" in said or "not supported" in said:
        return failure("unsupported", line, fixes.PY_SPY_NEWER)
    return failure("error", line)


def ended(code: Optional[int]) -> str:
    """Return how a program ended, as a predicate to follow its name."""
    if code is None or code >= 0:
        return "ended with %s" % code
    names = {int(one): one.name for one in signal.Signals}
    return "was killed by %s" % names.get(-code, "signal %d" % -code)


class Sampler:
    """Answers `stacks` requests; remembers the stacks sent on this connection."""

    def __init__(self, tools: Tools, processes: table.Table) -> None:
        self._tools = tools
        self._table = processes
        self._told: Set[str] = set()
        self._telling = threading.Lock()
        self._edition = 0
        self._stopping = threading.Lock()
        """Held while py-spy stops a process, so that it stops one at a time."""
        self._rested: rest.Rested[Tuple[bool, Sample]] = rest.Rested()
        self._cpus = node.cpus()
        self._joining: Set[Identity] = set()

    def handle(self, request: Request) -> Message:
        """Sample every process of the request, in parallel unless natively.

        The summary has the CPU seconds of py-spy, without those of the probe itself.
        """
        before = _tools_cpu()
        message = request.message
        pids = pids_of(message)
        mode = message.get("mode", "nonblocking")
        if mode not in MODES:
            raise Refused("error", "mode is none of %s" % ", ".join(MODES))
        seconds = min(max(float(message.get("deadline") or 10), 0.1), 120.0)
        wants = bool(message.get("locals"))
        edition = message.get("edition")
        if isinstance(edition, int) and edition != self._edition:
            # The head is about to drop the stacks it has.
            self._edition = edition
            self._told.clear()
        workers = 1 if mode == "native" else self._cpus
        with ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(self._answer, request, pid, mode, wants, seconds) for pid in pids]
            for job in jobs:
                job.result()
        request.check()
        return {"pids": len(pids), "cpu_s": round(_tools_cpu() - before, 3)}

    def _answer(self, request: Request, pid: int, mode: str, wants: bool, seconds: float) -> None:
        request.check()
        piece, result = self.take(pid, mode, wants, seconds, request.cancelled)

        def make() -> Message:
            if len(self._told) > _MAX_TOLD:
                self._told.clear()
            new = {k: _masked(rows) for k, rows in result.stacks.items() if k not in self._told}
            self._told.update(new)
            piece["stacks"] = new
            return piece

        request.piece(make, self._telling)

    def take(
        self, pid: int, mode: str, wants: bool, seconds: float, cancel: threading.Event
    ) -> Tuple[Message, Sample]:
        """Sample one process; return the piece without its stacks, and the sample."""
        identity = self._table.identity(pid)
        at, began = clock(), time.monotonic()
        piece: Message = {
            "pid": pid,
            "start": identity[1] if identity else None,
            "at": at,
            "mode": mode,
        }
        main: Optional[int] = None
        if identity is None:
            result = Sample([], {}, failure("gone", "the process is gone"))
        else:
            mark = rest.main_mark(pid)
            wants_more = wants or (mode == "nonblocking" and self._table.is_worker(identity))
            result = self._sampled(piece, identity, mode, wants_more, seconds, cancel)
            if mode == "nonblocking" and self._begins_to_join(identity, result):
                result = self._sampled(piece, identity, mode, True, seconds, cancel)
            elif mode == "nonblocking" and self._stands_passing(identity, result, mark):
                more = self._sampled(piece, identity, mode, True, seconds, cancel)
                result = result if more.failure else more
            if self._table.identity(pid) != identity:
                result = Sample([], {}, failure("gone", "the process is gone"))
            taught = learned.learn(result)
            if taught is not None:
                self._table.learn(identity, taught)
            main = program_thread(result) if self._table.is_rank(identity) else None
            self._table.lead(identity, main)
            self._add_sources(pid, result)
        piece["took"] = round(time.monotonic() - began, 4)
        if result.failure is not None:
            piece["failure"] = result.failure
        else:
            piece["threads"] = otherends.ordered(main or pid, result, wants)
        return piece, result

    def _begins_to_join(self, identity: Identity, result: Sample) -> bool:
        """Whether a rank is in init_process_group, and was not at its last sample."""
        joins = any(map(learned.joins, result.stacks.values()))
        begins = joins and identity not in self._joining and self._table.is_rank(identity)
        if begins:
            self._joining.add(identity)
        elif not joins:
            self._joining.discard(identity)
        return begins

    def _stands_passing(self, identity: Identity, result: Sample, main: Optional[bytes]) -> bool:
        """Whether a rank waits in a send or recv whose peer is unknown, and has not run since.

        So ranks that make progress are mostly sampled once. Threads other than the main one may
        run: the one that answers for the flight recorder does, which is read at the same time.
        """
        if not any(map(otherends.passes, result.stacks.values())):
            return False
        if not self._table.is_rank(identity):
            return False
        known = self._rested.find(identity, rest.mark(identity[0]))
        if known is not None:
            return not known[0]
        return main is not None and rest.main_mark(identity[0]) == main

    def _sampled(
        self,
        piece: Message,
        identity: Identity,
        mode: str,
        wants: bool,
        seconds: float,
        cancel: threading.Event,
    ) -> Sample:
        if mode == "nonblocking":
            return self._unless_rested(identity, wants, seconds, cancel)
        pid = identity[0]
        before = procfs.states(pid)
        if tracing.halted(before).busy:
            return Sample([], {}, tracing.refusal(before))
        with self._stopping:
            result = sample(self._tools, pid, mode, wants, seconds, cancel)
        if tracing.runs(pid):
            return result
        piece["resumed"] = tracing.proceed(pid)
        return left_stopped(result, pid, piece["resumed"])

    def _unless_rested(
        self, identity: Identity, wants: bool, seconds: float, cancel: threading.Event
    ) -> Sample:
        """Sample a process, or return its last sample if it has not run since."""
        pid = identity[0]
        before = rest.mark(pid)
        known = self._rested.find(identity, before)
        if known is not None and known[0] >= wants:
            return known[1]
        result = sample(self._tools, pid, "nonblocking", wants, seconds, cancel)
        if result.failure is None:
            self._rested.keep(identity, before, rest.mark(pid), (wants, result))
        return result

    def _add_sources(self, pid: int, result: Sample) -> None:
        for key, rows in result.stacks.items():
            if key not in self._told:
                sources.add(pid, rows)


def _tools_cpu() -> float:
    """Return the CPU seconds of all tools of this probe that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def left_stopped(result: Sample, pid: int, runs: bool) -> Sample:
    """Add to the failure of a sample that py-spy left the process stopped."""
    if result.failure is None and runs:
        return result  # `resumed` is in the piece
    how = "SIGCONT made it run again" if runs else "it does NOT run again: kill -CONT %d" % pid
    text = "py-spy left the process stopped; %s" % how
    if result.failure is None:
        return result._replace(failure=failure("stopped", text))
    told = result.failure
    return result._replace(failure=dict(told, text="%s; %s" % (told["text"], text)))
