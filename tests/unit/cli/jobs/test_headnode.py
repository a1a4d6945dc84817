"""Where nothing says where to look: this machine's ranks first, else this user's Slurm jobs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hangtop.cli.commands import screen
from hangtop.cli.jobs import headnode
from hangtop.cli.jobs.targets import launchers, session_options, slurm_target
from hangtop.cli.main import main
from hangtop_core.attach.ways.local import LocalLauncher
from support.arguments import options_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hangtop.source.slurm_jobs import SlurmJobs

TRAIN = "7|RUNNING|1-02:03:04|N/A|n[1-3]|None|train\n"
EVAL = "8|RUNNING|5:06|N/A|n9|None|eval\n"


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A head node: no rank runs here, and a squeue prints the file `mine`, or jobs 7 and 8."""
    program = tmp_path / "squeue"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >>{tmp_path}/asked\n'
        f"[ -e {tmp_path}/failure ] && {{ cat {tmp_path}/failure >&2; exit 1; }}\n"
        'case "$*" in\n'
        "*'-j 7 '*) echo '7|7|7|'$(id -u)'|me|RUNNING|n[1-3]|None' ;;\n"
        "*'-j 8 '*) echo '8|8|8|'$(id -u)'|me|RUNNING|n9|None' ;;\n"
        f"*'-t all'*) cat {tmp_path}/all ;;\n"
        f"*) cat {tmp_path}/mine ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    for name in ("ssh", "srun"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "mine").write_text(TRAIN)
    (tmp_path / "all").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(headnode, "has_ranks_here", lambda _: False)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    return tmp_path


def nodes_of(*words: str) -> list[str]:
    return [one.node for one in launchers(options_of(*words))]


def is_local(*words: str) -> bool:
    return [type(one) for one in launchers(options_of(*words))] == [LocalLauncher]


@pytest.mark.parametrize("command", [(), ("diagnose",), ("dump",), ("watch",)], ids=str)
def test_the_only_job_is_looked_at_and_that_is_said(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = options_of(*command)
    assert [one.node for one in launchers(arguments)] == ["n1", "n2", "n3"]
    assert session_options(arguments).slurm_jobs == ("7",)
    told = "no rank runs here; looking at your Slurm job 7, its 3 nodes n[1-3] (--via local: here)"
    assert capsys.readouterr().err == f"hangtop: {told}\n"
    assert slurm_target(arguments).notices == (told,)


def test_a_rank_of_this_machine_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headnode, "has_ranks_here", lambda _: True)
    assert is_local("dump")


@pytest.mark.parametrize(
    "words",
    [("dump", "--via", "local"), ("dump", "--pid", "1"), ("doctor",), ("nettest",)],
    ids=" ".join,
)
def test_who_says_where_to_look_is_not_led_elsewhere(words: tuple[str, ...], slurm: Path) -> None:
    assert is_local(*words)
    assert not (slurm / "asked").exists()


def test_who_names_nodes_is_not_led_elsewhere(slurm: Path) -> None:
    assert nodes_of("dump", "-w", "n5") == ["n5"]
    assert not (slurm / "asked").exists()


def test_of_several_one_is_to_be_chosen(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "mine").write_text(TRAIN + EVAL)
    assert main(["diagnose"]) == 2
    told = capsys.readouterr().err
    assert "2 jobs of yours run" in told
    assert "--job 7  train, for 1-02:03:04, 3 nodes n[1-3], RUNNING" in told
    assert "--job 8  eval, for 5:06, 1 node n9, RUNNING" in told


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ("squeue: fatal: Could not establish a configuration source", ""),
        ("squeue: fatal: Unable to process configuration file", ""),
        ("error: unable to open '/etc/slurm/slurm.conf': No such file", ""),
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            "squeue failed: slurm_load_jobs error: Unable to contact slurm controller (connect "
            "failure); looking at this machine",
        ),
    ],
)
def test_without_a_slurm_that_answers_it_is_this_machine(
    failure: str, told: str, slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "failure").write_text(f"{failure}\n")
    assert is_local("dump")
    assert told in capsys.readouterr().err
    assert (slurm / "asked").read_text().count("\n") == 1


def test_a_slurm_that_does_not_answer_is_not_waited_for(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(headnode, "PATIENCE_S", 0.2)
    (slurm / "squeue").write_text("#!/bin/sh\nexec sleep 100\n")
    assert is_local("dump")
    assert "Slurm does not answer" in capsys.readouterr().err


def test_without_slurm_nothing_changes(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert is_local("dump")
    assert capsys.readouterr().err == ""


def test_where_none_runs_it_is_said_what_became_of_the_last(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "mine").write_text("")
    assert is_local("dump")
    assert capsys.readouterr().err == ""
    (slurm / "all").write_text("9|PENDING|0:00|N/A||Resources|sweep\n")
    assert is_local("dump")
    waits = "your job 9 (sweep) waits: PENDING (Resources); looking at this machine"
    assert waits in capsys.readouterr().err


def test_a_job_that_ends_in_between_is_not_looked_at(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "mine").write_text(TRAIN.replace("7|", "9|", 1))
    assert is_local("dump")
    assert "looking at this machine" in capsys.readouterr().err


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[list[str], list[str]]]]:
    """Open the app, in which the first time a job is chosen; return nodes and choices each time."""

    def look(*words: str, choose: str) -> list[tuple[list[str], list[str]]]:
        seen: list[tuple[list[str], list[str]]] = []

        def run_app(session: screen.Session, *, slurm: SlurmJobs, **_: object) -> int:
            nodes = [one.node for one in session._launchers]
            seen.append((nodes, [job.name for job in slurm.jobs]))
            if len(seen) == 1:
                slurm.take(choose)
            return 0

        monkeypatch.setattr(screen, "run_app", run_app)
        monkeypatch.setattr(screen, "prepare", lambda: None)
        assert main(words) == 0
        return seen

    return look


def test_in_the_app_one_of_several_is_chosen_and_opened(
    slurm: Path, opened: Callable[..., list[tuple[list[str], list[str]]]]
) -> None:
    (slurm / "mine").write_text(TRAIN + EVAL)
    first, second = opened("--interval", "5", choose="Slurm 8")
    assert first[1] == ["7", "8"]
    assert second == (["n9"], [])


def test_another_job_is_opened_in_place_of_the_first(
    opened: Callable[..., list[tuple[list[str], list[str]]]],
) -> None:
    assert opened(choose="Slurm 8") == [(["n1", "n2", "n3"], []), (["n9"], [])]
    named, chosen = opened("-w", "n5", choose="Slurm 7")
    assert (named[0], chosen[0]) == (["n5"], ["n1", "n2", "n3"])


def test_what_else_was_asked_for_stays(slurm: Path) -> None:
    before = options_of("-w", "n5", "--job-key", "x", "--hang-after", "5", "--sudo")
    after = screen.on_job(before, "8")
    assert (after.job, after.nodes, after.job_key) == ("8", [], None)
    assert (after.hang_after, after.sudo) == (5.0, True)
    assert after.given == before.given - {"nodes", "job_key"} | {"job"}
    assert "nodes" in before.given
