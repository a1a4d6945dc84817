"""Ranks that wait for what another rank has: who is stuck itself is to blame, not who waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.descriptors import Descriptor, Holder
from hangtop_core.model import DescriptorTable
from support.build import (
    BASE,
    FLOCK,
    NOW,
    PIPE_READ,
    SLEEP,
    URLLIB,
    WAITPID,
    Stack,
    World,
    frame,
    judged,
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
