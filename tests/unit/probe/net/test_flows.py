"""What a thread gets on by in a connection that it waits on, told of this process's sockets."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_probe.descriptors import descriptors, nodewide
from hangtop_probe.net import flows
from hangtop_probe.proc.activity import ThreadRow, read_thread

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MUCH = flows.LEAST
R = flows.procfs.read
Pair = tuple[socket.socket, socket.socket]


def row(call: str, fd: int | None, tid: int = 7) -> ThreadRow:
    return ThreadRow(tid, "python", "S", None, call, fd, None)


class Watch:
    """Looks at this process, as often as time is let pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self.flows = flows.Flows(os.getpid(), lambda: self.now)

    def look(self, *rows: ThreadRow, after: float = 5.0, store: str = "") -> dict[int, int]:
        self.now += after
        return dict(self.flows.look(rows, store))


def connected(family: socket.AddressFamily, host: str) -> Generator[Pair]:
    with socket.socket(family) as listening:
        listening.bind((host, 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]) as one:
            other, _ = listening.accept()
            with other:
                yield one, other


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    try:
        yield from connected(*request.param)
    except OSError:
        pytest.skip("no such addresses here")


def carry(one: socket.socket, other: socket.socket, count: int) -> None:
    one.sendall(bytes(count))
    while count:
        count -= len(other.recv(count))


def test_who_waits_for_what_comes_gets_on_as_it_comes(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    reads, writes = row("recvfrom", near.fileno()), row("sendto", near.fileno(), 8)
    assert watch.look(reads, writes) == {}
    carry(far, near, MUCH + 1000)
    assert watch.look(reads, writes) == {7: MUCH + 1000}, "nothing that 8 sends has gone"
    carry(near, far, MUCH + 2000)
    told = watch.look(reads, writes)
    assert told.keys() == {7, 8}
    assert told[7] == MUCH + 1000
    assert told[8] >= MUCH + 2000


def test_who_waits_for_an_answer_gets_on_while_its_question_goes_out(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    reads = row("recvfrom", near.fileno())
    carry(near, far, MUCH)
    assert watch.look(reads) == {}, "it went out before anybody looked"
    carry(near, far, MUCH)
    assert watch.look(reads).keys() == {7}
    carry(near, far, MUCH)
    told = watch.look(reads, row("sendto", near.fileno(), 8))
    assert told[7] < 2 * MUCH, "another thread sends this"
    with select.epoll() as loop:
        loop.register(near, select.EPOLLIN)
        waits = row("epoll_wait", loop.fileno(), 9)
        watch.look(waits)
        carry(near, far, MUCH)
        assert 9 not in watch.look(waits), "it may be any of what a loop sends"


def test_little_is_a_heartbeat(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    for _ in range(20):
        carry(far, near, 3 * 200)
        assert watch.look(row("recvfrom", near.fileno()), after=3.0) == {}


def test_a_heartbeat_of_an_event_loop_may_be_larger(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    with select.epoll() as loop:
        loop.register(near, select.EPOLLIN)
        for _ in range(20):
            carry(far, near, 3 * 1000)
            told = watch.look(row("epoll_wait", loop.fileno()), after=3.0)
            assert told.keys() <= {-7}, "that anything came is told apart"


def test_who_sleeps_between_its_questions_only_shows_that_it_is_there(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    for _ in range(10):
        carry(far, near, 3 * 1000)
        assert watch.look(row("recvfrom", near.fileno()), after=3.0) == {}
        carry(far, near, 3 * 1000)
        assert watch.look(row("clock_nanosleep", None), after=3.0) == {}


def test_who_is_caught_at_work_in_between_gets_on(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    told: dict[int, int] = {}
    for _ in range(4):
        carry(far, near, 3 * 1500)
        watch.look(row("recvfrom", near.fileno()), after=3.0)
        told = watch.look(row("", None)._replace(state="R"), after=3.0)
    assert told.keys() == {7}


def test_who_asks_two_services_in_turn_opens_neither_anew() -> None:
    watch = Watch()
    pairs = [connected(socket.AF_INET, "127.0.0.1") for _ in (1, 2)]
    with closing(pairs[0]) as one, closing(pairs[1]) as other:
        for near, far in (next(one), next(other)) * 5:
            carry(far, near, 3 * 100)
            assert watch.look(row("recvfrom", near.fileno()), after=3.0) == {}


def test_one_small_question_after_the_other_is_enough_with_connections_of_their_own() -> None:
    watch = Watch()
    for _ in range(5):
        with closing(connected(socket.AF_INET, "127.0.0.1")) as opened:
            near, far = next(opened)
            carry(far, near, 900)
            told = watch.look(row("recvfrom", near.fileno()), after=3.0)
    assert told.keys() == {7}


def test_slow_is_enough_where_it_goes_on(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    for _ in range(6):
        carry(far, near, 3 * 3000)
        told = watch.look(row("recvfrom", near.fileno()), after=3.0)
    assert told.keys() == {7}


def test_a_connection_that_nobody_waits_on_is_not_counted(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    watch.look(row("recvfrom", near.fileno()))
    for _ in range(4):
        carry(far, near, MUCH)
        assert watch.look(row("clock_nanosleep", None), after=6.0) == {}
    assert watch.look(row("futex", None), row("recvfrom", far.fileno())) == {}


def test_what_came_a_moment_before_the_first_look_counts(pair: Pair) -> None:
    near, far = pair
    carry(far, near, MUCH)
    assert Watch().look(row("recvfrom", near.fileno())) == {7: MUCH}


def test_connections_to_the_store_do_not_count(pair: Pair) -> None:
    near, far = pair
    store = str(near.getpeername()[1])
    carry(far, near, MUCH)
    assert Watch().look(row("recvfrom", near.fileno()), store=store) == {}


def test_of_an_epoll_it_is_told_what_it_watches(pair: Pair) -> None:
    with select.epoll() as loop:
        for one in pair:
            loop.register(one, select.EPOLLIN)
        told = descriptors.Reader(os.getpid(), nodewide.Node()).descriptor(loop.fileno())
    assert told is not None
    assert (told["kind"], sorted(told["watches"])) == ("anon", sorted(p.fileno() for p in pair))


def test_event_loops_are_known_by_what_they_watch(pair: Pair) -> None:
    near, far = pair
    with select.epoll() as loop, select.epoll() as other:
        loop.register(near, select.EPOLLIN)
        other.register(near, select.EPOLLOUT)
        carry(far, near, MUCH)
        rows = row("epoll_wait", loop.fileno()), row("epoll_pwait", other.fileno(), 8)
        assert Watch().look(*rows) == {7: MUCH, -7: 1}


def test_any_answer_to_who_waits_for_several_connections_is_told(pair: Pair) -> None:
    near, far = pair
    watch = Watch()
    with select.epoll() as loop:
        loop.register(near, select.EPOLLIN)
        rows = row("epoll_wait", loop.fileno()), row("recvfrom", near.fileno(), 8)
        assert watch.look(*rows) == {}, "nothing has ever come"
        for count in (1, 2):
            carry(far, near, 10)
            assert watch.look(*rows) == {-7: count}, "who waits for one connection has a rate"


def test_what_came_long_ago_is_no_answer(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = pair
    carry(far, near, 10)
    monkeypatch.setattr(flows, "LOOK_S", 0.0)
    with select.epoll() as loop:
        loop.register(near, select.EPOLLIN)
        assert Watch().look(row("epoll_wait", loop.fileno())) == {}


def waits_by_recv(one: socket.socket) -> None:
    one.settimeout(60)
    one.recv(1)


def waits_by_select(one: socket.socket) -> None:
    select.select([one], [], [], 60)


@pytest.mark.parametrize("wait", [waits_by_recv, waits_by_select])
def test_what_is_polled_stands_in_the_memory_of_the_process(pair: Pair, wait: Any) -> None:
    """Python polls sockets with a timeout, before it reads."""
    near, far = pair
    carry(far, near, MUCH)
    reading = threading.Thread(target=wait, args=(near,))
    reading.start()
    try:
        tid, base = reading.native_id, f"/proc/{os.getpid()}/task/{reading.native_id}"
        assert tid is not None
        waited = (read_thread(base, tid) for _ in range(100_000))
        polls = next(one for one in waited if one is not None and one.syscall in flows._POLLS)
        assert Watch().look(polls) == {tid: MUCH}
    finally:
        far.sendall(b"x")
        reading.join()


def test_pipes_and_what_is_gone_are_left_out() -> None:
    read, write = os.pipe()
    with open(read, "rb", 0), open(write, "wb", 0):
        rows = [row(call, fd) for call in ("read", "recvfrom", "epoll_wait") for fd in (read, 9999)]
        assert Watch().look(*rows, row("poll", None), row("recvfrom", None)) == {}
    assert flows.counts(bytes(72)) is None


def test_threads_that_have_ended_are_forgotten_once_there_are_many(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "MAX_TOLD", 2)
    near, far = pair
    watch = Watch()
    for tid in range(7, 12):
        watch.look(row("recvfrom", near.fileno(), tid))
        carry(far, near, MUCH)
        told = watch.look(row("recvfrom", near.fileno(), tid))
        assert told[tid] == MUCH
        assert len(told) <= 2


def test_what_comes_to_gloo_counts_while_its_thread_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    watch, runs = Watch(), 0
    monkeypatch.setattr(flows.procfs, "read", lambda *a: b"%d" % runs if "sched" in a[0] else R(*a))
    with closing(select.epoll()) as epoll:
        epoll.register(near, select.EPOLLIN)
        loop = row("epoll_wait", epoll.fileno())._replace(name="gloo_tcp_loop")
        carry(far, near, MUCH)
        assert watch.look(loop) == {}, "what came before was of the last step"
        told: dict[int, int] = {}
        for _ in range(5):
            carry(far, near, MUCH)
            runs += 1
            told = watch.look(loop)
        assert told[7] >= MUCH
        assert -7 not in told, "it is no event loop of the program's"
        for _ in range(5):
            carry(far, near, MUCH)  # which somebody else of the test reads
            assert watch.look(loop) == told, "nothing is asked of the kernel while it sleeps"


def test_who_called_at_an_own_port_has_been_answered_or_waits(pair: Pair) -> None:
    one, other = pair

    def waits() -> list[bool]:
        rows, _ = descriptors.Reader(os.getpid(), nodewide.Node()).table()
        found = {row["fd"]: row["socket"] for row in rows if row.get("socket")}
        return ["answered" not in found[end.fileno()] for end in (other, one)]

    asked = flows.questions("/proc/self/", {os.fstat(other.fileno()).st_ino}, "")
    if not all(one and flows.counts(one) for one in asked.values()):
        pytest.skip("the kernel tells nothing of sockets here")
    assert waits() == [False, True], "it has asked nothing yet; of a caller nothing is told"
    for sends, owed in ((one, True), (other, False), (one, True)):
        time.sleep(0.05)
        sends.sendall(b"said")
        assert waits() == [owed, True]


def test_memory_whose_lock_is_held_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """So while a page fault waits for a file server, and another thread for the lock."""
    given_back = threading.Event()
    monkeypatch.setattr(flows, "open", lambda *_: given_back.wait(), raising=False)
    poll = b"7 0x7f0000000000 0x1 0xffffffff 0x0 0x0 0x0 0x7ffc00000000 0x7f0000000000"
    monkeypatch.setattr(flows.procfs, "read", lambda *_: poll)
    watch, began = Watch(), time.monotonic()
    for _ in range(9):
        assert watch.look(row("poll", None)) == {}
    given_back.set()
    assert time.monotonic() - began < 5 * flows.MEMORY_S, "while one hangs no other is begun"
