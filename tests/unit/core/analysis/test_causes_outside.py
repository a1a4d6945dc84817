"""Causes that a rank waits for outside of it, in programs, files and services: it comes first."""

from __future__ import annotations

import shlex

import pytest

from hangtop_core.analysis.verdict.steps import answers, as_host
from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.snapshot import DescriptorTable, Node
from support import situations
from support.build import NOW, World, judged
from support.situations import (
    CHILD,
    DISK,
    FIFO_OPEN,
    FLOCK,
    FUTEX,
    PDB,
    PIPE_READ,
    PIPE_WRITE,
    QUEUE,
    RECVFROM,
    SLEEP,
    STDIN_READ,
    URLLIB,
    WAITPID,
    c10d,
    frame,
    user,
)
from support.verdicts import blamed, hung


def test_a_program_that_a_rank_waits_for() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(CHILD, WAITPID)
    child = world.process(
        4999, SLEEP, role="subprocess", ppid=rank.process.pid, cmdline=("sleep", "1000000")
    )
    world.give_children(rank, [(child, None)])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("child-process-wait", [3])
    assert "pid 4999 'sleep 1000000' (state S)" in verdict.summary


def test_how_long_a_rank_waits_for_a_program_is_told_from_when_it_last_ran() -> None:
    # GIVEN a program that got on later than the rank went to wait for it
    world = World()
    world.waiters(3)
    rank = world.add(CHILD, WAITPID, moved_at=NOW - 90.0)
    child = world.process(4999, SLEEP, role="subprocess", ppid=rank.process.pid)
    world.give_children(rank, [(child, None)], moved_at=NOW - 40.0)
    verdict = hung(world)
    assert verdict.cause == "child-process-wait"
    assert " for 1:30 for a program it started" in verdict.summary
    assert any("last ran 1:30 ago" in one.text for one in verdict.evidence)


@pytest.mark.parametrize(
    ("stack", "facts"),
    [
        (PDB, STDIN_READ),
        (user("ask", 9, "input()"), STDIN_READ),
        (PDB, ("S", "n_tty_read", "read", 0, None)),
    ],
)
def test_a_prompt_left_in_the_code(stack: situations.Stack, facts: situations.Facts) -> None:
    world = World()
    world.add(stack, facts)
    world.waiters(3)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("debugger-prompt", [0])


def test_a_distributed_breakpoint_says_where_it_is_answered() -> None:
    torch = "/opt/lib/python3.11/site-packages/torch/distributed/__init__.py"
    world = World()
    terminal = Descriptor(0, "tty", "/dev/pts/7")
    table = DescriptorTable(NOW, (terminal,))
    stack = (*PDB[:2], frame("breakpoint", torch, 131), *user("train", 9))
    world.add(stack, STDIN_READ, descriptors=table)
    world.waiters(3)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("debugger-prompt", [0])
    assert "sits in torch.distributed.breakpoint() at train.py:9" in verdict.summary
    assert "answer it in the terminal /dev/pts/7 of" in verdict.next_steps[0]
    assert "or take it out at train.py:9" in verdict.next_steps[1]


@pytest.mark.parametrize(
    "path",
    [
        "/c/$(reboot)",
        "/c/a b;reboot",
        "/c/it's",
        "/c/\x1b[",
        "/c/\x1b]0;",
        "/c/\u202e",
        "/" + 9999 * "a",
    ],
)
@pytest.mark.parametrize("shell", [None, "ssh n1"])
def test_a_path_cannot_say_what_a_proposed_command_does(path: str, shell: str | None) -> None:
    world = World()
    world.waiters(3)
    world.nodes["n1"] = Node("n1", state="ready", shell=shell)
    table = DescriptorTable(NOW, (), waiting_locks=(Descriptor(9, "file", path),))
    world.add(user("refresh", 77, "fcntl.flock(f, LOCK_EX)"), FLOCK, descriptors=table)
    steps = hung(world).next_steps
    told = next(step for step in steps if "lslocks" in step)
    words = shlex.split(told)
    if shell is not None:
        assert words[:2] == ["ssh", "n1"]
        assert len(words) == 3
        words = shlex.split(words[2])
    odd = not path.isprintable() or len(path) > 300
    assert words == (["lslocks"] if odd else ["lslocks", "|", "grep", "-F", path])


def test_a_path_that_is_no_word_is_not_looked_for() -> None:
    world = World()
    world.waiters(3)
    holder = Holder(9, "python3", "S", "holds the lock")
    file = Descriptor(11, "file", "/c/\x1b[", "rw", locked="by others", holders=(holder,))
    table = DescriptorTable(NOW, (file,))
    world.add(user("count", 95, "db.execute(sql)"), SLEEP, descriptors=table, moved_at=NOW)
    assert "lslocks" in hung(world).next_steps


def test_the_document_holds_no_escape_sequence_of_a_node() -> None:
    world = World()
    world.waiters(3)
    found = judged(world, launcher="torchrun\x1b]0;x\x07\x9b2J\u202e", id="run\x1b[31m-7")
    assert found.job is not None
    assert (found.job.launcher, found.job.id) == ("torchrun", "run-7")


def test_a_host_cannot_say_what_a_proposed_command_does() -> None:
    assert as_host("n1.cluster") == "n1.cluster"
    assert as_host("fe80::1%eth0") == "fe80::1%eth0"
    assert not any(map(as_host, ("", "-oProxyCommand=x", "a;reboot", "$(reboot)", "a b", "a\n")))
    assert "</dev/tcp/fe80::1/29500" in answers("[fe80::1]:29500")
    assert not any(map(answers, ("n1", "n1:", "n1:0", "n1:x", "n1:٣", ":29500", "a;b:29500")))


def test_a_read_that_does_not_return_names_descriptor_path_and_server() -> None:
    world = World()
    world.waiters(3)
    file = Descriptor(
        13, "file", "/mnt/ckpt/w.bin", "r", mount="/mnt", fstype="nfs4", server="nfs04:/export"
    )
    world.add(user("load", 83), DISK, descriptors=DescriptorTable(NOW, (file,)))
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("io-wait", [3])
    for part in ("state D", "fd 13", "/mnt/ckpt/w.bin", "nfs4", "nfs04:/export"):
        assert part in verdict.summary


@pytest.mark.parametrize(
    "facts", [PIPE_READ, FIFO_OPEN, ("D", "kernel_clone", "vfork", None, None)]
)
def test_other_blocking_input(facts: situations.Facts) -> None:
    world = World()
    world.waiters(3)
    world.add(user("load", 83), facts)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("io-wait", [3])


def test_a_fifo_that_is_being_opened_is_asked_first_who_has_it() -> None:
    # GIVEN it is no descriptor yet, so that nothing in /proc/PID/fd could be looked at
    world = World()
    world.waiters(3)
    table = DescriptorTable(NOW, (), opening=Descriptor(-1, "fifo", "/run/marker", "r"))
    world.add(user("load", 83), FIFO_OPEN, descriptors=table)
    steps = hung(world).next_steps
    assert "fuser -v /run/marker" in steps[0]
    assert not any("/fd/" in step for step in steps)


def test_a_blocking_read_inside_the_dataset_is_input_before_it_is_data() -> None:
    world = World()
    world.waiters(3)
    world.add(situations.inline("read_shard", 71), FIFO_OPEN)
    assert hung(world).cause == "io-wait"


def test_a_queue_that_nobody_fills() -> None:
    world = World()
    world.waiters(3)
    world.add(QUEUE, FUTEX)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("queue-wait", [3])
    assert "no other Python thread" in verdict.summary


def test_a_queue_filled_by_a_thread_in_a_collective_makes_a_victim() -> None:
    # GIVEN rank 3 waits for a thread of its own, which waits in the same all_reduce as the others
    world = World()
    world.waiters(2)
    world.add(user("cool_down", 41), SLEEP)
    world.add(QUEUE, FUTEX, sample={"others": [("comm", 4035, c10d("all_reduce"), False)]})
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("missing-collective", [2])
    assert verdict.victims == (0, 1, 3)


def test_a_pipe_that_nobody_empties() -> None:
    world = World()
    reader = Holder(991, "tee", "T", "reads")
    pipe = Descriptor(1, "pipe", "pipe:[2216]", "w", holders=(reader,))
    world.add(user("report", 20, "print(x)"), PIPE_WRITE, descriptors=DescriptorTable(NOW, (pipe,)))
    world.waiters(3)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("output-pipe-full", [0])
    assert "pid 991 (tee), state T" in verdict.summary


def test_a_program_that_reads_a_pipe_and_waits_for_its_rank_to_read_another() -> None:
    world = World()
    world.waiters(3)
    into = Descriptor(11, "pipe", "pipe:[1]", "w", holders=(Holder(4099, "sed", "S", "reads"),))
    out = Descriptor(12, "pipe", "pipe:[2]", "r", holders=(Holder(4099, "sed", "S", "writes"),))
    table = DescriptorTable(NOW, (into, out))
    rank = world.add(
        user("normalise", 26, "child.stdin.write(text)"),
        ("S", "anon_pipe_write", "write", 11, None),
        descriptors=table,
    )
    sed = world.process(
        4099, ("S", "anon_pipe_write", "write", 1, None), role="subprocess", comm="sed",
        cmdline=("sed", "-e", "s/a/b/"), ppid=rank.process.pid, rank_pid=rank.process.pid,
        outputs=("pipe:[2]", "/log"),
    )  # fmt: skip
    world.give_children(rank, [(sed, None)])
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("output-pipe-full", [3])
    assert (
        "its reader is pid 4099 (sed), state S, which is itself blocked writing to its stdout, "
        "which is full: a pipe that only this rank reads, so they wait for each other"
    ) in verdict.summary
    assert any("communicate()" in step for step in verdict.next_steps)


def test_who_is_not_answered_at_all_has_sent_nothing() -> None:
    world = World()
    world.waiters(3)
    far = Socket("tcp", "SYN_SENT", "10.9.0.2:44414", "10.44.0.17:27000", 0, 1, 8)
    table = DescriptorTable(NOW, (Descriptor(10, "socket", "socket:[1]", socket=far),))
    world.add(URLLIB, ("S", "wait_woken", "connect", 10, None), descriptors=table)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("remote-service-wait", [3])
    assert "SYN_SENT), which does not answer its attempts to connect for" in verdict.summary
    assert any("nothing answers, tried 9 times" in one.text for one in verdict.evidence)
    assert not any("acknowledged" in one.text for one in verdict.evidence)


def test_a_file_system_that_is_frozen() -> None:
    world = World()
    world.waiters(3)
    target = Descriptor(-1, "file", "/data/step-9", mount="/data", fstype="xfs")
    blocked = ("D", "percpu_rwsem_wait", "mkdir", None, None)
    table = DescriptorTable(NOW, opening=target)
    world.add(user("save", 48, "folder.mkdir()"), blocked, descriptors=table)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("io-wait", [3])
    assert "/data/step-9 on /data (xfs), where the kernel lets nobody write now" in verdict.summary


def test_a_service_that_stays_silent() -> None:
    world = World()
    world.waiters(3)
    peer = Socket("tcp", "ESTABLISHED", "10.0.0.1:5000", "10.9.9.9:443")
    table = DescriptorTable(NOW, (Descriptor(17, "socket", "socket:[1]", socket=peer),))
    world.add(URLLIB, RECVFROM, descriptors=table)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("remote-service-wait", [3])
    assert "10.9.9.9:443" in verdict.summary


@pytest.mark.parametrize("count", [1, 2])
def test_who_waits_for_somebody_to_connect(count: int) -> None:
    world = World()
    world.waiters(2)
    accept = (frame("socket.accept", "py:socket.py", 294), *user("hand_over", 57))
    for port in (5001, 5002)[:count]:
        here = Socket("tcp", "LISTEN", f"10.0.0.1:{port}", "0.0.0.0:0")
        table = DescriptorTable(NOW, (Descriptor(9, "socket", "socket:[1]", socket=here),))
        world.add(accept, ("S", "inet_csk_accept", "accept4", 9, None), descriptors=table)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == ("remote-service-wait", [2, 3][:count])
    if count == 1:
        assert "waits at train.py:57 (hand_over) for somebody to connect, at 10.0.0.1:5001" in (
            verdict.summary
        )
        assert "look who is to connect to it" in verdict.next_steps[0]
    else:
        assert "rank 2 at 10.0.0.1:5001 (fd 9), rank 3 at 10.0.0.1:5002 (fd 9)" in verdict.summary
        assert "all wait for somebody to do so" in verdict.next_steps[0]
    assert "sends nothing" not in verdict.summary
