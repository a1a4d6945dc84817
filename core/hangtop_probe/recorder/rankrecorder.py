"""One rank's flight recorder, read by whatever way there is.

In this order: a dump file the rank wrote within the last minute; a worker server, which answers
now; a file it wrote earlier since it runs. With `trigger`, first torch's dump pipe, which makes the
rank write a file. With `inject`, where all that gave nothing, gdb. The store key `exception_dump`
would make all ranks dump, too, and then end them: it is never set.

Nothing of a dump is decoded here: `recorderread` does that in a process of its own, with limits.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..node import permission
from ..proc import activity, procfs
from ..ranks import versions
from ..wire import child
from ..wire.guard import Guard, Hanging
from ..wire.requests import Message, clock, failure
from . import inject, torchstore, workerserver
from . import recorderways as ways
from .recorderread import Told
from .recorderways import Facts, Way, way

if TYPE_CHECKING:
    import threading

    from ..wire.tools import Tools

FRESH_S = 60.0
"""A file this new is as good as asking, and has stacks."""
CLOCK_S = 1.0
"""Seconds by which a time may seem to be before the rank's start: that is told in ticks."""
DEFAULT_ENTRIES = 2000
SERVER_S = 5.0
STORE_S = 2.0
READ_S = 30.0
PIPE_S = 25.0
"""torch looks at its pipe once a second, and writes stacks in up to ten."""
MAX_ANSWER = 16 << 20
_CHILD = "from hangtop_probe.recorder.recorderread import main; main()"


class Reading:
    """One rank's recorder, while it is being read."""

    def __init__(
        self,
        pid: int,
        rank: Optional[int],
        asked: Message,
        tools: Tools,
        cancel: threading.Event,
    ) -> None:
        self.pid, self.rank, self.tools, self.cancel = pid, rank, tools, cancel
        entries = asked.get("entries")
        self.entries = entries if isinstance(entries, int) and entries > 0 else DEFAULT_ENTRIES
        self.trigger, self.inject = bool(asked.get("trigger")), bool(asked.get("inject"))
        self.started = 0.0
        self.ways: List[Way] = []

    def run(self, rights: permission.Rights) -> Message:
        """Return the piece for one rank, in the form of messages.RecorderPiece."""
        stat_of = procfs.read_stat(self.pid)
        now = clock()
        began = time.monotonic()
        piece: Message = {"pid": self.pid, "at": now, "asked_at": now}
        piece["start"] = stat_of.start if stat_of else None
        if stat_of is None:
            piece["failure"] = failure("gone", "the process is gone")
            return piece
        try:
            facts = gather(self.pid, self.rank)
            self.started = time.time() - procfs.age(stat_of)
            self.ways.append(ways.ring(facts))
            piece.update(self._read(facts, rights))
        except PermissionError:
            piece["failure"] = failure("denied", *permission.why_denied(self.pid, rights))
        except Hanging:
            text = "its environment or memory map cannot be read: it waits in the kernel"
            piece["failure"] = failure("timeout", text)
        if "trace" not in piece and "failure" not in piece:
            piece["failure"] = failure("missing", "no way to it")
        piece["ways"] = self.ways
        piece["took"] = round(time.monotonic() - began, 3)
        return piece

    def look(self, rights: permission.Rights) -> List[Way]:
        """Return how every way stands, without reading anything by it."""
        stat_of = procfs.read_stat(self.pid)
        try:
            facts = gather(self.pid, self.rank)
        except (PermissionError, Hanging):
            return []
        self.started = time.time() - (procfs.age(stat_of) if stat_of else 0.0)
        self.ways.append(ways.ring(facts))
        self._pipe(facts)
        self.ways += [way("file", "there", path=path) for path, _ in self._files(facts)]
        listening = self._listening(facts, rights)
        if listening is not None:
            unix = [way("server", "there", path=one.local) for one in listening.unix]
            self.ways += unix or [way("debug-server", "maybe")]
        return self.ways

    def _read(self, facts: Facts, rights: permission.Rights) -> Message:
        made = self._pipe(facts)
        files = [] if made else self._files(facts)
        fresh = [path for path, at in files if time.time() - at <= FRESH_S]
        made = made or self._first(fresh, facts)
        made = made or self._server(facts, rights)
        made = made or self._first([path for path, _ in files if path not in fresh], facts)
        if made is None and self.inject:
            made = self._injected(facts, rights)
        elif made is None:
            offered = inject.offered(facts)
            self.ways += [offered] if offered else []
        return made or {}

    # Files

    def _files(self, facts: Facts) -> List[Tuple[str, float]]:
        """Dumps that are there and were written since the rank runs, the newest first."""
        found = []
        paths = ways.dump_files(facts)
        for path in paths:
            seen = status(self._inside(path))
            if seen is None or not stat.S_ISREG(seen.st_mode):
                continue
            if seen.st_mtime < self.started - CLOCK_S:
                age = self.started - seen.st_mtime
                self.ways.append(way("file", "stale", path=path, seconds=int(age)))
            else:
                found.append((path, seen.st_mtime))
        if paths and not found and not any(one["way"] == "file" for one in self.ways):
            self.ways.append(way("file", "none", path=paths[0]))
        return sorted(found, key=lambda one: -one[1])

    def _first(self, paths: List[str], facts: Facts) -> Optional[Message]:
        for path in paths:
            made = self._file(path, facts, "file")
            if made is not None:
                return made
        return None

    def _file(self, path: str, facts: Facts, source: str) -> Optional[Message]:
        since = self.started - CLOCK_S
        order = {"file": self._inside(path), "uid": facts.uid, "since": since}
        made = self._child(order, source, path)
        if made is not None:
            self.ways.append(way(source, "read", path=path))
        return made

    def _inside(self, path: str) -> str:
        """A path of the rank, as it is seen from here."""
        return "/proc/%d/%s%s" % (self.pid, "root" if path[:1] == "/" else "cwd/", path)

    # The pipe

    def _pipe(self, facts: Facts) -> Optional[Message]:
        """Say how the pipe stands; use it where that was asked for."""
        path = ways.pipe_path(facts)
        seen = status(self._inside(path)) if path is not None else None
        there = seen is not None and stat.S_ISFIFO(seen.st_mode) and seen.st_uid == facts.uid
        self.ways.append(ways.pipe(facts, there))
        if path is None or not there or not self.trigger:
            return None
        before = {one: _mark(status(self._inside(one))) for one in ways.dump_files(facts)}
        try:
            fd = os.open(self._inside(path), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            code = "no-reader" if error.errno == errno.ENXIO else "unwritable"
            self.ways[-1] = way("pipe", code, path=path, why=os.strerror(error.errno or 0))
            return None
        try:
            opened = os.fstat(fd)  # whose directory it is may have put something else there
            if not stat.S_ISFIFO(opened.st_mode) or opened.st_uid != facts.uid:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            os.write(fd, b"1")
        except OSError as error:
            self.ways[-1] = way("pipe", "unwritable", path=path, why=os.strerror(error.errno or 0))
            return None
        finally:
            os.close(fd)
        return self._await_dump(path, before, facts)

    def _await_dump(self, path: str, before: Dict[str, object], facts: Facts) -> Optional[Message]:
        """Wait until the rank has written a whole file."""
        deadline = time.monotonic() + PIPE_S
        tried: Dict[str, object] = dict(before)
        while time.monotonic() < deadline and not self.cancel.wait(0.1):
            for file in before:
                mark = _mark(status(self._inside(file)))
                if mark is None or mark == tried[file]:
                    continue
                tried[file] = mark
                count = len(self.ways)
                made = self._file(file, facts, "pipe")
                if made is not None:
                    return dict(made, triggered=True)
                if self.ways[-1]["code"] != "truncated":
                    return None
                del self.ways[count:]  # it is still being written
        self.ways[-1] = way("pipe", "no-dump", path=path, seconds="%g" % PIPE_S)
        return None

    # A worker server

    def _server(self, facts: Facts, rights: permission.Rights) -> Optional[Message]:
        listening = self._listening(facts, rights)
        if listening is None:
            return None
        order: Dict[str, Any] = {"handlers": ways.handlers(facts), "seconds": SERVER_S}
        for entry in listening.unix:
            order["unix"] = workerserver.reachable(self.pid, entry.local)
            made = self._child(order, "server", entry.local)
            if made is not None:
                self.ways.append(way("server", "read", path=entry.local))
                return made
        if listening.unix:
            return None
        return self._debug_server(facts, listening.ports, order)

    def _listening(
        self, facts: Facts, rights: permission.Rights
    ) -> Optional[workerserver.Listening]:
        """Return what a rank with a worker server listens on; note why there is none."""
        if workerserver.THREAD not in facts.threads:
            self.ways.append(ways.no_server(facts))
            return None
        try:
            return workerserver.listening(self.pid)
        except OSError:
            why, fix = permission.why_denied(self.pid, rights)
            self.ways.append(way("server", "denied", why=why, fix=fix))
            return None

    def _debug_server(
        self, facts: Facts, ports: "set[int]", order: Dict[str, Any]
    ) -> Optional[Message]:
        """Ask the TCP port that the rank has published, if it is one of its own."""
        host, port = facts.env.get("MASTER_ADDR"), procfs.decimal(facts.env.get("MASTER_PORT", ""))
        if not procfs.shares(self.pid, "net"):
            self.ways.append(way("debug-server", "other-network"))
            return None
        if host is None or port is None or facts.rank is None:
            self.ways.append(way("debug-server", "no-store"))
            return None
        try:
            published = torchstore.debug_port(host, port, facts.rank, STORE_S)
        except (OSError, ValueError) as error:
            where = "%s:%d" % (host, port)
            self.ways.append(way("debug-server", "store", where=where, why=str(error)[:200]))
            return None
        if published is None or published not in ports:
            self.ways.append(way("debug-server", "unpublished"))
            return None
        address = "port %d" % published
        for own in ("127.0.0.1", "::1"):
            made = self._child(dict(order, tcp=[own, published]), "debug-server", address)
            if made is not None:
                self.ways.append(way("debug-server", "read", path=address))
                return made
        return None

    # gdb

    def _injected(self, facts: Facts, rights: permission.Rights) -> Optional[Message]:
        try:
            gdb = inject.check(facts, self.tools, rights, self.cancel)
            if self.cancel.is_set():
                return None
            path = inject.dump(facts, gdb)
        except Told as told:
            self.ways.append(dict(told.message, way="inject"))
            return None
        try:
            made = self._child({"file": path, "uid": facts.uid}, "inject", "gdb")
        finally:
            inject.forget(path)
        if made is not None:
            self.ways.append(way("inject", "read", path="gdb"))
        return None if made is None else dict(made, triggered=True)

    def _child(self, order: Dict[str, Any], source: str, path: str) -> Optional[Message]:
        """Let a process of its own read and reduce; note why where that gives nothing."""
        text = json.dumps(dict(order, entries=self.entries))
        try:
            done = self.tools.run([*child.python(_CHILD), text], READ_S, self.cancel)
        except OSError as error:
            self.ways.append(way(source, "error", path=path, why=str(error)[:200]))
            return None
        if done.timed_out or done.code != 0 or len(done.out) > MAX_ANSWER:
            how = "it takes over %g s" % READ_S if done.timed_out else "status %s" % done.code
            self.ways.append(way(source, "broke", path=path, why=how))
            return None
        answer = json.loads(done.out)
        if "trace" not in answer:
            self.ways.append(dict(way(source, answer["code"], path=path, **answer["args"])))
            return None
        if answer.get("earlier"):
            count = answer["earlier"]
            self.ways.append(way(source, "partly-earlier", path=path, count=count))
        made: Message = {"trace": answer["trace"], "source": source, "path": path}
        if answer.get("at"):
            made["at"] = round(answer["at"], 3)
        return made


_GUARD = Guard()


def gather(pid: int, rank: Optional[int]) -> Facts:
    """Return what is known of a rank.

    Raises:
        PermissionError: it may not be looked into.
        Hanging: the kernel does not answer.
    """

    def read() -> Facts:
        # Opened here so that a refusal is told from an empty environment.
        with open("/proc/%d/environ" % pid, "rb") as file:
            env = procfs.parse_environ(file.read(procfs.MAX_ENVIRON))
        maps = procfs.read_all("/proc/%d/maps" % pid, versions.MAX_MAPS) or b""
        found = versions.read(pid)
        return Facts(
            pid=pid,
            rank=rank if rank is not None else procfs.decimal(env.get("RANK", "")),
            uid=os.stat("/proc/%d" % pid).st_uid,
            env=env,
            threads=frozenset(activity.thread_names(pid).values()),
            loaded=bool(found),
            torch=found.get("torch"),
            nccl=b"/libnccl.so" in maps,
        )

    try:
        return _GUARD.call(read, 3.0)
    except FileNotFoundError:
        raise PermissionError from None


def status(path: str) -> Optional[os.stat_result]:
    """Return the status of a file, not of what a link leads to; None when it cannot be had."""
    try:
        return _GUARD.call(lambda: os.lstat(path), 2.0)
    except (OSError, Hanging):
        return None


def _mark(seen: Optional[os.stat_result]) -> object:
    """What changes when a file is written anew."""
    return None if seen is None else (seen.st_ino, seen.st_mtime_ns, seen.st_size)
