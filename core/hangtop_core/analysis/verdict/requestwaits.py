"""How a process waits for requests: its stacks, its connections, and that nobody waits for it.

A stack alone does not tell a server that nobody asks for anything from one that is stuck: both wait
in a queue, a pipe, a socket or an event loop. So it takes a wait at the head of a `while`, nothing
to do in any other thread, and no connection on which somebody waits for an answer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from hangtop_core.analysis.eventloops import is_loop
from hangtop_core.analysis.idle import accepts, at_request, between_requests, in_task, is_idle
from hangtop_core.analysis.reading import waits_for_calls
from hangtop_core.analysis.verdict.onethread import OneThread, threads_in
from hangtop_core.model.frames import ENDLESS, is_library, plain_name
from hangtop_core.text.addresses import port_of

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.descriptors import Descriptor
    from hangtop_core.model.snapshot import DescriptorTable, Frame, Process, StackSample, Thread

_TIMED = re.compile(r"\bwait\(\s*[^)\s]")
"""A wait that ends by itself: of who reports or looks after something now and then."""
_POLLS = re.compile(r"\b(?:select|poll|epoll|accept|wait)\s*\(")
"""A line that waits until one of several descriptors is ready."""
_NOTHING_THERE = re.compile(r"except\b.*\b(?:ZMQError|Again|Empty|BlockingIOError)\b")
"""What handles that nothing has come yet."""
_AT_ONCE = re.compile(r"\b(?:NOBLOCK|DONTWAIT|get_nowait|recv_nowait)\b")
"""A line that takes what has come, and does not wait for it."""
_POLL_ONCE = re.compile(r"for\b.*\b(?:select|poll|epoll)\(")
"""A loop over what a poll has found."""
_CONNECTION, _EVENTS, _CALLS = "a connection", "an event loop", "calls of its actor"
_LOOK, _POLL = "looking for messages", "a poll of its own"
SHARED = "shared memory"
"""In which vLLM looks again and again without rest."""
_OPEN = ("ESTABLISHED", "CLOSE_WAIT", "CONNECTED")
_EVENT = "anon_inode:[eventfd]"
"""By which zmq wakes up an event loop, while a thread of its own serves the sockets."""
_GIVES = ("get", "recv", "recv_bytes", "_recv", "poll", "wait")
_BETWEEN_PROCESSES = ("/multiprocessing/", "/multiprocess/")
_ZMQ, _RAY, _SHARED_MEMORY = "/zmq/", "/ray/_private/", "/shm_broadcast.py"
_IN_LOOP = ("/selectors.py", "/asyncio/", "/uvloop/", "/trio/", "/gevent/")


class Server(NamedTuple):
    """A process that may wait for requests, with what was read of it."""

    process: Process
    threads: Sequence[OneThread]
    table: DescriptorTable | None
    insiders: Container[int] = frozenset()
    """Processes of the job on its node, of a rank its controllers: who is connected to them asks
    for nothing from outside."""


class Wait(NamedTuple):
    """By what a process waits for requests."""

    by: str
    """`zmq recv`, `an event loop`."""
    place: str
    outside: bool
    """Whether what it waits for comes from another process, as far as that is known."""

    @property
    def is_served(self) -> bool:
        """Whether its own port, or its actor, is known to be where requests come in."""
        return self.by in (_CONNECTION, _EVENTS, _CALLS)

    def __str__(self) -> str:
        return f"{self.by} at {self.place}"


def server(
    case: Case, process: Process, sample: StackSample | None, table: DescriptorTable | None
) -> Server:
    """Return a process with its threads, the main thread first."""
    threads = threads_in(case, process, sample)
    some = {one.pid for one in case.job.launchers if one.node == process.node}
    if process.role == "launcher":
        some |= {s.pid for s in case.subjects if s.rank.node == process.node}
    return Server(process, threads, table, frozenset(some))


def request_wait(one: Server) -> Wait | None:
    """Return by what a process waits for requests; None where it may wait for anything else."""
    if not one.threads or has_requests(one):
        return None
    main, others = one.threads[0], one.threads[1:]
    by = _by(one, main)
    if by is None or not all(role(one, other) for other in others):
        return None
    return Wait(by, main.place, _is_from_outside(main))


def is_door(one: Server) -> bool:
    """Whether a thread of it waits for somebody to connect, or for a message of another program."""
    return any(role(one, thread) == "door" for thread in one.threads)


def has_requests(one: Server) -> bool:
    """Whether somebody waits for an answer of it: a thread is at a request, or a connection."""
    busy = any(at_request(t.frames) and not between_requests(t.frames) for t in one.threads)
    return busy or any(in_task(t.frames) for t in one.threads[1:]) or _owes(one)


def _owes(one: Server) -> bool:
    """Whether somebody is connected to a port of its own who has asked, and got no answer yet.

    Not of ranks: their ports are mostly those of the store and of gloo, for one another.
    """
    if one.process.role == "rank" or one.table is None:
        return False
    some = one.table.descriptors
    sockets = [d.socket for d in some if d.socket is not None and d.socket.family == "tcp"]
    ports = {port_of(each.local) for each in sockets if each.state == "LISTEN"}
    asked = (
        port_of(each.local) in ports and each.peer_pid not in one.insiders
        for each in sockets
        if each.state in _OPEN and not each.answered
    )
    return any(asked) or any(each.recv_queue for each in sockets if each.state == "LISTEN")


def role(one: Server, thread: OneThread) -> Literal["door", "idle", ""]:
    """Whether a thread waits for requests, for work, or for anything else."""
    frames = thread.frames
    if accepts(frames):
        return "door"
    if between_requests(frames):
        return "idle"
    if at_request(frames):
        return ""
    if is_loop(frames):
        return "door" if serves(one.table, thread.facts) else ""
    if is_idle(frames) or thread.family == "sleep":
        return "idle"
    if thread.reading.kind == "queue" and thread.reading.op in ("get", "recv", "recv_bytes"):
        return "idle"
    if uses_zmq(thread):
        return "door"
    if _is_of_library(frames) or _reads_itself(one, thread):
        return "idle"
    timed = any(_TIMED.search(frame.source or "") for frame in frames)
    return "idle" if thread.reading.kind == "lock" and timed else ""


def in_server_loop(main: OneThread) -> bool:
    """Whether a queue is read in a `while`, and in no `for`, as far as that is known.

    Who trains takes so many batches, or those of so many epochs.
    """
    known = [frame.within for frame in main.frames if frame.within is not None]
    texts = [text for blocks in known for _, text in blocks]
    loops = [text for text in texts if text.startswith(("for ", "async for ", "while "))]
    loops = [text for text in loops if not _POLL_ONCE.match(text)]
    return not known or (bool(loops) and all(text.startswith("while ") for text in loops))


def is_endless(main: OneThread) -> bool:
    """Whether only a line in them ends all loops that it is in, as far as that is known."""
    known = [text for frame in main.frames for _, text in frame.within or ()]
    loops = [text for text in known if text.startswith(("for ", "async for ", "while "))]
    loops = [text for text in loops if not _POLL_ONCE.match(text)]
    return all(map(ENDLESS.match, loops))


def serves(table: DescriptorTable | None, facts: Thread | None) -> bool:
    """Whether an event loop watches a port of its own, and nobody who is connected waits there."""
    if table is None or facts is None or facts.fd is None:
        return False
    watched = {fd for d in table.descriptors if d.fd == facts.fd for fd in d.watches}
    some = [d for d in table.descriptors if d.fd in watched]
    if ports := _ports(some, ("LISTEN",)):
        asked = [d for d in table.descriptors if d.socket is not None and not d.socket.answered]
        return not ports & _ports(asked, _OPEN)
    # A thread of zmq reads its connections, which stay open: a loop is only woken for a message.
    woken = any(d.target == _EVENT for d in some)
    return woken and bool(_ports(table.descriptors, ("LISTEN",)))


def is_loop_wait(frames: Sequence[Frame]) -> bool:
    """Whether an event loop itself waits, and no coroutine that keeps it from going on."""
    inner = _innermost(frames)
    return is_loop(frames) and _uses(inner, *_IN_LOOP)


def uses_zmq(one: OneThread) -> bool:
    """Whether a thread is in a call of zmq."""
    return _uses(_innermost(one.frames), _ZMQ)


def _by(one: Server, main: OneThread) -> str | None:
    frames = main.frames
    inner = _innermost(frames)
    if waits_for_calls(inner):
        return _CALLS
    if is_loop(frames):
        return _EVENTS if is_loop_wait(frames) and serves(one.table, main.facts) else None
    if not in_server_loop(main):
        return None
    if accepts(frames):
        return _CONNECTION
    if uses_zmq(main):
        return "zmq recv"
    if _uses(inner, _SHARED_MEMORY):
        return SHARED
    if main.reading.kind == "queue" and main.reading.op in _GIVES:
        return f"{main.reading.op} of a queue or pipe"
    if _looks(main):
        return _LOOK
    polls = main.reading.own and main.family == "poll" and _POLLS.search(main.source or "")
    if polls and _listens(one.table):
        return _CONNECTION
    return _POLL if polls and _is_fed(one) else None


def _looks(main: OneThread) -> bool:
    """Whether it takes a message where there is one, and else comes back a moment later."""
    own = next((frame for frame in main.frames if not is_library(frame)), None)
    handlers = own.beside or () if own is not None and main.reading.own else ()
    handles = any(_NOTHING_THERE.match(text) for _, text in handlers)
    return handles or bool(own and _AT_ONCE.search(own.source or ""))


def _is_fed(one: Server) -> bool:
    """Whether a controller of the job has the other end of a pipe or socket of it."""
    some = one.table.descriptors if one.table is not None else ()
    pipes = any(each.pid in one.insiders for d in some for each in d.holders)
    return pipes or any(d.socket is not None and d.socket.peer_pid in one.insiders for d in some)


def _is_from_outside(main: OneThread) -> bool:
    """Whether only another process can end a wait: a queue of threads is filled by one of its own.

    A pipe of multiprocessing may lead to a child of its own, which is looked at apart.
    """
    inner, frames = _innermost(main.frames), main.frames
    return (
        accepts(frames)
        or is_loop(frames)
        or _uses(inner, _ZMQ, _RAY, _SHARED_MEMORY)
        or any(part in "/" + f.file for f in frames for part in _BETWEEN_PROCESSES if _reads(f))
        or main.reading.own
    )


def _reads(frame: Frame) -> bool:
    return plain_name(frame.name) in _GIVES


def _listens(table: DescriptorTable | None) -> bool:
    return table is not None and bool(_ports(table.descriptors, ("LISTEN",)))


def _ports(some: Sequence[Descriptor], states: tuple[str, ...]) -> set[str]:
    """The own ports of TCP sockets in these states, and the paths of unix sockets."""
    sockets = [d.socket for d in some if d.socket is not None and d.socket.state in states]
    ports = {port_of(one.local) for one in sockets if one.family == "tcp"}
    return ports.union(one.local for one in sockets if one.family == "unix" and one.local)


def _innermost(frames: Sequence[Frame]) -> Frame | None:
    return next((frame for frame in frames if not frame.native), None)


def _uses(frame: Frame | None, *files: str) -> bool:
    return frame is not None and any(part in "/" + frame.file for part in files)


_WAITS_IN = ("/threading.py", "/selectors.py", "/queue.py", _RAY)


def _is_of_library(frames: Sequence[Frame]) -> bool:
    """Whether a thread of a library, with nothing of the program, waits to be woken."""
    inner = _innermost(frames)
    return _uses(inner, *_WAITS_IN) and all(map(is_library, frames))


def _reads_itself(one: Server, thread: OneThread) -> bool:
    """Whether a thread of a library reads a pipe to which only its own process writes."""
    reads = thread.family == "pipe-read" and all(map(is_library, thread.frames))
    fd = thread.facts.fd if reads and thread.facts is not None else None
    pipe = one.table.of(fd) if one.table is not None and fd is not None else None
    own = one.process.pid
    return pipe is not None and bool(pipe.holders) and all(e.pid == own for e in pipe.holders)
