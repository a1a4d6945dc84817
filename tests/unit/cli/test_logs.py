"""`hangtop logs` on files: what is printed, and the exit status."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING

from hangtop.cli.main import main
from support.documents import misfits
from support.logs import RECORDINGS, recording

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RAISE = str(RECORDINGS / "tee_raise.out")


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RAISE]) == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FIRST ERROR: rank 1: raised KeyError: 'labels' at job.py:13 (step)"
    assert "  | KeyError: 'labels'" in lines
    assert "Verdict: rank-exited   confidence 0.90 (high)" in lines
    assert lines[-1] == "Read 127 lines of ranks 0-3 from 1 file (6.7 KiB)."
    assert max(map(len, lines)) <= 100


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RAISE, "--json"]) == 10
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "hangtop.logs/1"
    assert misfits(told) == []
    assert (told["first"]["ranks"], told["first"]["where"]) == ([1], "job.py:13 (step)")
    assert told["verdicts"][0]["cause"] == "rank-exited"


def test_lines_of_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RAISE, "--rank", "1", "--grep", "step [23]"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[1] 2026-11-21 11:17:50,155 INFO train: step 2",
        "[1] 2026-11-21 11:17:50,207 INFO train: step 3",
    ]


def test_lines_whose_rank_is_not_known_tell_what_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first lines of torchrun on two nodes, under pdsh: nothing says which node is first."""
    path = tmp_path / "pdsh.out"
    lines = [f"{node}: [default1]:step {n}\n" for n in range(3) for node in ("n1", "n2")]
    path.write_text("".join(lines) + "n1: torchrun is there\n")
    assert main(["logs", str(path), "--grep", "step 2|torchrun"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == ["[n1:local 1] step 2", "[n2:local 1] step 2", "[n1:-] torchrun is there"]
    assert main(["logs", str(path), "--rank", "3"]) == 1
    assert "Lines are of n1:local 1, n2:local 1" in capsys.readouterr().err
    path.write_text(
        "".join(lines) + "n2: [default1]:Traceback (most recent call last):\n"
        'n2: [default1]:  File "a.py", line 1, in f\nn2: [default1]:KeyError: 1\n'
    )
    assert main(["logs", str(path)]) == 10
    assert capsys.readouterr().out.startswith("FIRST ERROR: local rank 1 of n2: raised KeyError: 1")


def test_lines_around_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RAISE, "--around", "2026-11-21 11:17:40", "--rank", "2"]) == 0
    assert "[2] 2026-11-21 11:17:50,046 INFO train: step 0" in capsys.readouterr().out
    assert main(["logs", RAISE, "--around", "soon"]) == 2


def test_a_time_without_its_day_is_of_the_last_day_of_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["logs", RAISE, "--around", "11:17:40", "--rank", "2"]) == 0
    assert "[2] 2026-11-21 11:17:50,046 INFO train: step 0" in capsys.readouterr().out
    assert main(["logs", RAISE, "--around", "12:40:00"]) == 1
    told = capsys.readouterr()
    assert not told.out
    assert "no such line within 30 s of 2026-11-20 12:40:00" in told.err


def test_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = recording("tee_kill").splitlines(keepends=True)
    data = "".join(f"[pod/train-0/main] {line}" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    assert main(["logs", "-"]) == 10
    assert "rank 1 (train-0): ended by SIGKILL" in capsys.readouterr().out


def test_what_has_no_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading a FIFO would wait for a writer, and take its lines from who else reads it."""
    fifo = tmp_path / "x.log"
    os.mkfifo(fifo)
    for path, why in ((str(fifo), "it is a FIFO"), ("/dev/zero", "has no end")):
        for more in ([], ["--rank", "0"], ["--around", "11:17:50"]):
            assert main(["logs", path, *more]) == 12
            assert f"{path} is not read: it is a" in (told := capsys.readouterr().err)
            assert why in told
    # A pipe that the shell hands over is read.
    read, write = os.pipe()
    os.write(write, b"[rank1]: ValueError: x\n")
    os.close(write)
    assert main(["logs", f"/dev/fd/{read}"]) in (0, 10, 11)
    assert "Read 1 line " in capsys.readouterr().out


def test_nothing_wrong_and_nothing_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.log"
    path.write_text("step 1\n")
    assert main(["logs", str(path)]) == 0
    assert capsys.readouterr().out.startswith("NO ERROR FOUND\n")
    assert main(["logs", str(tmp_path / "none.log")]) == 12
    assert main(["logs", RAISE, "--grep", "("]) == 2
    assert main(["logs", RAISE, "--grep", "a{9999999999}"]) == 2
    assert main(["logs", "--follow"]) == 2
