from __future__ import annotations

from typing import Any

import pytest

from hangtop_core.jobs import Group, Member, group, launch_options, script
from hangtop_core.model import Process, Thread
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


def test_how_many_ranks_mp_spawn_starts_is_not_known() -> None:
    spawned = [rank(100 + r, r, env={}, launcher="mp.spawn") for r in range(2)]
    (job,) = group([*spawned, member(launcher(99, launcher="mp.spawn"))])
    assert (len(job.ranks), job.world_size) == (2, None)


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


def test_a_launcher_without_ranks_is_a_job_of_its_own() -> None:
    (job,) = group([member(launcher(99, "--nproc-per-node", "4", "--nnodes=2"))])
    assert (job.ranks, job.world_size, job.name) == ((), 8, "train.py")
    assert [m.process.pid for m in job.launchers] == [99]


def test_a_launcher_that_left_without_ranks_is_no_job() -> None:
    assert group([member(launcher(99, gone_at=EPOCH))]) == ()


def test_a_launcher_on_another_node_joins_by_what_it_was_told() -> None:
    late = member(launcher(77, "--rdzv-endpoint=10.0.0.1:29500"), "n2")
    (job,) = group([rank(100, 0), late])
    assert [m.process.pid for m in job.launchers] == [77]


def test_launchers_of_launchers_belong_to_the_job() -> None:
    outer = member(launcher(50, launcher="accelerate"))
    inner = member(launcher(99, ppid=50, launcher_pid=50, started_at=EPOCH))
    (job,) = group([rank(100, 0), outer, inner])
    assert [m.process.pid for m in job.launchers] == [50, 99]


def test_ranks_without_a_number_join_their_siblings() -> None:
    (job,) = group([rank(100, 0), rank(101, None, env={}, denied="not yours")])
    assert numbers(job) == [0]
    assert [m.process.pid for m in job.unnumbered] == [101]
    (alone,) = group([rank(101, None, env={})])
    assert [m.process.pid for m in alone.unnumbered] == [101]


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
