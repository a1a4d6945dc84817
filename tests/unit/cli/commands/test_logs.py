"""`hangtop logs` on files: what is printed, and the exit status."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.main import main
from support.documents import misfits
from support.logs import RECORDINGS, recording

if TYPE_CHECKING:
    from pathlib import Path

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


TEE = "".join(
    f"[{node}:{local}]:step {step}\n"
    for step in range(2)
    for node in ("node-1", "node-2")
    for local in (0, 1)
)
"""As torchrun --role $(hostname -s): --tee 3 prints on two nodes: no line tells a global rank."""
KNOWN = TEE + "".join(f"[node-{1 + r // 2}:{r % 2}]:[rank{r}]:[W1121 x\n" for r in range(4))


@pytest.mark.parametrize(
    ("text", "asked", "labels"),
    [
        (TEE, ["--node", "node-1", "--rank", "1"], ["node-1:local 1"]),
        (TEE, ["--rank", "1"], ["node-1:local 1", "node-2:local 1"]),
        (TEE, ["--grep", r"\[node-2:0\]"], ["node-2:local 0"]),
        (TEE, ["--grep", "^step", "--node", "node-1"], ["node-1:local 0", "node-1:local 1"]),
        (TEE, ["--node", "node-1.cluster.org"], ["node-1:local 0", "node-1:local 1"]),
        (KNOWN, ["--rank", "1"], ["node-1:1"]),
        (KNOWN, ["--rank", "3"], ["node-2:3"]),
        # Of node-2, whose ranks are 2 and 3, that can only be its local rank.
        (KNOWN, ["--node", "node-2", "--rank", "1"], ["node-2:3"]),
        (KNOWN, ["--node", "node-2", "--rank", "2"], ["node-2:2"]),
    ],
)
def test_lines_of_one_rank_of_one_node(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    asked: list[str],
    labels: list[str],
) -> None:
    path = tmp_path / "train.out"
    path.write_text(text)
    assert main(["logs", str(path), *asked]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted({line[1:].partition("]")[0] for line in lines}) == labels


@pytest.mark.parametrize("asked", [["--rank", "7"], ["--node", "node-3"], ["--grep", "loss"]])
def test_no_line_that_was_asked_for_is_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    path = tmp_path / "train.out"
    path.write_text(TEE)
    assert main(["logs", str(path), *asked]) == 1
    told = capsys.readouterr()
    assert not told.out
    assert told.err.startswith("hangtop: no such line")
    assert ("node-1:local 0, node-1:local 1, node-2:local 0" in told.err) == ("loss" not in asked)


def test_mixed_tracebacks_are_in_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.out"
    head = "Traceback (most recent call last):\n"
    path.write_text(head * 2 + '  File "a.py", line 1, in f\n' * 2 + "KeyError: 1\n" * 2)
    main(["logs", str(path), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert misfits(told) == []
    assert [one["code"] for one in told["ambiguities"]] == ["mixed-tracebacks"]


def test_a_quotation_is_shown_as_it_was_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.out"
    path.write_text("[default1]:[rank0]: KeyError: 1\n[default0]:[rank0]: ValueError: 2\n")
    assert main(["logs", str(path), "--rank", "0-1"]) == 0
    assert capsys.readouterr().out == "[1] [rank0]: KeyError: 1\n[0] ValueError: 2\n"


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


def test_a_run_whose_ranks_left_recorders_is_pointed_at_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run 7"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "rank0-gpu1.log").write_text("step 1\n")
    (folder / "flight").mkdir()
    main(["logs", str(folder)])
    assert "flight" not in capsys.readouterr().err
    (folder / "flight" / "ended_rank_0").write_bytes(b"\x80\x02}.")
    main(["logs", str(folder)])
    told = capsys.readouterr()
    assert f"which rank waited for which: hangtop flight '{folder}'" in told.err
    assert "1 file" in told.out, "a recorder is no log"


def test_a_rank_whose_recorder_says_that_it_finished_did_not_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    lost = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:7"
    text = f"[rank0]: Traceback (most recent call last):\n[rank0]: {lost}\n"
    (tmp_path / "logs" / "rank0-gpu1.log").write_text(text)
    (tmp_path / "logs" / "rank1-gpu1.log").write_text("exiting\n")
    (tmp_path / "flight").mkdir()
    entry = {"profiling_name": "gloo:all_reduce", "pg_id": 0, "collective_seq_id": 1}
    dump = {"version": "2.10", "entries": [entry], "hangtop": {"ended": "finished", "why": ""}}
    (tmp_path / "flight" / "ended_rank_1").write_bytes(pickle.dumps(dump, 2))
    main(["logs", str(tmp_path)])
    assert "rank 1 finished without an error, and rank 0 still waited" in capsys.readouterr().out
