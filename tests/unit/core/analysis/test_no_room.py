"""Ranks that try again and again to write where there is no room, and those that look alike."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import Descriptor
from hangtop_core.model.snapshot import DescriptorTable, Node
from support.build import NOW, World
from support.situations import BASE, SLEEP, frame, user
from support.verdicts import blamed, printing

WRAPPED = replace(
    frame("retry.<locals>.wrapped", "keeper.py", 34, "time.sleep(wait)"),
    within=((29, "for attempt in range(times):"),),
    beside=((31, "return function(*args)"), (32, "except (OSError, RuntimeError) as error:")),
)
SAVES = frame("keep", "keeper.py", 92, "save(state, path)")
SENDS = frame("keep", "keeper.py", 92, "upload_checkpoint(state, url)")
FULL = Node("n1", "ready", full_mounts=("/ckpt",))


def attempts(text: str, count: int = 4) -> tuple[str, ...]:
    return ("step 8 loss 0.3", *(text.format(n) for n in range(count)))


@pytest.mark.parametrize(
    ("caller", "full", "lines", "code", "confidence"),
    [
        # names and a full disk tell; the log does
        (SAVES, True, (), "disk-full", 0.8),
        (SENDS, True, (), "remote-service-wait", 0.75),
        (SENDS, True, attempts("try {}: OSError(28, 'No space left on device')"), "disk-full", 0.9),
        (SAVES, False, attempts("try {}: [Errno 122] Disk quota exceeded"), "disk-full", 0.9),
        (SAVES, False, attempts("{} PytorchStreamWriter failed"), "disk-full", 0.9),
        (SAVES, False, (), "remote-service-wait", 0.75),
        (SAVES, True, attempts("retry {}: 503 bad gateway"), "remote-service-wait", 0.85),
    ],
)  # fmt: skip
def test_attempts_to_save_on_a_full_disk(
    caller: object, full: bool, lines: tuple[str, ...], code: str, confidence: float
) -> None:
    world = World()
    if full:
        world.nodes["n1"] = FULL
    world.waiters(3)
    world.add((WRAPPED, caller, *BASE), SLEEP, moved_at=NOW)  # type: ignore[arg-type]
    verdict = printing(world, *lines).verdicts[0]
    assert (verdict.cause, blamed(verdict), verdict.confidence) == (code, [3], confidence)
    assert ("nothing is left on /ckpt" in verdict.summary) == (code == "disk-full" and full)
    assert not lines or f"again and again `{lines[-1]}`" in verdict.summary


@pytest.mark.parametrize("shared", [True, False])
def test_what_failing_attempts_write_is_no_progress(*, shared: bool) -> None:
    # GIVEN much that is written to a full disk, and shared memory, or a log of events
    world = World()
    world.nodes["n1"] = FULL
    world.waiters(3)
    name = "/dev/shm/torch_43_2 (deleted)" if shared else "/logs/events.out"
    rank = world.add((WRAPPED, SAVES, *BASE), SLEEP, moved_at=NOW, wrote_at=NOW, io_moved_at=NOW)
    table = DescriptorTable(NOW, (Descriptor(20, "file", name, "rw"),))
    world.ranks[-1] = msgspec.structs.replace(rank, descriptors=table)
    found = printing(world)
    assert (found.state, found.verdicts[0].cause) == ("hung", "disk-full")


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (attempts("attempt {} of save: RuntimeError"), "hung"),
        (attempts("attempt {} of save: RuntimeError", 2), "progressing"),
        (attempts("batch {} error 0.25"), "progressing"),
        ((*attempts("attempt {} failed"), *(f"shard {n} saved" for n in range(9))), "progressing"),
    ],
)
def test_lines_that_tell_of_failing_attempts_are_no_progress(
    lines: tuple[str, ...], state: str
) -> None:
    world = World()
    world.waiters(3)
    stack = user("keep", 41, "time.sleep(4)")
    world.add(stack, SLEEP, moved_at=NOW - 1.0, wrote_at=NOW - 1.0)
    assert printing(world, *lines).state == state
