"""Ranks that wait for what another rank has: who is stuck itself is to blame, not who waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.openers import process_names
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import Descriptor, Holder, Socket
from hangtop_core.model.snapshot import DescriptorTable
from support.build import NOW, World, judged
from support.situations import (
    BASE,
    FLOCK,
    PIPE_READ,
    RECVFROM,
    SLEEP,
    URLLIB,
    WAITPID,
    Stack,
    frame,
    user,
)
from support.verdicts import blamed, causes, first

WAITS = user("fetch", 40, "fcntl.flock(f, LOCK_EX)")
INSIDE: Stack = (*URLLIB[:-2], frame("fetch", "train.py", 44), *BASE)


def locked(pid: int) -> DescriptorTable:
    holder = Holder(pid, "python3", "S", "holds the lock")
    lock = Descriptor(9, "file", "/cache/x.lock", locked="waiting", holders=(holder,))
    return DescriptorTable(NOW, (), waiting_locks=(lock,))


def test_who_has_the_lock_and_is_stuck_is_blamed() -> None:
    world = World()
    holder = world.add(INSIDE, PIPE_READ)
    for _ in range(2):
        world.add(WAITS, FLOCK, descriptors=locked(holder.process.pid))
    found = judged(world)
    (verdict,) = found.verdicts
    assert (verdict.cause, blamed(verdict)) == ("remote-service-wait", [0])
    assert verdict.victims == (1, 2)
    assert "; ranks 1-2 wait for the lock of /cache/x.lock, which rank 0 has, at train.py:40" in (
        verdict.summary
    )


def test_a_chain_ends_at_who_waits_for_no_rank() -> None:
    world = World()
    end = world.add(INSIDE, PIPE_READ)
    middle = world.add(WAITS, FLOCK, descriptors=locked(end.process.pid))
    other = user("prune", 70, "fcntl.flock(f, LOCK_EX)")
    world.add(other, FLOCK, descriptors=locked(middle.process.pid))
    found = judged(world)
    assert causes(found) == ["remote-service-wait"]
    assert (blamed(found.verdicts[0]), found.verdicts[0].victims) == ([0], (1, 2))


@pytest.mark.parametrize("outside", [True, False])
def test_who_waits_for_a_stranger_or_in_a_circle_keeps_its_verdict(*, outside: bool) -> None:
    world = World()
    world.waiters(1)
    one = world.add(WAITS, FLOCK, descriptors=locked(321))
    other = user("prune", 70, "fcntl.flock(f, LOCK_EX)")
    two = world.add(other, FLOCK, descriptors=locked(one.process.pid))
    if not outside:
        world.ranks[1] = replace(world.ranks[1], descriptors=locked(two.process.pid))
    found = judged(world)
    assert found.verdicts[0].cause == "file-lock"
    assert [blamed(one) for one in found.verdicts] == ([[1]] if outside else [[1], [2]])


@pytest.mark.parametrize(("line", "code"), [(44, "child-process-wait"), (31, "file-lock")])
def test_a_lock_file_is_most_likely_of_who_has_come_past_it(line: int, code: str) -> None:
    # GIVEN a file that only one can make, of which the kernel knows nothing
    world = World()
    guard = replace(
        frame("Guard.__enter__", "guard.py", 14, "time.sleep(0.3)"),
        within=((11, "while True:"),),
        beside=((12, "os.open(self.path, os.O_CREAT | os.O_EXCL)"), (13, "except OSError:")),
    )
    called = (frame("run", "py:subprocess.py", 550), frame("prepare", "train.py", line), *BASE)
    wait = frame("Popen._wait", "py:subprocess.py", 2001)
    world.add((wait, *called), WAITPID)
    for _ in range(2):
        world.add((guard, frame("prepare", "train.py", 40), *BASE), SLEEP, moved_at=NOW)
    found = judged(world)
    assert first(found) == (code, [0] if code != "file-lock" else [1, 2])
    if code != "file-lock":
        assert "ranks 1-2 wait for a lock that rank 0 most likely has" in found.verdicts[0].summary


def test_what_a_program_waits_for_that_reads_what_another_one_writes() -> None:
    # GIVEN git, which reads what git-remote-http does not write, whose server is silent
    world = World()
    world.waiters(2)
    rank = world.add((*user("describe", 20, "git('ls-remote')"),), WAITPID)
    own = {"role": "subprocess", "rank_pid": rank.process.pid}
    git = world.process(
        5001, PIPE_READ, ppid=rank.process.pid, comm="git", cmdline=("git", "ls-remote"), **own
    )
    git = replace(git, threads=git.threads[:1])
    far = world.process(
        5002, ("S", "poll_schedule_timeout", "poll", None, None), ppid=5001, comm="git-remote-http",
        cmdline=("git-remote-http", "origin"), **own,
    )  # fmt: skip
    socket = Socket("tcp", "ESTABLISHED", "10.0.0.1:5", "10.0.0.7:443")
    table = DescriptorTable(NOW, (Descriptor(3, "socket", "socket:[1]", socket=socket),))
    world.give_children(rank, [(git, None), (far, None)], tables={5002: table})
    verdict = judged(world).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("child-process-wait", [2])
    assert (
        "pid 5001 'git ls-remote' (state S), which waits for a program that it started itself: "
        "pid 5002 'git-remote-http origin' (state S), connected to 10.0.0.7:443"
    ) in verdict.summary


def test_what_a_hook_of_a_program_runs_was_not_started_by_the_program() -> None:
    world = World()
    world.waiters(2)
    rank = world.add((*user("commit", 34, "subprocess.run(command)"),), WAITPID)
    own = {"role": "subprocess", "rank_pid": rank.process.pid}
    some = [
        replace(one, threads=one.threads[:1])
        for pid, above, name, facts in (
            (5001, rank.process.pid, "git", WAITPID),
            (5002, 5001, "sh", WAITPID),
            (5003, 5002, "curl", ("S", "poll_schedule_timeout", "poll", None, None)),
        )
        if (one := world.process(pid, facts, ppid=above, comm=name, cmdline=(name, "a"), **own))
    ]
    world.give_children(rank, [(one, None) for one in some])
    verdict = judged(world).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("child-process-wait", [2])
    assert (
        "pid 5001 'git a' (state S), which waits for a program that it started itself; below that "
        "one: pid 5003 'curl a' (state S)"
    ) in verdict.summary


def test_a_reader_of_a_full_pipe_that_cannot_send_on_what_it_reads() -> None:
    world = World()
    world.waiters(2)
    pipe = Descriptor(2, "pipe", "pipe:[1]", "w", holders=(Holder(5001, "python", "S", "reads"),))
    line = user("log", 26, "print(text)")
    rank = world.add(
        line, ("S", "anon_pipe_write", "write", 2, None), descriptors=DescriptorTable(NOW, (pipe,))
    )
    sends = ("S", "wait_woken", "sendto", 3, None)
    ships = world.process(
        5001, sends, role="subprocess", rank_pid=rank.process.pid, cmdline=("python3", "-c", "x")
    )
    sample = world.sample((frame("<module>", "ship.py", 5, "out.sendall(data)"),), pid=5001)
    world.give_children(rank, [(ships, sample)])
    verdict = judged(world).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("output-pipe-full", [2])
    assert "(python), state S, which is itself blocked in sending at ship.py:5" in verdict.summary


def test_a_wait_for_a_child_behind_the_end_of_the_program() -> None:
    world = World()
    waits = frame("Popen.poll", "py:multiprocessing/popen_fork.py", 27)
    rank = world.add((waits, frame("Sync.close", "train.py", 64)), WAITPID)
    child = world.process(5001, SLEEP, role="subprocess", rank_pid=rank.process.pid)
    world.give_children(rank, [(child, None)])
    told = "; the program of rank 0 is most likely over: it is in what atexit calls"
    assert told in judged(world).verdicts[0].summary


def test_who_builds_what_the_others_wait_for_in_a_baton_is_blamed() -> None:
    world = World()
    build = ("_jit_compile", "torch/utils/cpp_extension.py")
    called = (frame("load", "torch/utils/cpp_extension.py", 1600), *user("kernels", 12))
    wait = frame("Popen._wait", "py:subprocess.py", 2001)
    world.add((wait, frame("run", "py:subprocess.py", 550), frame(*build, 2110), *called), WAITPID)
    baton = frame("FileBaton.wait", "torch/utils/file_baton.py", 50)
    for _ in range(2):
        world.add((baton, frame(*build, 2141), *called), SLEEP, moved_at=NOW)
    found = judged(world)
    assert blamed(found.verdicts[0]) == [0]
    assert found.verdicts[0].victims == (1, 2)


@pytest.mark.parametrize("writer", [0, 321])
def test_who_reads_a_pipe_that_a_stuck_rank_writes_is_its_victim(writer: int) -> None:
    world = World()
    stuck = world.add(INSIDE, PIPE_READ)
    world.waiters(1)
    pid = writer or stuck.process.pid
    ends = (Holder(pid, "python3", "S", "writes"),)
    pipe = Descriptor(7, "pipe", "pipe:[5]", "r", holders=ends)
    reads = ("S", "anon_pipe_read", "read", 7, None)
    table = DescriptorTable(NOW, (pipe,))
    world.add(user("next_shard", 33, "os.read(fd, 8)"), reads, descriptors=table)
    found = judged(world)
    assert {tuple(blamed(one)) for one in found.verdicts} == (
        {(0,)} if not writer else {(0,), (2,)}
    )


def test_who_tries_to_reach_a_service_waits_for_no_lock() -> None:
    # GIVEN a rank that is refused, at a line that another one has passed that is stuck itself
    world = World()
    world.add(INSIDE, PIPE_READ)
    asks = replace(
        frame("fetch", "train.py", 40, "time.sleep(3)"),
        within=((36, "while True:"),),
        beside=((38, "urlopen(url)"), (39, "except URLError:")),
    )
    world.add((asks, *BASE), SLEEP, moved_at=NOW)
    world.waiters(1)
    assert sorted(blamed(one) for one in judged(world).verdicts) == [[0], [1]]


@pytest.mark.parametrize("of_this_job", [True, False])
def test_who_waits_for_a_rank_of_another_job_is_no_victim_of_one_of_this(
    *, of_this_job: bool
) -> None:
    # GIVEN a rank that reads what rank 0 is to send, of this job or of another on the same node
    world = World()
    stuck = world.add(INSIDE, PIPE_READ)
    world.waiters(1)
    peer = stuck.process.pid if of_this_job else 7000
    ends = Socket("tcp", "ESTABLISHED", "10.0.0.1:5", "10.0.0.1:6", peer_pid=peer)
    table = DescriptorTable(NOW, (Descriptor(17, "socket", "socket:[1]", socket=ends),))
    world.add((*URLLIB[:3], *user("fetch", 33)), RECVFROM, descriptors=table)
    snapshot = world.snapshot()
    other = World()
    other.add(URLLIB, RECVFROM, process={"pid": 7000})
    (job,) = other.snapshot(key="other").jobs
    snapshot = replace(snapshot, jobs=(*snapshot.jobs, job))
    found = diagnose(snapshot, snapshot.jobs[0])
    told = {(0,)} if of_this_job else {(0,), (2,)}
    assert {tuple(blamed(one)) for one in found.verdicts} == told


def test_a_launcher_is_named_on_its_own_node() -> None:
    world = World()
    for number in (1, 2):
        world.add(INSIDE, PIPE_READ, node=f"n{number}")
    launcher = world.process(500, SLEEP, node="n1", role="launcher", launcher="torchrun")
    snapshot = world.snapshot(launchers=(launcher,))
    names = [process_names(snapshot, node) for node in ("n1", "n2", "n3")]
    assert names == [{500: "launcher torchrun", 4000: "rank 0"}, {4010: "rank 1"}, {}]
