"""What columns answer quickly must be what looking at every entry would answer."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.analysis.flight.world import parse_members
from hangtop_core.model.recorder.trace import DONE, FEW_GROUPS, P2P, GroupInfo, Trace
from hangtop_probe.recorder.columns import reduce, short_members

# Numbers whose bytes are found across the borders of others, too.
numbers = st.sampled_from([0, 1, 256, 257, 1 << 8 * 7, 0x0101010101010101])
rows = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, P2P, DONE]), numbers))


@given(rows, numbers, st.sets(st.integers(0, 2)), st.sampled_from([0, FEW_GROUPS]))
def test_an_entry_is_found_as_by_looking_at_all(
    rows: list[tuple[int, int, int]], wanted: int, groups: set[int], more: int
) -> None:
    """Also where a process numbers one group more than once, and in traces of many groups."""
    names = ["tp" if index in groups else f"other {index}" for index in range(3 + more)]
    trace = Trace(0, "", length=len(rows), groups=tuple(GroupInfo(uid, "") for uid in names))
    trace.raw_group = array("H", [row[0] for row in rows]).tobytes()
    trace.raw_flag = bytes(row[1] for row in rows)
    trace.raw_seq = array("q", [row[2] for row in rows]).tobytes()
    here = [
        at
        for at, (group, flag, seq) in enumerate(rows)
        if group in groups and seq == wanted and not flag & P2P
    ]
    assert trace.find("tp", wanted) == (here[-1] if here else None)
    assert list(trace.places("tp")) == [
        at for at, (group, flag, _) in enumerate(rows) if group in groups and not flag & P2P
    ]
    assert [at for at, mark in enumerate(trace.pending()) if mark] == [
        at for at, (_, flag, _) in enumerate(rows) if not flag & (DONE | P2P)
    ]
    assert list(trace.pending_sends()) == [
        at for at, (_, flag, _) in enumerate(rows) if flag & P2P and not flag & DONE
    ]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_members_are_the_same_when_written_shorter(ranks: list[int]) -> None:
    text = short_members(str(ranks))
    assert list(parse_members(text)) == ranks
    assert len(text) <= len(str(ranks))


def test_members_in_runs() -> None:
    assert short_members(str(list(range(8192)))) == "[0-8191]"
    assert short_members("[0, 1, 2, 3, 8]") == "[0-3, 8]"
    assert short_members("no list") == "no list"
    # What claims more ranks than any job has is no list of members.
    assert parse_members("[0-999999999]") == ()
    assert parse_members("[" + "0-900000, " * 9 + "1]") == ()


def test_an_entry_whose_number_no_recorder_could_count_to_is_left_out() -> None:
    entries = [{"profiling_name": "gloo:barrier", "collective_seq_id": n} for n in (1, 10**40)]
    columns = reduce({"version": "2.10", "entries": entries})
    assert list(columns.seq) == [1]
    assert columns.dropped == 1


def test_an_entry_with_an_odd_number_costs_no_other() -> None:
    entries = [{"profiling_name": "gloo:barrier", "record_id": n} for n in ("--5", "7")]
    assert list(reduce({"version": "2.10", "entries": entries}).record) == [0, 7]
