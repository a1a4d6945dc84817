from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hangtop_core.jobs.grouping import Group, Member, group
from hangtop_core.model.node.places import Places
from hangtop_core.model.snapshot import Node, Process, Thread
from hangtop_core.text.launchers import announced_world_size, launch_options, script, spans_nodes
from support.pieces import EPOCH, launcher, process


def member(fields: dict[str, Any], node: str = "n1", parent: int = 0) -> Member:
    fields = {**fields, "cmdline": tuple(fields["cmdline"])}
    fields["threads"] = tuple(Thread(row[0], "t", "S") for row in fields["threads"])
    del fields["meters"]
    return Member(node, Process(**fields), parent)


def rank(pid: int, number: int | None, node: str = "n1", **fields: Any) -> Member:
    return member(process(pid, number, **fields), node)


def env(port: int = 29500, address: str = "10.0.0.1", **more: str) -> dict[str, str]:
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), **more}


def numbers(found: Group) -> list[int | None]:
    return [m.process.rank for m in found.ranks]


def test_one_job_over_nodes() -> None:
    (job,) = group(rank(100 + r, r, f"n{r // 2}") for r in (3, 1, 0, 2))
    assert numbers(job) == [0, 1, 2, 3]
    assert job.master == "10.0.0.1:29500"


def test_the_port_tells_two_jobs_on_one_machine_apart() -> None:
    jobs = group(
        [rank(1 + r, r, env=env(29500, "localhost")) for r in range(2)]
        + [rank(11 + r, r, env=env(29501, "localhost"), started_at=EPOCH) for r in range(2)]
    )
    assert [len(job.ranks) for job in jobs] == [2, 2]
    assert jobs[0].master == "localhost:29501", "the newer one first"
    assert len({job.key for job in jobs}) == 2


def test_a_loopback_address_is_another_store_on_every_node() -> None:
    jobs = group(rank(100, 0, node, env=env(address="127.0.0.1")) for node in ("n1", "n2"))
    assert len(jobs) == 2


def test_run_ids_and_slurm_jobs_count_and_none_does_not() -> None:
    def one(**more: str) -> tuple[Group, ...]:
        return group([rank(100, 0, env=env(**more))])

    assert one(TORCHELASTIC_RUN_ID="none")[0].id is None
    assert one(TORCHELASTIC_RUN_ID="exp7")[0].id == "exp7"
    assert one(SLURM_JOB_ID="42")[0].id == "42"
    keys = {one(TORCHELASTIC_RUN_ID=run)[0].key for run in ("none", "", "a", "b")}
    assert len(keys) == 3


def test_the_largest_job_comes_first() -> None:
    jobs = group(
        [rank(1, 0, env=env(1), started_at=EPOCH)] + [rank(10 + r, r, env=env(2)) for r in range(3)]
    )
    assert [len(job.ranks) for job in jobs] == [3, 1]


def test_spawned_ranks_without_environment_belong_to_their_parent() -> None:
    spawned = [rank(100 + r, r, env={}, launcher="mp.spawn", ppid=50) for r in range(2)]
    other = [rank(200, 0, env={}, ppid=60, launcher_pid=60)]
    jobs = group([*spawned, *other])
    assert [len(job.ranks) for job in jobs] == [2, 1]


def test_agents_that_run_one_program_are_one_job_whatever_it_has_told_them() -> None:
    agents = [
        member(launcher(50, launcher="elastic agent", cmdline=["python", script, "--lr=1"]), node)
        for node, script in (("n1", "a.py"), ("n2", "a.py"), ("n2", "b.py"))
    ]
    assert [len(job.launchers) for job in group(agents)] == [2, 1]


def test_how_many_ranks_mp_spawn_starts_is_not_known() -> None:
    spawned = [rank(100 + r, r, env={}, launcher="mp.spawn") for r in range(2)]
    (job,) = group([*spawned, member(launcher(99, launcher="mp.spawn"))])
    assert (len(job.ranks), job.world_size) == (2, None)


def test_a_job_is_named_by_the_launcher_that_comes_first_in_the_table() -> None:
    kinds = ["multiprocessing", "multiprocessing", "Fabric"]
    ranks = [rank(100 + r, r, launcher=kind) for r, kind in enumerate(kinds)]
    (job,) = group([*ranks, member(launcher(99, launcher="srun"))])
    assert job.launcher == "Fabric"  # one was in a frame of it when it was looked at
    unnamed = [rank(100 + r, r, launcher=None) for r in range(2)]
    (job,) = group([*unnamed, member(launcher(99, launcher="torchrun"))])
    assert job.launcher == "torchrun"


def test_orphans_stay_together_and_with_their_dead_launcher() -> None:
    ranks = [
        member(process(100 + r, r, env={}, ppid=1, launcher_pid=None), parent=99) for r in range(2)
    ]
    (job,) = group([*ranks, member(launcher(99, gone_at=EPOCH))])
    assert numbers(job) == [0, 1]
    assert [m.process.pid for m in job.launchers] == [99]


def test_orphans_of_torchrun_join_by_environment() -> None:
    (job,) = group(rank(100 + r, r, ppid=1, launcher_pid=None) for r in range(3))
    assert numbers(job) == [0, 1, 2]


def test_a_launcher_that_is_the_first_process_of_a_container() -> None:
    ranks = [rank(20 + r, r, ppid=1, launcher_pid=1) for r in range(2)]
    (job,) = group([*ranks, member(launcher(1, "--nproc-per-node", "2", ppid=0))])
    assert numbers(job) == [0, 1]
    assert [m.process.pid for m in job.launchers] == [1]


def test_a_launcher_without_ranks_is_a_job_of_its_own() -> None:
    (job,) = group([member(launcher(99, "--nproc-per-node", "4", "--nnodes=2"))])
    assert (job.ranks, job.world_size, job.name) == ((), 8, "train.py")
    assert [m.process.pid for m in job.launchers] == [99]


@pytest.mark.parametrize("ended", [{"gone_at": EPOCH}, {"state": "Z"}])
def test_a_launcher_that_left_without_ranks_is_no_job(ended: dict[str, Any]) -> None:
    assert group([member(launcher(99, **ended))]) == ()


def test_a_launcher_on_another_node_joins_by_what_it_was_told() -> None:
    late = member(launcher(77, "--rdzv-endpoint=10.0.0.1:29500"), "n2")
    (job,) = group([rank(100, 0), late])
    assert [m.process.pid for m in job.launchers] == [77]


def test_an_srun_belongs_to_the_step_that_it_has_started() -> None:
    """In a batch script one step may follow another, and two may run beside each other."""
    sruns = [
        member(launcher(90 + n, launcher="srun", started_at=EPOCH + at, env={"SLURM_JOB_ID": job}))
        for n, (at, job) in enumerate([(10.0, "7"), (50.0, "7"), (10.0, "8"), (90.0, "7")])
    ]
    steps = [
        rank(100 + n, 0, env=env(29500 + n, SLURM_JOB_ID="7"), started_at=EPOCH + at)
        for n, at in enumerate([11.0, 51.0])
    ]
    found = {job.key: [m.process.pid for m in job.launchers] for job in group([*sruns, *steps])}
    assert sorted(found.values()) == [[90], [91], [92], [93]]
    assert [found[key] for key in sorted(found) if "slurm" in key] == [[90], [91]]


def test_launchers_of_launchers_belong_to_the_job() -> None:
    outer = member(launcher(50, launcher="accelerate"))
    inner = member(launcher(99, ppid=50, launcher_pid=50, started_at=EPOCH))
    (job,) = group([rank(100, 0), outer, inner])
    assert [m.process.pid for m in job.launchers] == [50, 99]


def test_ranks_without_a_number_join_their_siblings() -> None:
    (job,) = group([rank(100, 0), rank(101, None, env={}, denied="not yours")])
    assert numbers(job) == [0]
    assert [m.process.pid for m in job.unnumbered] == [101]
    (alone,) = group([rank(101, None, env={}, denied="not yours")])
    assert [m.process.pid for m in alone.unnumbered] == [101]
    (readable,) = group([rank(101, None, env={})])
    assert [m.process.pid for m in readable.ranks] == [101]
    assert readable.unnumbered == ()


def test_a_rank_seen_twice_stands_twice_but_not_its_restarted_self() -> None:
    (job,) = group([rank(100, 0), rank(101, 0)])
    assert numbers(job) == [0, 0]
    (job,) = group([rank(100, 0, gone_at=EPOCH), rank(101, 0, started_at=EPOCH + 1)])
    assert [m.process.pid for m in job.ranks] == [101]


def test_grouping_does_not_depend_on_order() -> None:
    members = [rank(100 + r, r) for r in range(4)] + [member(launcher(99)), rank(7, None, env={})]
    assert group(members) == group(reversed(members))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python train.py --x a.py", "train.py"),
        ("python -u /a/b/main.py", "main.py"),
        ("python -m my.trainer", "my.trainer"),
        ("python -m torch.distributed.run --nproc-per-node 2 run_me.py", "run_me.py"),
        ("python /venv/lib/torch/distributed/launch.py x.py", "x.py"),
        ("python -c import train.py", None),
        ("python", None),
        ("", None),
    ],
)
def test_the_script_in_a_command_line(line: str, name: str | None) -> None:
    assert script(line.split()) == name


def test_options_of_torchrun_end_at_the_script() -> None:
    line = "python torchrun --rdzv-id 7 --master_port=1 --nnodes 1 train.py --rdzv-id 8"
    assert launch_options(line.split()) == {"rdzv_id": "7", "master_port": "1", "nnodes": "1"}


@pytest.mark.parametrize(
    "flag",
    [
        "--standalone",
        "--no-python",
        "--no_python",
        "--run-path",
        "--module",
        "--virtual-local-rank",
    ],
)
def test_options_of_torchrun_without_a_value_leave_the_next_word(flag: str) -> None:
    line = f"torchrun {flag} --nproc-per-node=4 --nnodes 2 train.py".split()
    assert announced_world_size(line) == 8
    assert spans_nodes(line)
    assert (
        launch_options(f"torchrun --nnodes=2 {flag} train.py --nnodes 3".split())["nnodes"] == "2"
    )


# Nodes


N1 = Node("n1", "ready", hostname="n1.cluster", addresses=("10.0.0.1", "172.17.0.1"), boot_id="a")
N2 = Node("n2", "ready", hostname="n2.cluster", addresses=("10.0.0.2", "172.17.0.1"), boot_id="b")
NODES = Places([N1, N2])


def half(node: str, first: int, address: str, port: int = 29500, **fields: Any) -> list[Member]:
    """Two ranks of four on one of two nodes, each told the same address."""
    more = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", **fields.pop("more", {})}
    pid = fields.pop("pid", 100)
    return [
        rank(pid + r, first + r, node, **{"env": env(port, address, **more), **fields})
        for r in range(2)
    ]


@pytest.mark.parametrize("spelt", ["n1", "N1.cluster", "10.0.0.1", "localhost", "127.0.0.1"])
def test_one_store_may_be_spelt_in_many_ways(spelt: str) -> None:
    (job,) = group([*half("n1", 0, spelt), *half("n2", 2, "n1.cluster")], NODES)
    assert (numbers(job), job.key) == ([0, 1, 2, 3], "n1:29500")


def test_an_address_that_two_nodes_have_means_neither() -> None:
    assert NODES.node_of("172.17.0.1", "n1") is None
    assert NODES.node_of("10.0.0.9", "n1") is None
    assert NODES.node_of("10.0.0.1.nip.io", "n1") is None
    assert NODES.node_of("n2.other.domain", "n1") == "n2"


def test_two_jobs_on_the_same_nodes_are_told_apart_by_their_ports() -> None:
    one = [*half("n1", 0, "n1"), *half("n2", 2, "n1")]
    other = [*half("n1", 0, "n1", 29501, pid=200), *half("n2", 2, "10.0.0.1", 29501, pid=200)]
    jobs = group([*one, *other], NODES)
    assert sorted(job.key for job in jobs) == ["n1:29500", "n1:29501"]
    assert [numbers(job) for job in jobs] == [[0, 1, 2, 3]] * 2


def test_two_jobs_that_both_lack_ranks_stay_two() -> None:
    # Both have ranks on n1, or different arguments, or were started hours apart.
    one = half("n1", 0, "n1")
    assert len(group([*one, *half("n1", 2, "n1", 29501, pid=200, launcher_pid=98)], NODES)) == 2
    other = {"cmdline": ["python", "train.py", "--lr", "2"]}
    assert len(group([*one, *half("n2", 2, "n2", 29501, **other)], NODES)) == 2
    assert len(group([*one, *half("n2", 2, "n2", 29501, started_at=EPOCH - 9999)], NODES)) == 2


@pytest.mark.parametrize(
    ("first", "address", "port"),
    [
        (2, "localhost", 29500),  # localhost on every node
        (2, "n1", 29501),  # another port
        (2, "10.0.0.9", 29500),  # an address of nobody
        (0, "localhost", 29500),  # the same ranks twice, on a store of their own
        (2, "n2", 29500),  # every node takes itself for the master
    ],
)
def test_nodes_that_were_told_different_things_are_one_job(
    first: int, address: str, port: int
) -> None:
    mine = "localhost" if address == "localhost" else "n1"
    (job,) = group([*half("n1", 0, mine), *half("n2", first, address, port)], NODES)
    assert numbers(job) == ([0, 1, 2, 3] if first else [0, 0, 1, 1])


def test_whole_jobs_on_their_own_localhost_stay_apart() -> None:
    alone = {"more": {"WORLD_SIZE": "2"}}
    jobs = group([*half("n1", 0, "localhost", **alone), *half("n2", 0, "localhost", **alone)])
    assert [numbers(job) for job in jobs] == [[0, 1], [0, 1]]


def test_one_of_the_ranks_that_a_script_started_was_told_another_port() -> None:
    told = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    some = [rank(100 + r, r, "n1", env=env(**told)) for r in range(3)]
    odd = rank(103, 3, "n1", env=env(29501, **told))
    (job,) = group([*some, odd])
    assert numbers(job) == [0, 1, 2, 3]
    elsewhere = rank(103, 3, "n2", env=env(29501, **told))
    assert len(group([*some, elsewhere])) == 2, "both were told to be on one node alone"


def test_containers_on_one_node_have_their_own_localhost() -> None:
    alone = {"more": {"WORLD_SIZE": "2"}}
    jobs = group(
        half("n1", 0, "localhost", **alone) + half("n1", 0, "localhost", pid=200, net_ns=7, **alone)
    )
    assert len(jobs) == 2


def attempt(count: int, port: int, pid: int, **fields: Any) -> list[Member]:
    counted = {"TORCHELASTIC_RESTART_COUNT": str(count), "WORLD_SIZE": "4"}
    fields = {"started_at": EPOCH + 10.0 * count, **fields}
    return half("n1", 0, "n1", port, pid=pid, more=counted, **fields)


@pytest.mark.parametrize("port", [29500, 41000])
def test_ranks_that_torchrun_has_ended_do_not_count_any_more(port: int) -> None:
    old = attempt(0, 29500, 100, gone_at=EPOCH + 9)
    (job,) = group([*old, *attempt(1, port, 200), member(launcher(99))], NODES)
    assert [m.process.pid for m in job.ranks] == [200, 201]
    assert [m.process.pid for m in job.launchers] == [99]


@pytest.mark.parametrize("port", [29500, 41000])
def test_ranks_of_earlier_attempts_are_listed_in_the_order_in_which_they_left(port: int) -> None:
    first, second = attempt(0, 29500, 100, gone_at=EPOCH + 9), attempt(1, port, 200)
    second = [one for n, old in enumerate(second) for one in [ended(old, EPOCH + 19 - n)]]
    stranger = rank(300, 0, "n2", env=env(1), gone_at=EPOCH)
    jobs = group([*first, *second, *attempt(2, port, 400), member(launcher(99)), stranger], NODES)
    job = next(one for one in jobs if one.launchers)
    assert [m.process.pid for m in job.former] == [100, 101, 201, 200]


def ended(one: Member, at: float) -> Member:
    return Member(one.node, msgspec.structs.replace(one.process, gone_at=at), one.starter)


@pytest.mark.parametrize("port", [29500, 41000])
def test_a_rank_that_outlives_its_attempt_is_a_job_of_its_own(port: int) -> None:
    old = attempt(0, 29500, 100)
    jobs = group([*old[:1], *attempt(1, port, 200), member(launcher(99))], NODES)
    assert [[m.process.pid for m in job.ranks] for job in jobs] == [[200, 201], [100]]
    assert [len(job.launchers) for job in jobs] == [1, 0]
    assert jobs[1].key.endswith("attempt 0")


def test_launchers_count_attempts_each_for_itself() -> None:
    here = attempt(1, 41000, 100, started_at=EPOCH)
    there = half("n2", 2, "n1", 41000, more={"TORCHELASTIC_RESTART_COUNT": "0"}, started_at=EPOCH)
    (job,) = group([*here, *there], NODES)
    assert numbers(job) == [0, 1, 2, 3]


def test_containers_of_one_machine_are_not_one_node() -> None:
    pods = [Node(name, "ready", hostname=name, boot_id="a") for name in ("p1", "p2")]
    (job,) = group([*half("p1", 0, "p1"), *half("p2", 2, "p1")], Places(pods))
    assert numbers(job) == [0, 1, 2, 3]


def test_a_machine_with_two_names_is_seen_once() -> None:
    again = Node("10.0.0.1", "ready", hostname="n1.cluster", boot_id="a")
    seen = [*half("n1", 0, "n1"), *half("10.0.0.1", 0, "n1"), *half("n2", 2, "n1")]
    (job,) = group(seen, Places([N1, N2, again]))
    assert numbers(job) == [0, 1, 2, 3]


def test_containers_of_one_machine_may_count_their_processes_alike() -> None:
    other = Node("n9", "ready", hostname="n9", boot_id="a")
    seen = [*half("n1", 0, "n1"), *half("n9", 2, "n1")]
    assert [m.process.pid for m in seen[:2]] == [m.process.pid for m in seen[2:]]
    (job,) = group(seen, Places([N1, other]))
    assert numbers(job) == [0, 1, 2, 3]


def test_launchers_in_two_containers_on_the_machines_network_are_two() -> None:
    # GIVEN two containers with the machine's host name, started at once, that count alike
    pods = [
        Node(name, "ready", hostname="n1.cluster", boot_id="a", pid_ns=number)
        for number, name in enumerate(("p1", "p2"), 4026532000)
    ]
    options = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-endpoint=10.0.0.9:29400")
    waiting = [member(launcher(7, *options), pod.name) for pod in pods]
    (job,) = group(waiting, Places(pods))
    assert [m.node for m in job.launchers] == ["p1", "p2"]
    same = [msgspec.structs.replace(pod, pid_ns=4026531836) for pod in pods]
    (job,) = group(waiting, Places(same))
    assert [m.node for m in job.launchers] == ["p1"], "one machine under two names"


@pytest.mark.parametrize("endpoint", ["n1:29400", "localhost:29400"])
def test_launchers_on_several_nodes_wait_for_one_another(endpoint: str) -> None:
    options = ("--nnodes=3", "--nproc-per-node=2", f"--rdzv-endpoint={endpoint}")
    waiting = [member(launcher(99, *options), node) for node in ("n1", "n2")]
    (job,) = group(waiting, NODES)
    assert ([m.node for m in job.launchers], job.world_size) == (["n1", "n2"], 6)


def test_who_comes_to_the_port_of_an_older_job_is_another_job() -> None:
    # GIVEN a job of one rank, and two of three ranks that were started later, on its port
    def told(size: int, number: int, started_at: float) -> Member:
        more = env(29500, "localhost", WORLD_SIZE=str(size))
        return rank(size * 10 + number, number, env=more, started_at=started_at)

    old, new = told(1, 0, EPOCH - 3600), [told(3, 1, EPOCH), told(3, 2, EPOCH)]
    assert sorted(numbers(job) for job in group([old, *new])) == [[0], [1, 2]]
    # THEN not where they were started together: that one was told something wrong
    assert len(group([told(1, 0, EPOCH), *new])) == 1
    assert len(group([told(2, 0, EPOCH - 3600), *new])) == 1


def test_a_job_that_comes_to_the_port_of_another_one_like_it_is_told_apart_and_first() -> None:
    # GIVEN a job of two ranks, and one of those of a second, whose rank 0 found the port in use
    def launch(pid: int, number: int, started_at: float) -> Member:
        more = env(29500, "localhost", WORLD_SIZE="2")
        return rank(pid, number, env=more, started_at=started_at)

    first = [launch(10, 0, EPOCH - 3600), launch(11, 1, EPOCH - 3599)]
    second = launch(21, 1, EPOCH)
    jobs = group([*first, second])
    assert [[one.process.pid for one in job.ranks] for job in jobs] == [[21], [10, 11]]
    assert jobs[0].world_size == 2
    # THEN not where a number was given twice in one launch, or where the first was never whole
    twice = launch(12, 1, EPOCH - 3599)
    assert len(group([*first, twice])) == 1
    assert len(group([launch(11, 1, EPOCH - 3599), second])) == 1
