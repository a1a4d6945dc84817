"""Ranks whose threads keep one another from going on: locks taken again or in turn, full queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hangtop_core.model.descriptors import Descriptor, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, hung, judged
from support.situations import (
    BASE,
    EXECUTOR,
    FUTEX,
    LOADER,
    RESULT,
    RUN,
    SLEEP,
    URLLIB,
    frame,
    thread,
    user,
    with_frame,
    worker_in,
)

if TYPE_CHECKING:
    from support.situations import Stack

PUT: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Queue.put", "py:queue.py", 140),
    *user("log", 49),
)


def test_a_thread_that_takes_its_lock_again() -> None:
    lock = "with self.lock:"
    flush = with_frame(user("flush", 45, lock), name="Meter.flush")
    add = msgspec.structs.replace(frame("Meter.add", "train.py", 42), beside=((39, lock),))
    world = World()
    world.waiters(2)
    others = [("meter-flush", 4075, flush, False)]
    world.add((flush[0], add, *BASE), FUTEX, sample={"others": others},
              process={"threads": (thread(4075, FUTEX),)}, rank=7)  # fmt: skip
    summary = hung(world).summary
    assert "thread 'MainThread' most likely waits for itself: it takes `self.lock`" in summary
    assert "has it since train.py:39" in summary
    assert "each other" not in summary


def test_that_a_thread_takes_its_lock_again_in_a_signal_handler_is_told() -> None:
    lock, head = "with self.lock:", (37, "def warned(self, signum, frame):")
    write = with_frame(user("write", 22, lock), within=(), beside=())[0]
    warned = with_frame(user("warned", 39), within=(head,), beside=())[0]
    sync = with_frame(user("write", 24), within=(), beside=((22, lock),))
    world = World()
    world.waiters(2)
    world.add((write, warned, *sync), FUTEX, rank=7)
    verdict = hung(world)
    assert verdict.cause == "lock-wait"
    said = "it is most likely in a signal handler, train.py:39 (warned), which came at train.py:24"
    assert said in verdict.summary
    # also where that waits for something else
    sleeps = with_frame(user("warned", 39, "time.sleep(9)"), within=(head,), beside=())[0]
    world.ranks.pop()
    world.add((sleeps, *sync), SLEEP, rank=7)
    facts = [one.text for one in hung(world).evidence]
    assert any("in a signal handler, train.py:39 (warned), which came at" in one for one in facts)


def test_of_signal_handlers_within_one_another_all_are_told_since_the_lock_was_taken() -> None:
    # GIVEN a handler of Ctrl-C that came while another one wrote, and one before the lock was taken
    lock, head = "with self.lock:", (37, "def on(self, signum, frame):")
    write = with_frame(user("write", 22, lock), within=(), beside=())[0]
    second = with_frame(user("stopped", 60), within=(head,), beside=())[0]
    first = with_frame(user("warned", 39), within=(head,), beside=())[0]
    holds = with_frame(user("flush", 24), within=(), beside=((23, lock),))[0]
    before = with_frame(user("reload", 80), within=(head,), beside=())[0]
    world = World()
    world.waiters(2)
    world.add((write, second, first, holds, before, *BASE), FUTEX, rank=7)
    summary = hung(world).summary
    # THEN who waits, who has it, and both handlers between are told, and not the one before
    assert "takes `self.lock` at train.py:22 (write) `with self.lock:`" in summary
    assert "and has it since train.py:23, in flush" in summary
    assert (
        "it is most likely in a signal handler, train.py:60 (stopped), which came at train.py:39 "
        "(warned), within one that had come before, train.py:39 (warned), which came at "
        "train.py:24 (flush)" in summary
    )
    assert "reload" not in summary


def test_a_handler_that_came_before_the_lock_was_taken_is_not_why() -> None:
    lock, head = "with self.lock:", (37, "def on(self, signum, frame):")
    write = with_frame(user("write", 22, lock), within=(), beside=())[0]
    handler = with_frame(user("stopped", 60), within=(head,), beside=((59, lock),))[0]
    world = World()
    world.waiters(2)
    world.add((write, handler, *BASE), FUTEX, rank=7)
    summary = hung(world).summary
    assert "and has it since train.py:59, in stopped" in summary
    assert "signal handler" not in summary


def test_of_many_handlers_within_one_another_some_are_named() -> None:
    lock, head = "with self.lock:", (37, "def on(self, signum, frame):")
    write = with_frame(user("write", 22, lock), within=(), beside=())[0]
    handlers = [with_frame(user("on", 60 + n), within=(head,), beside=())[0] for n in range(6)]
    holds = with_frame(user("flush", 24), within=(), beside=((23, lock),))[0]
    world = World()
    world.waiters(2)
    world.add((write, *handlers, holds, *BASE), FUTEX, rank=7)
    summary = hung(world).summary
    assert "train.py:65 (on), which came at train.py:24 (flush) (3 more between them)" in summary
    assert "train.py:63 (on)" not in summary


def crossing(want: str, holds: str, name: str, line: int) -> Stack:
    stack = user(name, line, f"with {want}:")
    return with_frame(stack, beside=((line - 1, f"with {holds}:"),), name=f"Store.{name}")


def test_two_threads_of_which_each_holds_what_the_other_wants() -> None:
    world = World()
    world.waiters(2)
    one, other = crossing("self.a", "self.b", "put", 20), crossing("self.b", "self.a", "pack", 30)
    world.add(one, FUTEX, sample={"others": [("packer", 4025, other, False)]},
              process={"threads": (thread(4025, (*FUTEX[:4], "0x77")),)})  # fmt: skip
    summary = hung(world).summary
    assert "most likely each of two threads holds what the other wants" in summary
    assert "thread 'packer' `self.a` at train.py:30" in summary.replace(
        "`self.b` at", "`self.a` at"
    )


def test_that_who_waits_for_an_answer_waits_for_two_threads_that_hold_each_other_up() -> None:
    # GIVEN two classes that know two things by the same names
    learn = crossing("self.ledger.lock", "self.weights.lock", "step", 78)
    publish = crossing("self.weights.lock", "self.ledger.lock", "publish", 94)
    publish = (msgspec.structs.replace(publish[0], name="Publisher.publish"), *publish[1:])
    get = (frame("Condition.wait", "py:threading.py", 327), frame("Queue.get", "py:queue.py", 171),
           *user("run", 115, "loss = self.answers.get()"))  # fmt: skip

    def told(*stacks: Stack) -> tuple[str, str]:
        world = World()
        world.waiters(2)
        others = [(f"t{n}", 4075 + n, stack, False) for n, stack in enumerate(stacks)]
        facts = (thread(4075, (*FUTEX[:4], "0x77")), thread(4076, (*FUTEX[:4], "0x78")))
        world.add(get, FUTEX, sample={"others": others},
                  process={"threads": facts[: len(stacks)]}, rank=7)  # fmt: skip
        verdict = hung(world)
        return verdict.cause, verdict.summary

    cause, summary = told(learn, publish)
    assert cause == "lock-wait"
    assert "waits in get at train.py:115 (run)" in summary
    assert "each of two threads holds what the other wants: thread 't0' wants" in summary
    # THEN one that wants a lock, or two that want the same, are no circle
    assert told(learn)[0] == told(learn, learn)[0] == "queue-wait"


def test_one_lock_that_several_threads_wait_for_is_no_circle() -> None:
    world = World()
    world.waiters(2)
    line = user("flush", 45, "with lock:")
    world.add(line, FUTEX, sample={"others": [("w", 4025, line, False)]},
              process={"threads": (thread(4025, FUTEX),)})  # fmt: skip
    verdict = hung(world)
    assert verdict.cause == "lock-wait"
    assert "each other" not in verdict.summary
    assert "so does thread 'w' at train.py:45" in verdict.summary


def test_workers_of_which_each_holds_what_the_other_wants() -> None:
    world = World()
    world.waiters(1)
    rank = world.add(LOADER, FUTEX)
    pairs = []
    for number, stack in enumerate(
        (crossing("self.a", "self.b", "put", 20), crossing("self.b", "self.a", "get", 30))
    ):
        inner = frame("Lock.__enter__", "py:multiprocessing/synchronize.py", 95)
        whole = (inner, stack[0], *worker_in("f", 9)[1:])
        pairs.append(world.worker(rank, whole, (*FUTEX[:4], f"0x{number}"), number, cmdline=("w",)))
    world.give_children(rank, pairs)
    verdict = hung(world)
    assert verdict.cause == "dataloader-worker-stuck"
    names = [f"DataLoader worker {n} (pid {p.pid})" for n, (p, _) in enumerate(pairs)]
    assert (
        f": most likely {names[0]} wants at train.py:20 (Store.put) `self.a`, which {names[1]} has "
        f"since train.py:29, and that one wants at train.py:30 (Store.get) `self.b`, which the "
        "first one has since train.py:19" in verdict.summary
    )


def test_locks_of_threads_are_not_crossed_between_workers() -> None:
    # GIVEN workers whose lines name each other's locks, which fork has made one of each
    world = World()
    world.waiters(1)
    rank = world.add(LOADER, FUTEX)
    for inner in ((), (frame("Semaphore.acquire", "py:threading.py", 507),)):
        pairs = [
            world.worker(
                rank, (*inner, stack[0], *worker_in("f", 9)[1:]), (*FUTEX[:4], f"0x{n}"), n,
                cmdline=("w",),
            )
            for n, stack in enumerate(
                (crossing("self.a", "self.b", "put", 20), crossing("self.b", "self.a", "get", 30))
            )
        ]  # fmt: skip
        rank = world.give_children(rank, pairs)
        verdict = hung(world)
        assert verdict.cause == "dataloader-worker-stuck"
        assert "wants" not in verdict.summary


def test_a_pool_of_threads_that_wait_for_tasks_of_it() -> None:
    world = World()
    world.waiters(2)
    task = (*RESULT, frame("sample", "train.py", 24), *EXECUTOR)
    others = [(f"reader_{i}", 4021 + i, task, False) for i in range(4)]
    world.add((*RESULT, *user("batch", 28)), FUTEX, sample={"others": others})
    summary = hung(world).summary
    assert "all 4 threads of its pool 'reader' wait for futures, too" in summary
    idle = [*others[:3], ("reader_3", 4029, EXECUTOR, False)]
    world.ranks.pop()
    world.add((*RESULT, *user("batch", 28)), FUTEX, sample={"others": idle})
    assert "all 3" not in hung(world).summary


def test_a_full_queue_is_not_emptied_by_threads_that_wait_for_work() -> None:
    world = World()
    world.waiters(2)
    world.add(PUT, FUTEX, sample={"others": [("reader_0", 4025, EXECUTOR, False)]})
    summary = hung(world).summary
    assert "it is full, and no thread takes from it (1 other thread only waiting" in summary
    assert "reader_0" not in summary


SEND = ("S", "wait_woken", "sendto", 10, None)


def test_the_thread_that_a_future_waits_for_is_told_by_its_peer() -> None:
    world = World()
    world.waiters(2)
    sock = Socket("tcp", "ESTABLISHED", "10.0.0.1:5", "10.9.9.9:443", send_queue=9)
    link = Descriptor(10, "socket", "socket:[3]", "rw", socket=sock)
    task = (frame("put", "train.py", 21), *EXECUTOR)
    world.add((*RESULT, *user("wait", 42)), FUTEX, descriptors=DescriptorTable(NOW, (link,)),
              process={"threads": (thread(4025, SEND),)},
              sample={"others": [("up_0", 4025, task, False)]})  # fmt: skip
    verdict = hung(world)
    assert verdict.cause == "remote-service-wait"
    assert "at train.py:42 (wait) for its thread 'up_0', which waits at train.py:21" in (
        verdict.summary
    )
    assert "10.9.9.9:443 (fd 10, ESTABLISHED), which takes no more" in verdict.summary
    assert "main thread in train.py:21" not in " ".join(one.text for one in verdict.evidence)


def test_a_thread_that_makes_no_future_does_not_explain_a_wait_for_one() -> None:
    world = World()
    world.waiters(2)
    world.add((*RESULT, *user("wait", 42)), FUTEX, process={"threads": (thread(4025, SEND),)},
              sample={"others": [("beat", 4025, URLLIB, False)]})  # fmt: skip
    assert hung(world).cause == "queue-wait"


def test_who_was_met_running_without_using_a_cpu_is_where_it_sleeps() -> None:
    world = World()
    world.waiters(2)
    slept = (thread(4020, SLEEP), NOW - 2.0)
    world.add(user("mark", 30), RUN, main_cpu_share=0.002, slept=slept)
    found = judged(world)
    assert "busy-in-python" not in [one.cause for one in found.verdicts]
    world.ranks.pop()
    world.add(user("mark", 30), RUN, main_cpu_share=0.9, slept=slept)
    assert judged(world).verdicts[0].cause == "straggler"  # it computes in native code
