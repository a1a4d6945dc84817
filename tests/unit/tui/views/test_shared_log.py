"""One log to which all ranks print, with and without a word of which of them did."""

from __future__ import annotations

import time

import pytest

from hangtop.terminal.spans import plain
from hangtop.views.logs import Logs, error_items, shared_lines
from support.logs import PATH, replace, with_log

CAUGHT = """step 4 loss 0.5
Traceback (most recent call last):
  File "train.py", line 7, in step
    {}["labels"]
KeyError: 'labels'
skipping this batch
"""


@pytest.mark.parametrize(("prefix", "shared"), [("", 4), ("[rank%d]: ", 0)])
def test_what_no_line_tells_whose_it_is(prefix: str, shared: int) -> None:
    text = "".join(
        f"{prefix % rank if prefix else ''}step 4 loss 0.5\n" for rank in range(4 if prefix else 1)
    )
    update = with_log(text)
    logs = Logs(update.snapshot, update.snapshot.jobs[0])
    ranks = [one for one in logs.streams if one.rank is not None]
    assert [one.shared for one in ranks] == [shared] * 4
    assert [bool(logs.lines(one)) for one in ranks] == [not shared] * 4
    if shared:
        (whole,) = [one for one in logs.streams if one.rank is None]
        assert [plain(one.line) for one in logs.lines(whole)] == ["step 4 loss 0.5"]
        told = " ".join(plain(one) for one in shared_lines(ranks[0]))
        assert "4 ranks of" in told
        assert f"{PATH}, and no line of it tells which of them did. The row - has" in told


@pytest.mark.parametrize(("off", "ago"), [(0.0, [0, 7, 7, 7]), (5 * 3600.0, [0, 0, 0, 0])])
def test_when_each_rank_printed_is_told_by_its_lines(off: float, ago: list[float]) -> None:
    """Where their clock is that of the file, and not of another time zone."""
    changed = with_log("x\n").snapshot.outputs[0].changed
    clock = [(changed - off - 7.0 * (n % 4 > 0), n % 4) for n in (1, 2, 3, 0)]
    text = "".join(
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} rank {rank} step 1\n"
        for at, rank in clock * 2
    )
    update = with_log(text)
    logs = Logs(update.snapshot, update.snapshot.jobs[0])
    told = [one.changed for one in logs.streams if one.rank is not None]
    assert [round(changed - (at or 0.0)) for at in told] == ago


def test_an_exception_of_nobody_that_was_caught() -> None:
    update = with_log(CAUGHT)
    (first, *_) = error_items(Logs(update.snapshot, update.snapshot.jobs[0]), update.snapshot.at)
    told = plain(first.lines[0])
    raised = "KeyError: 'labels' at train.py:7 (step)"
    assert told.split(None, 1)[1] == f"some process printed {raised}, and went on"


def test_every_file_that_ranks_share_has_a_row() -> None:
    """As of `srun ... > out 2> err`."""
    update = with_log("step 4 loss 0.5\n")
    (out,) = update.snapshot.outputs
    error = replace(out, path="/data/train/train.err", inode="1:3", changed=out.changed + 5)
    outputs = (out, error)
    ranks = tuple(
        replace(rank, process=replace(rank.process, outputs=(out.path, error.path)))
        for rank in update.snapshot.jobs[0].ranks
    )
    job = replace(update.snapshot.jobs[0], ranks=ranks)
    logs = Logs(replace(update.snapshot, jobs=(job,), outputs=outputs), job)
    rows = [one.path for one in logs.streams if one.rank is None]
    assert sorted(rows) == sorted([out.path, error.path])
    assert {one.path for one in logs.streams if one.rank is not None} == {error.path}
