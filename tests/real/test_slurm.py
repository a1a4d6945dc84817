"""Jobs of a real Slurm: found by their number, seen through steps beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.jobs import headnode
from hangtop.cli.main import main
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.slurm import sbcast, srun
from hangtop_core.attach.slurm.my_jobs import what_became
from hangtop_core.attach.slurm.slurm import find_job
from hangtop_core.attach.slurm.srun import srun_launchers
from hangtop_core.attach.ways.either import EitherLauncher, SshRefusals
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.session.session import Options, Session, Update
from support.cluster import hangtop_files
from support.judge import judge
from support.processes import PATIENCE, command_line, sleeps_joined, wait_until
from support.slurm import SlurmCluster, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.attach.connect.launcher import Launcher
    from hangtop_core.model.snapshot import Node
    from support.cluster import Node as TestNode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

ROOT = Path(__file__).parents[2]
GLOO_JOB = f"{sys.executable} {ROOT}/tests/support/gloo_job.py collective"
RANK = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
STORE = "export MASTER_ADDR=10.77.0.2 MASTER_PORT=29511 GLOO_SOCKET_IFNAME=eth0"
IDLE = f'exec {sys.executable} -c "import time; time.sleep(1000)"'
"""Of a rank that does nothing: enough to be found."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Four nodes that have neither hangtop nor py-spy."""
    with (
        SlurmCluster(tmp_path_factory.mktemp("slurm") / "c", 4, hangtop_files()) as cluster,
        cluster.on_path(),
    ):
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            del os.environ[name]  # back with PATH
        yield cluster


@pytest.fixture(scope="module")
def hung(slurm: SlurmCluster) -> str:
    """A job on nodes 1 to 3 in which rank 2 sleeps while the others all_reduce.

    It holds all GPUs there, so a step beside it must not ask for any.
    """
    script = f"{STORE}; srun sh -c '{RANK} exec {GLOO_JOB}'"
    job = slurm.submit(
        "-w", "node-[1-3]", "-N3", "--gres=gpu:2", "--ntasks-per-node=1", script=script
    )
    slurm.wait_state(job, "RUNNING")
    return job


@pytest.fixture(scope="module", autouse=True)
def ended(slurm: SlurmCluster, hung: str) -> str:
    """A job that is over: it ran while torch was imported in the other."""
    return slurm.submit("-N1", "-w", "node-4", script="true")


def asleep(node: TestNode) -> bool:
    """Whether the culprit of `hung`, on that node, has come to its sleep."""
    ranks = [pid for pid in node.pids() if "/gloo_job.py " in command_line(pid)]
    return any(map(sleeps_joined, ranks))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command line as a user does; return exit status and what it printed."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, "dump", "--json", *arguments)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_job_without_processes_is_said_so(
    slurm: SlurmCluster, ended: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.wait_state(ended, "COMPLETED")
    waiting = slurm.submit("-N4", "--exclusive", script="true")
    try:
        for job, told in (
            (ended, f"job {ended} has ended: COMPLETED"),
            (waiting, f"job {waiting} has not started: PENDING"),
            ("999999", "Slurm knows no job 999999"),
            (f"{ended}.7", f"job {ended}.7 has ended"),
        ):
            code, out, err = run(capsys, "diagnose", "--job", job)
            assert (code, out) == (2, "")
            assert told in err
    finally:
        slurm.run("scancel", waiting)


def test_only_the_task_of_an_array_that_is_asked_for_is_shown(
    slurm: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"export {RANK} MASTER_ADDR=n MASTER_PORT=1; {IDLE}"
    array = slurm.submit("--array=4-5", "-w", "node-4", "-n1", script=script)
    slurm.wait_state(f"{array}_4", "RUNNING")
    slurm.wait_state(f"{array}_5", "RUNNING")
    try:
        code, _, err = run(capsys, "dump", "--job", array, "--via", "srun")
        assert code == 2
        assert f"{array}_4" in err
        numbers = {}
        for task in ("4", "5"):
            found = dumped(capsys, "--job", f"{array}_{task}", "--via", "srun")
            (rank,) = found["ranks"]
            assert rank["node"] == "node-4"
            numbers[task] = rank["pid"]
        assert len(set(numbers.values())) == 2
    finally:
        slurm.run("scancel", array)


def test_components_of_one_job_are_seen_together(
    slurm: SlurmCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"srun --het-group=0,1 sh -c 'export {RANK} MASTER_ADDR=n MASTER_PORT=2; {IDLE}'"
    wrapped = ("-N1", "-w", "node-1", ":", "-N1", "-w", "node-4")
    job = slurm.submit(*wrapped, script=script)
    slurm.wait_state(job, "RUNNING")
    try:
        assert wait_until(lambda: f"{job}.0" in slurm.run("squeue", "-h", "-s", "-o", "%i"))
        for asked, nodes in ((job, {"node-1", "node-4"}), (f"{job}+1", {"node-4"})):
            found = dumped(capsys, "--job", asked, "--via", "srun")
            assert {rank["node"] for rank in found["ranks"]} == nodes
    finally:
        slurm.run("scancel", job)


def test_on_a_head_node_the_only_job_is_looked_at_and_of_several_one_is_chosen(
    slurm: SlurmCluster,
    hung: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No option says where; the ranks of other tests, on this machine, do not count."""
    monkeypatch.setattr(headnode, "has_ranks_here", lambda _: False)
    assert wait_until(lambda: asleep(slurm.node(3)))
    code, out, err = run(capsys, "dump", "--json")
    assert code == 0, err
    assert [rank["node"] for rank in json.loads(out)["ranks"]] == ["node-1", "node-2", "node-3"]
    assert f"looking at your Slurm job {hung}, its 3 nodes node-[1-3]" in err
    other = slurm.submit("-N1", "-w", "node-4", "-J", "a|b", script="sleep 1000")
    slurm.wait_state(other, "RUNNING")
    code, out, err = run(capsys, "dump", "--json")
    assert (code, out) == (2, "")
    assert "2 jobs of yours run" in err
    assert f"--job {other}  a|b, for 0:0" in err
    assert "1 node node-4, RUNNING" in err
    slurm.run("scancel", other)
    slurm.wait_state(other, "CANCELLED")
    assert what_became().startswith(f"your job {other} (a|b) ended ")
    assert what_became().endswith(" ago: CANCELLED")


@pytest.mark.parametrize("share_from", [2, 100], ids=["one step for all", "a step per node"])
def test_a_hung_job_is_diagnosed_where_ssh_is_closed(
    slurm: SlurmCluster,
    hung: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    share_from: int,
) -> None:
    monkeypatch.setattr(srun, "SHARE_FROM", share_from)
    assert wait_until(lambda: asleep(slurm.node(3)))
    if share_from == 2:
        # Nothing is there: probe and py-spy come through the step's standard input.
        for node in slurm.nodes:
            node.sh("rm -rf /run/home/root/.cache/hangtop")
    options = ("--via", "srun", "--observe", "1", "--hang-after", "1", "--json")
    code, out, err = run(capsys, "diagnose", "--job", hung, *options)
    diagnosis = json.loads(out)
    assert code == 10, err
    assert diagnosis["job"]["ranks_seen"] == [0, 1, 2], out
    (culprit,) = diagnosis["verdicts"][0]["culprits"]
    assert (culprit["rank"], culprit["node"]) == (2, "node-3")
    cached = slurm.node(1).sh("find /run/home/root/.cache/hangtop -name py-spy")
    assert cached.count("py-spy\n") >= 1
    left = slurm.run("squeue", "-h", "-s", "-j", hung, "-o", "%j")
    assert wait_until(lambda: "hangtop" not in slurm.run("squeue", "-h", "-s", "-o", "%j")), left


def test_a_hung_job_is_watched_and_its_script_knows_the_job(
    slurm: SlurmCluster, hung: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert wait_until(lambda: asleep(slurm.node(3)))
    script = tmp_path / "tell"
    script.write_text('#!/bin/sh\necho "$HANGTOP_JOB_ID $HANGTOP_RANKS $HANGTOP_NODES" > $1\n')
    script.chmod(0o700)
    where = ("--job", hung, "--via", "srun", "--output", str(tmp_path / "hangs"))
    when = ("--once", "--interval", "1", "--hang-after", "2", "--wait-for-job", "60")
    code = main(["watch", *where, *when, "--on-hang", f"{script} {tmp_path}/told"])
    out, err = capfd.readouterr()
    assert code == 10, err
    assert (tmp_path / "told").read_text() == f"{hung} 2 node-3\n"
    assert "--on-hang" in out


def test_the_doctor_looks_through_one_step_for_all(
    slurm: SlurmCluster,
    hung: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(srun, "SHARE_FROM", 2)
    assert wait_until(lambda: asleep(slurm.node(3)))
    code, out, err = run(capsys, "doctor", "--job", hung, "--via", "srun", "--json")
    assert code == 0, (out, err)
    said = json.loads(out)
    assert [node["node"] for node in said["nodes"]] == ["node-1", "node-2", "node-3"]
    for node in said["nodes"]:
        rungs = {rung["name"]: rung for rung in node["rungs"]}
        assert rungs["reach"]["text"] == "reached by srun"
        assert rungs["ptrace"]["detail"] == "1 rank there"
        assert rungs["flight recorder"]["state"] == "warning"


@pytest.mark.parametrize("via", ["ssh", "srun"])
def test_a_hung_job_that_is_cancelled_has_ended_by_scancel(slurm: SlurmCluster, via: str) -> None:
    """Steps of hangtop's in the job end with it: its nodes are then out of sight."""
    port = {"ssh": 29521, "srun": 29522}[via]
    script = (
        f"{STORE} MASTER_ADDR=10.77.0.5 MASTER_PORT={port}; srun sh -c '{RANK} exec {GLOO_JOB}'"
    )
    number = slurm.submit("-w", "node-4", "-N1", "-n3", script=script)
    slurm.wait_state(number, "RUNNING")
    job = find_job(number)
    by_srun = srun_launchers(job, Login(), job.nodes)
    launchers = by_srun if via == "srun" else [SshLauncher("node-4", Login())]
    options = Options(hang_after=3.0, sample_every=1.0, slurm_jobs=job.ids)
    with Session(options, diagnose, launchers) as session:
        assert session.wait(
            lambda u: any(d.state == "hung" for d in u.diagnoses.values()), PATIENCE
        )
        slurm.run("scancel", number)
        seen = session.wait(lambda u: "scancel" in ended_by(u), PATIENCE)
        assert seen is not None, session.latest and ended_by(session.latest)
    (found,) = seen.diagnoses.values()
    assert found.hung_until_end
    assert found.ended is not None
    assert found.ended.by == "cancelled with scancel"


def ended_by(update: Update) -> str:
    """What is said to have ended any job."""
    return " ".join(one.ended.by for one in update.diagnoses.values() if one.ended is not None)


def attach(launchers: Sequence[Launcher]) -> Session:
    return Session(Options(), judge, launchers)


def states(update: Update) -> dict[str, str]:
    return {node.name: node.state for node in update.snapshot.nodes}


def nodes(update: Update) -> dict[str, Node]:
    return {node.name: node for node in update.snapshot.nodes}


TOKEN = "5ca1ab1e" * 4
BY_SBCAST: dict[str, tuple[str, ...]] = {
    "works": ("done",),
    "missing": ("sbcast is not on PATH; sent through srun's own input instead",),
    "link planted": (f"no room on node-2: /tmp/hangtop-{TOKEN}: File exists; sent ",),
    "room gone": ("sbcast: error: REQUEST_FILE_BCAST(node-2): No such file or directory; sent ",),
    "damaged": ("done", "not what was sent; sent "),
    "node frozen": (
        "REQUEST_FILE_BCAST(node-2): Communication connection failure; started again without it",
        "done",
    ),
}


@pytest.mark.parametrize("case", BY_SBCAST)
def test_py_spy_comes_by_sbcast_and_else_by_the_step_s_input(
    slurm: SlurmCluster, hung: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    monkeypatch.setattr(srun, "SHARE_FROM", 2)
    monkeypatch.setattr(sbcast, "NODES_FROM", 2)
    monkeypatch.setattr(sbcast, "MESSAGE_S", 1)
    paths = {
        "missing": lambda: slurm.path_without_sbcast(tmp_path),
        "room gone": lambda: slurm.path_around_sbcast(tmp_path, before="rmdir {room}"),
        "damaged": lambda: slurm.path_around_sbcast(tmp_path, after="echo | tee -a {room}/bulk"),
        "node frozen": lambda: slurm.path_around_sbcast(tmp_path, before="{enter} kill -STOP -1"),
    }
    for node in slurm.nodes:
        node.sh("rm -rf /run/home/root/.cache/hangtop")
    if case == "link planted":
        monkeypatch.setattr("secrets.token_hex", lambda _: TOKEN)
        slurm.node(2).sh(f"mkdir /run/victim; ln -s /run/victim /tmp/hangtop-{TOKEN}")
    job = find_job(hung)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if case in paths:
                patch.setenv("PATH", paths[case]())
            with attach(srun_launchers(job, Login(), job.nodes)) as session:
                others = {"node-1", "node-3"}
                update = session.wait(
                    lambda u: {n for n, s in states(u).items() if s == "ready"} >= others, PATIENCE
                )
                assert update is not None, session.latest
                slurm.node(2).thaw()
                update = session.wait(lambda u: set(states(u).values()) == {"ready"}, PATIENCE)
                assert update is not None, session.latest
                outcomes = [one.outcome for one in session.commands if "sbcast" in one.what]
    finally:
        slurm.node(2).thaw()
    assert all(node.capabilities["py-spy"].ok for node in update.snapshot.nodes)
    assert (max(node.generation for node in update.snapshot.nodes) == 0) == (case != "node frozen")
    assert len(outcomes) == len(BY_SBCAST[case])
    for told, outcome in zip(BY_SBCAST[case], outcomes, strict=True):
        assert told in outcome
    look = "cd /tmp; echo hangtop-*; ls -A /run/victim 2>/dev/null || true"
    left = [f"hangtop-{TOKEN}" if case == "link planted" else "hangtop-*"]
    assert wait_until(lambda: slurm.node(2).sh(look).split() == left)
    slurm.node(2).sh(f"rm -f /tmp/hangtop-{TOKEN}")


def test_where_ssh_is_closed_srun_takes_over(slurm: SlurmCluster, hung: str) -> None:
    job = find_job(hung)
    slurm.node(2).stop_sshd()
    try:
        doors = SshRefusals()
        by_srun = srun_launchers(job, Login(), job.nodes)
        either = [EitherLauncher(SshLauncher(s.node, Login()), s, doors) for s in by_srun]
        with attach(either) as session:
            update = session.wait(lambda u: set(states(u).values()) == {"ready"}, PATIENCE)
            assert update is not None, session.latest
        via = {name: node.via for name, node in nodes(update).items()}
        assert (via["node-1"], via["node-3"]) == ("ssh", "ssh")
        assert via["node-2"] is not None
        assert via["node-2"].startswith("srun (ssh: nobody answers on its ssh port")
    finally:
        slurm.node(2).start_sshd()


def test_a_step_by_hand_runs_beside_the_job(slurm: SlurmCluster, hung: str) -> None:
    """As verdicts print it, and as a prompt in a rank goes; it wants none of the job's GPUs."""
    job = find_job(hung)
    [launcher] = srun_launchers(job, Login(), [job.nodes[0]])
    argv = [*launcher.by_hand.shell, "echo $SLURMD_NODENAME"]
    assert "--gres=none" in argv, "where --overlap shares no GPUs, it would wait for the job"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (0, f"{job.nodes[0]}\n"), done.stderr


def test_a_node_that_ends_the_step_for_all_is_left_out(
    slurm: SlurmCluster, hung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(srun, "SHARE_FROM", 2)
    job = find_job(hung)
    frozen = slurm.node(2)
    frozen.freeze()
    try:
        with attach(srun_launchers(job, Login(), job.nodes)) as session:

            def gone(update: Update) -> bool:
                node = nodes(update)["node-2"]
                return node.state == "unreachable" and "cannot start" in (node.reason or "")

            update = session.wait(gone, PATIENCE)
            assert update is not None, session.latest
            assert nodes(update)["node-2"].fix is not None
            others = {"node-1", "node-3"}
            update = session.wait(
                lambda u: {n for n, s in states(u).items() if s == "ready"} == others, PATIENCE
            )
            assert update is not None, session.latest
            frozen.thaw()
            session.retry("node-2")
            update = session.wait(lambda u: set(states(u).values()) == {"ready"}, PATIENCE)
            assert update is not None, session.latest
            generations = {name: node.generation for name, node in nodes(update).items()}
            assert generations["node-1"] == generations["node-3"] == 1
    finally:
        frozen.thaw()


def test_labels_of_srun_are_ranks_in_logs(
    slurm: SlurmCluster, hung: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What three tasks print, one with an exception, through `srun --label` beside the job."""
    slurm.wait_state(hung, "RUNNING")
    code = "import os; print('step', flush=True); os.environ['SLURM_PROCID'] == '2' and {}['lost']"
    beside = [f"--jobid={hung}", "--overlap", "--label", "--gres=gpu:0", "-N3", "-n3"]
    path = tmp_path / "srun.out"
    with path.open("wb") as file:
        subprocess.run(
            [str(slurm.bin / "srun"), *beside, sys.executable, "-c", code],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=PATIENCE,
        )
    status, out, _ = run(capsys, "logs", "--json", str(path))
    first = json.loads(out)["first"]
    assert (status, first["ranks"], first["text"]) == (10, [2], "KeyError: 'lost'"), (
        path.read_text()
    )


def test_a_job_that_ends_while_it_is_looked_at_is_lost_for_good(
    slurm: SlurmCluster,
    hung: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(srun, "SHARE_FROM", 2)
    job = find_job(hung)
    with attach(srun_launchers(job, Login(), job.nodes)) as session:
        assert session.wait(lambda u: set(states(u).values()) == {"ready"}, PATIENCE)
        # The probes of one hangtop, tasks of the job as they are, are no ranks to another.
        code, out, err = run(capsys, "dump", "--json", "--job", hung, "--via", "srun")
        assert (code, err) == (0, ""), "one job, no choice to be made"
        assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [0, 1, 2]
        reasons: set[str | None] = set()
        session.subscribe(lambda u: reasons.update(node.reason for node in u.snapshot.nodes))
        slurm.run("scancel", hung)
        update = session.wait(
            lambda u: all("Slurm job is over" in (node.reason or "") for node in u.snapshot.nodes),
            PATIENCE,
        )
        assert update is not None, session.latest
        assert set(states(update).values()) == {"lost"}
        first = "Slurm ended the step hangtop looks through; connecting again"
        told = {reason for reason in reasons if reason and "no answer for" not in reason}
        assert told <= {first, nodes(update)["node-1"].reason}


def test_a_prepared_run_on_nodes_that_see_its_directory_and_on_nodes_that_do_not(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Nodes have a /tmp of their own, and everything else is shared."""
    told = "'hangtop_hook' in sys.modules, os.environ['TORCH_NCCL_TRACE_BUFFER_SIZE']"
    script = f"import os, sys; print(os.uname().nodename, {told}); sys.exit(3)"
    task = f'{RANK} exec {sys.executable} -c "{script}"'
    for folder, seen in (("/var/tmp", True), ("/tmp", False)):
        with tempfile.TemporaryDirectory(dir=folder) as directory:
            command = [sys.executable, "-m", "hangtop", "run", "--dir", directory, "--"]
            command += ["srun", "-N2", "-w", "node-[3-4]", "--ntasks-per-node=1", "sh", "-c", task]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path
            )
            assert done.returncode == 3, done.stderr
            said = [f"node-{rank + 3} {seen} 2000" for rank in (0, 1)]
            labels = [f"[node-{rank + 3}:{rank}]:" if seen else "" for rank in (0, 1)]
            lines = [label + text for label, text in zip(labels, said, strict=True)]
            assert sorted(done.stdout.splitlines()) == lines
            logs = sorted(path.name for path in Path(directory, "logs").iterdir())
            assert logs == (["rank0-node-3.out", "rank1-node-4.out"] if seen else [])
