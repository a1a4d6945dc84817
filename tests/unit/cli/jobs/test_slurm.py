"""Which Slurm job is meant, and by what its nodes are reached."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.jobs.targets import launchers, session_options, slurm_target
from hangtop.cli.main import main
from hangtop_core.errors import UsageError
from support.arguments import options_of

if TYPE_CHECKING:
    from pathlib import Path

HERE = socket.gethostname()


@pytest.fixture(autouse=True)
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue that knows job 7 on three nodes and job 8 on this one, and notes each question."""
    script = tmp_path / "squeue"
    script.write_text(
        "#!/bin/sh\n"
        f"echo x >>{tmp_path}/asked\n"
        'case "$*" in\n'
        "*'-j 7 '*) echo '7|7|7|20001|alice|SUSPENDED|n[1-3]|None' ;;\n"
        f"*'-u '*) cat {tmp_path}/mine ;;\n"
        f"*'-j 8 '*) echo '8|8|8|0|root|RUNNING|{HERE}|None' ;;\n"
        "*) echo 'error: Invalid job id specified' >&2; exit 1 ;;\n"
        "esac\n"
    )
    script.chmod(0o755)
    (tmp_path / "srun").symlink_to(script)
    (tmp_path / "ssh").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return tmp_path


def ways(*words: str) -> list[tuple[str, str]]:
    return [(one.node, one.via) for one in launchers(options_of(*words))]


def test_a_job_is_its_nodes_by_ssh_first() -> None:
    assert ways("--job", "7") == [("n1", "ssh"), ("n2", "ssh"), ("n3", "ssh")]
    assert ways("--job", "7", "-x", "n2", "--via", "srun") == [("n1", "srun"), ("n3", "srun")]
    assert ways("--job", "7", "-w", "n3", "--via", "ssh") == [("n3", "ssh")]
    assert ways("--job", "8") == [(HERE, "this machine")]


def test_the_one_job_of_mine(squeue: Path) -> None:
    mine = squeue / "mine"
    mine.write_text("7|RUNNING|1-02:03:04|N/A|n[1-3]|None|train\n")
    assert ways("--job", "mine") == ways("--job", "7")
    mine.write_text(
        "7|RUNNING|1-02:03:04|N/A|n[1-3]|None|train\n8|RUNNING|5:06|N/A|n9|None|eval\x1b[2J\n"
    )
    with pytest.raises(UsageError, match="2 jobs of yours run") as error:
        ways("--job", "mine")
    assert "--job 7  train, for 1-02:03:04, 3 nodes" in (error.value.help or "")
    assert "\x1b" not in (error.value.help or "")
    mine.write_text("")
    with pytest.raises(UsageError, match="no job of yours runs"):
        ways("--job", "mine")


def test_a_job_of_mine_is_found_whatever_its_name(squeue: Path) -> None:
    mine = squeue / "mine"
    mine.write_text("7|RUNNING|1-02:03:04|N/A|n[1-3]|None|lr=1|x=2\x0b\u2028\n")
    assert ways("--job", "mine") == ways("--job", "7")
    mine.write_text("7|RUNNING|1-02:03:04|N/A|n 1|None|train\n")
    with pytest.raises(UsageError, match=r"what cannot be read: '7.*n 1"):
        ways("--job", "mine")


def test_components_of_a_job_of_mine_are_one_job(squeue: Path) -> None:
    mine = squeue / "mine"
    mine.write_text("7+1|RUNNING|5:06|N/A|n3|None|eval\n7+0|RUNNING|5:06|N/A|n[1-2]|None|train\n")
    assert ways("--job", "mine") == ways("--job", "7")
    mine.write_text(
        "7+1|RUNNING|5:06|N/A|n3|None|eval\n7+0|RUNNING|5:06|N/A|n[1-2]|None|train\n8|RUNNING|1:00|N/A|n9|None|other\n"
    )
    with pytest.raises(UsageError, match="2 jobs of yours run") as error:
        ways("--job", "mine")
    assert "--job 7  train, for 5:06, 3 nodes" in (error.value.help or "")


def test_without_ssh_srun_is_all_there_is(squeue: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{squeue}")
    assert ways("--job", "7", "-w", "n[1-2]") == [("n1", "ssh"), ("n2", "ssh")]
    (squeue / "ssh").unlink()
    assert ways("--job", "7", "-w", "n[1-2]") == [("n1", "srun"), ("n2", "srun")]
    assert ways("--job", "8") == [(HERE, "this machine")]


def test_slurm_is_asked_once_and_the_session_knows_the_job(
    squeue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = options_of("--job", "7")
    found = session_options(arguments)
    launchers(arguments)
    assert (found.slurm_jobs, found.slurm_step) == (("7",), None)
    assert found.all_users, "alice's processes are what is asked for"
    assert not session_options(options_of("--job", "8")).all_users
    assert (squeue / "asked").read_text() == "x\n" * 2, "once for each command"
    assert capsys.readouterr().err.count("is SUSPENDED") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--job", "9"), "knows no job 9"),
        (("--job", "7", "-w", "n9"), "n9 is not of job 7"),
        (("--job", "7", "--via", "local"), "is another machine"),
        (("--job", "7", "--via", "srun", "-l", "bob"), "leave out --user"),
        (("--via", "srun"), "needs a Slurm job"),
        (("--job", "7", "-x", "n[1-3]"), "excluded"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_used_is_wrong_usage(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *words]) == 2
    assert said in capsys.readouterr().err


def test_inside_an_allocation_its_job_is_looked_at_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    arguments = options_of()
    assert [one.node for one in launchers(arguments)] == ["n1", "n2", "n3"]
    assert "this shell is in Slurm job 7; looking at its 3 nodes n[1-3]" in capsys.readouterr().err
    assert slurm_target(arguments).notices[0].startswith("this shell is in Slurm job 7")
    assert session_options(arguments).slurm_jobs == ("7",)


@pytest.mark.parametrize("words", [("--via", "local"), ("--pid", "1"), ("-w", "n5")], ids=" ".join)
def test_inside_an_allocation_what_is_asked_for_counts(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, squeue: Path
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    arguments = options_of(*words)
    assert len(launchers(arguments)) == 1
    assert session_options(arguments).slurm_jobs == ()
    assert not (squeue / "asked").exists()


@pytest.mark.parametrize("job", ["8", "9"])
def test_an_allocation_of_this_machine_alone_or_none_at_all_changes_nothing(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    arguments = options_of()
    assert [one.via for one in launchers(arguments)] == ["this machine"]
    told = "SLURM_JOB_ID is set, but Slurm knows no job 9" if job == "9" else ""
    assert told in capsys.readouterr().err
