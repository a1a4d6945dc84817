"""`hangtop flight`: what it prints, what it returns, and the arguments of torchfrtrace."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.main import main
from hangtop_core.capture import load
from support.documents import misfits
from support.flight import Job, write
from support.record import path_of

if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


@pytest.fixture
def hung(tmp_path: Path) -> str:
    """Eight ranks; rank 3 does not come to an all_reduce of its tensor group."""
    groups = {str(n + 1): ("tp", (2 * n, 2 * n + 1)) for n in range(4)}
    job = Job(8, groups)
    for group in groups:
        job.call("all_gather", group=group, line=20)
    job.call("all_reduce", line=21)
    for group in groups:
        done = group != "2"
        job.call("all_gather", None if done else [2], group, done, line=20)
    job.call("all_reduce", [0, 1, 4, 5, 6, 7], done=False, line=21)
    return str(write(tmp_path / "dumps", job.dumps(), "nccl_trace_rank_"))


def flight(capsys: Capture, *arguments: str) -> tuple[int, str]:
    try:
        status = main(["flight", *arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_the_verdict_comes_first_and_then_where_everyone_is(hung: str, capsys: Capture) -> None:
    status, text = flight(capsys, hung)
    assert status == 10
    lines = text.splitlines()
    assert lines[0].startswith("HUNG: dumps of 8 of 8 ranks, 29 entries (format 2.10")
    assert lines[2] == "Verdict: missing-collective   confidence 0.90 (high)"
    assert "  to blame: rank 3" in lines
    assert "  waiting:  0-2,4-7" in lines
    table = lines[lines.index("In flight, the first to stall above") :]
    assert table[1].split() == ["GROUP", "#", "OPERATION", "JOINED", "NOT"]
    assert table[2].split() == ["tp", "(2)", "2", "all_gather", "2", "3"]
    assert table[3].split() == ["default_pg", "2", "all_reduce", "0-1,4-7", "2-3"]
    assert table[4] == "Nothing in flight in 3 groups: tp (1) at #2, tp (3) at #2, tp (4) at #2"
    assert max(map(len, lines)) <= 100


def test_the_document(hung: str, capsys: Capture, tmp_path: Path) -> None:
    other = tmp_path / "out.json"
    status, text = flight(capsys, hung, "--json", "-o", str(other))
    found: dict[str, Any] = json.loads(text)
    assert status == 10
    assert json.loads(other.read_text()) == found
    assert misfits(found) == []
    assert (found["schema"], found["state"]) == ("hangtop.diagnosis/1", "hung")
    assert found["verdicts"][0]["culprits"][0]["rank"] == 3
    assert (found["job"]["world_size"], found["job"]["ranks_seen"]) == (8, list(range(8)))
    part = found["flight"]
    assert (part["files"], part["versions"], part["entries"]) == (8, {"2.10": 8}, 29)
    (waiting,) = next(g for g in part["groups"] if g["uid"] == "2")["waiting"]
    assert (waiting["op"], waiting["seq"], waiting["joined"], waiting["missing"]) == (
        "all_gather", 2, [2], [3],
    )  # fmt: skip


def test_entries_share_a_line_between_ranks(hung: str, capsys: Capture) -> None:
    status, text = flight(capsys, hung, "-j", "--pg-filters", "default_pg")
    assert status == 10
    rows = [line.split()[1:5] for line in text.splitlines()[1:]]
    assert rows == [
        ["1", "completed", "0-7", "default_pg"],
        ["2", "scheduled", "0-1,4-7", "default_pg"],
    ]


def test_selected_ranks_groups_and_stacks(hung: str, capsys: Capture) -> None:
    chosen = ("-j", "--selected-ranks", "2-3", "--pg-filters", "tp", "--print_stack_trace")
    _, text = flight(capsys, hung, *chosen)
    assert "2-3" in text.splitlines()[1]
    assert "step (user/train.py:20)" in text
    assert "train.py:21" not in text
    assert flight(capsys, hung, "-j", "--selected-ranks", "99")[1].count("no entries") == 1


def test_what_torchfrtrace_users_type(hung: str, capsys: Capture) -> None:
    typed = [
        hung,
        "-p",
        "nccl_trace_rank_",
        "--allow-incomplete-ranks",
        "-v",
        "--mismatch_cap",
        "3",
    ]
    assert flight(capsys, *typed)[0] == 10
    typed = [hung, "--just_print_entries", "--selected-ranks", "0", "1", "--pg-filters", "0"]
    assert flight(capsys, *typed)[0] == 10
    assert flight(capsys, hung, "--transform-ft", "--group-world-size", "8")[0] == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--selected-ranks", "1"], "add -j"),
        (["-j", "--selected-ranks", "1-"], "--selected-ranks"),
        (["--transform-ft"], "--group-world-size"),
        (["--trigger"], "running ranks"),
        (["-w", "n[1-2]"], "-w is for running ranks"),
        (["--all-users"], "--all-users is for running ranks"),
        (["-j", "--json"], "not allowed with"),
    ],
)
def test_wrong_usage(hung: str, capsys: Capture, arguments: list[str], said: str) -> None:
    status, text = flight(capsys, hung, *arguments)
    assert status == 2
    assert said in text


def test_the_screen_needs_files_and_a_terminal(hung: str, capsys: Capture) -> None:
    assert main(["flight", "--tui"]) == 2
    assert "name them" in capsys.readouterr().err
    assert main(["flight", hung, "--tui"]) == 2
    assert "terminal" in capsys.readouterr().err


def test_a_path_that_is_not_there(capsys: Capture, tmp_path: Path) -> None:
    status, text = flight(capsys, str(tmp_path / "gone"))
    assert status == 2
    assert "no such file" in text
    assert "TORCH_FR_DUMP_TEMP_FILE" in text


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--readonly"], "forbids"), (["--prefix", "x"], "needs the PATH")]
)
def test_what_makes_no_sense_for_running_ranks(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    status, text = flight(capsys, *arguments)
    assert (status, said in text) == (2, True)


def test_no_dump(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README").write_text("nothing here")
    status, text = flight(capsys, str(tmp_path))
    assert status == 12
    assert "no dumps in" in text
    monkeypatch.setattr("hangtop.cli.jobs.flightlive.run", lambda *_: None)
    monkeypatch.setattr(
        "hangtop.cli.commands.flight.default_patterns", lambda _: [str(tmp_path / "x*")]
    )
    assert flight(capsys)[0] == 12
    assert flight(capsys, str(tmp_path), "--prefix", "rank_")[0] == 12
    status, text = flight(capsys, str(tmp_path), "--json")
    assert status == 12
    assert json.loads(text[: text.rindex("}") + 1])["flight"]["files"] == 0


def test_without_a_path_torchs_own_place_is_read(
    hung: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hangtop.cli.jobs.flightlive.run", lambda *_: None)  # no job runs here
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", hung + "/nccl_trace_rank_")
    assert flight(capsys)[0] == 10


def test_nothing_that_can_be_read(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b"")
    (tmp_path / "rank_1").write_bytes(b"not a dump")
    status, text = flight(capsys, str(tmp_path))
    assert status == 13
    assert "is empty" in text
    assert "is neither a pickle nor JSON" in text


def test_recorders_without_entries(capsys: Capture, tmp_path: Path) -> None:
    dumps = {rank: {"version": "2.4", "pg_config": {}, "pg_status": {}} for rank in range(2)}
    (tmp_path / "d").mkdir()
    for rank, dump in dumps.items():
        (tmp_path / "d" / f"rank_{rank}").write_text(json.dumps(dump))
    status, text = flight(capsys, str(tmp_path / "d"))
    assert status == 13
    assert "hold no entries" in text
    assert "TORCH_FR_BUFFER_SIZE" in text


def test_nothing_in_flight(capsys: Capture, tmp_path: Path) -> None:
    dumps = Job(2).call("all_reduce").call("barrier").dumps()
    status, text = flight(capsys, str(write(tmp_path / "d", dumps)))
    assert status == 0
    assert text.startswith("NOTHING IN FLIGHT: dumps of 2 of 2 ranks")


def test_what_a_file_says_cannot_move_the_cursor(capsys: Capture, tmp_path: Path) -> None:
    groups = {"\x1b[2Jevil": ("\x1b]0;title\x07desc", (0, 1))}
    job = Job(2, groups).call("all\x1b[31mreduce", [0], "\x1b[2Jevil", done=False)
    for entry in job.entries[0]:
        entry["frames"][2]["filename"] = "/x/\x1b[5m.py"
    directory = str(write(tmp_path / "d", job.dumps()))
    for arguments in ([], ["-j", "--stacks"], ["--json"]):
        status, text = flight(capsys, directory, *arguments)
        assert (status, "reduce" in text) == (10, True), text
        assert "\x1b" not in text


def test_of_a_capture_a_job_can_be_chosen(capsys: Capture) -> None:
    path = str(path_of("recorder"))
    whole = flight(capsys, path)
    assert flight(capsys, path, "--job-key", str(load(path).header.job)) == whole
    assert main(["flight", path, "--job-key", "no-such-job"]) == 12
    assert main(["flight", path, "--job-key", "no-such-job", "--all-users"]) == 2


@pytest.mark.parametrize("name", ["empty", "FIFO", "lost"])
def test_where_no_dump_can_be_read_each_is_listed(
    tmp_path: Path, capsys: Capture, name: str
) -> None:
    for rank in range(2):
        path = tmp_path / f"rank_{rank}"
        if name == "empty":
            path.touch()
        elif name == "FIFO":
            os.mkfifo(path)
        else:
            path.symlink_to("gone")
    status, text = flight(capsys, *(str(tmp_path / f"rank_{rank}") for rank in range(2)))
    assert status == 13
    assert text.startswith("NOT KNOWN: no dump of 2 ranks could be read")
    assert "rank_0 (rank 0) " in text
    assert "rank_1 (rank 1) " in text
    document = json.loads(flight(capsys, str(tmp_path), "--json")[1])
    assert [one["rank"] for one in document["flight"]["problems"]] == [0, 1]
    assert document["verdicts"] == []
