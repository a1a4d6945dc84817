"""The engine with small real children."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.connect import apart
from hangtop_core.attach.connect.apart import DESCRIPTORS, ApartEngine, engine
from hangtop_core.attach.connect.child import Child, _inherited
from hangtop_core.attach.connect.engine import MAX_UNREAD, Closed, Event, Lines, PipeEngine
from support.processes import PATIENCE, is_alive, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ECHO = [
    sys.executable,
    "-ISc",
    "import sys\nfor l in sys.stdin: print('got', l, end='', flush=True)",
]


class Bench:
    """An engine and what it has reported, by connection."""

    def __init__(self, kind: type[ApartEngine | PipeEngine] = PipeEngine) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.engine = kind(self.events.put)
        self.lines: dict[int, list[bytes]] = {}
        self.closed: dict[int, Closed] = {}

    def take(self, timeout: float = 60.0, acknowledge: bool = True) -> None:
        event = self.events.get(timeout=timeout)
        if isinstance(event, Lines):
            assert event.conn not in self.closed, "nothing comes after the end"
            self.lines.setdefault(event.conn, []).extend(event.lines)
            if acknowledge:
                self.engine.consumed(event.conn, event.size)
        else:
            self.closed[event.conn] = event


BOTH = pytest.mark.parametrize("kind", [PipeEngine, ApartEngine])


@pytest.fixture(params=[PipeEngine, ApartEngine])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    bench.engine.start()
    yield bench
    bench.engine.stop()


def test_lines_go_both_ways(bench: Bench) -> None:
    conn = bench.engine.open("n1", ECHO)
    bench.engine.write(conn, b"one\ntwo\n")
    while len(bench.lines.get(conn, [])) < 2:
        bench.take()
    assert bench.lines[conn] == [b"got one", b"got two"]
    bench.engine.close_input(conn)
    while conn not in bench.closed:
        bench.take()
    assert bench.closed[conn].code == 0


def test_many_connections_start_at_once_though_no_one_ends(bench: Bench) -> None:
    conns = [bench.engine.open(f"n{i}", ["cat"]) for i in range(130)]
    for conn in conns:
        bench.engine.write(conn, b"%d\n" % conn)
    while len(bench.lines) < len(conns):
        bench.take()
    assert all(bench.lines[conn] == [b"%d" % conn] for conn in conns)


def test_exit_status_signal_and_last_words_are_told(bench: Bench) -> None:
    left = bench.engine.open("n1", ["sh", "-c", "echo no such host >&2; exit 3"])
    killed = bench.engine.open("n2", ["sh", "-c", "kill -9 $$"])
    while len(bench.closed) < 2:
        bench.take()
    assert (bench.closed[left].code, bench.closed[left].stderr) == (3, b"no such host\n")
    assert bench.closed[killed].code == -9


def test_a_command_that_is_missing_is_an_ending(bench: Bench) -> None:
    conn = bench.engine.open("n1", ["/nowhere/python"])
    bench.take()
    assert bench.closed[conn].code is None
    assert bench.closed[conn].unstarted == errno.ENOENT
    assert b"No such file" in bench.closed[conn].stderr


def test_a_machine_out_of_descriptors_says_so_and_starts_the_next() -> None:
    bench = Bench()
    bench.engine.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        conn = bench.engine.open("n1", ["true"])
        bench.take()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert bench.closed[conn].unstarted == errno.EMFILE
    later = bench.engine.open("n1", ["true"])
    bench.take()
    assert (bench.closed[later].code, bench.closed[later].unstarted) == (0, None)
    bench.engine.stop()


def test_nothing_of_an_argument_reaches_a_shell_or_a_pattern(bench: Bench) -> None:
    nasty = ["%h", "$(id)", "a;b", "%", "n[1-3]", "it's"]
    conn = bench.engine.open(
        "@all,n[1-9]", [sys.executable, "-ISc", "import sys; print(sys.argv[1:])", *nasty]
    )
    while conn not in bench.closed:
        bench.take()
    assert bench.lines[conn] == [repr(nasty).encode()]


def test_killing_reaches_grandchildren(bench: Bench) -> None:
    conn = bench.engine.open("n1", ["sh", "-c", "sleep 1000 & echo $$ $!; wait"])
    while conn not in bench.lines:
        bench.take()
    pids = [int(word) for word in bench.lines[conn][0].split()]
    bench.engine.kill(conn)
    while conn not in bench.closed:
        bench.take()
    assert bench.closed[conn].code == -9
    assert wait_until(lambda: not os.path.exists(f"/proc/{pids[0]}"))
    assert wait_until(lambda: not is_alive(pids[1]))


def test_a_flood_is_read_no_faster_than_it_is_dealt_with(bench: Bench) -> None:
    conn = bench.engine.open("n1", [sys.executable, "-ISc", "while True: print('x' * 100000)"])
    kept: list[Lines] = []

    def take(patience: float) -> int:
        event = bench.events.get(timeout=patience)
        assert isinstance(event, Lines)
        kept.append(event)
        return sum(one.size for one in kept)

    while take(60) <= MAX_UNREAD:
        pass
    with contextlib.suppress(queue.Empty):
        while take(0.5) < MAX_UNREAD + 1_000_000:
            pass
        pytest.fail("it is read without end")
    for event in kept:
        bench.engine.consumed(conn, event.size)
    assert isinstance(bench.events.get(timeout=60), Lines), "reading goes on"


@BOTH
def test_stopping_ends_every_child_and_the_threads(kind: type[ApartEngine | PipeEngine]) -> None:
    before = set(threading.enumerate())
    bench = Bench(kind)
    bench.engine.start()
    conns = [bench.engine.open("n", ["sh", "-c", "echo $$; exec sleep 1000"]) for _ in range(5)]
    while len(bench.lines) < len(conns):
        bench.take()
    pids = [int(lines[0]) for lines in bench.lines.values()]
    bench.engine.stop()
    bench.engine.stop()
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 2)
    assert wait_until(lambda: not set(threading.enumerate()) - before)
    while not bench.events.empty():
        bench.take()
    assert set(bench.closed) == set(conns)


def test_the_terminal_s_interrupt_does_not_reach_a_child(bench: Bench) -> None:
    conn = bench.engine.open("n1", ["sh", "-c", "echo $$; exec cat"])
    while conn not in bench.lines:
        bench.take()
    pid = int(bench.lines[conn][0])
    assert os.getsid(pid) == pid != os.getsid(0)


def test_a_child_has_no_descriptor_but_its_own() -> None:
    """It would hold open what was left open for hangtop, and the pipes of other children."""
    null = os.open("/dev/null", os.O_RDONLY)
    left = fcntl.fcntl(null, fcntl.F_DUPFD, 100)  # without close-on-exec
    os.close(null)
    _inherited.cache_clear()
    children = [Child(["cat"])]
    try:
        others = (left, children[0].stdin, children[0].stdout, children[0].stderr)
        script = "".join(f"test -e /proc/$$/fd/{fd} && exit 1; " for fd in others)
        children.append(Child(["sh", "-c", f"{script} exit 0"]))
        assert children[1].end() == 0
    finally:
        for child in children:
            for pipe in (child.stdin, child.stdout, child.stderr):
                os.close(pipe)
            child.end(at_once=True)
        os.close(left)
        _inherited.cache_clear()


def test_a_child_gets_a_copy_of_the_environment() -> None:
    """Exec must not read the C array, which another thread may be moving (EFAULT)."""
    os.putenv("HANGTOP_TEST_C_ONLY", "set")
    try:
        child = Child(["sh", "-c", 'test -z "$HANGTOP_TEST_C_ONLY"'])
        for pipe in (child.stdin, child.stdout, child.stderr):
            os.close(pipe)
        assert child.end() == 0
    finally:
        os.unsetenv("HANGTOP_TEST_C_ONLY")


def test_at_rest_what_many_say_is_handed_out_together_and_orders_are_obeyed_at_once(
    bench: Bench,
) -> None:
    conns = [bench.engine.open(f"n{i}", ["cat"]) for i in range(8)]
    bench.engine.rest(3600.0)
    for conn in conns:
        bench.engine.write(conn, b"%d\n" % conn)
    with contextlib.suppress(queue.Empty):
        while True:
            bench.take(timeout=0.5)
    assert conns[-1] not in bench.lines, "it waits for an order, or for the time to pass"
    bench.engine.kill(conns[0])
    while conns[0] not in bench.closed:
        bench.take()
    bench.engine.rest(0.0)
    bench.engine.write(conns[1], b"again\n")
    while not bench.lines.keys() >= set(conns[1:]) or bench.lines[conns[1]][-1] != b"again":
        bench.take()


def test_what_many_say_at_once_is_told_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(fd: int, data: memoryview) -> int:
        written.append(bytes(data))
        return len(data)

    monkeypatch.setattr(apart.os, "write", write)
    telling = apart._ServedEngine()
    for conn in range(8):
        telling.tell(Lines(conn, [b"said"], 5))
    assert not written
    telling._handed_out()
    telling._handed_out()
    assert [whole.count(b"said") for whole in written] == [8]
    telling.tell(Lines(1, [b"." * apart._WRITE], apart._WRITE + 1))
    assert len(written) == 2, "much waits for nothing"


def held_by(engine: ApartEngine) -> int:
    """The process that holds the connections."""
    house = engine._process
    assert house is not None
    return house._child.pid


def test_many_connections_get_a_process_of_their_own_few_do_not() -> None:
    assert isinstance(engine(print, 64), PipeEngine)
    assert isinstance(engine(print, 65), ApartEngine)


def test_when_the_process_of_the_connections_is_killed_they_are_closed_and_can_be_made_again() -> (
    None
):
    bench = Bench(ApartEngine)
    bench.engine.start()
    conns = [bench.engine.open(f"n{i}", ["sh", "-c", "echo $$; exec cat"]) for i in range(3)]
    while len(bench.lines) < len(conns):
        bench.take()
    pids = [int(lines[0]) for lines in bench.lines.values()]
    assert isinstance(bench.engine, ApartEngine)
    first = held_by(bench.engine)
    os.kill(first, signal.SIGKILL)
    while len(bench.closed) < len(conns):
        bench.take()
    assert all(b"has ended" in closed.stderr for closed in bench.closed.values())
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids)), "their input has ended"
    again = bench.engine.open("n0", ECHO)
    bench.engine.write(again, b"one\n")
    while again not in bench.lines:
        bench.take()
    assert held_by(bench.engine) != first
    bench.engine.stop()


def test_a_message_of_that_process_that_is_larger_than_any_closes_all_before_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = apart._HEAD.pack(b"L", 1, apart._MOST + 1)
    says = f"import os, time; os.write(1, {head!r} + b'more'); time.sleep(1000)"
    monkeypatch.setattr(apart, "_CODE", says)
    bench = Bench(ApartEngine)
    conns = [bench.engine.open(f"n{i}", ["cat"]) for i in range(3)]
    assert isinstance(bench.engine, ApartEngine)
    process = held_by(bench.engine)
    while len(bench.closed) < len(conns):
        bench.take(PATIENCE)
    assert all(b"has ended" in closed.stderr for closed in bench.closed.values())
    assert wait_until(lambda: not is_alive(process))
    bench.engine.stop()


def test_the_process_of_the_connections_may_open_more_files_than_the_shell_lets_us() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        bench = Bench(ApartEngine)
        bench.engine.start()
        conns = [bench.engine.open("n", ["cat"]) for _ in range(100)]
        for conn in conns:
            bench.engine.write(conn, b"%d\n" % conn)
        while len(bench.lines) < len(conns):
            bench.take()
        assert isinstance(bench.engine, ApartEngine)
        told = resource.prlimit(held_by(bench.engine), resource.RLIMIT_NOFILE)
        assert told == (min(DESCRIPTORS, hard), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        bench.engine.stop()


def test_a_machine_that_cannot_start_that_process_says_so_of_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    bench = Bench(ApartEngine)
    bench.engine.start()
    conn = bench.engine.open("n1", ["cat"])
    bench.take()
    assert (bench.closed[conn].code, bench.closed[conn].unstarted) == (None, errno.ENOENT)
    bench.engine.stop()


def test_large_pieces_go_through_whole_both_ways() -> None:
    bench = Bench(ApartEngine)
    bench.engine.start()
    conn = bench.engine.open("n1", ["cat"])
    lines = [os.urandom(60_000).replace(b"\n", b"-") for _ in range(50)]
    for _ in range(3):
        bench.engine.write(conn, b"\n".join(lines) + b"\n")
    while len(bench.lines.get(conn, [])) < 150:
        bench.take()
    assert bench.lines[conn] == lines * 3
    bench.engine.stop()


def test_a_thousand_nodes_leave_hangtop_itself_descriptors_to_open() -> None:
    # GIVEN a shell that allows 1,024 open files; each ssh has its log open in this process
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    bench = Bench(ApartEngine)
    try:
        bench.engine.start()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024
    finally:
        bench.engine.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_nothing_is_left_where_hangtop_is_killed() -> None:
    script = (
        "import queue, time\n"
        "from hangtop_core.attach.connect.apart import ApartEngine\n"
        "events = queue.SimpleQueue()\n"
        "engine = ApartEngine(events.put)\n"
        "engine.start()\n"
        "engine.open('n1', ['sh', '-c', 'echo $PPID $$; exec cat'])\n"
        "print(events.get().lines[0].decode(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as hangtop:
        assert hangtop.stdout is not None
        pids = [int(word) for word in hangtop.stdout.readline().split()]
        assert len(pids) == 2
        hangtop.kill()
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
