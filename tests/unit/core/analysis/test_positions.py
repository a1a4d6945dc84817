"""A rank in the middle of a file: its position moves, or it does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.descriptors import FilePosition
from hangtop_core.state.file_rate import FileRate
from support.build import HUNG_SINCE, NOW, World
from support.situations import RUN, user

AT = FilePosition(7, "/data/shard-17", 16 << 20, False, 64 << 20, "/data", "nfs4", "filer")
READ = ("S", "request_wait_answer", "read", 7, None)


@pytest.mark.parametrize(
    ("cause", "state", "rank", "process", "texts"),
    [
        (
            "long-phase",
            "progressing",
            {"moved_at": NOW - 1, "file_moved_at": NOW - 2, "file_rate": 2.0 * (1 << 20)},
            {"file": AT},
            [
                "reads /data/shard-17 on /data (nfs4, filer) at 2.0 MiB a second: 25% of 64.0 MiB, "
                "24 s to go",
                "is no hang",
            ],
        ),
        (
            "io-wait",
            "hung",
            {"moved_at": HUNG_SINCE, "file_moved_at": HUNG_SINCE},
            {"file": AT},
            [
                "16.0 MiB of 64.0 MiB of /data/shard-17",
                " (nfs4, filer), and has not moved for",
            ],
        ),
        # Of another file that it has open nothing is told.
        (
            "io-wait",
            "hung",
            {"moved_at": HUNG_SINCE, "file_moved_at": HUNG_SINCE},
            {"file": msgspec.structs.replace(AT, fd=9)},
            [],
        ),
    ],
)
def test_slow_or_stuck(
    cause: str, state: str, rank: dict[str, Any], process: dict[str, Any], texts: list[str]
) -> None:
    world = World()
    world.waiters(3)
    world.add(user("load", 12, "data = file.read(size)"), READ, process=process, **rank)
    snapshot = world.snapshot()
    found = diagnose(snapshot, snapshot.job(None))
    assert (found.verdicts[0].cause, found.state) == (cause, state)
    assert [one.rank for one in found.verdicts[0].culprits] == [3]
    told = [found.verdicts[0].summary, *(one.text for one in found.verdicts[0].evidence)]
    assert all(any(text in one for one in told) for text in texts), told
    assert bool(texts) == any("its position is" in one for one in told)


@pytest.mark.parametrize(
    ("rate", "texts"),
    [
        (677.0 * 1024, ["ext4) at 677 KiB a second: 3.0 MiB so far.", "moves by 677 KiB a second"]),
        # It has just come to that file, or its write has not returned.
        (None, ["ext4): 3.0 MiB so far.", "and last moved 2.0 s ago"]),
        (0.0, ["ext4): 3.0 MiB so far.", "and last moved 2.0 s ago"]),
    ],
)
def test_what_is_written_grows_and_a_rate_that_is_not_known_is_not_told(
    rate: float | None, texts: list[str]
) -> None:
    world = World()
    world.waiters(3)
    file = FilePosition(7, "/out/ids.bin", 3 << 20, True, 2 << 20, "/out", "ext4")
    times = {"moved_at": NOW - 1, "file_moved_at": NOW - 2, "file_rate": rate}
    world.add(
        user("put", 12), ("D", "folio_wait", "write", 7, None), process={"file": file}, **times
    )
    found = diagnose(world.snapshot(), world.snapshot().job(None)).verdicts[0]
    assert found.cause == "long-phase"
    told = [found.summary, *(one.text for one in found.evidence)]
    assert all(any(text in one for one in told) for text in texts), told
    assert not any("2.0 MiB" in one or "?" in one or " 0 B" in one for one in told)


def test_how_far_one_is_that_works_on_what_it_reads() -> None:
    world = World()
    world.waiters(3)
    times = {"moved_at": NOW - 1, "file_moved_at": NOW - 2, "file_rate": 2048.0}
    sample = {"same_functions_since": NOW - 2.0}
    world.add(user("encode", 39), RUN, process={"file": AT}, sample=sample, **times)
    found = diagnose(world.snapshot(), world.snapshot().job(None)).verdicts[0]
    assert found.cause == "straggler"
    told = "16.0 MiB of 64.0 MiB of /data/shard-17 on /data (nfs4, filer), and moves by 2.0 KiB"
    assert any(told in one.text for one in found.evidence)


def test_rates_are_those_of_the_last_seconds() -> None:
    way, at = FileRate(), AT
    for second in range(30):
        new = msgspec.structs.replace(at, position=at.position + (1 << 20))
        way.see(at, new, NOW + second + 1, NOW + second)
        at = new
    assert way.rate == pytest.approx(1 << 20)
    assert way.moved_at == NOW + 30
    # A few bytes a second are no progress, and another file is.
    way.see(at, msgspec.structs.replace(at, position=at.position + 9), NOW + 31, NOW + 30)
    assert way.moved_at == NOW + 30
    way.see(at, msgspec.structs.replace(AT, target="/data/shard-18"), NOW + 32, NOW + 31)
    assert (way.moved_at, way.rate) == (NOW + 32, None)
