"""Ranks kept from going on by what is their own: children, threads, locks, attempts in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, hung, judged
from support.situations import (
    CHILD,
    FUTEX,
    PIPE_READ,
    RUN,
    SLEEP,
    STOP,
    WAITPID,
    frame,
    user,
    with_frame,
)

if TYPE_CHECKING:
    from hangtop_core.model.snapshot import Process, Rank, StackSample
    from support.situations import Facts, Stack

POOL_MAP: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("ApplyResult.wait", "py:multiprocessing/pool.py", 765),
    frame("ApplyResult.get", "py:multiprocessing/pool.py", 768),
    frame("Pool.map", "py:multiprocessing/pool.py", 367),
    *user("prepare", 52),
)
POOL_IDLE: Stack = (
    frame("SimpleQueue.get", "py:multiprocessing/queues.py", 366),
    frame("worker", "py:multiprocessing/pool.py", 114),
    frame("BaseProcess.run", "py:multiprocessing/process.py", 108),
    *user("prepare", 51),
)
POOL_TASK: Stack = (
    frame("encode", "train.py", 20),
    frame("mapstar", "py:multiprocessing/pool.py", 48),
    frame("worker", "py:multiprocessing/pool.py", 125),
    *POOL_IDLE[2:],
)
POOL_INIT: Stack = (
    frame("load_vocab", "train.py", 12),
    frame("worker", "py:multiprocessing/pool.py", 109),
    *POOL_IDLE[2:],
)


def child(
    world: World, rank: Rank, facts: Facts, stack: Stack | None = None, pid: int = 5000, **more: Any
) -> tuple[Process, StackSample | None]:
    """A child of a rank, and where it is."""
    fields = {"ppid": rank.process.pid, "rank_pid": rank.process.pid, **more}
    made = world.process(pid, facts, role="subprocess", label="subprocess python", **fields)
    return made, world.sample(stack, pid=pid) if stack is not None else None


def table(*descriptors: Descriptor) -> DescriptorTable:
    return DescriptorTable(at=NOW, descriptors=descriptors)


def reader(world: World, state: str = "S", **more: Any) -> Rank:
    """A rank that reads from a pipe which process 5000 writes."""
    holder = Holder(5000, "ffmpeg", state, "writes")
    pipe = Descriptor(13, "pipe", "pipe:[7]", "r", holders=(holder,))
    other = Descriptor(14, "pipe", "pipe:[8]", "r", holders=(holder,))
    return world.add(user("clip", 34), PIPE_READ, descriptors=table(pipe, other), **more)


# -- pipes to programs


def test_a_program_that_is_stopped_is_told_before_the_pipe() -> None:
    world = World()
    world.waiters(2)
    rank = reader(world, "T")
    world.give_children(rank, [child(world, rank, STOP, state="T", cmdline=("ffmpeg",))])
    verdict = hung(world)
    assert verdict.cause == "child-process-wait"
    assert "pid 5000 'ffmpeg' (state T), which is stopped by a signal" in verdict.summary
    assert any("kill -CONT 5000" in step for step in verdict.next_steps)


def test_a_rank_and_its_program_that_wait_for_each_other() -> None:
    # GIVEN a program that writes to its stderr, a pipe that only the rank reads
    world = World()
    world.waiters(2)
    rank = reader(world)
    facts = ("S", "anon_pipe_write", "write", 2, None)
    pair = child(world, rank, facts, outputs=("pipe:[7]", "pipe:[8]"), cmdline=("ffmpeg",))
    world.give_children(rank, [pair])
    verdict = hung(world)
    assert verdict.cause == "child-process-wait"
    assert "blocked writing to its stderr, which is full" in verdict.summary
    assert "they wait for each other" in verdict.summary
    assert any("communicate()" in step for step in verdict.next_steps)


def test_a_program_that_waits_for_its_rank_to_write() -> None:
    world = World()
    world.waiters(2)
    rank = reader(world)
    stdin = Descriptor(0, "pipe", "pipe:[6]", "r", holders=(
        Holder(rank.process.pid, "python", "S", "writes"),))  # fmt: skip
    pair = child(world, rank, ("S", "anon_pipe_read", "read", 0, None), cmdline=("bc",))
    world.give_children(rank, [pair], tables={5000: table(stdin)})
    summary = hung(world).summary
    assert "blocked reading its stdin: a pipe that only this rank writes" in summary


def test_a_pipe_of_another_process_is_io_still() -> None:
    world = World()
    world.waiters(2)
    reader(world)
    assert hung(world).cause == "io-wait"


# -- pools


def pool_of(world: World, *children: tuple[Process, StackSample | None], **more: Any) -> Rank:
    rank = world.add(POOL_MAP, FUTEX, **more)
    return world.give_children(rank, children, moved_at=NOW)


def churn(world: World, *, code: int | None, stack: Stack | None) -> None:
    rank = world.add(POOL_MAP, FUTEX, io_moved_at=NOW)
    pairs = [
        child(
            world, rank, SLEEP, stack, 5000 + i,
            started_at=NOW - 12 + 2 * i, gone_at=NOW - 11 + 2 * i, exit_code=code,
        )
        for i in range(5)
    ]  # fmt: skip
    pairs.append(child(world, rank, RUN, None, 5100, started_at=NOW - 1.0))
    world.give_children(rank, pairs, moved_at=NOW)


@pytest.mark.parametrize(("code", "stack"), [(None, POOL_INIT), (1, POOL_INIT), (1, None)])
def test_workers_that_end_as_fast_as_they_are_started_are_no_progress(
    code: int | None, stack: Stack | None
) -> None:
    world = World()
    world.waiters(2)
    churn(world, code=code, stack=stack)
    verdict = hung(world)
    assert verdict.cause == "child-process-wait"
    assert "end as fast as they are started: 5 were seen to come and go" in verdict.summary


@pytest.mark.parametrize(
    ("code", "stack"), [(0, None), (None, POOL_TASK), (None, POOL_IDLE), (None, None)]
)
def test_workers_that_take_one_task_each_are_at_work(code: int | None, stack: Stack | None) -> None:
    world = World()
    world.waiters(2)
    churn(world, code=code, stack=stack)
    found = judged(world)
    assert found.state == "progressing"
    assert "none stays: 5 were seen to come and go" in found.verdicts[0].summary


def test_programs_that_are_run_one_after_the_other_are_at_work() -> None:
    world = World()
    world.waiters(2)
    rank = world.add(CHILD, WAITPID)
    pairs = [
        child(world, rank, RUN, None, 5000 + i, started_at=NOW - 9 + i, gone_at=NOW - 8 + i)
        for i in range(6)
    ]
    world.give_children(rank, pairs, moved_at=NOW)
    assert judged(world).state == "progressing"


def test_a_pool_whose_workers_all_wait_has_lost_one_with_its_task() -> None:
    world = World()
    world.waiters(2)
    rank = world.add(POOL_MAP, FUTEX)
    old, new = NOW - 600.0, NOW - 500.0
    world.give_children(
        rank,
        [
            child(world, rank, PIPE_READ, POOL_IDLE, 5001, started_at=old),
            child(world, rank, FUTEX, POOL_IDLE, 5002, started_at=new),
        ],
    )
    verdict = hung(world)
    assert (verdict.cause, len(judged(world).verdicts)) == ("queue-wait", 1)
    assert "all 2 workers of it wait for tasks: most likely another one has gone" in verdict.summary
    assert "pid 5002 was started 1:40 after the others" in verdict.summary
    assert "wait for each other" not in " ".join(one.text for one in verdict.evidence)


def test_a_child_that_waits_for_its_queue_to_be_emptied() -> None:
    world = World()
    world.waiters(2)
    rank = world.add(CHILD, WAITPID)
    stack = (
        frame("Thread.join", "py:threading.py", 1119),
        frame("Queue._finalize_join", "py:multiprocessing/queues.py", 199),
        *user("run", 59),
    )
    world.give_children(rank, [child(world, rank, FUTEX, stack)])
    verdict = hung(world)
    assert "waits until what it has put into a queue is taken out" in verdict.summary
    assert any("before join()" in step for step in verdict.next_steps)


# -- attempts in vain


@pytest.mark.parametrize(
    ("name", "within", "beside", "cause"),
    [
        ("LockFile.__enter__", [(28, "while True:")],
         [(30, "fd = os.open(self.path, os.O_CREAT | os.O_EXCL)"), (31, "except OSError as e:")],
         "file-lock"),
        ("claim", [(28, "for _ in range(tries):")], [(30, "os.mkdir(path)")], "file-lock"),
        ("claim", [(28, "while True:")], [(30, "open(path, 'x')")], "file-lock"),
        ("prepare", [(28, "while os.path.exists(lock_path):")], [], "file-lock"),
        ("wait", [(28, "while path.exists():")], [], "file-lock"),
        ("acquire_lock", [(28, "while True:")], [(30, "return self._try()")], "file-lock"),
        ("get", [(28, "while True:")],
         [(30, "return super().get(n)"), (31, "except (URLError, ConnectionError):")],
         "remote-service-wait"),
        ("send", [(28, "for attempt in range(9):")], [(30, "socket.create_connection(at)")],
         "remote-service-wait"),
        # neither is seen to be a lock or a service
        ("decode_block", [(28, "while True:")], [(30, "return parse(text)")], "missing-collective"),
        ("poll", [(28, "while not os.path.exists(marker):")], [], "missing-collective"),
        ("take", [(28, "while not self.lock.acquire(False):")], [], "missing-collective"),
        # what is tried outside of the loop is not tried again
        ("run", [(33, "while True:")], [(30, "os.mkdir(path)")], "missing-collective"),
    ],
)  # fmt: skip
def test_what_is_tried_again_and_again(
    name: str, within: list[tuple[int, str]], beside: list[tuple[int, str]], cause: str
) -> None:
    world = World()
    world.waiters(2)
    stack = with_frame(user(name, 35), within=tuple(within), beside=tuple(beside))
    world.add(stack, SLEEP, moved_at=NOW - 0.4)
    verdict = hung(world)
    assert verdict.cause == cause
    if cause != "missing-collective":
        assert f"the loop at train.py:28 (`{within[0][1]}`)" in verdict.summary


def test_who_sleeps_once_tries_nothing_again() -> None:
    world = World()
    world.waiters(2)
    stack = with_frame(user("f", 35), within=((28, "while True:"),), beside=((30, "os.mkdir(p)"),))
    world.add(stack, SLEEP)
    assert hung(world).cause == "missing-collective"


# -- shells and what they have started


def program(
    world: World, rank: Rank, facts: Facts, pid: int, *words: str, **more: Any
) -> tuple[Process, None]:
    """A child that is no Python, and has one thread."""
    made, _ = child(world, rank, facts, None, pid, cmdline=words, comm=words[0], **more)
    return msgspec.structs.replace(made, threads=made.threads[:1]), None


POLLS = ("S", "poll_schedule_timeout", "poll", None, None)
PIPE_WRITE = ("S", "pipe_write", "write", 1, None)


def pipeline(world: World) -> Rank:
    """A rank that waits for a shell, which waits for `tar | curl`, and curl for its store."""
    rank = world.add(CHILD, WAITPID)
    sh, url = rank.process.pid + 5000, "https://store/run-7.tar"
    pairs = [
        program(world, rank, WAITPID, sh, "bash", "-c", f"tar -cf - logs | curl -T - {url}"),
        program(world, rank, PIPE_WRITE, sh + 1, "tar", ppid=sh),
        program(world, rank, POLLS, sh + 2, "curl", "-T", "-", url, ppid=sh),
    ]
    away = Socket("tcp", "ESTABLISHED", "10.0.0.1:4000", "10.0.0.9:443")
    tables = {sh + 2: table(Descriptor(5, "socket", "socket:[9]", "rw", socket=away))}
    return world.give_children(rank, pairs, tables=tables)


def test_the_program_that_a_shell_waits_for_is_told_with_its_connection() -> None:
    world = World()
    world.waiters(2)
    pipeline(world)
    verdict = hung(world)
    assert verdict.cause == "child-process-wait"
    said = "'curl -T - https://store/run-7.tar' (state S), connected to 10.0.0.9:443"
    assert said in verdict.summary


@pytest.mark.parametrize(
    ("share", "moved", "state"),
    [(0.0001, None, "hung"), (0.0001, NOW, "progressing"), (0.2, None, "progressing")],
)
def test_a_program_that_only_looks_every_second_gets_nowhere(
    share: float, moved: float | None, state: str
) -> None:
    # GIVEN curl, which runs every second, whether anything comes or not
    world = World()
    world.waiters(2)
    rank = pipeline(world)
    pids = [one.pid for one in rank.children]
    world.ranks[-1] = msgspec.structs.replace(
        rank,
        child_moved_at={**dict.fromkeys(pids[:2], NOW - 300.0), pids[2]: NOW},
        child_cpu_share=dict.fromkeys(pids, share),
        child_io_moved_at={} if moved is None else {pids[2]: moved},
    )
    assert judged(world).state == state


def test_a_pipe_that_a_shell_only_has_open_is_filled_by_another() -> None:
    world = World()
    world.waiters(2)
    writes = tuple(Holder(5000 + i, name, "S", "writes") for i, name in enumerate(("sh", "curl")))
    pipe = Descriptor(13, "pipe", "pipe:[7]", "r", holders=writes)
    rank = world.add(user("clip", 34), PIPE_READ, descriptors=table(pipe))
    world.give_children(
        rank,
        [
            program(world, rank, WAITPID, 5000, "sh", "-c", "curl x"),
            program(world, rank, POLLS, 5001, "curl", "x", ppid=5000),
        ],
    )
    verdict = hung(world)
    assert "pid 5001 'curl x' (state S)" in verdict.summary
    assert "pid 5000" not in verdict.summary
    assert not any("pid 5000" in one.text for one in verdict.evidence)
