"""Reports of NCCL's RAS are read in both forms, whatever is in them."""

from __future__ import annotations

import json
import time

import pytest

from hangtop_core.model.recorder import ras_text
from hangtop_core.model.recorder.ras import MAX_TEXT, BadReportError, Lost, Member, from_json
from hangtop_core.model.recorder.ras_text import from_text
from support.ras import OPS, document, missing, rank, text, without_comma
from support.record import FOLDER

LATE = document(
    (
        [
            *(rank(n, 100 + n, counts={"AllReduce": 42}) for n in range(3)),
            rank(3, 103, counts={"AllReduce": 41}),
        ],
        [],
    )
)
WITHOUT = document(
    ([rank(0, 100), rank(1, 101)], [missing(2, 102, dead=True), missing(3, 103)]), timeouts=2
)
TABLE = "    0         1         1       3-4         4         4   RUNNING  {}\n"
DIFFERENT = text(
    TABLE.format("MISMATCH"),
    warnings="""#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 42
  Rank 3 has launched up to operation 41 -- GPU 3 managed by process 103 on node 10.0.0.1

  Communicator ranks have different Broadcast operation counts
  2 ranks have launched up to operation 5
  2 ranks have not launched any operations
  Rank 0 -- GPU 0 managed by process 100 on node 10.0.0.1
  Rank 1 -- [process information not found]

""",
)
INCOMPLETE = text(
    TABLE.format("INCOMPLETE"),
    errors="""INCOMPLETE
  Missing communicator data from 1 job process
  Process 103 on node 10.0.0.1 managing GPU 3

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 102 on node 10.0.0.1 managing GPU 2

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 2 -- GPU 2 managed by process 102 on node 10.0.0.1
  Rank 3 -- [process information not found]

""",
    warnings="""TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

""",
)


def test_json_keeps_what_differs() -> None:
    report = from_json(LATE, at=7.0)
    (one,) = report.communicators
    assert (report.at, report.version, report.form) == (7.0, "2.29.7", "json")
    assert (one.hash, one.size, one.lost) == ("0xc0ffee0", 4, ())
    assert [(level.op, level.count, level.size) for level in one.levels] == [
        ("AllReduce", 42, 3),
        ("AllReduce", 41, 1),
    ]
    assert one.levels[1].members == (Member(3, "10.0.0.1", 103, 3),)
    assert [(status.name, status.size) for status in one.statuses] == [("RUNNING", 4)]


def test_json_with_ranks_that_do_not_answer() -> None:
    report = from_json(WITHOUT)
    (one,) = report.communicators
    assert one.lost == (
        Lost(Member(2, "10.0.0.1", 102, 2), dead=True),
        Lost(Member(3, "10.0.0.1", 103, 3)),
    )
    assert (one.lost_count, report.timeouts) == (2, 2)


def test_the_malformed_json_of_one_version() -> None:
    broken = without_comma(WITHOUT)
    assert broken.count(",") == WITHOUT.count(",") - 2
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    assert from_json(broken) == from_json(WITHOUT)


@pytest.mark.parametrize(
    ("status", "name"),
    [
        ({}, "RUNNING"),
        ({"init_state": 7}, "INIT"),
        ({"init_state": 3}, "initialization error 3"),
        ({"async_error": 6}, "asynchronous error 6"),
        ({"finalize_called": True}, "FINALIZE"),
        ({"abort_flag": True, "async_error": 6}, "ABORT"),
    ],
)
def test_states(status: dict[str, object], name: str) -> None:
    report = from_json(document(([rank(0, 100, **status), rank(1, 101, **status)], [])))  # type: ignore[arg-type]
    assert [one.name for one in report.communicators[0].statuses] == [name]


def test_a_rank_whose_memory_was_not_filled() -> None:
    # NCCL up to 2.30.7 may tell of a communicator that is being made what was never written.
    odd = {**rank(0, 100), "status": None, "host": "unknown", "pid": -1}
    report = from_json(document(([odd, rank(1, 101)], [])))
    assert report.communicators[0].statuses[0].members[0] == Member(0, "", -1, 0)


def test_text_with_counts_that_differ() -> None:
    report = from_text(DIFFERENT, at=7.0)
    (one,) = report.communicators
    assert (report.version, report.form, report.whole) == ("2.27.5", "text", True)
    assert (one.hash, one.size) == ("27a079b828ff1a75", 4)
    assert [(level.op, level.count, level.size, level.members) for level in one.levels] == [
        ("AllReduce", 42, 3, ()),
        ("AllReduce", 41, 1, (Member(3, "10.0.0.1", 103, 3),)),
        ("Broadcast", 5, 2, ()),
        ("Broadcast", 0, 2, (Member(0, "10.0.0.1", 100, 0), Member(1))),
    ]


def test_text_with_processes_that_do_not_answer() -> None:
    report = from_text(INCOMPLETE)
    assert {(lost.member.pid, lost.dead) for lost in report.lost} == {(103, False), (102, True)}
    (one,) = report.communicators
    assert [lost.member.rank for lost in one.lost] == [2, 3]
    assert (one.lost_count, report.timeouts) == (2, 2)


def test_older_text_that_counts_all_kinds_as_one() -> None:
    older = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation 42
  1 rank has launched up to operation 41
  Rank 3 -- GPU 3 managed by process 103 on node 10.0.0.1
"""
    report = from_text(text(TABLE.format("MISMATCH"), warnings=older, version="2.24.3"))
    assert [(one.op, one.count, len(one.members)) for one in report.communicators[0].levels] == [
        ("", 42, 0),
        ("", 41, 1),
    ]


def test_text_with_states_and_with_nothing() -> None:
    states = """#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  2 ranks have status NOCOMM
  Rank 3 has status INIT -- GPU 3 managed by process 103 on node 10.0.0.1
  1 ranks have status RUNNING
"""
    one = from_text(text(TABLE.format("MISMATCH"), warnings=states)).communicators[0]
    assert [(status.name, status.size) for status in one.statuses] == [
        ("NOCOMM", 2),
        ("INIT", 1),
        ("RUNNING", 1),
    ]
    fine = from_text(
        text("    0         2         1         2         2         4   RUNNING      OK\n")
    )
    assert [(one.size, one.statuses[0].name) for one in fine.communicators] == [(2, "RUNNING")] * 2


def test_text_that_is_cut_off_is_used_and_says_so() -> None:
    cut = INCOMPLETE[: INCOMPLETE.index("Warnings")]
    report = from_text(cut)
    assert not report.whole
    assert len(report.lost) == 2


def test_what_is_no_report() -> None:
    for bad in ("", "{", "[]", "{}", '{"communicators": 3}', LATE[:-40], "[" * 100_000):
        with pytest.raises(BadReportError):
            from_json(bad)
    for bad in ("", "hello", "NCCL version 2.27.5\n"):
        with pytest.raises(BadReportError):
            from_text(bad)
    for read in (from_json, from_text):
        with pytest.raises(BadReportError, match="million"):
            read("x" * (MAX_TEXT + 1))


def test_long_and_hostile_lines_take_no_time() -> None:
    began = time.process_time()
    lines = ["  Rank 1" + " " * 4000, "#1-1 (" + "a" * 4000, " " * 100_000 + "ranks", "=" * 4000]
    from_text(DIFFERENT + "\n".join(lines * 200))
    with pytest.raises(BadReportError):
        from_json('"nvml_dev": 1' + " " * 1_000_000)
    assert time.process_time() - began < 2


def test_ranks_that_all_differ_take_no_time() -> None:
    told = document(([rank(n, n, counts=dict.fromkeys(OPS, n)) for n in range(4000)], []))
    began = time.process_time()
    (one,) = from_json(told).communicators
    assert time.process_time() - began < 2
    assert [level.count for level in one.levels[:2]] == [3999, 3998]
    assert one.levels[0].members[0].pid == 3999


def test_what_follows_one_communicator_too_many_is_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_text, "MAX_COMMUNICATORS", 1)
    cut = "NCCL version 2.27.5\nCommunicators...\n"
    for name, count in (("0xa", 7), ("0xb", 9)):
        cut += f"#0-0 ({name}) MISMATCH\n  2 ranks have launched up to operation {count}\n"
    (one,) = from_text(cut).communicators
    assert [level.count for level in one.levels] == [7]


def test_what_nccl_really_said() -> None:
    """NCCL 2.28.9, four ranks in six communicators of which one is being made (tests/gpu)."""
    found = from_json((FOLDER / "nccl" / "ras.json").read_text())
    assert (found.version, found.whole, len(found.communicators)) == ("2.28.9", True, 6)
    members = [m for one in found.communicators for s in one.statuses for m in s.members]
    assert {m.pid for m in members} == {671, 672, 673, 674}
    assert {s.name for one in found.communicators for s in one.statuses} == {"RUNNING"}
    found = from_text((FOLDER / "nccl" / "ras.txt").read_text())
    assert (found.version, sum(one.size for one in found.communicators)) == ("2.28.9", 8)
