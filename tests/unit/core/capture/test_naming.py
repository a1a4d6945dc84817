"""How captures are called."""

from __future__ import annotations

import pytest

from hangtop_core.capture import default_name
from hangtop_core.model.updates import Update
from support.build import World


@pytest.mark.parametrize(
    ("run_id", "told"),
    [
        ("4711", "4711"),
        ("llama-7b run/2", "llama-7b-run-2"),
        # drawn by `torchrun --standalone`: nobody knows it by that
        ("a712fd3a-46d6-4dbd-b881-26a72c4a3ba4", "train.py"),
        (None, "train.py"),
    ],
)
def test_a_capture_is_called_by_what_people_call_the_job(run_id: str | None, told: str) -> None:
    world = World()
    world.waiters(1)
    snapshot = world.snapshot(id=run_id, name="train.py")
    name = default_name(Update(snapshot, {}), snapshot.jobs[0])
    assert name == f"hangtop-{told}-20270115T080000Z.hangtop"
