"""What is written, read or put into queues gets a rank on, and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import Descriptor
from hangtop_core.model.snapshot import DescriptorTable, Node
from support import situations
from support.build import NOW, World, judged
from support.situations import (
    FUTEX,
    LOADER,
    POLL,
    RUN,
    SLEEP,
    WAITPID,
    c10d,
    frame,
    user,
    worker_in,
)
from support.verdicts import causes

SAVED = Descriptor(9, "file", "/data/ckpt.pt", mode="w", mount="/")


@pytest.mark.parametrize(
    ("full", "files", "state"),
    [
        ((), (), "progressing"),
        (("/scratch",), (), "hung"),
        (("/scratch",), (replace(SAVED, full="space"),), "hung"),
        # It saves elsewhere, or nobody has looked yet.
        (("/scratch",), (SAVED,), "progressing"),
        (("/scratch",), None, "progressing"),
    ],
)
def test_who_writes_much_between_sleeps_gets_on_unless_nothing_fits(
    full: tuple[str, ...], files: tuple[Descriptor, ...] | None, state: str
) -> None:
    world = World()
    table = None if files is None else DescriptorTable(NOW - 1, files)
    times = {"wrote_at": NOW - 0.5, "moved_at": NOW - 0.5}
    world.add(user("save", 41), SLEEP, descriptors=table, **times)
    world.waiters(3)
    world.nodes["n1"] = Node("n1", "ready", full_mounts=full)
    found = judged(world)
    assert found.state == state
    assert causes(found) == (["disk-full"] if state == "hung" else ["straggler"])


def test_a_queue_that_is_filled_again_and_again_is_progress() -> None:
    world = World()
    world.add(situations.QUEUE, FUTEX, moved_at=NOW - 0.1, main_cpu_share=0.02)
    assert judged(world).state == "progressing"


@pytest.mark.parametrize(
    ("stack", "facts"),
    [
        (situations.URLLIB, situations.RECVFROM),
        (situations.URLLIB, POLL),  # with a timeout
        (user("read_frames", 9), situations.PIPE_READ),
    ],
)
@pytest.mark.parametrize(("woken", "state"), [(1.0, "progressing"), (90.0, "hung")])
def test_what_trickles_in_from_a_socket_or_pipe_is_progress(
    stack: Any, facts: Any, woken: float, state: str
) -> None:
    # GIVEN three ranks in a barrier, and one that reads: only data wake it up
    world = World(observed_since=NOW - 60.0)
    world.waiters(3)
    world.add(stack, facts, moved_at=NOW - woken)
    assert judged(world).state == state


def test_a_worker_that_reads_a_slow_stream_gets_on() -> None:
    for woken, state in ((1.0, "progressing"), (90.0, "hung")):
        world = World(observed_since=NOW - 60.0)
        world.waiters(3)
        rank = world.add(LOADER, POLL, moved_at=NOW - 0.5)
        reading = (*situations.URLLIB[:3], *worker_in("fetch_row", 41))
        child = world.worker(rank, reading, situations.RECVFROM)
        world.give_children(rank, [child], moved_at=NOW - woken)
        assert judged(world).state == state


@pytest.mark.parametrize("stack", [situations.JOIN, situations.QUEUE])
@pytest.mark.parametrize(("wrote", "state"), [(1.0, "progressing"), (90.0, "hung")])
def test_who_waits_for_a_thread_that_writes_much_gets_on(
    stack: Any, wrote: float, state: str
) -> None:
    world = World(observed_since=NOW - 60.0)
    world.waiters(3)
    world.add(stack, FUTEX, wrote_at=NOW - wrote)
    assert judged(world).state == state


MAIN_TID = 4030
THREAD_TID = 4033
CHILD_TID = 9000
POOL = frame("_worker", "py:concurrent/futures/thread.py", 81)
FUTURE = (
    situations.QUEUE[0],
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
    *user("save", 44),
)


@pytest.mark.parametrize(
    ("stack", "facts", "tid", "state"),
    [
        (situations.JOIN, FUTEX, THREAD_TID, "progressing"),
        (situations.QUEUE, FUTEX, THREAD_TID, "progressing"),
        (situations.QUEUE, FUTEX, CHILD_TID, "progressing"),
        (user("wait_for_upload", 40), SLEEP, THREAD_TID, "progressing"),
        (situations.URLLIB, POLL, MAIN_TID, "progressing"),
        (situations.CHILD, WAITPID, CHILD_TID, "progressing"),
        (situations.CHILD, WAITPID, CHILD_TID + 1, "progressing"),
        # What it does not wait for; a service that it has started has threads for who asks.
        (situations.QUEUE, FUTEX, CHILD_TID + 1, "hung"),
        (situations.JOIN, FUTEX, CHILD_TID, "hung"),
        (situations.URLLIB, POLL, THREAD_TID, "hung"),
        (situations.CHILD, WAITPID, THREAD_TID, "hung"),
        (c10d("all_reduce"), FUTEX, THREAD_TID, "hung"),
        # A future is made by a thread of a pool, not by one that was started for something else.
        (FUTURE, FUTEX, THREAD_TID, "hung"),
        (FUTURE, FUTEX, THREAD_TID + 1, "progressing"),
    ],
)
def test_who_waits_for_a_connection_gets_on_as_that_does(
    stack: Any, facts: Any, tid: int, state: str
) -> None:
    for flowed, told in ((1.0, state), (90.0, "hung")):
        world = World(observed_since=NOW - 95.0)
        world.waiters(3)
        threads = tuple(situations.thread(THREAD_TID + n, POLL) for n in (0, 1))
        sending = (situations.URLLIB[0], frame("upload", "train.py", 7))
        others = [
            ("telemetry", THREAD_TID, sending, False),
            ("pool", THREAD_TID + 1, (*sending, POOL), False),
        ]
        rank = world.add(
            stack,
            facts,
            process={"threads": threads},
            sample={"others": others},
            flowed_at={tid: NOW - flowed},
        )
        child = world.process(CHILD_TID, situations.RECVFROM, role="subprocess", rank_pid=MAIN_TID)
        world.give_children(rank, [(child, None)])
        assert judged(world).state == told


@pytest.mark.parametrize(
    ("source", "file", "left_ago", "state"),
    [
        ("waiter.acquire()", "py:concurrent/futures/_base.py", 4.0, "progressing"),
        ("waiter.acquire()", "py:concurrent/futures/_base.py", 60.0, "hung"),
        # With a timeout it may only look; what it takes from a queue may be a heartbeat.
        ("gotit = waiter.acquire(True, timeout)", "py:concurrent/futures/_base.py", 4.0, "hung"),
        ("waiter.acquire()", "py:queue.py", 4.0, "hung"),
    ],
)
def test_who_waits_for_futures_without_a_timeout_is_woken_by_one_that_is_done(
    source: str, file: str, left_ago: float, state: str
) -> None:
    world = World(observed_since=NOW - 90.0)
    world.waiters(3)
    stack = (
        frame("Condition.wait", "py:threading.py", 327, source),
        frame("as_completed", file, 243),
        *user("upload", 44),
    )
    part = (situations.URLLIB[0], frame("put_part", "train.py", 7), POOL)
    others = [(f"part_{n}", THREAD_TID + n, part, False) for n in (0, 1)]
    ago = {"moved_at": NOW - left_ago, "left_at": NOW - left_ago}
    world.add(stack, FUTEX, sample={"others": others}, **ago)
    assert judged(world).state == state


@pytest.mark.parametrize(
    ("share", "role", "watched", "state"),
    [
        (0.9, "subprocess", 90.0, "progressing"),
        (0.02, "subprocess", 90.0, "hung"),  # it only looks at something now and then
        (0.9, "dataloader-worker", 90.0, "hung"),
        (0.9, "subprocess", 700.0, "hung"),  # it may work on something else
    ],
)
def test_a_queue_whose_producer_works_hard_is_not_yet_a_hang(
    share: float, role: str, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched)
    rank = world.add(situations.QUEUE, FUTEX, moved_at=NOW - watched)
    actor = world.process(4099, RUN, role=role, label="subprocess python", rank=3, rank_pid=4030)
    world.give_children(rank, [(actor, None)])
    world.ranks[3] = msgspec.structs.replace(world.ranks[3], child_cpu_share={4099: share})
    assert judged(world).state == state


@pytest.mark.parametrize(
    ("share", "watched", "state"),
    [(0.9, 95.0, "progressing"), (0.01, 95.0, "hung"), (0.9, 700.0, "hung")],
)
def test_a_pipe_whose_writer_works_hard_is_not_yet_a_hang(
    share: float, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched)
    facts = ("S", "pipe_read", "read", 9, None)
    rank = world.add(user("score", 45), facts, moved_at=NOW - watched)
    scorer = world.process(4099, RUN, role="subprocess", label="scorer", rank=3, rank_pid=4030)
    world.give_children(rank, [(scorer, None)])
    world.ranks[3] = msgspec.structs.replace(world.ranks[3], child_cpu_share={4099: share})
    assert judged(world).state == state


@pytest.mark.parametrize(
    ("kind", "flowed", "watched", "state"),
    [
        ("main", 2.0, 95.0, "progressing"),
        ("main", 90.0, 95.0, "hung"),
        ("main", 2.0, 700.0, "hung"),  # it may be a heartbeat
        ("future", 2.0, 95.0, "progressing"),
        ("joined", 2.0, 95.0, "progressing"),
        ("beside", 2.0, 95.0, "hung"),  # which of two threads it waits for is not known
        ("child", 2.0, 95.0, "progressing"),
        ("lock", 2.0, 95.0, "hung"),
    ],
)
def test_an_event_loop_gets_on_while_anything_comes(
    kind: str, flowed: float, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3)
    run_ = frame("BaseEventLoop._run_once", "py:asyncio/base_events.py", 1890)
    loop = (frame("EpollSelector.select", "py:selectors.py", 468), run_, *user("score", 7))
    stack, tid = {
        "main": (loop, MAIN_TID),
        "future": (FUTURE, THREAD_TID),
        "joined": (situations.JOIN, THREAD_TID),
        "beside": (situations.JOIN, THREAD_TID),
        "child": (situations.QUEUE, CHILD_TID),
        "lock": (situations.QUEUE, THREAD_TID + 1),
    }[kind]
    others = [("loop", THREAD_TID, loop, False)] if kind in ("future", "joined", "beside") else []
    others += [("b", THREAD_TID + 1, user("f", 3), False)] if kind in ("future", "beside") else []
    rank = world.add(
        stack,
        POLL if kind == "main" else FUTEX,
        sample={"others": others},
        flowed_at={-tid: NOW - flowed},
    )
    child = world.process(CHILD_TID, POLL, role="subprocess", rank_pid=MAIN_TID)
    world.give_children(rank, [(child, None)])
    assert judged(world).state == state


@pytest.mark.parametrize(
    ("comm", "moved_s", "cause", "said"),
    [
        ("rclone", 0.5, "long-phase", "(pid 4099 'rclone copy a b' (state S)"),
        ("cc1plus", 0.5, "compiling", "is compiling at train.py:45 (upload_logs)"),
    ],
)
def test_what_a_rank_does_is_told_that_others_wait_for_while_it_gets_on(
    comm: str, moved_s: float, cause: str, said: str
) -> None:
    world = World()
    world.waiters(3)
    rank = world.add(situations.CHILD, WAITPID, io_moved_at=NOW - moved_s)
    child = world.process(
        4099, POLL, role="subprocess", comm=comm, cmdline=(comm, "copy", "a", "b"), ppid=4030
    )
    world.give_children(rank, [(child, None)], moved_at=NOW - moved_s)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", [cause])
    assert said in found.verdicts[0].summary
    assert "ranks 0-2 wait in all_reduce" in found.verdicts[0].summary
    assert cause == "compiling" or ", and gets on: slow, not stuck" in found.verdicts[0].summary


def test_a_download_that_others_wait_for_is_told_while_bytes_come() -> None:
    for moved_s, state in ((0.5, "progressing"), (50.0, "hung")):
        world = World()
        world.waiters(3)
        world.add(situations.URLLIB, situations.RECVFROM, io_moved_at=NOW - moved_s)
        found = judged(world)
        assert found.state == state
        assert causes(found) == (
            ["long-phase"] if state == "progressing" else ["remote-service-wait"]
        )
    assert "gets on" not in found.verdicts[0].summary


def test_who_is_met_in_a_download_that_nobody_has_waited_for_is_not_told() -> None:
    world = World()
    world.waiters(3, moved_at=NOW - 1.0)
    world.add(situations.URLLIB, situations.RECVFROM, io_moved_at=NOW - 0.5)
    assert causes(judged(world)) == []


@pytest.mark.parametrize(
    ("name", "flowed", "state"),
    [("gloo_tcp_loop", 4.0, "progressing"), ("gloo_tcp_loop", 90.0, "hung"), ("b", 4.0, "hung")],
)
def test_a_collective_gets_on_while_gloo_hears_from_other_ranks(
    name: str, flowed: float, state: str
) -> None:
    world = World()
    threads = (situations.thread(THREAD_TID, POLL, name),)
    world.waiters(3, process={"threads": threads}, flowed_at={THREAD_TID: NOW - flowed})
    assert judged(world).state == state
