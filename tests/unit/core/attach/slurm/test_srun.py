"""The command lines of srun, and whose its lines are, as Slurm 22.05 writes them."""

from __future__ import annotations

import json

import pytest

from hangtop_core.attach.connect.channel import Part
from hangtop_core.attach.slurm.slurm import Part as Nodes
from hangtop_core.attach.slurm.slurm import SlurmJob
from hangtop_core.attach.slurm.srun import SHARE_FROM, BroadcastStep, SrunLauncher, srun_launchers
from hangtop_core.attach.ways.either import ENOUGH, EitherLauncher, SshRefusals
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_probe.wire import wire

NODES = ("n1", "n2", "n3")
MANY = tuple(f"m{number}" for number in range(SHARE_FROM))
FAILED = b"srun: error: Task launch for StepId=1.4 failed on node m2: Socket timed out"


def job(*parts: Nodes) -> SlurmJob:
    return SlurmJob("7", "7", ("7",), 0, "root", "RUNNING", parts)


def step() -> BroadcastStep:
    return BroadcastStep(NODES, ["srun"])


def relay(number: object) -> bytes:
    return wire.MAGIC + json.dumps({"id": 0, "relay": number}).encode()


def test_nothing_of_this_shells_allocation_reaches_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "64")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    argv = SrunLauncher("n1", job(Nodes(("n1",))), None, Login()).argv()
    at = argv.index("srun")
    assert argv[:at][0] == "env"
    assert "SLURM_NTASKS" in argv[:at]
    assert "SLURM_CONF" not in argv[:at]
    assert {"--overlap", "--gres=none", "--jobid=7", "--nodelist=n1", "--nodes=1"} <= set(argv)
    assert argv[-3:-1] == ["/bin/sh", "-c"]
    assert "--label" not in argv


def test_few_nodes_have_steps_of_their_own_and_many_share_one() -> None:
    few = srun_launchers(job(Nodes(MANY[1:])), Login(), MANY[1:])
    assert {one.channel for one in few} == {None}
    many = srun_launchers(job(Nodes(MANY)), Login(), MANY)
    assert len({one.channel for one in many}) == 1
    channel = many[0].channel
    assert channel is not None
    assert channel.nodes == set(MANY)
    assert "--label" in channel.begin(MANY).argv


def test_components_are_reached_by_the_leader_and_their_number() -> None:
    launchers = srun_launchers(job(Nodes(("a",), 0), Nodes(("b",), 1)), Login(), ["a", "b"])
    assert [one.node for one in launchers] == ["a", "b"]
    assert all(f"--het-group={i}" in one.argv() for i, one in enumerate(launchers))
    assert all("--jobid=7" in one.argv() for one in launchers)


def test_a_node_that_spoils_the_step_goes_by_itself_from_then_on() -> None:
    launchers = srun_launchers(job(Nodes(MANY)), Login(), MANY)
    endings = [one.explain(140, FAILED.decode(), False) for one in launchers]
    assert [one.channel is None for one in launchers] == [node == "m2" for node in MANY]
    assert endings[2].state == "unreachable"
    assert {ending.state for ending in endings[:2] + endings[3:]} == {"connecting"}
    channel = launchers[0].channel
    assert channel is not None
    assert "m2" not in channel.nodes


@pytest.mark.parametrize("late", [False, True])
def test_that_the_time_limit_came_is_not_forgotten(late: bool) -> None:
    (one,) = srun_launchers(job(Nodes(("n1",))), Login(), ["n1"])
    ended = "0: slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***\n"
    if late:  # that connection was left already, and the next one begun
        one.late(ended)
    else:
        one.explain(143, ended, True)
    ending = one.explain(1, "srun: error: Slurm job 7 has expired\n", True)
    assert (ending.state, ending.retry) == ("lost", False)
    assert "time limit" in ending.reason


def test_a_task_says_which_node_it_is_and_is_heard_from_then_on() -> None:
    one = step()
    assert one.output_part(b"0: banner of a node nobody knows yet") is None
    assert one.output_part(b"0: " + relay(2)) is None
    assert one.output_part(b" 1: noise " + relay(0)) is None
    assert one.output_part(b"0: hello") == Part("n3", b"hello")
    assert one.output_part(b" 1: a: b") == Part("n1", b"a: b")
    assert one.output_part(b"srun: something") is None


@pytest.mark.parametrize("lie", [2, -1, 3, None, "n1", {}, 1e300])
def test_a_node_cannot_speak_for_another(lie: object) -> None:
    one = step()
    one.output_part(b"0: " + relay(2))
    assert one.output_part(b"1: " + relay(lie)) is None
    assert one.output_part(b"1: hello") is None
    one.output_part(b"0: " + relay(1))
    assert one.output_part(b"0: hello") == Part("n3", b"hello")


def test_standard_error_is_told_by_label_and_by_name() -> None:
    one = step()
    one.output_part(b"0: " + relay(2))
    traceback = b"0: ImportError: no module"
    assert one.error_part(traceback) == Part("n3", traceback)
    exited = b"srun: error: n2: task 1: Exited with exit code 127"
    assert one.error_part(exited) == Part("n2", exited, over=True, code=127)
    killed = b"srun: error: n1: task 0: Killed"
    assert one.error_part(killed) == Part("n1", killed, over=True)
    stepd = b"1: slurmstepd-n2: error: execve(): /no/python: No such file or directory"
    assert one.error_part(stepd) == Part("n2", stepd)
    assert one.error_part(b"srun: error: n9: task 4: Killed") is None
    assert one.error_part(FAILED) is None
    assert one.error_part(b"0: slurmstepd-n1: error: *** STEP 1.2 ON n1 CANCELLED AT x ***") is None


def test_frames_name_nodes_by_their_number() -> None:
    one = step()
    assert one.frame(NODES, b"x\n") == b"* d 2\nx\n"
    assert one.frame(["n3", "n2"], b"x") == b"1-2 d 1\nx"
    assert one.frame(["n1"], None) == b"0 e 0\n"


def either(doors: SshRefusals, node: str = "n1") -> EitherLauncher:
    slurm = SrunLauncher(node, job(Nodes(NODES)), None, Login())
    return EitherLauncher(SshLauncher(node, Login()), slurm, doors)


REFUSED = "ssh: connect to host n1 port 22: Connection refused"
CUT = "Connection to n1 closed by remote host."


def test_srun_takes_over_where_ssh_does_not_get_in() -> None:
    one = either(SshRefusals())
    assert (one.via, one.argv()[0]) == ("ssh", "ssh")
    ending = one.explain(255, CUT, False)
    assert (ending.state, ending.retry) == ("connecting", True)
    assert "by srun instead" in ending.reason
    assert "srun" in one.argv()
    assert one.via.startswith("srun (ssh: its sshd ended the connection")


@pytest.mark.parametrize(
    ("code", "stderr", "ready", "state"),
    [(127, "", False, "no-python"), (255, REFUSED, True, "lost")],
)
def test_what_srun_would_not_change_stays_with_ssh(
    code: int, stderr: str, ready: bool, state: str
) -> None:
    one = either(SshRefusals())
    one.argv()
    assert one.explain(code, stderr, ready).state == state
    assert (one.via, one.argv()[0]) == ("ssh", "ssh")


def test_after_a_few_closed_doors_the_others_begin_with_srun() -> None:
    doors = SshRefusals()
    begun = [either(doors) for _ in range(ENOUGH + 1)]
    for one in begun:
        one.argv()
    for one in begun[:ENOUGH]:
        one.explain(255, REFUSED, False)
    late = either(doors)
    assert "srun" in late.argv()
    assert "other nodes" in late.via
    assert begun[ENOUGH].via == "ssh", "already on its way"
