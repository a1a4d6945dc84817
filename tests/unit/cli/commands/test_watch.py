"""`hangtop watch` without a job: files of hangs, the command that is run, and what is told."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hangtop.cli.commands.watch import Watch, told_to_stop
from hangtop.cli.jobs import onhang
from hangtop.cli.jobs.hangfiles import HangFiles
from hangtop.cli.jobs.onhang import run_command, variables
from hangtop.cli.jobs.watchtext import AWAY_S, Teller, why_ended
from hangtop.cli.main import build_parser
from hangtop.cli.output.redacting import Renamer
from hangtop_core.diagnosis import (
    Attempt,
    Culprit,
    Diagnosis,
    Ended,
    JobState,
    PastAttempt,
    Verdict,
)
from hangtop_core.errors import UsageError
from hangtop_core.judging.hangs import Happened
from hangtop_core.model.snapshot import Job, Node, Process, Rank, Snapshot
from hangtop_core.model.updates import Update
from support.processes import PATIENCE, is_alive, wait_until

FILES = {"diagnosis.json": "{}\n", "stacks.txt": "\udcff ünd\n"}
JOB = Job("k", "train", "torchrun", None, 4, None, nodes=("n1", "n2"))


def test_a_hang_is_a_directory_for_its_owner_only(tmp_path: Path) -> None:
    kept = HangFiles(tmp_path / "new" / "hangs", 5)
    written = kept.write(FILES, 0.0)
    assert written == tmp_path / "new" / "hangs" / "hang-19700101T000000Z"
    assert written.stat().st_mode & 0o777 == 0o700
    assert {one.name for one in written.iterdir()} == set(FILES)
    assert {one.stat().st_mode & 0o777 for one in written.iterdir()} == {0o600}
    assert (written / "stacks.txt").read_text() == "\\udcff ünd\n"


def test_only_the_newest_hangs_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    (tmp_path / "hang-notes").mkdir()
    (tmp_path / "hang-20200101T000000Z").write_text("a file")
    kept = HangFiles(tmp_path, 2)
    for number, at in enumerate((10.0, 10.0, 20.0, 5.0)):
        os.utime(kept.write(FILES, at), (number, number))
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "hang-19700101T000005Z",
        "hang-19700101T000020Z",
        "hang-20200101T000000Z",
        "hang-notes",
    ]


def test_nothing_is_left_of_what_cannot_be_written(tmp_path: Path) -> None:
    kept = HangFiles(tmp_path, 2)
    with pytest.raises(OSError, match="not/there"):
        kept.write({"a": "1", "not/there": "2"}, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--output "):
        HangFiles(tmp_path / "file", 1)


def test_what_the_command_is_told_is_clean_and_whole(tmp_path: Path) -> None:
    culprits = (Culprit(2, "n2", 7), Culprit(3, "n1", 8), Culprit(2, "n2", 9))
    verdict = Verdict("io-wait", 0.9, culprits, (0, 1), "reads\n$(x)\x1b[31m\0", (), ())
    diagnosis = Diagnosis("", "", "", 1.0, "hung", 61.7, None, None, (verdict,))
    directory = tmp_path / "two  blanks"
    told = variables(JOB, diagnosis, directory)
    assert told["HANGTOP_SUMMARY"] == "reads $(x)"
    assert (told["HANGTOP_RANKS"], told["HANGTOP_VICTIMS"]) == ("2-3", "0-1")
    assert (told["HANGTOP_NODES"], told["HANGTOP_HUNG_FOR"]) == ("n[1-2]", "61")
    assert told["HANGTOP_STATUS"] == "10"
    assert told["HANGTOP_STACKS"] == f"{directory}/stacks.txt"
    directory.mkdir()
    assert variables(JOB, diagnosis, directory)["HANGTOP_CAPTURE"] == "", "it had no room"
    (directory / "hang.hangtop").touch()
    told = variables(JOB, diagnosis, directory)
    assert told["HANGTOP_CAPTURE"] == f"{directory}/hang.hangtop"
    nothing = variables(JOB, Diagnosis("", "", "", 1.0, "hung", None, None, None), None)
    assert nothing.keys() == told.keys()
    assert nothing["HANGTOP_CAUSE"] == "unknown"
    assert nothing["HANGTOP_STATUS"] == "11"
    assert nothing["HANGTOP_JSON"] == nothing["HANGTOP_CAPTURE"] == ""


def test_the_command_runs_without_a_shell(capfd: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-c", "import os, sys; print(os.environ['HANGTOP_X'], sys.argv[1])"]
    assert run_command([*argv, "$HOME; ls"], {"HANGTOP_X": "$(id)"}, PATIENCE, apart=False) is None
    assert capfd.readouterr().out == "$(id) $HOME; ls\n"
    run_command([*argv, "x"], {"HANGTOP_X": "y"}, PATIENCE, apart=True)
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "y x\n")


@pytest.mark.parametrize(
    ("command", "limit_s", "why"),
    [
        ("exit 3", PATIENCE, "ended with status 3"),
        ("kill -9 $$", PATIENCE, "was ended by SIGKILL"),
        ("sleep 60 & wait", 0.2, "was ended after 0.2 s (--on-hang-limit)"),
    ],
)
def test_how_the_command_ended(command: str, limit_s: float, why: str) -> None:
    assert run_command(["sh", "-c", command], {}, limit_s, apart=True) == why


def test_a_command_that_is_not_there() -> None:
    assert run_command(["/nowhere/x"], {}, 1.0, apart=True) == (
        "cannot be started: No such file or directory"
    )


def test_stopping_ends_the_command_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"echo $$ > {pid}.new; mv {pid}.new {pid}; kill -TERM {os.getpid()}; sleep 60"
    with pytest.raises(KeyboardInterrupt), told_to_stop():
        run_command(["sh", "-c", script], {}, 60.0, apart=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_children_that_do_not_go_when_told_are_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onhang, "GRACE_S", 0.5)
    pid = tmp_path / "pid"
    child = f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; while :; do sleep 1; done"
    ready = f"while [ ! -e {pid} ]; do sleep 0.05; done; kill -TERM {os.getpid()}; sleep 60"
    try:
        with pytest.raises(KeyboardInterrupt), told_to_stop():
            run_command(["sh", "-c", f"sh -c {shlex.quote(child)} & {ready}"], {}, 60.0, apart=True)
        assert wait_until(lambda: not is_alive(int(pid.read_text())), 5.0), "a child lives on"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_command_that_is_only_being_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        made.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return made[0]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt), told_to_stop():
        run_command(["sleep", "60"], {}, 60.0, apart=True)
    assert made[0].returncode == -signal.SIGTERM


def nodes_told(capsys: pytest.CaptureFixture[str], teller: Teller, *nodes: Node) -> list[str]:
    teller.nodes(Snapshot(1000.0, 0.0, 1, nodes))
    return [json.loads(line)["nodes"] for line in capsys.readouterr().out.splitlines()]


def test_nodes_that_stay_away_are_told_together_and_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller(Renamer(), json=True)
    ready = [Node(f"n{i}", state="ready", since=0.0) for i in (1, 2, 3)]
    gone = [Node(f"n{i}", state="lost", since=1000.0 - AWAY_S, reason="silent") for i in (1, 2)]
    just = Node("n3", state="lost", since=999.0)
    assert nodes_told(capsys, teller, *ready) == []
    assert nodes_told(capsys, teller, *gone, just) == ["n[1-2]"]
    denied = Node("n2", state="denied", since=1000.0)
    assert nodes_told(capsys, teller, gone[0], denied, ready[2]) == []
    assert nodes_told(capsys, teller, ready[0], denied, ready[2]) == ["n1"]


def test_arguments() -> None:
    parse = build_parser().parse_args
    found = parse(["watch", "--on-hang", "./tell 'two words' $X", "--hang-after", "60"])
    assert found.on_hang == ["./tell", "two words", "$X"]
    for wrong in (["--on-hang", "'"], ["--on-hang", " "], ["--keep", "0"], ["--wait-for-job", "0"]):
        with pytest.raises(SystemExit) as ended:
            parse(["watch", *wrong])
        assert ended.value.code == 2


class FullDisk(io.StringIO):
    """A file that takes nothing until there is room."""

    room = False

    def write(self, text: str) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_full_disk_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = FullDisk()
    monkeypatch.setattr(sys, "stdout", full)
    teller = Teller(Renamer(), json=True)
    teller.stopped()
    full.room = True
    teller.stopped()
    teller.close()
    assert [json.loads(line)["event"] for line in full.getvalue().splitlines()] == ["stopped"]
    assert capsys.readouterr().err == "hangtop: 1 message could not be printed at once\n"


class Clock:
    """A session on which no update ever comes, while somebody sets the clock."""

    latest = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.turns = monkeypatch, 0

    def wait(self, predicate: object, timeout: float) -> None:
        self.turns += 1
        if self.turns == 3:
            really = time.time
            self.patch.setattr(time, "time", lambda: really() + 3600.0)


def test_when_the_clock_is_set_all_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = argparse.Namespace(wait_for_job=None)
    session = Clock(monkeypatch)
    teller = Teller(Renamer(), json=True)
    assert Watch(arguments, None, teller).run(session) is None  # type: ignore[arg-type]
    assert session.turns == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["event"], told["by_s"]) == ("clock", pytest.approx(3600.0, abs=1.0))


def ended(state: JobState, cause: str, *blamed: int, sure: float = 0.9) -> str | None:
    culprits = tuple(Culprit(rank, "n1", 7) for rank in blamed)
    verdict = Verdict(cause, sure, culprits, (), "so it was", (), ())
    ranks = tuple(
        Rank(i, "n1", "exited", Process(7 + i, 1, 1, 0.0, "rank", "a rank", "S")) for i in (0, 1)
    )
    diagnosis = Diagnosis("", "", "", 1.0, state, None, None, None, (verdict,))
    return why_ended(Happened("ended", 0.0, replace(JOB, ranks=ranks), diagnosis))


def test_why_a_job_has_ended_is_told_where_it_was_seen() -> None:
    assert ended("exited", "rank-exited", 1) == "rank-exited: so it was"
    assert ended("exited", "rank-oom-killed", 0, 1) == "rank-oom-killed: so it was"
    assert ended("exited", "rank-oom-killed", 0, sure=0.7) is None, "something was killed there"
    assert ended("exited", "rank-exited", 0, sure=0.5) is None, "it has left first, no more"
    assert ended("hung", "rank-exited", 1) is None


HUNG = Verdict("io-wait", 0.9, (Culprit(1, "n1", 8),), (0,), "rank 1 reads", (), ())


def over(lasted: float | None = 75.0) -> Diagnosis:
    """Of a job that has ended, mostly after hanging."""
    verdicts = (HUNG,) if lasted is not None else ()
    end = Ended(90.0, "rank 0 timed out: waited 60 s", lasted, 80.0)
    return Diagnosis("", "", "", 1.0, "exited", None, None, None, verdicts, ended=end)


def test_an_end_after_a_hang_is_told_with_its_last_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = Happened("ended", 91.0, JOB, over(), 75.0)
    Teller(Renamer(), json=False).tell(one)
    text = " ".join(capsys.readouterr().out.split())
    assert "has ended after it hung for 1:15" in text
    assert "rank 0 timed out: waited 60 s." in text
    assert "io-wait: rank 1 reads" in text
    Teller(Renamer(), json=True).tell(one)
    told = json.loads(capsys.readouterr().out)
    assert (told["diagnosis"]["state"], told["after_s"]) == ("exited", 75.0)
    assert told["diagnosis"]["ended"]["after_hanging_s"] == 75.0
    assert told["diagnosis"]["verdicts"][0]["cause"] == "io-wait"
    lost = Happened("ended", 91.0, JOB, replace(over(), state="unknown"), 75.0)
    Teller(Renamer(), json=False).tell(lost)
    text = " ".join(capsys.readouterr().out.split())
    assert "was lost from sight after it hung for 1:15" in text
    assert "It was last seen at" in text
    assert "io-wait: rank 1 reads" in text
    Teller(Renamer(), json=True).tell(Happened("ended", 91.0, JOB, over(None)))
    assert json.loads(capsys.readouterr().out)["diagnosis"] is None


def test_a_restart_is_told_with_what_ended_the_attempt_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    past = PastAttempt(1, Ended(90.0, "rank 0 timed out", 75.0), (HUNG,))
    now = Diagnosis("", "", "", 1.0, "starting", None, None, None, past_attempts=(past,))
    now = replace(now, attempt=Attempt(2, 6))
    Teller(Renamer(), json=False).tell(Happened("restarted", 95.0, JOB, now, 75.0))
    text = " ".join(capsys.readouterr().out.split())
    assert "was started again after it hung for 1:15 (attempt 2 of 6)" in text
    assert "attempt 1 ended after hanging 1:15" in text
    assert "rank 0 timed out. io-wait: rank 1 reads" in text
    Teller(Renamer(), json=True).tell(Happened("restarted", 95.0, JOB, now, 75.0))
    (told,) = json.loads(capsys.readouterr().out)["diagnosis"]["past_attempts"]
    assert (told["number"], told["verdicts"][0]["cause"]) == (1, "io-wait")


def test_the_command_of_a_hang_that_is_over_is_told_for_how_long_it_lasted() -> None:
    told = variables(JOB, over(), None)
    assert (told["HANGTOP_HUNG_FOR"], told["HANGTOP_STATUS"]) == ("75", "10")
    assert (told["HANGTOP_CAUSE"], told["HANGTOP_STATE"]) == ("io-wait", "exited")


class Played:
    """A session that has seen some updates of a job, the last of them of its end."""

    def __init__(self, *states: Diagnosis) -> None:
        self.commands: tuple[object, ...] = ()
        self.left = [self._update(100.0 + 5 * n, one) for n, one in enumerate(states)]
        self.latest = self.left[-1]

    def _update(self, at: float, diagnosis: Diagnosis) -> Update:
        gone = at if diagnosis.state == "exited" else None
        ranks = tuple(
            Rank(
                number,
                "n1",
                "exited" if gone else "sleeping",
                Process(7 + number, 1, 1, 0.0, "rank", "a rank", "S", gone_at=gone, node="n1"),
            )
            for number in range(4)
        )
        job = replace(JOB, ranks=ranks)
        return Update(Snapshot(at, 0.0, 1, (), (job,)), {job.key: diagnosis})

    def wait(self, predicate: object, timeout: float) -> Update:
        return self.left.pop(0)


RUNS = Diagnosis("", "", "", 1.0, "progressing", None, None, None)
HANGS = Diagnosis("", "", "", 1.0, "hung", 40.0, None, None, (HUNG,), stalled_for_s=40.0)


@pytest.mark.parametrize("option", ["--once", "--until-exit"])
@pytest.mark.parametrize(
    ("states", "status"),
    [
        ((RUNS, HANGS, over()), 10),
        ((RUNS, HANGS, HANGS, over()), 10),
        ((RUNS, HANGS, HANGS, RUNS, over()), 10),
        ((RUNS, over(None), over(None)), 0),
    ],
)
def test_the_exit_status_of_a_job_that_hung_until_it_ended(
    option: str,
    states: tuple[Diagnosis, ...],
    status: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = f"sh -c 'echo $HANGTOP_HUNG_FOR > {tmp_path}/told'"
    arguments = build_parser().parse_args(["watch", option, "--on-hang", command])
    arguments.on_hang_limit = 5.0
    arguments.job_key = None
    watch = Watch(arguments, None, Teller(Renamer(), json=True))
    assert watch.run(Played(*states)) == status  # type: ignore[arg-type]
    told = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert told.count("hang") == (status == 10)
    assert (tmp_path / "told").exists() == (status == 10)


def test_what_the_guide_shows_are_commands() -> None:
    """The batch script, the service, the line of cron, and the others."""
    guide = (Path(__file__).parents[4] / "docs/watch.md").read_text().replace("\\\n", " ")
    shown = re.findall(r"hangtop (watch(?: [^\n`&>]*)?)", guide)
    with_options = [one for one in shown if "--" in one]
    assert len(with_options) >= 5
    assert any("--until-exit" in one and "$SLURM_JOB_ID" in one for one in with_options)
    for one in with_options:
        command = re.split(r"\s{2,}|\s*$", one)[0]
        assert build_parser().parse_args(shlex.split(command)).subcommand == "watch"


def test_text_lines_have_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    Teller(Renamer(), json=False).stopped()
    line = capsys.readouterr().out
    assert time.strptime(line[:19], "%Y-%m-%d %H:%M:%S")
    assert line[19:] == "  told to stop; 0 hangs seen\n"
