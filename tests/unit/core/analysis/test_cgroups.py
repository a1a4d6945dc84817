"""What cgroups tell of ranks: killed, short of memory, slowed down, frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis.cgroups import pressure_text
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.node import cgroups
from hangtop_core.model.node.cgroups import Cgroup, Counts
from hangtop_core.model.node.facts import KernelLine
from hangtop_core.model.snapshot import Node
from support.build import HUNG_SINCE, NOW, World
from support.situations import FUTEX, RUN, SLEEP, c10d, user

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Verdict

OWN = "/sys/fs/cgroup/slurm/job_7/step_0"
KILLED = Counts(oom_kills=2, ooms=1, at_max=40)
GREW: dict[str, Any] = {"before": Counts(oom_kills=1), "oom_killed_at": HUNG_SINCE + 4}
IN_OWN: dict[str, Any] = {"cgroup": "/slurm/job_7/step_0", "cgroup_folders": (OWN,)}


def judged(world: World, *groups: Cgroup, **node: Any) -> Diagnosis:
    world.nodes["n1"] = Node("n1", "ready", cgroups=groups, **node)
    snapshot = world.snapshot()
    return diagnose(snapshot, snapshot.job(None))


def killed(*groups: Cgroup, **node: Any) -> Verdict:
    world = World()
    world.waiters(1)
    gone = {"state": "X", "gone_at": HUNG_SINCE, "exit_code": -9, **IN_OWN}
    world.add(None, None, state="exited", process=gone)
    return judged(world, *groups, **node).verdicts[0]


@pytest.mark.parametrize(
    ("shortage", "text"),
    [
        (
            {"memory_full": 30, "io_full": 20},
            "nothing ran in 30% of the last 10 s for want of memory, in 20% for want of a disk",
        ),
        (
            {"io_full": 20, "cpu_some": 90},
            "nothing ran in 20% of the last 10 s for want of a "
            "disk, something waited for a CPU in 90%",
        ),
        ({"cpu_some": 90}, "something waited for a CPU in 90% of the last 10 s"),
        ({}, ""),
    ],
)
def test_each_want_has_its_verb(shortage: dict[str, int], text: str) -> None:
    assert pressure_text(Cgroup(OWN, **shortage)) == text


@pytest.mark.parametrize(
    ("cause", "confidence", "group", "node"),
    [
        ("rank-oom-killed", 0.93, Cgroup(OWN, 500 << 20, counts=KILLED, **GREW), {}),
        # A group above counts what is killed below it.
        ("rank-oom-killed", 0.93, Cgroup("/sys/fs/cgroup/slurm", counts=KILLED, **GREW), {}),
        ("rank-exited", 0.95, Cgroup(OWN + "9", counts=KILLED, **GREW), {}),
        ("rank-exited", 0.95, Cgroup(OWN, counts=KILLED, before=KILLED), {}),
        # The node has counted one, and the rank's own group has not: it may be another process.
        (
            "rank-oom-killed",
            0.5,
            Cgroup(OWN, counts=KILLED, before=KILLED),
            {"oom_kills": 3, "oom_killed_at": HUNG_SINCE + 4},
        ),
        # One that counts nothing says nothing against it.
        (
            "rank-oom-killed",
            0.85,
            Cgroup(OWN, memory_full=10),
            {"oom_kills": 3, "oom_killed_at": HUNG_SINCE + 4},
        ),
    ],
)
def test_a_kill_that_its_cgroup_counts(
    cause: str, confidence: float, group: Cgroup, node: dict[str, Any]
) -> None:
    found = killed(group, **node)
    assert (found.cause, found.confidence) == (cause, confidence)
    if confidence == 0.93:
        text = "2 of its processes killed for want of memory (1 while watched)"
        assert any(text in one.text and group.folder in one.text for one in found.evidence)
        assert f"grep -s . {group.folder}/memory." in found.next_steps[0]


@pytest.mark.parametrize(
    ("cause", "code", "limit"),
    [
        ("rank-oom-killed", -9, 500 << 20),
        ("rank-exited", -15, 500 << 20),
        ("rank-exited", -9, None),
    ],
)
def test_a_rank_that_was_dead_when_it_was_first_seen(
    cause: str, code: int, limit: int | None
) -> None:
    world = World()
    world.waiters(2)
    world.add(None, None, state="zombie", process={"state": "Z", "exit_code": code, **IN_OWN})
    world.ranks[-1] = msgspec.structs.replace(world.ranks[-1], sample=None)
    found = judged(world, Cgroup(OWN, limit, counts=KILLED, before=KILLED)).verdicts[0]
    assert (found.cause, found.culprits[0].rank) == (cause, 2)


@pytest.mark.parametrize(
    ("cause", "group"),
    [
        ("rank-oom-killed", Cgroup(OWN, 500 << 20, counts=KILLED, before=KILLED)),
        ("rank-exited", Cgroup(OWN, counts=KILLED, before=KILLED)),  # no limit: not of this job
        ("rank-exited", Cgroup(OWN, 500 << 20, counts=Counts(oom_kills=0))),
    ],
)
def test_a_rank_that_nobody_saw(cause: str, group: Cgroup) -> None:
    world = World()
    for rank in (0, 2):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "3"}
        world.add(c10d("all_reduce"), FUTEX, rank=rank, process={"env": env, **IN_OWN})
    world.nodes["n1"] = Node("n1", "ready", cgroups=(group,))
    snapshot = world.snapshot(world_size=3)
    first = diagnose(snapshot, snapshot.job(None)).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == (cause, [1])


@pytest.mark.parametrize(
    ("cause", "group", "text"),
    [
        (
            "memory-thrash",
            Cgroup(
                OWN, None, 500 << 20, 500 << 20, Counts(at_high=90), 80, before=Counts(at_high=2)
            ),
            f"slowed down for using more than the 500 MiB of {OWN}/memory.high",
        ),
        (
            "memory-thrash",
            Cgroup(OWN, 1 << 30, memory_full=45),
            "short of memory, of which it may have 1.0 GiB",
        ),
        ("busy-in-python", Cgroup(OWN, 1 << 30, memory_full=5), ""),
        ("busy-in-python", Cgroup(OWN + "1", 1 << 30, memory_full=80), ""),
    ],
)
def test_short_memory_of_a_cgroup(cause: str, group: Cgroup, text: str) -> None:
    world = World()
    world.waiters(3)
    world.add(user("augment", 41, "x = table[key]"), RUN, process=IN_OWN)
    first = judged(world, group, memory_full=1.0).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == (cause, [3])
    assert text in first.summary
    assert (cause == "memory-thrash") == any(OWN in step for step in first.next_steps)


OVER_HIGH = ("D", "mem_cgroup_handle_over_high", None, None, None)
"""As Linux 6.1 shows a main thread whose group is over memory.high."""


@pytest.mark.parametrize(
    ("call", "used", "refaults", "before", "cause"),
    [
        (None, 500, 90_000, 20_000, "memory-thrash"),
        (None, 500, 90_000, 90_000, "memory-thrash"),  # read once so far
        (None, 500, 90_100, 90_000, "long-phase"),  # that was earlier
        (None, 500, 0, 0, "long-phase"),  # it maps a file, and reads it for the first time
        (None, 300, 90_000, 20_000, "long-phase"),
        ("pread64", 500, 90_000, 20_000, "long-phase"),
    ],
)
def test_who_waits_for_pages_that_its_cgroup_has_given_back(
    call: str | None, used: int, refaults: int, before: int, cause: str
) -> None:
    counts = [Counts(at_max=500, refaults=one) for one in (refaults, before)]
    group = Cgroup(OWN, 500 << 20, None, used << 20, counts[0], before=counts[1])
    world = World(observed_since=NOW - 30)
    world.waiters(3, moved_at=NOW - 30)
    facts = ("D", "folio_wait_bit_common", call, None, None)
    world.add(user("lookup", 41, "x = table[key]"), facts, process=IN_OWN, moved_at=NOW - 0.5)
    first = judged(world, group).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == (cause, [3])
    if cause == "memory-thrash":
        assert f"have 500 MiB: {70_000 if before < refaults else 90_000} pages" in first.summary


@pytest.mark.parametrize(("refaults", "who"), [(90_000, f"cgroup {OWN} on n1"), (0, "n1 is short")])
def test_what_presses_on_a_node_is_the_group_that_reads_again(refaults: int, who: str) -> None:
    """On an idle node one rank that waits for pages is all there is to run."""
    group = Cgroup(
        OWN, 500 << 20, None, 500 << 20, Counts(at_max=500, refaults=refaults), before=Counts()
    )
    world = World()
    world.waiters(3)
    world.add(user("lookup", 41, "x = table[key]"), RUN, process=IN_OWN)
    first = judged(world, group, memory_full=38.0).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == ("memory-thrash", [3])
    assert first.summary.startswith(who)


@pytest.mark.parametrize("waiters", [0, 3])
@pytest.mark.parametrize("moved_s", [1.0, 20.0])
def test_ranks_held_up_over_memory_high(waiters: int, moved_s: float) -> None:
    """They run for some ms every two seconds: slow, or hung, and no wait for a disk."""
    group = Cgroup(
        OWN, None, 200 << 20, 280 << 20, Counts(at_high=90), 65, before=Counts(at_high=2)
    )
    world = World()
    world.waiters(waiters)
    for _ in range(2):
        stack = user("step", 32, "big += 1")
        world.add(stack, OVER_HIGH, process=IN_OWN, moved_at=world.at - moved_s)
    first = judged(world, group, memory_full=60.0).verdicts[0]
    assert (first.cause, first.confidence >= 0.78) == ("memory-thrash", True)
    assert [c.rank for c in first.culprits] == [waiters, waiters + 1]
    assert f"200 MiB of {OWN}/memory.high" in first.summary
    assert any(f"echo max > {OWN}/memory.high" in step for step in first.next_steps)


@pytest.mark.parametrize(
    ("by", "step"),
    [
        ("/sys/fs/cgroup/slurm", "echo 0 > /sys/fs/cgroup/slurm/cgroup.freeze"),
        ("/sys/fs/cgroup/freezer/a", "echo THAWED > /sys/fs/cgroup/freezer/a/freezer.state"),
    ],
)
def test_who_was_frozen_is_named(by: str, step: str) -> None:
    world = World()
    world.waiters(2)
    world.add(user("step", 41), SLEEP, process={**IN_OWN, "frozen": True, "frozen_by": by})
    first = judged(world).verdicts[0]
    assert first.cause == "cgroup-frozen"
    assert f"frozen with the cgroup {by}" in first.summary
    assert step in first.next_steps


def test_what_is_counted_while_it_is_watched() -> None:
    """Whatever a node says of that itself."""
    first = Cgroup("/a", counts=Counts(oom_kills=4), before=Counts(), oom_killed_at=1.0)
    fields: dict[str, Any] = {"cgroups": (first,)}
    cgroups.follow((), fields, NOW)
    assert (fields["cgroups"][0].killed, fields["cgroups"][0].oom_killed_at) == (0, None)
    known, fields = fields["cgroups"], {"cgroups": (Cgroup("/a", counts=Counts(oom_kills=5)),)}
    cgroups.follow(known, fields, NOW + 5)
    assert (fields["cgroups"][0].killed, fields["cgroups"][0].oom_killed_at) == (1, NOW + 5)


V1 = "/sys/fs/cgroup/memory"


@pytest.mark.parametrize("theirs", [[f"{V1}/job"], [f"{V1}/job", f"{V1}/other"]])
def test_a_zombie_that_is_said_to_be_in_the_root_is_told_by_the_ranks_beside_it_or_not(
    theirs: list[str],
) -> None:
    world = World()
    for folder in theirs:
        world.add(c10d("all_reduce"), FUTEX, process={"cgroup_folders": (folder,)})
    gone = {"state": "Z", "gone_at": HUNG_SINCE, "exit_code": -9, "cgroup_folders": (V1,)}
    world.add(None, None, state="zombie", process=gone)
    line = "Memory cgroup out of memory: Killed process {} (python3) total-vm:1kB"
    told = KernelLine(HUNG_SINCE, line.format(world.ranks[-1].process.pid))
    groups = (
        Cgroup(f"{V1}/job", 500 << 20, counts=KILLED, **GREW),
        Cgroup(V1, counts=Counts(oom_kills=0)),
    )
    node = {"memory_total": 24 << 30, "memory_available": 21 << 30, "kernel_lines": (told,)}
    found = judged(world, *groups, **node).verdicts[0]
    texts = " ".join(one.text for one in found.evidence)
    assert found.cause == "rank-oom-killed"
    assert "no limit of memory" not in texts
    assert "free now" not in texts
    assert ("of 500 MiB (memory.limit_in_bytes)" in texts) == (len(theirs) == 1)


@pytest.mark.parametrize(
    ("own", "told"), [("/job_7/step_0", True), ("/memory_of/it", False), ("/job_7", False)]
)
def test_the_group_of_another_controller_is_not_told_of_who_is_frozen(
    own: str, *, told: bool
) -> None:
    world = World()
    world.waiters(1)
    frozen = {"frozen": True, "frozen_by": "/sys/fs/cgroup/freezer/job_7", "cgroup": own}
    world.add(user("load", 8), SLEEP, state="frozen", process=frozen)
    found = judged(world).verdicts[0]
    assert found.cause == "cgroup-frozen"
    assert any("is the one that was frozen" in one.text for one in found.evidence) == told
