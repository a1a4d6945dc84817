"""What ranks and nodes were told differently, how their software differs, and what to run there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.snapshot import Fact, Node
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.report.stacks import each_text
from support import situations
from support.build import HUNG_SINCE, World, judged
from support.halves import N1, N2, N3, culprits, halves, world
from support.situations import FUTEX, INIT, POLL, RENDEZVOUS, SLEEP, STOP, c10d, frame
from support.verdicts import blamed, causes, hung, printing

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Verdict
    from hangtop_core.model.snapshot import Rank
    from support.situations import Stack


# Contradictions


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            {"MASTER_PORT": "29501"},
            "MASTER_PORT differs: n1:29501 on n2 (ranks 2-3), n1:29500 on n1 (ranks 0-1)",
        ),
        (
            {"MASTER_ADDR": "10.0.0.9"},
            "MASTER_ADDR:MASTER_PORT differs: 10.0.0.9:29500 on n2 (ranks 2-3), n1:29500 on n1",
        ),
        ({"MASTER_ADDR": "localhost"}, "localhost:29500 on n2 (ranks 2-3), n1:29500 on n1"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE differs: 8 on n2 (ranks 2-3), 4 on n1 (ranks 0-1)"),
        (
            {"GROUP_WORLD_SIZE": "3"},
            "the number of nodes (GROUP_WORLD_SIZE) differs: 3 on n2 (ranks 2-3), 2 on n1",
        ),
    ],
)
def test_what_differs_is_said_with_where(told: dict[str, str], said: str) -> None:
    made = world()
    halves(made, "n1", "n2", told={"n2": told})
    verdict = hung(made, world_size=4)
    assert (verdict.cause, culprits(verdict)) == ("launch-misconfigured", [(2, "n2"), (3, "n2")])
    assert said in verdict.summary
    assert verdict.next_steps


def test_localhost_on_several_nodes() -> None:
    made = world()
    local = {"MASTER_ADDR": "127.0.0.1"}
    halves(made, "n1", "n2", told={"n1": local, "n2": local})
    verdict = hung(made, world_size=4)
    assert (verdict.cause, culprits(verdict)) == ("launch-misconfigured", [(2, "n2"), (3, "n2")])
    assert "MASTER_ADDR is 127.0.0.1 on n[1-2]: every node waits at a store of its own" in (
        verdict.summary
    )
    assert "the node of rank 0, which is n1" in verdict.next_steps[0]


@pytest.mark.parametrize("spelt", ["10.0.0.1", "n1.cluster", "N1", "head-of-n1"])
def test_another_spelling_is_no_contradiction(spelt: str) -> None:
    made = world()
    halves(made, "n1", "n2", told={"n2": {"MASTER_ADDR": spelt}})
    assert "launch-misconfigured" not in causes(judged(made, world_size=4))


def test_ranks_that_have_met_cannot_have_been_told_wrong() -> None:
    made = world()
    told = {"n2": {"MASTER_ADDR": "10.0.0.9", "WORLD_SIZE": "8"}}
    halves(made, "n1", "n2", stack=c10d("all_reduce"), told=told)
    assert "launch-misconfigured" not in causes(judged(made, world_size=4))


def test_one_node_rank_on_two_nodes() -> None:
    made = world()
    halves(made, "n1", "n2", first={"n2": 0})
    verdict = hung(made, world_size=4)
    assert (verdict.cause, culprits(verdict)) == ("launch-misconfigured", [(0, "n2"), (1, "n2")])
    assert "n1 and n2 both have node rank 0, and so all run ranks 0-1" in verdict.summary
    assert "rank-never-joined" not in causes(judged(made, world_size=4))


def test_what_is_left_of_an_earlier_run_is_to_be_ended_where_it_is() -> None:
    made = world(N1, replace(N2, shell="ssh n2", options="-w n2"))
    halves(made, "n1", "n2")
    made.add(INIT, POLL, rank=3, node="n2", process={"pid": 77, "ppid": 1})
    verdict = hung(made, world_size=4)
    assert (verdict.cause, [c.pid for c in verdict.culprits]) == ("launch-misconfigured", [77])
    assert "rank 3 is there twice: pid 77 on n2 is left from an earlier run" in verdict.summary
    assert verdict.next_steps[0] == "ssh n2 'kill 77'"
    snapshot = made.snapshot(world_size=4)
    told = diagnosis_text(diagnose(snapshot, snapshot.job(None)))
    assert "4 of 4 ranks seen (3 by more than one process) on n[1-2]" in told
    assert [
        line[:17] for line in each_text(snapshot, snapshot.jobs[0]).splitlines() if ":3" in line
    ] == [
        "n2:3  process 201",
        "n2:3  process 77:",
    ]


def test_a_helper_that_kept_its_rank_is_no_second_rank() -> None:
    made = world()
    halves(made, "n1", "n2")
    helper = {"pid": 77, "ppid": 1, "cmdline": ("python", "-m", "wandb.service")}
    made.add(INIT, POLL, rank=3, node="n2", process=helper)
    assert "launch-misconfigured" not in causes(judged(made, world_size=4))


@pytest.mark.parametrize("sizes", [("2", "2", "1"), ("3", "3", "3")])
def test_a_rank_counted_by_the_size_of_its_own_node(sizes: tuple[str, str, str]) -> None:
    made = World()
    for number, size in zip((0, 1, 1), sizes, strict=True):
        env = {"RANK": str(number), "LOCAL_WORLD_SIZE": size, "WORLD_SIZE": "3"}
        made.add(INIT, POLL, rank=number, process={"env": env})
    said = judged(made, world_size=3).verdicts[0].summary
    assert "rank 1 is claimed twice" in said
    assert ("which were told LOCAL_WORLD_SIZE=2 and 1" in said) == (sizes[2] == "1")
    assert "; no process seen is rank 2" in said


def test_a_rank_beyond_the_world() -> None:
    made = world()
    halves(made, "n1", "n2", told={"n1": {"WORLD_SIZE": "3"}, "n2": {"WORLD_SIZE": "3"}})
    verdict = hung(made, world_size=3)
    assert (verdict.cause, culprits(verdict)) == ("launch-misconfigured", [(3, "n2")])
    assert "ranks go up to 2" in verdict.summary


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nnodes=3", "--rdzv-endpoint=n1:29400"], "--nnodes differs: 2 on n1, 3 on n2"),
        (["--nnodes=2", "--rdzv-endpoint=n1:29401"], "n1:29400 on n1, n1:29401 on n2"),
        (["--nnodes=2", "--rdzv-endpoint=10.0.0.1:29400"], ""),
    ],
)
def test_launchers_that_wait_for_one_another_in_vain(options: list[str], said: str) -> None:
    made = world()
    told = {"n1": ["--nnodes=2", "--rdzv-endpoint=n1:29400"], "n2": options}
    verdict = waiting_launchers(made, told)
    assert verdict.cause == ("launch-misconfigured" if said else "rendezvous-incomplete")
    assert said in verdict.summary
    if not said:
        assert "waits on n[1-2] at the rendezvous n1:29400 for 2 nodes" in verdict.summary


def test_launchers_on_localhost_or_with_one_node_rank() -> None:
    made = world()
    static = ["--nnodes=2", "--master-addr=localhost", "--node-rank=0"]
    verdict = waiting_launchers(made, {"n1": static, "n2": static})
    assert "the rendezvous is on localhost on n[1-2]" in verdict.summary
    assert any("n1 and n2 both have node rank 0" in one.text for one in verdict.evidence)


def test_the_rendezvous_names_the_nodes_without_a_launcher() -> None:
    made = world(N1, N2, Node("n3", "unreachable", reason="down"))
    options = ["--nnodes=3", "--rdzv-endpoint=n1:29400"]
    verdict = waiting_launchers(made, {"n1": options})
    assert "(there is none on n2; n3 could not be observed)" in verdict.summary


def test_agents_in_programs_of_the_users_own_tell_nothing_of_what_they_were_told() -> None:
    verdict = waiting_launchers(world(), {"n1": [], "n2": []}, "elastic agent", "main.py")
    assert verdict.cause == "rendezvous-incomplete"
    assert verdict.summary.startswith(
        "2 elastic agents wait on n[1-2] at the rendezvous for others;"
    )
    assert "min_nodes, rdzv_endpoint and run_id" in verdict.next_steps[0]


def waiting_launchers(
    made: World,
    told: dict[str, list[str]],
    launcher: str = "torchrun",
    script: str = "torchrun",
    away: dict[str, Stack] | None = None,
) -> Verdict:
    """Diagnose launchers that have started no rank, one on each node."""
    launchers = [
        made.process(
            99,
            SLEEP,
            role="launcher",
            launcher=launcher,
            node=node,
            cmdline=("python", script, *options, "train.py"),
        )
        for node, options in told.items()
    ]
    stacks = {**dict.fromkeys(told, RENDEZVOUS), **(away or {})}
    samples = {f"{node}:99": made.sample(stack, pid=99) for node, stack in stacks.items()}
    return hung(
        made,
        launchers=tuple(launchers),
        launcher_samples=samples,
        world_size=None,
        nodes=tuple(told),
    )


ELASTIC = "torch/distributed/elastic/rendezvous/"
STATIC = frame("next_rendezvous", f"{ELASTIC}static_tcp_rendezvous.py", 67)
BACKEND = frame("_create_tcp_store", f"{ELASTIC}c10d_rendezvous_backend.py", 156)


def test_who_only_connects_to_the_rendezvous_does_not_wait_there() -> None:
    options = ["--nnodes=2", "--rdzv-endpoint=10.0.0.1:29400"]
    told = {"n1": options, "n2": options}
    verdict = waiting_launchers(world(), told, away={"n2": (BACKEND, *RENDEZVOUS[3:])})
    assert verdict.cause == "rendezvous-incomplete"
    assert (
        "torchrun (pid 99 on n2) tries to connect to the rendezvous 10.0.0.1:29400 in vain, "
        "where torchrun (pid 99 on n1) waits for others" in verdict.summary
    )
    away = dict.fromkeys(told, (STATIC, *RENDEZVOUS[3:]))
    said = waiting_launchers(world(), told, away=away).summary
    assert "torchrun on n[1-2] tries to connect to the rendezvous 10.0.0.1:29400" in said
    assert "waits" not in said


def test_launchers_that_were_told_otherwise_have_started_no_rank() -> None:
    options = ["--nnodes=2", "--rdzv-endpoint=n1:29400"]
    told = {"n1": [*options, "--rdzv-id=a"], "n2": [*options, "--rdzv-id=b"]}
    verdict = waiting_launchers(world(), told)
    assert verdict.cause == "launch-misconfigured"
    assert (
        "--rdzv-id differs: a on n1, b on n2; torchrun on n[1-2] is not through with the "
        "rendezvous, and no rank has been started" in verdict.summary
    )


def test_who_was_told_otherwise_has_no_keys_of_old_ranks_besides() -> None:
    made = World()
    for rank, (stack, size) in enumerate(((INIT, "4"), (c10d("broadcast"), "4"), (INIT, "5"))):
        made.add(stack, POLL, process={"env": {"RANK": str(rank), "WORLD_SIZE": size}})
    found = judged(made)
    assert "launch-misconfigured" in causes(found)
    assert "mismatched-collective" not in causes(found)


# Versions


def version_of(made: World, node: str, **versions: str) -> None:
    for at, rank in enumerate(made.ranks):
        if rank.node == node:
            process = replace(rank.process, versions={**rank.process.versions, **versions})
            made.ranks[at] = replace(rank, process=process)


def test_software_that_differs_between_nodes() -> None:
    made = world(N1, N2, N3)
    halves(made, "n1", "n2", "n3", size=6, stack=c10d("all_reduce"))
    for node in ("n1", "n2", "n3"):
        version_of(made, node, torch="2.13.0", nccl="2.27.5", python="3.11")
    assert hung(made, world_size=6).cause == "unknown"
    version_of(made, "n2", nccl="2.26.2", python="3.10")
    verdict = hung(made, world_size=6)
    assert (verdict.cause, culprits(verdict)) == ("version-mismatch", [(2, "n2"), (3, "n2")])
    assert "NCCL 2.26.2 on n2 (ranks 2-3), 2.27.5 on n[1,3] (ranks 0-1,4-5)" in verdict.summary
    assert any("Python 3.10 on n2" in one.text for one in verdict.evidence)
    assert len(judged(made, world_size=6).verdicts) == 1


def test_a_rank_that_is_stopped_is_more_to_blame_than_its_version() -> None:
    made = world()
    halves(made, "n1", "n2", stack=c10d("all_reduce"))
    made.add(c10d("all_reduce"), STOP, rank=4, node="n2", moved_at=HUNG_SINCE)
    version_of(made, "n1", torch="2.13.0")
    version_of(made, "n2", torch="2.12.0")
    found = judged(made, world_size=5)
    assert causes(found) == ["rank-stopped", "version-mismatch"]
    assert [len(one.culprits) for one in found.verdicts] == [1, 0]


def test_what_is_not_known_of_a_rank_differs_from_nothing() -> None:
    made = world()
    halves(made, "n1", "n2", stack=c10d("all_reduce"))
    version_of(made, "n1", torch="2.13.0")
    version_of(made, "n2", torch_folder="/nfs/envs/a/torch")
    assert "version-mismatch" not in causes(judged(made, world_size=4))


# Commands


@pytest.mark.parametrize(
    ("node", "dump", "trace"),
    [
        (N2, "hangtop dump --pid 201 --native", "timeout 10 strace -f -p 201"),
        (
            replace(N2, shell="ssh -l ada n2", options="-w n2 -l ada"),
            "hangtop dump -w n2 -l ada --pid 201 --native",
            "ssh -l ada n2 'timeout 10 strace -f -p 201'",
        ),
        (
            replace(N2, shell="ssh n2", options="-w n2 --sudo"),
            "hangtop dump -w n2 --sudo --pid 201 --native",
            "ssh n2 'sudo timeout 10 strace -f -p 201'",
        ),
    ],
)
def test_commands_can_be_run_from_where_one_sits(node: Node, dump: str, trace: str) -> None:
    made = world(N1, node)
    halves(made, "n1", "n2", stack=c10d("all_reduce"))
    made.ranks[3] = sleeping(made, made.ranks[3])
    verdict = hung(made, world_size=4)
    assert verdict.cause == "missing-collective"
    assert verdict.next_steps[-2:] == (dump, trace)


def test_py_spy_is_called_where_hangtop_has_brought_it() -> None:
    fact = Fact(True, path="/home/ada/.cache/hangtop/1f/py-spy")
    there = replace(N2, shell="ssh n2", options="-w n2", capabilities={"py-spy": fact})
    made = world(N1, there)
    halves(made, "n1", stack=c10d("all_reduce"))
    busy = situations.user("tune", 51)
    made.add(busy, situations.RUN, node="n2", sample={"active": True, "gil": True})
    verdict = hung(made, world_size=3)
    assert verdict.cause == "busy-in-python"
    command = "/home/ada/.cache/hangtop/1f/py-spy record -d 10 -o profile.svg --pid 4020"
    assert verdict.next_steps[-1] == f"ssh n2 '{command}'"


def sleeping(made: World, rank: Rank) -> Rank:
    """The rank, asleep in code of the user's own."""
    pid = rank.process.pid
    process = replace(rank.process, threads=(situations.thread(pid, SLEEP),))
    sample = made.sample(situations.user("cool_down", 41), pid=pid)
    return replace(rank, process=process, sample=sample)


def nccl_job(*algorithms: str, versions: dict[str, str]) -> World:
    world = World()
    for one in algorithms:
        env = {"NCCL_ALGO": one} if one else {}
        world.waiters(1, process={"env": env, "versions": versions})
    return world


def test_settings_of_nccl_that_differ_are_told_where_nothing_else_is_known() -> None:
    one = judged(nccl_job("", "Ring", "", versions={"nccl": "2.27.5"})).verdicts[0]
    assert (one.cause, blamed(one)) == ("launch-misconfigured", [1])
    assert "NCCL_ALGO differs between ranks: Ring on n1 (rank 1), not set on n1" in one.summary


def test_settings_of_nccl_do_not_matter_to_gloo() -> None:
    one = judged(nccl_job("", "Ring", "", versions={})).verdicts[0]
    assert one.cause == "unknown"


@pytest.mark.parametrize(
    ("told", "cgroups", "ranks"),
    [
        (("3", "3", "1"), ("a", "a", "a"), [0, 1]),
        (("0,1", "1,0", "2"), ("a", "a", "a"), [0, 1]),
        (("0,1", "0,1", "0,1"), ("a", "a", "a"), [0, 2]),
        # Each has one of its own: by its variable, by its local rank, or by its cgroup.
        (("0", "1", "2"), ("a", "a", "a"), []),
        (("0,1,2", "0,1,2", "0,1,2"), ("a", "a", "a"), []),
        (("0", "0", "0"), ("a", "b", "c"), []),
        (("", "", ""), ("a", "a", "a"), []),
    ],
)
def test_ranks_that_were_told_to_use_one_gpu(
    told: tuple[str, ...], cgroups: tuple[str, ...], ranks: list[int]
) -> None:
    world = World()
    for local, (one, cgroup) in enumerate(zip(told, cgroups, strict=True)):
        cuda = (situations.thread(4900 + local, situations.FUTEX, "cuda-EvtHandlr"),)
        process = {
            "env": {"CUDA_VISIBLE_DEVICES": one, "LOCAL_RANK": str(local)},
            "versions": {"nccl": "2.27.5"},
            "cgroup": cgroup,
            "threads": cuda,
        }
        world.waiters(1, process=process)
    first = judged(world).verdicts[0]
    assert blamed(first) == ranks
    assert first.cause == ("launch-misconfigured" if ranks else "unknown")
    if ranks:
        assert f"in ranks {ranks[0]}{'-' if ranks[1] == 1 else ','}{ranks[1]}" in first.summary
        assert first.evidence[0].text.startswith(f"CUDA_VISIBLE_DEVICES is {told[0]} ")


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"WORLD_SIZE": "4"}, True),
        ({"WORLD_SIZE": "3"}, False),
        # torchrun below mpirun, or two mpiruns whose ranks are numbered through
        ({"WORLD_SIZE": "12", "GROUP_WORLD_SIZE": "3"}, False),
        ({"WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, False),
    ],
)
def test_a_world_size_left_in_the_environment_of_mpirun(
    extra: dict[str, str], *, told: bool
) -> None:
    made = World()
    for n in range(3):
        env = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": str(n), **extra}
        made.add(INIT, POLL, rank=n, process={"env": env, "pid": 100 + n})
    found = judged(made, world_size=int(extra["WORLD_SIZE"]))
    text = "".join(one.summary for one in found.verdicts)
    wrong = "mpirun has started 3 ranks (OMPI_COMM_WORLD_SIZE=3)"
    assert (wrong in text) == told
    assert ("never joined" in text) == (not told and extra["WORLD_SIZE"] != "3")
    if told:
        assert found.verdicts[0].cause == "launch-misconfigured"
        assert "unset WORLD_SIZE before mpirun" in found.verdicts[0].next_steps[0]


def through(folder: str, op: str, name: str = "average") -> Stack:
    """In a collective that a package calls, which lies in some folder."""
    top, wrapper, *rest = c10d(op)
    return (top, wrapper, frame(name, f"{folder}/gradkit/__init__.py", 31), *rest)


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("new", "new", "old", "new"), ("version-mismatch", [2])),
        (("new", "new", "new", "new"), ("mismatched-collective", [0])),
        (("new", "new", "old", "old"), ("mismatched-collective", [0])),
    ],
)
def test_who_has_a_package_from_another_folder_where_operations_differ(
    folders: tuple[str, ...], expected: tuple[str, list[int]]
) -> None:
    world = World()
    for number, folder in enumerate(folders):
        site = f"/envs/{folder}/site-packages"
        stack = through(site, "all_reduce") if number else through(site, "broadcast", "agree")
        world.add(stack, FUTEX)
    verdict = hung(world)
    assert (verdict.cause, blamed(verdict)) == expected
    if expected[0] == "version-mismatch":
        assert verdict.summary.startswith(
            "rank 2 has imported gradkit from /envs/old/site-packages, the others from "
            "/envs/new/site-packages, and not all wait in the same operation"
        )


def test_the_folder_of_a_package_is_one_word_of_a_command() -> None:
    odd, long = "/envs/x;touch here/site-packages", f"/envs/{'e' * 300}/site-packages"
    for folder, steps in ((odd, ["ls -d '/envs/x;touch here/site-packages/gradkit'*"]), (long, [])):
        world = World()
        for number in range(4):
            site = folder if number == 2 else "/envs/new/site-packages"
            stack = through(site, "all_reduce") if number else through(site, "broadcast", "agree")
            world.add(stack, FUTEX)
        told = [step for step in hung(world).next_steps if step.startswith("ls -d")]
        assert told == [*steps, "ls -d /envs/new/site-packages/gradkit*"]


def test_a_package_from_another_folder_explains_nothing_where_all_wait_alike() -> None:
    world = World()
    for number in range(4):
        folder = "old" if number == 2 else "new"
        world.add(through(f"/envs/{folder}/site-packages", "all_reduce"), FUTEX)
    assert hung(world).cause == "unknown"


def networks(chosen: list[str], *before: str) -> Diagnosis:
    made = World()
    lines = [*before]
    for rank, network in enumerate(chosen):
        made.add(INIT, FUTEX, node=f"n{rank // 2 + 1}")
        lines.append(f"[rank{rank}]: n1:{rank}:9 [{rank % 2}] NCCL INFO Using network {network}")
    return printing(made, *lines)


@pytest.mark.parametrize(
    ("chosen", "odd"),
    [
        (["IB", "IB", "IB", "Socket"], [3]),
        (["Socket", "Socket", "IB", "IB"], [0, 1]),
        (["Socket", "Socket", "Socket", "IB"], [3]),
    ],
)
def test_ranks_on_which_nccl_has_chosen_different_networks(
    chosen: list[str], odd: list[int]
) -> None:
    verdict = networks(chosen).verdicts[0]
    assert (verdict.cause, blamed(verdict)) == ("launch-misconfigured", odd)
    assert "NCCL has chosen other networks on some ranks: " in verdict.summary
    assert "NCCL_NET" in verdict.next_steps[-1]


@pytest.mark.parametrize("before", ["IB", "Socket"])
def test_one_network_for_all_contradicts_nothing(before: str) -> None:
    # GIVEN what a rank has said in the attempt before
    said = f"[rank1]: n1:7:9 [1] NCCL INFO Using network {before}"
    assert "launch-misconfigured" not in causes(networks(["Socket"] * 4, said))
