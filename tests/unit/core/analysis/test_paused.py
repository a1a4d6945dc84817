"""Runs that a file pauses: of one rank others wait for it, of all ranks nobody waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from support.build import NOW, World, judged
from support.situations import BASE, SLEEP, Stack, frame
from support.verdicts import blamed


def holds(line: str) -> Stack:
    one = frame("Controls.hold", "train.py", 46, "time.sleep(2)")
    return (replace(one, within=((45, line),)), *BASE)


@pytest.mark.parametrize(
    ("line", "look"),
    [
        ('while os.path.exists("PAUSE"):', "cwd/PAUSE"),
        ("while Path('/runs/7/hold').exists():", "root/runs/7/hold"),
        ("while self.pause_file.exists():", "--locals"),
        ('while os.path.exists(join(here, "PAUSE")):', "--locals"),
    ],
)
def test_a_rank_that_a_file_pauses(line: str, look: str) -> None:
    world = World()
    world.waiters(2)
    world.add(holds(line), SLEEP, moved_at=NOW)
    verdict = judged(world).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("file-lock", [2])
    assert "between two looks at what pauses it: it looks again and again in" in verdict.summary
    assert "somebody has most likely paused the run, which goes on once that" in verdict.summary
    assert look in verdict.next_steps[0]
    assert "ask who made that file" in verdict.next_steps[1]


def test_a_lock_file_pauses_nobody() -> None:
    world = World()
    world.waiters(2)
    world.add(holds('while os.path.exists("cache.lock"):'), SLEEP, moved_at=NOW)
    verdict = judged(world).verdicts[0]
    assert "most likely for a lock file that is there" in verdict.summary
    assert "cwd/cache.lock" in verdict.next_steps[0]


def test_all_ranks_that_a_file_pauses_are_no_hang() -> None:
    world = World()
    for _ in range(3):
        world.add(holds('while os.path.exists("PAUSE"):'), SLEEP, moved_at=NOW)
    found = judged(world)
    assert found.state == "progressing"
    assert [(one.cause, blamed(one)) for one in found.verdicts] == [("long-phase", [0, 1, 2])]
