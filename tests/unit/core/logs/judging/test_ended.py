"""Whether an error has ended its rank. The recordings are of real gloo jobs of 3 or 4 ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.ended import LONG
from hangtop_core.logs.judging.judge import judge
from support.logs import judged, parsed, recording

if TYPE_CHECKING:
    from hangtop_core.logs.judging.judged import Judged

TRACEBACK = """\
Traceback (most recent call last):
  File "/data/train/job.py", line 24, in step
    data["labels"]
KeyError: 'labels'
"""
LOGGED = "2026-11-21 11:17:40,000 ERROR train: batch 3 is broken\n" + TRACEBACK
FOLDER = "logs/none_x1/attempt_0/{}/{}.log"


def steps(first: int, count: int = 5) -> str:
    return "".join(
        f"2026-11-21 11:17:{s:02},500 INFO step {s}\n" for s in range(first, first + count)
    )


def test_a_rank_that_is_there_was_not_ended_by_what_it_printed() -> None:
    of_rank, nobodys = parsed(LOGGED, "rank_3.log"), parsed(LOGGED, "train.out")
    assert survivors(judge([of_rank], alive={2})) == []
    assert survivors(judge([of_rank], alive={3})) == [(3,)]
    assert survivors(judge([nobodys], alive={3})) == []
    assert survivors(judge([nobodys], alive={3, None})) == [()]
    hooked = parsed("".join(f"[rank3]: {line}\n" for line in TRACEBACK.splitlines()))
    assert survivors(judge([hooked], alive={3, None})) == []


def told(found: Judged) -> tuple[str, float, list[int | None]] | None:
    """The first verdict: its cause, confidence and whom it blames."""
    verdicts = conclude(found)
    if not verdicts:
        return None
    one = verdicts[0]
    return one.cause, one.confidence, [culprit.rank for culprit in one.culprits]


def survivors(found: Judged) -> list[tuple[int, ...]]:
    first = [found.first] if found.first is not None else []
    return [f.ranks for f in (*first, *found.survived) if f.record.part == "survived"]


@pytest.mark.parametrize("name", ["tee_caught", "tee_thread"])
def test_a_rank_that_prints_on_has_not_ended(name: str) -> None:
    found = judged(recording(name))
    assert survivors(found) == [(1,)]
    assert told(found) is None


@pytest.mark.parametrize("name", ["tee_caught_then_raise", "mpi_caught_then_raise"])
def test_who_caught_an_error_before_is_not_blamed_for_the_end_of_another(name: str) -> None:
    found = judged(recording(name))
    assert found.first is not None
    assert found.first.record.text == "ValueError: loss is nan"
    assert told(found) == ("rank-exited", 0.9, [2])
    assert survivors(found) == [(1,)]


def test_who_caught_an_error_right_before_the_end_of_another_is_not_blamed_either() -> None:
    """Nothing of it came in between, and nothing of a launcher: only files of the ranks."""

    def hooked(rank: int, error: str) -> str:
        place = '  File "/data/train/job.py", line 43, in step\n'
        lines = f"Traceback (most recent call last):\n{place}{error}\n".splitlines()
        return "".join(f"[rank{rank}]: {line}\n" for line in lines)

    lost = "RuntimeError: [/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:57040"
    paths = ("rank_1.log", "rank_2.log")
    found = judged(steps(30) + hooked(1, "KeyError: 'x'"), LOGGED + hooked(2, lost), paths=paths)
    assert survivors(found) == [(2,)]
    assert told(found) == ("rank-exited", 0.9, [1])
    alone = judged(steps(30) + hooked(1, lost), LOGGED + hooked(2, lost), paths=paths)
    assert survivors(alone) == [], "nobody else tells why the job ended"


def test_one_process_of_torch_multiprocessing_is_the_rank_it_names() -> None:
    found = judged(recording("spawn_raise"))
    assert told(found) == ("rank-exited", 0.9, [2])
    assert survivors(found) == [()]


def test_who_left_out_a_step_after_an_error_is_told_with_that_error() -> None:
    found = judged(recording("tee_caught_skip"))
    assert told(found) == ("missing-collective", 0.7, [1])
    assert "before, rank 1 printed KeyError: 'labels'" in conclude(found)[0].summary
    assert survivors(found) == [(1,)]


def test_a_logged_error_after_which_a_rank_left_is_why_it_left() -> None:
    assert told(judged(recording("plain_logged_exit"))) == ("rank-exited", 0.7, [1])
    assert told(judged(recording("mpi_logged_exit"))) == ("rank-exited", 0.7, [1])


def test_lines_that_may_come_from_a_buffer_leave_it_open() -> None:
    found = judged(recording("mpi_caught_untimed"))
    assert told(found) == ("rank-exited", 0.5, [1])
    assert "that this ended it, these logs do not tell" in conclude(found)[0].summary


def test_more_than_fits_a_buffer_has_come_after_it() -> None:
    lines = "".join(f"[1,1]<stdout>:step {number}\n" for number in range(1000))
    error = "".join(f"[1,1]<stderr>:{line}\n" for line in TRACEBACK.splitlines())
    assert told(judged(error + lines[:2000])) == ("rank-exited", 0.5, [1])
    assert told(judged(error + lines)) is None


def test_what_an_ending_process_prints_is_no_sign_of_life() -> None:
    text = TRACEBACK + (
        "[rank0]:[W1121 11:17:42.1 ProcessGroupNCCL.cpp:1] Warning: process group has NOT been "
        "destroyed before we destruct ProcessGroupNCCL.\n"
        "/opt/python/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
        "There appear to be 1 leaked semaphore objects\n  warnings.warn(\n"
        "Exception ignored in: <function A.__del__>\nwandb: synced\n"
    )
    assert told(judged(steps(30) + text, paths=("rank_0.log",))) == ("rank-exited", 0.8, [0])


def test_the_other_file_of_a_rank_tells_that_it_went_on() -> None:
    paths = (FOLDER.format(1, "stderr"), FOLDER.format(1, "stdout"))
    at = 40 + int(LONG)
    later = f"2026-11-21 11:18:{at - 60:02},500 INFO step 9\n2026-11-21 11:19:00,000 INFO step 10\n"
    assert told(judged(LOGGED, steps(30), paths=paths)) == ("rank-exited", 0.5, [1])
    assert told(judged(LOGGED, later, paths=paths)) is None


def test_what_came_again_and_then_ended_the_rank_is_told_with_its_last_time() -> None:
    again = LOGGED.replace("11:17:40", "11:17:55")
    found = judged(LOGGED + steps(41) + again, "x\n", paths=("rank_0.log", "rank_1.log"))
    assert found.first is not None
    record = found.first.record
    assert (record.part, record.order, record.count) == ("root", 12, 2)


def test_an_error_long_before_its_rank_left_is_not_why() -> None:
    """What torchrun says then counts, which tells no reason."""
    left = "E1121 11:19:50.1 1 api.py:1] failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: p\n"
    lines = (LOGGED + steps(41) + steps(50).replace("11:17", "11:18")).splitlines()
    tagged = "".join(f"[default0]:{line}\n" for line in lines)
    found = judged(tagged + "[default1]:x\n" + left)
    assert survivors(found) == [(0,)]
    assert found.first is not None
    assert found.first.record.part == "exit"


def test_a_rank_that_torchruns_report_leaves_out_had_not_ended() -> None:
    text = recording("tee_raise")
    error = "".join(f"[default3]:{line}\n" for line in LOGGED.splitlines())
    report = text.index("W1121")
    found = judged(text[:report] + error + text[report:])
    assert survivors(found) == [(3,)]
    assert told(found) == ("rank-exited", 0.9, [1])


def test_out_of_memory_that_was_caught_is_no_end_but_is_told() -> None:
    line = "2026-11-21 11:17:40,000 WARNING torch.OutOfMemoryError: CUDA out of memory. Tried to "
    line += "allocate 2.00 GiB. skipping\n"
    found = judged(line + steps(41, 8), steps(41, 9), paths=("rank_0.log", "rank_1.log"))
    assert survivors(found) == [(0,)]
    assert told(found) is None


def test_a_full_disk_that_a_rank_survived_is_still_a_full_disk() -> None:
    error = LOGGED.replace("KeyError: 'labels'", "OSError: [Errno 28] No space left on device")
    found = judged(error + steps(41, 8), paths=("rank_0.log",))
    assert told(found) == ("disk-full", 0.4, [0])
