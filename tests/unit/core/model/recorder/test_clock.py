"""Recorders whose clock was set: their times do not count, their order does."""

from __future__ import annotations

import zlib
from array import array
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import pytest

from hangtop_core.analysis.flight.picture import examine
from hangtop_core.analysis.flight.ways import sources
from hangtop_core.attach.wire import messages
from hangtop_core.dumps.load import load
from hangtop_core.model.recorder.clock import without_untimely
from hangtop_core.model.recorder.columns import Unpacker
from support import flight
from support.pieces import EPOCH, process
from support.stored import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from hangtop_core.model.recorder.trace import Trace

BEGAN = flight.START_NS / 1e9 - 60.0
READ = flight.START_NS / 1e9 + 600.0
HOUR_NS = 3_600_000_000_000


def job(shifts: dict[int, int]) -> flight.Job:
    """Three ranks and four collectives, of which rank 2 leaves out the last; ``shifts`` are what
    the clock was set by before a collective, by its number."""
    made = flight.Job(3)
    for number in range(4):
        made.clock += shifts.get(number, 0) + 60_000_000_000
        made.call("all_reduce", None if number < 3 else [0, 1], done=number < 3)
    return made


def times(trace: Trace) -> list[bool]:
    return [time > 0 for time in trace.created]


def trace(shifts: dict[int, int]) -> Trace:
    return flight.traces(job(shifts).dumps())[0]


@pytest.mark.parametrize(
    ("shifts", "known"),
    [
        ({}, [True] * 4),
        ({2: -HOUR_NS}, [False, False, False, False]),  # and what follows is from before it began
        ({0: -HOUR_NS}, [False] * 4),
        ({0: -HOUR_NS, 2: HOUR_NS}, [False, False, True, True]),
        ({0: HOUR_NS, 2: -HOUR_NS}, [False, False, True, True]),
        ({0: HOUR_NS}, [False] * 4),
    ],
)
def test_times_before_a_process_began_or_to_come_are_not_known(
    shifts: dict[int, int], known: list[bool]
) -> None:
    timely, count = without_untimely(trace(shifts), BEGAN, READ)
    assert (times(timely), count) == (known, known.count(False))
    assert timely.newest_ns == max(timely.created)


def test_steps_back_of_a_moment_are_of_several_threads() -> None:
    assert without_untimely(trace({2: -61_000_000_000}), BEGAN, READ)[1] == 0


def test_a_trace_without_times_stays() -> None:
    whole = trace({})
    assert without_untimely(whole)[0] is whole
    none = without_untimely(trace({0: -HOUR_NS}), BEGAN, READ)[0]
    assert without_untimely(none, BEGAN, READ) == (none, 0)


@pytest.mark.parametrize("back", [0, HOUR_NS])
def test_who_lacks_is_told_all_the_same_and_since_when_only_by_times_that_are_true(
    tmp_path: Path, back: int
) -> None:
    dumps = job({2: -back}).dumps()
    loaded = load([str(flight.write(tmp_path, dumps))])
    seen = examine(loaded.traces, loaded.problems).diagnosis
    assert [flight.blamed(one) for one in seen.verdicts] == [[2]]
    assert seen.hung_for_s is None
    told = [one.why for one in loaded.problems if one.kind == "clock-set"]
    why = "is of a rank whose clock was set back: 2 times from before are not used"
    assert told == ([why] * 3 if back else [])


def columns(*created: float) -> dict[str, Any]:
    """What a node sends of a recorder whose collectives were enqueued at these times."""
    numbers = array("q", range(1, len(created) + 1)).tobytes()
    times = array("q", [int(at * 1e9) for at in created]).tobytes()
    entries = bytes(len(created))
    data = 2 * entries + 4 * entries + 4 * entries + entries + numbers + numbers + times
    packed = b64encode(zlib.compress(data)).decode()
    return {"groups": ["0"], "calls": ["c"], "length": len(created), "columns": packed}


@pytest.mark.parametrize(("seconds", "odd"), [(1.0, 0), (-3600.0, 2), (3600.0, 2)])
def test_of_a_rank_that_runs_it_is_said_and_no_hang_is_older_than_its_process(
    seconds: float, odd: int
) -> None:
    bench = Bench()
    bench.fold(0, process(100, 0))
    parts = {
        "calls": {"c": ["gloo:all_reduce", "[[4]]", "[[4]]", "Float", "Float"]},
        "groups": {"0": ["0", "default_pg"]},
    }
    began = bench.ranks()[0].process.started_at
    trace = columns(began + seconds, began + seconds + 1.0)
    piece = {"pid": 100, "at": EPOCH + 5, "source": "server", "trace": trace, "parts": parts}
    unpacker = Unpacker(bench.answers.shared)
    bench.answers.recorder("n1", messages.decode(piece, messages.RecorderPiece), unpacker)
    rank = bench.ranks(6)[0]
    assert rank.recorder is not None
    assert rank.recorder.trace is not None
    assert times(rank.recorder.trace) == [not odd] * 2
    (source,) = sources([rank])
    said = [one for one in source.cautions if "its clock was set" in one]
    assert len(said) == bool(odd)
    assert all(
        one.startswith("2 entries of what its worker server said have times") for one in said
    )
