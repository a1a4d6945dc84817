"""Causes within a rank, in workers, threads and locks: the guilty rank first, never the victims."""

from __future__ import annotations

import pytest

from hangtop_core.model.descriptors import Descriptor, Holder
from hangtop_core.model.snapshot import DescriptorTable
from support import situations
from support.build import NOW, World, judged
from support.situations import (
    FIFO_OPEN,
    FUTEX,
    IDLE_WORKER,
    JOIN,
    LOADER,
    POLL,
    QUEUE,
    RECVFROM,
    RUN,
    SLEEP,
    frame,
    thread,
    user,
    worker_in,
)
from support.verdicts import blamed, hung, told


def test_the_fifo_that_a_loading_worker_opens_is_named_and_asked_first_who_has_it() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL)
    process, sample = world.worker(rank, worker_in("__getitem__", 9), FIFO_OPEN)
    table = DescriptorTable(
        NOW, (), opening=Descriptor(-1, "file", "/run/feed", "r", mount="/", fstype="ext4")
    )
    world.give_children(rank, [(process, sample)], tables={process.pid: table})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("dataloader-worker-stuck", [3])
    assert (
        "a FIFO it opens at train.py:9 (__getitem__) for 5:00 on /run/feed; ranks"
        in verdict.summary
    )
    assert "fuser -v /run/feed" in verdict.next_steps[0]
    assert not any("/fd" in step for step in verdict.next_steps)


def test_a_dataloader_worker_in_a_blocking_open() -> None:
    # GIVEN rank 1 waits for its workers, of which one opens a FIFO and one has nothing to do
    world = World()
    world.waiters(1)
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0)
    world.waiters(2)
    stuck = world.worker(rank, worker_in("read_shard", 71, "path.open()"), FIFO_OPEN, 1)
    idle = world.worker(rank, IDLE_WORKER, POLL, 0)
    table = DescriptorTable(NOW, (Descriptor(9, "file", "/data/shard-17.bin", "r"),))
    world.give_children(rank, [idle, stuck], tables={stuck[0].pid: table})
    # THEN the worker, its line, its file and the time it has been there are named
    found = judged(world)
    verdict = found.verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("dataloader-worker-stuck", [1])
    assert f"DataLoader worker 1 (pid {stuck[0].pid})" in verdict.summary
    assert "train.py:71 (read_shard)" in verdict.summary
    assert "/data/shard-17.bin" in told(verdict)
    assert found.hung_for_s == pytest.approx(300.0)


def test_a_dataloader_worker_that_sleeps_where_its_rank_has_locked_its_database() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0)
    pid = rank.process.pid
    stuck = world.worker(rank, worker_in("__getitem__", 29, "self.db.execute(INSERT)"), SLEEP, 0)
    holder = Holder(pid, "python", "S", "holds the lock")
    rows = Descriptor(18, "file", "/data/rows.db", "rw", locked="by others", holders=(holder,))
    tables = {stuck[0].pid: DescriptorTable(NOW, (rows,))}
    world.give_children(rank, [stuck], tables=tables)
    verdict = hung(world)
    assert verdict.cause == "dataloader-worker-stuck"
    assert "(__getitem__) for 5:00 on /data/rows.db, most likely, held by " in verdict.summary
    assert str(pid) in verdict.summary.partition("held by ")[2]


def test_a_dataloader_worker_that_computes_starves_its_rank() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0)
    world.give_children(rank, [world.worker(rank, worker_in("augment", 80), RUN)], moved_at=NOW)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("data-starved", [3])
    assert "train.py:80 (augment)" in verdict.summary


def test_a_dataloader_worker_that_waits_for_a_service_and_gets_on_is_to_be_looked_at() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0)
    asks = (frame("SocketIO.readinto", "py:socket.py", 706), *worker_in("get", 30))
    worker = world.worker(rank, asks, RECVFROM)
    world.give_children(rank, [worker], moved_at=NOW)
    verdict = judged(world).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("data-starved", [3])
    look = f"ss -tnpi | grep -A1 pid={worker[0].pid},"
    assert any(look in one and "how fast" in one for one in verdict.next_steps)


def test_a_dead_dataloader_worker() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL)
    alive = world.worker(rank, IDLE_WORKER, POLL, 0)
    dead = world.process(5555, None, role="dataloader-worker", state="Z", worker_id=1, exit_code=-9)
    world.give_children(rank, [alive, (dead, None)])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("dataloader-worker-dead", [3])
    assert "was killed by SIGKILL" in verdict.summary


def test_a_dataloader_worker_that_a_handler_of_the_program_has_reaped() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL)
    world.give_children(rank, [world.worker(rank, IDLE_WORKER, POLL, one) for one in (1, 2)])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("dataloader-worker-dead", [3])
    assert "but worker 0 is missing: workers 1-2 are left" in verdict.summary


def test_a_forked_worker_on_a_lock_nobody_in_it_holds() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(
        LOADER,
        POLL,
        process={"threads": (thread(4035, SLEEP),)},
        sample={"others": [("collector", 4035, user("collect", 39), False)]},
    )
    child = world.worker(rank, worker_in("log_sample", 90, "with lock:"), FUTEX)
    world.give_children(rank, [child])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("fork-deadlock", [3])
    assert "'collector' of the rank, which may have held it" in told(verdict)


def test_two_threads_that_want_each_others_locks() -> None:
    # GIVEN a main thread that joins two threads, each on a line that takes a lock
    world = World()
    world.waiters(1)
    one, other = user("a", 17, "b.acquire()"), user("b", 21, "with a:")
    world.add(
        JOIN,
        FUTEX,
        process={"threads": (thread(4015, FUTEX), thread(4016, (*FUTEX[:4], "0x5640491d5700")))},
        sample={"others": [("a", 4015, one, False), ("b", 4016, other, False)]},
    )
    world.waiters(2)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("lock-wait", [1])
    assert "train.py:17 (a)" in verdict.summary
    assert "train.py:21 (b)" in verdict.summary
    assert verdict.confidence > 0.9


def test_a_main_thread_on_a_lock_names_who_may_hold_it() -> None:
    world = World()
    world.waiters(3)
    world.add(
        user("update", 12, "with self.stats_lock:"),
        FUTEX,
        process={"threads": (thread(4035, SLEEP),)},
        sample={"others": [("writer", 4035, user("save", 60), False)]},
    )
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("lock-wait", [3])
    assert "thread 'writer' is at train.py:60 (save)" in verdict.summary


def test_a_loop_that_never_ends() -> None:
    world = World()
    world.waiters(3)
    world.add(user("tune", 51), RUN, sample={"active": True, "gil": True}, main_cpu_share=1.0)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("busy-in-python", [3])
    assert "100% of a core" in verdict.summary


@pytest.mark.parametrize(
    "stack", [user("train_step", 30, "time.sleep(0.1)"), situations.THREAD_START, QUEUE, JOIN]
)
def test_a_sleeping_thread_that_keeps_the_gil(stack: situations.Stack) -> None:
    # GIVEN a main thread that wants the GIL, wherever it was, and so wakes up every 5 ms
    world = World()
    world.waiters(3)
    world.add(
        stack,
        FUTEX,
        moved_at=NOW,
        process={"threads": (thread(4035, SLEEP),)},
        sample={"others": [("device-poller", 4035, user("poll_device", 62), True)]},
    )
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("gil-held", [3])
    assert "device-poller" in verdict.summary
    assert "clock_nanosleep" in verdict.summary


def test_a_sleep_that_a_tracer_interrupted_is_a_sleep_still() -> None:
    # As after native stacks of the rank: Linux 6.18 shows no better wait channel then.
    world = World()
    world.waiters(3)
    again = ("S", "do_syscall_64", "restart_syscall", None, None)
    world.add(
        user("train_step", 30, "time.sleep(0.1)"),
        FUTEX,
        moved_at=NOW,
        process={"threads": (thread(4035, again),)},
        sample={"others": [("device-poller", 4035, user("poll_device", 62), True)]},
    )
    assert hung(world).cause == "gil-held"


def test_a_queue_whose_producer_was_killed() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(QUEUE, FUTEX)
    dead = world.process(
        4099, ("Z", None, None, None, None), role="subprocess", label="subprocess python",
        state="Z", exit_code=-9, rank=3, rank_pid=4030,
    )  # fmt: skip
    world.give_children(rank, [(dead, None)])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("queue-wait", [3])
    assert "(pid 4099) filled it, which was killed by SIGKILL and is a zombie" in verdict.summary


@pytest.mark.parametrize("died", [True, False])
def test_who_waits_until_all_of_a_queue_is_done_needs_somebody_who_empties_it(
    *, died: bool
) -> None:
    world = World()
    world.waiters(3)
    joins = (
        frame("Condition.wait", "py:threading.py", 327, "waiter.acquire()"),
        frame("Queue.join", "py:queue.py", 90),
        *user("drain", 39, "work.join()"),
    )
    rank = world.add(joins, FUTEX)
    dead = world.process(
        4099, ("Z", None, None, None, None), role="subprocess", label="subprocess python",
        state="Z", exit_code=1, rank=3, rank_pid=4030,
    )  # fmt: skip
    world.give_children(rank, [(dead, None)] if died else [])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("queue-wait", [3])
    why = "(pid 4099) emptied it, which" if died else "what is in it is not done (task_done)"
    assert why in verdict.summary
    assert "fill" not in verdict.summary


@pytest.mark.parametrize("holder", [4001, 321])
@pytest.mark.parametrize("waiting", [True, False])
def test_the_lock_file_that_a_worker_waits_for_is_named_and_who_has_it(
    holder: int, *, waiting: bool
) -> None:
    world = World()
    world.waiters(2)
    other = world.add(LOADER, POLL)
    reads = worker_in("fetch", 36, "answer.read()")
    world.give_children(other, [world.worker(other, reads, RECVFROM, start=1)])
    pid = other.process.pid + 1000 if holder == 4001 else holder
    rank = world.add(LOADER, POLL)
    polls = (frame("_poll", "filelock/_api.py", 1177), *worker_in("fetch", 28))
    held = (Holder(pid, "python3", "S", "holds the lock"),)
    lock = Descriptor(-1, "file", "/c/7.tar.lock", locked="held", holders=held)
    files = {"waiting_locks" if waiting else "lock_files": (lock,)}
    pair = world.worker(rank, polls, SLEEP)
    world.give_children(rank, [pair], tables={pair[0].pid: DescriptorTable(NOW, **files)})
    found = {tuple(blamed(one)): one for one in judged(world).verdicts}
    verdict = found[(3,)]
    assert verdict.cause == "dataloader-worker-stuck"
    most = "" if waiting else ", most likely"
    place = "waits for a lock file at train.py:28 (fetch) for 5:00 on /c/7.tar.lock"
    assert f"{place}{most}, held by " in verdict.summary
    # It follows from what a worker of another rank is in.
    assert (verdict.confidence < found[(2,)].confidence) == (holder == 4001)
    assert ("DataLoader worker 0 of rank 2" in verdict.summary) == (holder == 4001)
