"""Full disks: who is blamed for them, and who is not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hangtop_core.model.descriptors import Descriptor
from hangtop_core.model.node.facts import FullQuota
from hangtop_core.model.snapshot import DescriptorTable, Node
from support.build import NOW, World, judged
from support.situations import PIPE_READ, RUN, SAVE, SLEEP, user
from support.verdicts import printing

SCRATCH = Descriptor(
    7, "file", "/scratch/ckpt.pt", "w", mount="/scratch", fstype="ext4", full="space"
)


def with_rank(facts: Any, descriptors: tuple[Descriptor, ...], stack: Any = None) -> World:
    world = World()
    world.waiters(3)
    rank = world.add(stack or user("retry", 41, "time.sleep(1)"), facts)
    table = DescriptorTable(NOW, descriptors)
    world.ranks[-1] = msgspec.structs.replace(rank, descriptors=table)
    return world


def test_file_open_for_writing_without_room() -> None:
    first = judged(with_rank(SLEEP, (SCRATCH,))).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("disk-full", [3])
    assert "/scratch" in first.summary
    assert "df -h /scratch; df -i /scratch" in first.next_steps[0]


def test_what_the_log_says_of_it_is_told() -> None:
    line = "commit of step 8 failed, trying again: database or disk is full"
    found = printing(with_rank(SLEEP, (SCRATCH,)), "step 8", line)
    assert found.verdicts[0].cause == "disk-full"
    assert f"log says `{line}`" in found.verdicts[0].summary


def test_inodes_are_named() -> None:
    one = msgspec.structs.replace(SCRATCH, full="inodes")
    assert "no inodes left" in judged(with_rank(SLEEP, (one,))).verdicts[0].summary


def test_checkpoint_on_full_disk_is_more_than_slow() -> None:
    assert judged(with_rank(RUN, (SCRATCH,), SAVE)).verdicts[0].cause == "disk-full"


def test_rank_that_reads_a_pipe_is_not_held_up_by_a_full_disk() -> None:
    read = user("load", 12, "os.read(pipe, 1)")
    assert judged(with_rank(PIPE_READ, (SCRATCH,), read)).verdicts[0].cause == "io-wait"


@pytest.mark.parametrize(
    ("full", "process", "cause"),
    [
        ("/scratch", {"cwd": "/scratch/run1"}, "disk-full"),
        ("/scratch", {"cmdline": ("python3", "train.py", "--out=/scratch/run1")}, "disk-full"),
        ("/other", {"cwd": "/scratch/run1"}, "missing-collective"),
        ("/", {"cwd": "/scratch/run1"}, "missing-collective"),
    ],
)
def test_who_looks_again_and_again_where_a_disk_is_full(
    full: str, process: dict[str, Any], cause: str
) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", full_mounts=(full,))
    world.waiters(3)
    retry = user("retry", 41, "time.sleep(1)")
    world.add(retry, SLEEP, process=process, moved_at=NOW - 1.0)
    first, *others = judged(world).verdicts
    assert first.cause == cause
    told = f"n1: no space or inodes are left on {full}"
    assert told in [one.text for one in first.evidence], "where it fails to make a file is unseen"
    if cause != "disk-full":
        # It may be that: nobody is blamed for it, and it says where to look.
        assert [(one.cause, one.culprits) for one in others] == [("disk-full", ())]
        assert others[0].next_steps == (f"df -h {full}; df -i {full}",)


USED_UP = FullQuota("/home", 1000, limit=20 << 30)
HOME = Descriptor(7, "file", "/home/ada/ckpt.pt", "w", mount="/home", fstype="xfs")


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (USED_UP, "the quota of user ada on /home is used up (its limit is 20.0 GiB)"),
        (
            FullQuota("/home", 1000, what="inodes", limit=50_000, late=True, gid=7),
            "the quota of group 7 on /home is used up (its soft limit, 50,000 inodes, is exceeded "
            "for longer than allowed)",
        ),
    ],
)
@pytest.mark.parametrize("opened", [True, False])
def test_a_quota_that_is_used_up(one: FullQuota, said: str, opened: bool) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", full_quotas=(one,))
    world.waiters(3)
    process = {"uid": 1000, "user": "ada", "cwd": "/tmp" if opened else "/home/ada/run1"}
    table = DescriptorTable(NOW, (HOME,) if opened else ())
    retry = user("retry", 41, "time.sleep(1)")
    world.add(retry, SLEEP, process=process, moved_at=NOW - 1.0, descriptors=table)
    first = judged(world).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("disk-full", [3])
    assert said in first.summary
    assert first.next_steps[0] == ("quota -s -u 1000" if one.gid is None else "quota -s -g 7")


def test_a_quota_of_somebody_else_keeps_nobody_from_writing() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", full_quotas=(USED_UP,))
    world.waiters(3)
    table = DescriptorTable(NOW, (HOME,))
    process = {"uid": 1001, "user": "eve", "cwd": "/home/ada/run1"}
    retry = user("retry", 41, "time.sleep(1)")
    world.add(retry, SLEEP, process=process, moved_at=NOW - 1.0, descriptors=table)
    assert judged(world).verdicts[0].cause == "missing-collective"


def test_each_of_several_full_file_systems_is_looked_at() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", full_mounts=("/a", "/b"))
    world.waiters(3)
    table = DescriptorTable(NOW, ())
    times = {"moved_at": NOW - 1.0, "wrote_at": NOW - 1.0, "io_moved_at": NOW - 1.0}
    world.add(user("keep", 41, "time.sleep(1)"), SLEEP, descriptors=table, **times)
    first = judged(world).verdicts[0]
    assert "works on /a or /b, which is full" in first.summary
    assert first.next_steps[0] == "df -h /a /b; df -i /a /b"


def test_who_sleeps_on_does_not_try_to_write() -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", full_mounts=("/scratch",))
    world.waiters(3)
    world.add(user("rest", 41, "time.sleep(1e5)"), SLEEP, process={"cwd": "/scratch/run1"})
    (only,) = judged(world).verdicts
    assert only.cause == "missing-collective"
    assert "/scratch" not in str(only.evidence)


@pytest.mark.parametrize("opened", [64, 5, 0])
def test_many_ranks_on_full_disks_are_told_of_at_once(opened: int) -> None:
    # GIVEN 64 ranks on 8 nodes, the scratch disk of each of which is full
    world = World()
    retry = user("retry", 41, "time.sleep(1)")
    for number in range(64):
        node = f"n{number // 8 + 1}"
        world.nodes[node] = Node(node, "ready", full_mounts=("/scratch",))
        file = msgspec.structs.replace(SCRATCH, target=f"/scratch/ckpt.{number}.pt")
        table = DescriptorTable(NOW, (file,)) if number < opened else None
        world.add(retry, SLEEP, node=node, process={"cwd": "/scratch/run1"},
                  moved_at=NOW - 1.0, descriptors=table)  # fmt: skip
    world.waiters(2, node="n9")
    # WHEN it is judged, THEN one verdict names all, and where
    found = [one for one in judged(world).verdicts if one.cause == "disk-full"]
    assert len(found) == 1
    assert [one.rank for one in found[0].culprits] == list(range(64))
    told = {
        64: "ranks 0-63 have files open for writing on /scratch (ext4), which has no space left "
        "(on n[1-8]): they",
        5: "ranks 0-4 have files open for writing on /scratch (ext4), which has no space left, "
        "and ranks 5-63 work there, too (on n[1-8]): they",
        0: "ranks 0-63 work on /scratch, which is full (on n[1-8]): they",
    }[opened]
    assert told in found[0].summary
    assert found[0].next_steps[:2] == (
        "df -h /scratch; df -i /scratch",
        "the same on n[2-8]",
    )


def test_ranks_on_disks_of_other_names_are_told_of_apart() -> None:
    world = World()
    for number in range(8):
        other = msgspec.structs.replace(SCRATCH, mount="/out", target="/out/a", full="inodes")
        table = DescriptorTable(NOW, (other if number % 2 else SCRATCH,))
        stack = user("retry", 41 + number // 4, "time.sleep(1)")
        world.add(stack, SLEEP, descriptors=table)
    world.waiters(2)
    found = [one for one in judged(world).verdicts if one.cause == "disk-full"]
    assert [[c.rank for c in one.culprits] for one in found] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert "ranks 1,3,5,7 have /out/a open for writing on /out (ext4), which has no inodes" in (
        found[1].summary
    )
    assert "ranks 1,3 sleep at train.py:41 (retry), ranks 5,7 sleep at train.py:42" in (
        found[1].summary
    )


def test_many_that_may_fail_to_make_a_file_are_told_of_at_once() -> None:
    world = World()
    for number in range(64):
        node = f"n{number // 8 + 1}"
        world.nodes[node] = Node(node, "ready", full_mounts=("/",))
        world.add(user("retry", 41, "time.sleep(1)"), SLEEP, node=node, moved_at=NOW - 1.0)
    world.waiters(2, node="n9")
    (perhaps,) = [one for one in judged(world).verdicts if one.cause == "disk-full"]
    assert perhaps.culprits == ()
    assert "ranks 0-63 sleep by turns at train.py:41 (retry), perhaps as they fail to make a " in (
        perhaps.summary
    )
    assert "nothing is left on / of n[1-8]" in perhaps.summary
