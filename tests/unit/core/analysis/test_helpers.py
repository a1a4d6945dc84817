"""Causes that are in the thread for which a main thread waits."""

from __future__ import annotations

import pytest

from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, judged
from support.situations import FUTEX, POLL, SLEEP, WAITPID, Facts, Stack, frame, thread, user

RESULT: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Future.result", "py:concurrent/futures/_base.py", 451),
    *user("save", 125, "self.pending.result()"),
)
GET: Stack = (
    frame("Condition.wait", "py:threading.py", 327),
    frame("Queue.get", "py:queue.py", 171),
    *user("next_batch", 44),
)
LOCK: Stack = user("swap", 30, "with self.lock:")
RUN: Stack = (
    frame("_WorkItem.run", "py:concurrent/futures/thread.py", 58),
    frame("_worker", "py:concurrent/futures/thread.py", 83),
    frame("Thread.run", "py:threading.py", 982),
)
START: Stack = (frame("Thread.run", "py:threading.py", 982),)
IDLE: Stack = (frame("_worker", "py:concurrent/futures/thread.py", 81), *START)
EVENT: Stack = (frame("Event.wait", "py:threading.py", 629), *user("until", 12))
RECEIVES: Facts = ("S", "wait_woken", "recvfrom", 17, None)
SENDS: Facts = ("S", "sk_stream_wait_memory", "sendto", 17, None)
LOCKS: Facts = ("S", "locks_lock_inode_wait", "flock", 9, None)
WRITES: Facts = ("S", "anon_pipe_write", "write", 8, None)
ACCEPTS: Facts = ("S", "inet_csk_accept", "accept4", 17, None)
SERIALIZATION = "torch/serialization.py"
RUNS: Facts = ("R", None, None, None, None)
PUT = user("put", 73, "return s.recv(4096)")[:1]
Helper = tuple[Stack, Facts]


def world_of(main: Stack, *helpers: Helper, queued: int = 0) -> World:
    """Two ranks in a collective, and one whose main thread waits beside helper threads."""
    world = World()
    world.waiters(2)
    to = Socket("tcp", "ESTABLISHED", "10.0.0.1:5000", "10.9.9.9:443", send_queue=queued)
    reader = Holder(99, "tee", "T", "reads")
    table = DescriptorTable(
        NOW,
        (
            Descriptor(17, "socket", "socket:[1]", socket=to),
            Descriptor(8, "pipe", "pipe:[2]", "w", holders=(reader,)),
        ),
        waiting_locks=(Descriptor(9, "file", "/cache/x.lock"),),
    )
    tids = range(4101, 4101 + len(helpers))
    world.add(
        main,
        FUTEX,
        descriptors=table,
        process={
            "threads": tuple(thread(t, facts) for t, (_, facts) in zip(tids, helpers, strict=True))
        },
        sample={
            "others": [
                (f"helper-{t}", t, stack, False)
                for t, (stack, _) in zip(tids, helpers, strict=True)
            ]
        },
    )
    return world


@pytest.mark.parametrize(
    ("facts", "queued", "cause", "said"),
    [
        (RECEIVES, 0, "remote-service-wait", "10.9.9.9:443 (fd 17, ESTABLISHED), which sends"),
        (SENDS, 4096, "remote-service-wait", "which takes no more of what is sent"),
        (LOCKS, 0, "file-lock", "waits for the lock of /cache/x.lock"),
        (WRITES, 0, "output-pipe-full", "its reader is pid 99 (tee), state T"),
    ],
)
def test_who_waits_for_a_future_waits_for_what_its_thread_is_blocked_in(
    facts: Facts, queued: int, cause: str, said: str
) -> None:
    # GIVEN a pool with a thread at work, and one that has nothing to do
    world = world_of(RESULT, ((*PUT, *RUN), facts), (IDLE, FUTEX), queued=queued)
    one, *others = judged(world).verdicts
    assert (one.cause, [c.rank for c in one.culprits], others) == (cause, [2], [])
    assert "waits in result at train.py:125 (save) for its thread 'helper-4101', which" in (
        one.summary
    )
    assert said in one.summary
    assert "train.py:73 (put)" in one.summary
    texts = [fact.text for fact in one.evidence]
    assert any("thread 'helper-4101' in train.py:73" in text for text in texts)
    assert any("the main thread waits in result at train.py:125" in text for text in texts)


def test_in_poll_with_a_timeout_a_line_that_sends_is_a_wait_for_its_peer() -> None:
    sends = user("put", 73, "link.sendall(view)")[:1]  # threads have no frame of a module
    world = world_of(RESULT, ((*sends, *RUN), POLL))
    assert judged(world).verdicts[0].cause == "remote-service-wait"


@pytest.mark.parametrize("main", [RESULT, GET])
def test_a_checkpoint_that_a_thread_still_writes(main: Stack) -> None:
    squeezes = (frame("GzipFile.write", "py:gzip.py", 289), frame("_save", SERIALIZATION, 994))
    writes = (*squeezes, *user("put", 73, "torch.save(value, file)")[:1])
    world = world_of(main, ((*writes, *(RUN if main is RESULT else START)), RUNS), (IDLE, FUTEX))
    first = judged(world).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("checkpoint-slow", [2])
    assert "for its thread 'helper-4101', which writes a checkpoint" in first.summary


@pytest.mark.parametrize("main", [GET, LOCK])
def test_the_only_other_thread_of_the_program_is_the_one_that_is_waited_for(main: Stack) -> None:
    world = world_of(main, ((*PUT, *START), RECEIVES), (IDLE, FUTEX))
    assert judged(world).verdicts[0].cause == "remote-service-wait"


@pytest.mark.parametrize("main", [RESULT, GET])
def test_a_program_that_a_thread_waits_for(main: Stack) -> None:
    runs = user("transcode", 61, "subprocess.run(command)")[:1]
    world = world_of(main, ((*runs, *(RUN if main is RESULT else START)), WAITPID))
    rank = world.ranks[-1]
    fields = {"ppid": rank.process.pid, "role": "subprocess", "cmdline": ("ffmpeg", "-i", "a.mp4")}
    world.give_children(rank, [(world.process(7001, POLL, **fields), None)])
    verdict = judged(world).verdicts[0]
    assert verdict.cause == "child-process-wait"
    assert "for its thread 'helper-4101', which" in verdict.summary
    assert "pid 7001 'ffmpeg -i a.mp4'" in verdict.summary


def test_it_does_not_matter_that_multiprocessing_started_the_rank() -> None:
    put = (frame("Queue.put", "py:queue.py", 140), *user("log_metric", 45))
    started = (*GET[:1], *put, frame("_wrap", "py:multiprocessing/process.py", 314))
    world = world_of(started, ((*PUT, *START), RECEIVES))
    assert judged(world).verdicts[0].cause == "remote-service-wait"
    of_processes = (*GET[:1], frame("get", "py:multiprocessing/queues.py", 103), *user("run", 4))
    assert judged(world_of(of_processes, ((*PUT, *START), RECEIVES))).verdicts[0].cause != (
        "remote-service-wait"
    )


@pytest.mark.parametrize(
    ("main", "helpers", "cause"),
    [
        # a thread of another pool or of none gives no future
        (RESULT, [((*PUT, *START), RECEIVES)], "queue-wait"),
        # one that still works, or may be meant as well
        (RESULT, [((*PUT, *RUN), RECEIVES), ((*PUT, *RUN), RUNS)], "queue-wait"),
        (RESULT, [((*PUT, *RUN), RECEIVES), ((*EVENT, *RUN), FUTEX)], "queue-wait"),
        (GET, [((*PUT, *START), RECEIVES), ((*user("feed", 9), *START), WRITES)], "queue-wait"),
        # it listens for whoever calls, or is a library's
        (GET, [((*user("listen", 9), *START), ACCEPTS)], "queue-wait"),
        (GET, [(START, RECEIVES)], "queue-wait"),
        # two that want locks may wait for one another
        (LOCK, [((*PUT, *START), RECEIVES), ((*LOCK, *START), FUTEX)], "lock-wait"),
        (GET, [((*user("beat", 9), *START), SLEEP)], "queue-wait"),
    ],
)  # fmt: skip
def test_nobody_is_named_where_another_thread_may_be_meant(
    main: Stack, helpers: list[Helper], cause: str
) -> None:
    assert judged(world_of(main, *helpers)).verdicts[0].cause == cause
