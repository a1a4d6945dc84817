"""Files: what is read of them, whose they are by name, and how they are followed."""

from __future__ import annotations

import gzip
import os
import time
import tracemalloc
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.reading import files
from hangtop_core.logs.reading.files import CHUNK, TAIL, WHOLE, find, read, read_all
from hangtop_core.logs.reading.follow import PIECE, PIECES, Follower
from hangtop_core.logs.reading.lines import Choice, Kept, around, span, timed_within
from hangtop_core.logs.reading.names import places
from hangtop_core.report.logs import logs_text
from support.logs import recording
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from hangtop_core.logs.parsing.parse import Line

ERROR = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3, in f\n'
ERROR += "[rank1]: KeyError: {}\n"


def texts(path: Path, **options: bool) -> list[str]:
    (found,), _ = find([str(path)])
    return [record.text for record in read(found, 0, **options).records]


def test_of_ten_gigabytes_little_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    with path.open("wb") as file:
        file.write(b"NCCL version 2.21.5+cuda12.4\n")
        file.seek((10 << 30) - (20 << 20))
        file.write(b"\n" + ERROR.format("'before'").encode())
        file.seek(10 << 30)
        file.write(b"\n" + recording("tee_raise").encode())
    (found,), _ = find([str(path)])
    tracemalloc.start()
    try:
        began = time.process_time()
        log = read(found, 0)
        assert time.process_time() - began < 8.0
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    said = [record.text for record in log.records]
    assert said[:2] == ["NCCL version 2.21.5+cuda12.4", "KeyError: 'before'"]
    assert "KeyError: 'labels'" in said
    ((start, end),) = log.left
    assert 0 < start < end < (10 << 30) - (20 << 20)


def test_a_big_file_is_read_whole_when_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    with path.open("wb") as file:
        file.seek(4 << 20)
        file.write(b"\n" + ERROR.format("'early'").encode())
        file.seek(WHOLE + 150 * (1 << 20))
        file.write(b"\nend\n")
    assert WHOLE > TAIL
    assert texts(path) == []
    assert texts(path, everything=True) == ["KeyError: 'early'"]


def test_a_line_of_a_file_that_was_only_searched_has_no_number(tmp_path: Path) -> None:
    """What lies between its beginning and its end was searched, and its lines were not counted."""
    path = tmp_path / "train.out"
    with path.open("wb") as file:
        file.write(b"begin\n")
        file.seek(WHOLE + 1)
        file.write(b"\n" + ERROR.format("'late'").encode())
    (found,), _ = find([str(path)])
    for everything in (False, True):
        log = read(found, 0, everything=everything)
        assert (log.left, log.whole) == ((), everything)
        text = logs_text(judge([log]), [], [log], 100)
        assert ("train.out, line 3" in text) is everything


def test_lines_at_the_borders_of_what_is_read_are_whole(tmp_path: Path) -> None:
    """Those that begin where a piece with errors does, and those that go on behind its end."""
    path = tmp_path / "train.out"
    size, last = 200 << 20, ERROR.format("'last of it'").encode()
    begin = size - TAIL - 10 * CHUNK
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(begin - 1)
        file.write(b"\nNo space left on device\n")
        file.seek(begin + CHUNK - len(last) + 5)
        file.write(b"\n" + last)
    assert texts(path) == ["No space left on device", "KeyError: 'last of it'"]


def test_packed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(ERROR.format(1).encode()))
    assert texts(path) == ["KeyError: 1"]
    path.write_bytes(b"\x1f\x8b nonsense")
    (found,), _ = find([str(path)])
    assert read(found, 0).problem


def test_what_a_packed_file_unpacks_to_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"step 1\n" + bytes(64 << 20)))
    monkeypatch.setattr(files, "UNPACKED", 32 << 20)
    (found,), _ = files.find([str(path)])
    log = files.read(found, 0)
    assert log.problem == "it unpacks to more than 32.0 MiB, which --all reads"
    assert log.size < 40 << 20
    assert files.read(found, 0, everything=True).problem is None


def test_of_a_packed_file_that_was_cut_all_that_there_is_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    more = "".join(f"step {number} {hash(str(number))}\n" for number in range(300_000))
    path.write_bytes(gzip.compress((ERROR.format("'early'") + more).encode(), 1)[:-20_000])
    (found,), _ = find([str(path)])
    log = read(found, 0)
    assert [record.text for record in log.records] == ["KeyError: 'early'"]
    assert log.problem == "Compressed file ended before the end-of-stream marker was reached"
    assert log.size > CHUNK
    assert log.lines > 250_000
    text = logs_text(judge([log]), [], [log], 150)
    assert "FIRST ERROR: rank 1" in text
    assert "not read to its end: " in text


def test_of_a_packed_file_that_is_big_its_ends_are_read_and_errors_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("WHOLE", 3 << 20), ("TAIL", 1 << 20), ("CHUNK", 1 << 18)):
        monkeypatch.setattr(files, name, size)
    path = tmp_path / "train.log.gz"
    steps = [f"step {number} {'é' * (number % 7)}\n" for number in range(400_000)]
    for name, at in (("early", 0), ("between", 250_000), ("late", 400_002)):
        steps.insert(at, ERROR.format(repr(name)))
    path.write_bytes(gzip.compress("".join(steps).encode(), 1))
    (found,), _ = find([str(path)])
    kept: list[str] = []
    log = read(found, 0, keep=lambda line: kept.append(line.text))
    said = ["KeyError: 'early'", "KeyError: 'between'", "KeyError: 'late'"]
    assert [record.text for record in log.records] == said
    assert log.size == len("".join(steps).encode())
    assert len(kept) < 300_000
    assert {f"{line}\n" for line in kept if line.startswith("step")} < set(steps)
    kept.clear()
    log = read(found, 0, everything=True, keep=lambda line: kept.append(line.text))
    assert [record.text for record in log.records] == said
    assert len(kept) > 400_000


def test_a_folder_stands_for_the_logs_in_it(tmp_path: Path) -> None:
    for name in ("none_x/attempt_0/1/stderr.log", "slurm-7.out", "model.pt", "train.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")
    (tmp_path / "link.log").symlink_to("/etc/passwd")
    found, nothing = find([str(tmp_path), "/no/such/file"])
    names = sorted(os.path.relpath(one.path, tmp_path) for one in found)
    assert names == ["none_x/attempt_0/1/stderr.log", "slurm-7.out"]
    assert nothing == ["/no/such/file"]


def test_a_file_that_is_removed_while_its_folder_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old.log", "new.log"):
        (tmp_path / name).write_text("x\n")
    lstat = os.lstat

    def gone(path: str) -> os.stat_result:
        if path.endswith("old.log"):
            raise FileNotFoundError(path)
        return lstat(path)

    monkeypatch.setattr("hangtop_core.logs.reading.files.os.lstat", gone)
    assert [one.path for one in find([str(tmp_path)])[0]] == [str(tmp_path / "new.log")]


def test_a_letter_of_several_bytes_may_lie_across_two_pieces(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"x" * (CHUNK - 1) + "é\n".encode()))
    (found,), _ = find([str(path)])
    kept: list[str] = []
    read(found, 0, keep=lambda line: kept.append(line.text))
    assert kept[-1] == "é"


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.log").touch()
    (found,), _ = find([str(tmp_path / "x.log")])
    (tmp_path / "x.log").unlink()
    assert read(found, 0).problem == "No such file or directory"


@pytest.mark.parametrize(
    ("paths", "ranks"),
    [
        (["slurm-4711_3.out"], [3]),
        (["logs/rank_12.log"], [12]),
        (["out/1/rank.2/stderr"], [2]),
        (["train_0.log", "train_1.log", "train_2.log"], [0, 1, 2]),
        (["train_0.log"], [None]),
        (["run_7.log", "run_8.log"], [None, None]),
        (["slurm-4711.out"], [None]),
        (["frank3.log"], [None]),
    ],
)
def test_ranks_are_told_from_names(paths: list[str], ranks: list[int | None]) -> None:
    found = places(paths)
    assert [found[path].rank for path in paths] == ranks


def test_the_runs_of_several_nodes_are_kept_apart() -> None:
    found = places([f"d/none_{run}/attempt_0/0/stdout.log" for run in ("aa", "bb")])
    assert sorted(str(place.node) for place in found.values()) == ["none_aa", "none_bb"]


def test_lines_of_several_files_come_by_their_times(tmp_path: Path) -> None:
    for rank in (0, 1):
        lines = [f"2026-11-21 11:17:{s:02},000 step {s}" for s in range(rank, 20, 2)]
        (tmp_path / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")
    found, _ = find([str(tmp_path)])
    kept = Kept()
    logs = [
        read(one, number, keep=lambda line, n=number: kept.add(n, line))
        for number, one in enumerate(found)
    ]
    shown = list(kept.shown(logs, Choice()))
    assert [one.rank for one in shown] == [0, 1] * 10
    assert [one.rank for one in kept.shown(logs, Choice(ranks=frozenset({1})))] == [1] * 10


def test_a_time_is_found_by_bisection(tmp_path: Path) -> None:
    path = tmp_path / "train.out"
    with path.open("w") as file:
        for number in range(60_000):
            minute, second = divmod(number // 20, 60)
            file.write(f"[default0]:2026-11-21 11:{minute:02}:{second:02},000 step {number} abc\n")
    at = time.mktime((2026, 11, 21, 11, 25, 0, 0, 0, -1))
    start, end = around(str(path), at, 2.0)
    (found,), _ = find([str(path)])
    lines: list[Line] = []
    span(found, 0, start, end, lines.append)
    assert any("11:25:00" in line.text for line in lines)
    assert end - start < 600_000


def test_a_time_is_found_beyond_what_has_none(tmp_path: Path) -> None:
    """A table of megabytes, and the hole that a program leaves that was not told to append."""
    path = tmp_path / "train.out"
    at = time.mktime((2026, 11, 21, 11, 25, 0, 0, 0, -1))
    with path.open("w") as file:
        file.truncate(1 << 32)
        file.seek(1 << 32)
        file.write("\n2026-11-21 11:20:00 begin\n")
        file.write("| a row | of a table |\n" * 400_000)
        file.write("2026-11-21 11:24:50 early\n2026-11-21 11:24:59 there\nits second line\n")
        file.write("2026-11-21 11:25:05 late\n")
    start, end = around(str(path), at, 2.0)
    (found,), _ = find([str(path)])
    lines: list[Line] = []
    span(found, 0, start, end, timed_within(at, 2.0, at, lines.append))
    assert [line.text for line in lines] == ["2026-11-21 11:24:59 there", "its second line"]


def test_what_is_still_written_to_a_file_that_was_moved_is_read(tmp_path: Path) -> None:
    """Until its program opens the new file, which logrotate has made before."""
    path = tmp_path / "rank_1.log"
    path.write_text("one\n")
    follower = Follower([str(path)], Choice())
    follower.poll()
    old = path.rename(tmp_path / "rank_1.log.old")
    path.touch()
    assert follower.poll() == ([], [], [])
    with old.open("a") as file:
        file.write("two\n")
    assert [one.text for one in follower.poll()[0]] == ["two"]
    with old.open("a") as file:
        file.write("three\n")
    path.write_text("four\n")
    lines, _, notes = follower.poll()
    assert [one.text for one in lines] == ["three", "four"]
    assert notes == [f"{path} was replaced by a new file"]
    follower.close()


def test_a_new_file_that_may_not_be_read_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank_1.log"
    path.write_text("one\n")
    follower = Follower([str(path)], Choice())
    assert [one.text for one in follower.poll()[0]] == ["one"]
    path.rename(tmp_path / "old")
    path.write_text("two\n")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", forbidden)
    assert follower.poll() == ([], [], [])
    monkeypatch.undo()
    assert [one.text for one in follower.poll()[0]] == ["two"]
    follower.close()


def test_a_file_that_grows_by_much_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.log"
    path.touch()
    follower = Follower([str(path)], Choice())
    follower.poll()
    text = b"x" * 4095 + b"\n"
    path.write_bytes(text * ((PIECES + 1) * PIECE // len(text)))
    first = len(follower.poll()[0])
    assert 0 < first * len(text) <= PIECES * PIECE
    assert first + len(follower.poll()[0]) == (PIECES + 1) * PIECE // len(text)
    follower.close()


def test_growing_cut_and_replaced_files_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.log"
    path.write_text("one\n")
    follower = Follower([str(tmp_path)], Choice())
    follower.RESCAN_S = 0.0
    said = []

    def poll() -> list[str]:
        lines, records, notes = follower.poll()
        said.extend(record.text for record in records)
        return [*(one.text for one in lines), *(note.rpartition("/")[2] for note in notes)]

    assert poll() == ["one"]
    with path.open("a") as file:
        file.write("two\nhal")
    assert poll() == ["two"]
    with path.open("a") as file:
        file.write("f\r50%\r")
    assert poll() == ["half"]
    path.write_text("cut\n")
    assert poll() == ["50%", "cut", "rank_1.log was cut"]
    # As logrotate's copytruncate does, while more is written at once than was there before.
    path.write_text("cut again, and longer\n")
    assert poll() == ["cut again, and longer", "rank_1.log was cut"]
    with path.open("r+") as file:
        file.truncate(0)
        # Who writes on where it was leaves a hole before that, here of gigabytes.
        file.seek(10 << 30)
        file.write("beyond a hole\n")
    assert poll() == ["beyond a hole", "rank_1.log was cut"]
    path.rename(tmp_path / "old")
    path.write_text("new\n" + ERROR.format(7) + "next\n")
    assert poll()[0] == "new"
    # A block is over when its stream goes on, or has been silent for a moment.
    until = time.monotonic() + PATIENCE
    while not said and time.monotonic() < until:
        poll()
        time.sleep(0.05)
    assert said == ["KeyError: 7"]
    (tmp_path / "rank_2.log").write_text("other\n")
    assert poll() == ["other"]
    assert judge(follower.logs()).first is not None
    follower.close()


def test_files_beyond_what_is_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.log").write_text("x\n")
    monkeypatch.setattr("hangtop_core.logs.reading.files.MAX_FILES", 3)
    logs = read_all(find([str(tmp_path)])[0])
    assert [one.lines for one in logs] == [1, 1, 1, 0, 0]
    assert [one.problem for one in logs[2:]] == [None, *["there are more than 3 files"] * 2]


def test_times_of_day_are_those_of_the_day_that_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank_1.log"
    path.touch()
    now = time.time() + 5 * 3600
    follower = Follower([str(path)], Choice())
    follower.poll()
    monkeypatch.setattr("hangtop_core.logs.reading.follow.time.time", lambda: now)
    clock = f"{datetime.fromtimestamp(now):%H:%M:%S}"
    path.write_text(f"{clock} Segmentation fault (core dumped)\n")
    (record,) = follower.poll()[1]
    follower.close()
    assert record.at == int(now)


def test_a_file_that_is_cut_within_a_letter_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rank_1.log"
    path.write_bytes(b"\xe2\x82")
    follower = Follower([str(path)], Choice())
    follower.poll()
    path.write_bytes(b"")
    follower.poll()
    path.write_text("new\n")
    assert [one.text for one in follower.poll()[0]] == ["new"]
    follower.close()
