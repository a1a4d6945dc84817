"""Short memory and used up quotas of CPU: who is blamed for them, and who is not."""

from __future__ import annotations

import pytest

from hangtop_core.model.snapshot import Node
from support.build import NOW, World, judged
from support.situations import RUN, user


@pytest.mark.parametrize(("percent", "cause"), [(45.0, "memory-thrash"), (3.0, "busy-in-python")])
def test_short_memory(percent: float, cause: str) -> None:
    world = World()
    world.nodes["n1"] = Node("n1", "ready", memory_full=percent)
    world.waiters(3)
    world.add(user("augment", 41, "x = table[key]"), RUN)
    first = judged(world).verdicts[0]
    assert first.cause == cause
    assert [c.rank for c in first.culprits] == [3]


@pytest.mark.parametrize(("throttled", "cause"), [(0.97, "straggler"), (0.3, "busy-in-python")])
def test_a_cpu_quota_that_is_used_up(throttled: float, cause: str) -> None:
    world = World()
    world.waiters(3)
    group = "/sys/fs/cgroup/job_7/step_0"
    process = {"cpu_quota": 0.5, "cpu_throttled": throttled, "cpu_quota_of": group}
    world.add(user("tune", 51), RUN, process=process)
    first = judged(world).verdicts[0]
    assert (first.cause, [c.rank for c in first.culprits]) == (cause, [3])
    if cause == "straggler":
        assert (
            "its cgroup is 0.5 cores, and was used up early in 97% of the periods" in first.summary
        )
        assert f"grep . {group}/cpu.*" in first.next_steps[0]


@pytest.mark.parametrize(("quotas", "blamed"), [((0.97, None), [0]), ((0.97, 0.98), [])])
def test_a_cpu_quota_that_is_used_up_while_others_are_between_their_waits(
    quotas: tuple[float | None, ...], blamed: list[int]
) -> None:
    world = World()
    for throttled in quotas:
        process = {"cpu_quota": 0.5, "cpu_throttled": throttled, "cpu_quota_of": "/sys/fs/cgroup/a"}
        world.add(user("tune", 51), RUN, process=process, moved_at=NOW - 0.1)
    found = [one for one in judged(world).verdicts if one.cause == "straggler"]
    assert [c.rank for one in found for c in one.culprits] == blamed
