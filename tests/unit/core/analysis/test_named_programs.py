"""Programs that a person named and that are no ranks: servers with workers, and workers stuck."""

from __future__ import annotations

from typing import Any

import pytest

from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import HUNG_SINCE, NOW, World, judged
from support.situations import (
    FIFO_OPEN,
    FUTEX,
    POLL,
    SLEEP,
    WAITPID,
    Stack,
    frame,
    inside,
    thread,
    user,
)

WHILE = (40, "while True:")
WAITS: Stack = inside(user("main", 13, "os.wait()"), WHILE)
SLEEPS: Stack = inside(user("main", 14, "time.sleep(1)"), WHILE)
EVENT: Stack = (
    frame("Condition.wait", "py:threading.py", 331),
    frame("Event.wait", "py:threading.py", 629),
    frame("Multiprocess.run", "uvicorn/supervisors/multiprocess.py", 203),
    *user("main", 15),
)
JOINS: Stack = (
    frame("Popen.wait", "py:multiprocessing/popen_fork.py", 43),
    frame("BaseProcess.join", "py:multiprocessing/process.py", 149),
    *user("main", 90),
)
SERVES: Stack = (
    frame("_PollLikeSelector.select", "py:selectors.py", 415),
    frame("BaseServer.serve_forever", "py:socketserver.py", 233),
    *user("main", 11),
)
SYNC: Stack = (frame("SyncWorker.wait", "gunicorn/workers/sync.py", 35), *user("main", 12))
GTHREAD: Stack = (SERVES[0], frame("ThreadWorker.run", "gunicorn/workers/gthread.py", 398))
LOOP: Stack = (
    frame("EpollSelector.select", "py:selectors.py", 468),
    frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890),
    frame("run", "py:asyncio/runners.py", 190),
)
OPENS: Stack = user("handle", 9, "open(path)")
EPOLL: Any = ("S", "do_epoll_wait", "epoll_wait", 10, None)
PIPE: Any = ("S", "anon_pipe_read", "read", 13, None)
TCP = Socket("tcp", "LISTEN", "0.0.0.0:8000", "0.0.0.0:0")
UNIX = Socket("unix", "LISTEN", "/run/web.sock", "")
CONNECTED = Socket("unix", "CONNECTED", "/run/web.sock", "")


def table(*sockets: Socket, writer: int = 4000) -> DescriptorTable:
    some = [Descriptor(11 + n, "socket", f"socket:[{n}]", socket=s) for n, s in enumerate(sockets)]
    loop = Descriptor(10, "anon", "anon_inode:[eventpoll]", watches=(11, 12))
    pipe = Descriptor(13, "pipe", "pipe:[9]", holders=(Holder(writer, "python", "S", "writes"),))
    return DescriptorTable(at=NOW, descriptors=(loop, *some, pipe))


def program(
    main: Stack,
    facts: Any,
    *children: tuple[Stack, Any],
    sockets: tuple[Socket, ...] = (TCP,),
    source: str = "--pid",
    process: Any = (),
    **fields: Any,
) -> World:
    """A program, and those that it started."""
    world = World()
    own = {"pid": 4000, "rank": None, "rank_source": source, **dict(process)}
    rank = world.add(main, facts, process=own, **fields)
    found = []
    for n, (stack, how) in enumerate(children):
        child = world.process(9000 + n, how, role="subprocess", label="subprocess python",
                              ppid=4000, rank_pid=4000)  # fmt: skip
        found.append((child, world.sample(stack, pid=child.pid, same_functions_since=HUNG_SINCE)))
    world.give_children(rank, found, tables={9000 + n: table(*sockets) for n in range(4)})
    return world


WEB = (SERVES, POLL)


@pytest.mark.parametrize(
    "world",
    [
        program(WAITS, WAITPID, WEB, WEB),
        program(SLEEPS, SLEEP, WEB),
        program(JOINS, WAITPID, (LOOP, EPOLL), WEB),
        program(EVENT, FUTEX, (LOOP, EPOLL), (LOOP, EPOLL)),
        program(EVENT, FUTEX, (LOOP, EPOLL), sockets=(UNIX,)),
        program(EVENT, FUTEX, (SYNC, POLL), (GTHREAD, EPOLL)),
    ],
)
def test_a_program_whose_children_wait_for_requests_is_idle(world: World) -> None:
    found = judged(world)
    assert (found.state, found.verdicts) == ("idle", ())
    assert "pid 9000" in found.request_waits[0].text


@pytest.mark.parametrize(
    "world",
    [
        program(WAITS, WAITPID),
        program(WAITS, WAITPID, WEB, source="RANK"),  # a rank has more to do
        program(WAITS, WAITPID, WEB, (OPENS, FIFO_OPEN)),
        program(EVENT, FUTEX, (LOOP, EPOLL), sockets=(UNIX, CONNECTED)),
        program(EVENT, FUTEX, (LOOP, EPOLL), sockets=()),
    ],
)
def test_one_of_which_that_is_not_known_is_not(world: World) -> None:
    assert judged(world).state == "hung"


@pytest.mark.parametrize("main", [(WAITS, WAITPID), (EVENT, FUTEX), (SLEEPS, SLEEP)])
def test_the_worker_that_is_stuck_is_named_before_those_that_wait_for_requests(main: Any) -> None:
    verdict = judged(program(*main, WEB, (OPENS, FIFO_OPEN), (LOOP, EPOLL))).verdicts[0]
    assert verdict.cause == "child-process-wait"
    assert "pid 9001" in verdict.summary
    assert "at train.py:9 (handle)" in verdict.summary
    assert "pid 9000" not in verdict.summary
    assert "/proc/9001/fd" in verdict.next_steps[0]


@pytest.mark.parametrize(("writer", "state"), [(4000, "idle"), (9000, "hung")])
def test_a_thread_of_a_library_may_read_what_its_own_process_prints(
    writer: int, state: str
) -> None:
    """As those of a Jupyter kernel do."""
    reads = (
        frame("OutStream._watch_pipe_fd", "ipykernel/iostream.py", 478),
        frame("Thread.run", "py:threading.py", 982),
    )
    world = program(
        LOOP,
        EPOLL,
        process={"threads": (thread(4005, PIPE),)},
        sample={"others": [("watch", 4005, reads, False)]},
        descriptors=table(TCP, writer=writer),
    )
    assert judged(world).state == state
