"""What is not a process's own: frames and sockets of its parent, loops that it is blocked in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.frames import since_fork
from hangtop_core.model.snapshot import DescriptorTable
from hangtop_core.state.stack_table import StackTable
from support.build import NOW, World, judged
from support.situations import (
    BASE,
    FIFO_OPEN,
    FUTEX,
    LOADER,
    PIPE_READ,
    POLL,
    RUN,
    WAITPID,
    frame,
    user,
    worker_in,
)

if TYPE_CHECKING:
    from support.situations import Facts, Stack

OWN: Stack = (
    frame("Pipe.read", "webdataset/gopen.py", 104),
    frame("_worker_loop", "torch/utils/data/_utils/worker.py", 349),
    frame("BaseProcess.run", "py:multiprocessing/process.py", 108),
    frame("BaseProcess._bootstrap", "py:multiprocessing/process.py", 314),
)
PARENT: Stack = (
    frame("Popen._launch", "py:multiprocessing/popen_fork.py", 71),
    frame("Popen.__init__", "py:multiprocessing/popen_fork.py", 19),
    frame("BaseProcess.start", "py:multiprocessing/process.py", 121),
    *user("fit", 59),
)


@pytest.mark.parametrize(
    ("stack", "kept"),
    [
        (OWN + PARENT, OWN),
        (PARENT, PARENT),  # the parent itself, as it forks
        (OWN + PARENT[:3] + OWN[1:] + PARENT, OWN),  # forked by who was forked
        (OWN + BASE, OWN + BASE),  # spawned
        ((frame("_bootstrap", "py:multiprocessing/process.py", 1),
          frame("_launch", "billiard/popen_fork.py", 2), *BASE),
         (frame("_bootstrap", "py:multiprocessing/process.py", 1),)),
    ],
)  # fmt: skip
def test_the_frames_of_the_parent_are_left_out(stack: Stack, kept: Stack) -> None:
    assert since_fork(stack) == kept


def test_stacks_are_kept_without_them() -> None:
    table = StackTable()
    table.add("a", OWN + PARENT)
    assert table.publish()["a"] == OWN


def sockets(*targets: str) -> tuple[Descriptor, ...]:
    one = Socket("tcp", "ESTABLISHED", "10.0.0.1:9", "10.0.0.2:1")
    return tuple(
        Descriptor(3 + i, "socket", target, "rw", socket=one) for i, target in enumerate(targets)
    )


def test_what_a_worker_has_inherited_is_not_told_as_its_own() -> None:
    world = World()
    world.waiters(2)
    parent = DescriptorTable(NOW, (*sockets("socket:[1]"), Descriptor(9, "file", "/log", "w")))
    rank = world.add(LOADER, POLL, moved_at=NOW - 2.0, descriptors=parent)
    stuck = world.worker(rank, worker_in("read_shard", 71), FIFO_OPEN, 0)
    own = (*sockets("socket:[1]", "socket:[2]"), Descriptor(9, "file", "/log", "w"))
    world.give_children(rank, [stuck], tables={stuck[0].pid: DescriptorTable(NOW, own)})
    told = "\n".join(one.text for one in judged(world).verdicts[0].evidence)
    assert "has fd 4 = socket:[2]" in told
    assert "socket:[1]" not in told
    assert "/log" not in told


@pytest.mark.parametrize(("facts", "moved", "told"), [(PIPE_READ, 0.0, False), (RUN, 300.0, True)])
def test_the_loop_of_who_is_blocked_in_it_is_no_evidence(
    facts: Facts, moved: float, told: bool
) -> None:
    world = World()
    world.waiters(2)
    looping = replace(frame("frame", "train.py", 29), within=((27, "while True:"),))
    world.add((looping, *BASE), facts, moved_at=NOW - 300.0 + moved)
    verdict = judged(world).verdicts[0]
    assert any("which only a line in it ends" in one.text for one in verdict.evidence) == told


RESULT: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
)
GET: Stack = (*RESULT[:1], frame("Queue.get", "py:queue.py", 171))
OF_PROCESSES: Stack = (frame("get", "py:multiprocessing/queues.py", 103),)
LONELY = ("fork-deadlock", "which no thread of it can give")


@pytest.mark.parametrize(
    ("waits", "threads", "others", "told"),
    [
        (RESULT, 2, [], (LONELY[0], "waits for the result of a future at")),
        (GET, 2, [], LONELY),
        # one of its own, be it of C code, may give it; another process may fill it
        (RESULT, 9, [], ("dataloader-worker-stuck", "")),
        (RESULT, 2, [("io", 5035, user("serve", 4), False)], ("dataloader-worker-stuck", "")),
        (OF_PROCESSES, 2, [], ("dataloader-worker-stuck", "")),
    ],
)
def test_who_was_forked_waits_for_what_only_threads_of_its_parent_give(
    waits: Stack, threads: int, others: list[tuple[str, int, Stack, bool]], told: tuple[str, str]
) -> None:
    world = World()
    world.waiters(2)
    loop = [("feature-io", 4035, user("run_forever", 39), False)]
    rank = world.add(LOADER, POLL, sample={"others": loop})
    process, _ = world.worker(rank, (), FUTEX, thread_count=threads)
    sample = world.sample((*waits, *worker_in("fetch", 41)), pid=process.pid, others=others)
    world.give_children(rank, [(process, sample)])
    verdict = judged(world).verdicts[0]
    assert verdict.cause == told[0]
    assert told[1] in verdict.summary
    named = any(
        one.text == "thread 'feature-io' of the rank is not in it" for one in verdict.evidence
    )
    assert named == (told[0] == "fork-deadlock")


def test_what_a_worker_started_and_waits_for_is_named() -> None:
    world = World()
    world.waiters(2)
    rank = world.add(LOADER, POLL)
    stuck = world.worker(rank, worker_in("decode", 37), WAITPID)
    pid = stuck[0].pid
    child = world.process(
        pid + 500,
        ("S", "anon_pipe_write", "write", 2, None),
        ppid=pid,
        role="subprocess",
        cmdline=("sh", "decode.sh"),
        outputs=("/dev/null", "pipe:[7]"),
    )
    ends = DescriptorTable(NOW, (Descriptor(9, "pipe", "pipe:[7]", "r"),))
    world.give_children(rank, [stuck, (child, None)], tables={pid: ends})
    verdict = judged(world).verdicts[0]
    assert verdict.cause == "dataloader-worker-stuck"
    assert f": pid {pid + 500} 'sh decode.sh' (state S), which is itself" in verdict.summary
    assert "writing to its stderr, which is full: a pipe that only that worker reads" in (
        verdict.summary
    )


def test_what_blocks_a_program_whose_output_a_worker_reads_is_told() -> None:
    # GIVEN a decoder that is blocked in its stderr, which the worker does not read meanwhile
    world = World()
    world.waiters(2)
    rank = world.add(LOADER, POLL)
    stuck = world.worker(rank, worker_in("frames", 40), PIPE_READ)
    pid, decoder = stuck[0].pid, stuck[0].pid + 500
    child = world.process(
        decoder,
        ("S", "anon_pipe_write", "write", 2, None),
        ppid=pid,
        role="subprocess",
        cmdline=("ffmpeg", "-i", "7.mp4"),
        outputs=("pipe:[6]", "pipe:[7]"),
    )
    writes = (Holder(decoder, "ffmpeg", "S", "writes"),)
    ends = (
        Descriptor(13, "pipe", "pipe:[6]", "r", holders=writes),
        Descriptor(15, "pipe", "pipe:[7]", "r"),
    )
    world.give_children(rank, [stuck, (child, None)], tables={pid: DescriptorTable(NOW, ends)})
    verdict = judged(world).verdicts[0]
    assert verdict.cause == "dataloader-worker-stuck"
    told = (
        f"for 5:00 on fd 13 = pipe:[6]; 'ffmpeg -i 7.mp4' (pid {decoder}, state S) has its "
        "other end, but is itself blocked writing to its stderr, which is full: a pipe that only "
        "that worker reads, so they wait for each other; ranks 0-1 wait"
    )
    assert told in verdict.summary
