"""Which processes are ranks, launchers and children of ranks, from a table of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.ways.local import RANK_VARIABLES, LocalLauncher
from hangtop_probe.ranks import commands
from hangtop_probe.ranks.candidates import Candidate
from hangtop_probe.ranks.discovery import Attribution, attribute
from hangtop_probe.ranks.scoping import of_slurm, restrict
from hangtop_probe.wire import boot

if TYPE_CHECKING:
    import pytest

TRAIN = ("python", "-u", "train.py")
TORCHRUN = ("/venv/bin/python", "/venv/bin/torchrun", "--nproc-per-node=2", "train.py")
GLOO = frozenset(["python", "gloo_tcp_loop", "pt_gloo_runloop"])


def job_env(rank: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        **more,
    }


def table(*candidates: Candidate) -> dict[int, Candidate]:
    return {c.pid: c for c in candidates}


def process(pid: int, ppid: int, **fields: Any) -> Candidate:
    cmdline = fields.pop("cmdline", TRAIN)
    defaults = {
        "start": pid,
        "comm": "python",
        "environ": {},
        "python": commands.is_python_name(cmdline[0]) if cmdline else False,
    }
    return Candidate(pid, ppid, cmdline=cmdline, **{**defaults, **fields})


def roles(found: dict[int, Attribution]) -> dict[int, tuple[str, int | None]]:
    return {pid: (a.role, a.rank) for pid, a in found.items()}


LAUNCHER = process(10, 1, comm="pt_elastic", cmdline=TORCHRUN)
RANK0 = process(20, 10, environ=job_env(0), threads=GLOO)
RANK1 = process(21, 10, environ=job_env(1), threads=GLOO)


def test_torchrun_with_two_ranks() -> None:
    found = attribute(table(process(1, 0, cmdline=("init",)), LAUNCHER, RANK0, RANK1))
    assert roles(found) == {10: ("launcher", None), 20: ("rank", 0), 21: ("rank", 1)}
    assert found[10].label == "torchrun"
    assert found[21] == Attribution("rank", "rank 1", 1, "RANK", 21, 10, "torchrun")


def test_launcher_without_ranks_is_reported() -> None:
    assert roles(attribute(table(LAUNCHER))) == {10: ("launcher", None)}


def test_ranks_of_a_dead_launcher_are_found() -> None:
    orphan = RANK1._replace(ppid=1)
    found = attribute(table(orphan))
    assert (found[21].rank, found[21].launcher, found[21].launcher_pid) == (1, "torchrun", None)


def test_launcher_that_inherits_a_rank_is_no_rank() -> None:
    launcher = LAUNCHER._replace(environ=job_env(0))
    assert roles(attribute(table(launcher, RANK0)))[10] == ("launcher", None)


def test_children_are_named_after_what_they_do() -> None:
    tracker = "from multiprocessing.resource_tracker import main;main(5)"
    server = "from multiprocessing.forkserver import main; main(1)"
    worker = "/site/torch/_inductor/compile_worker/__main__.py"
    inherited = job_env(0)
    found = attribute(
        table(
            RANK0,
            process(31, 20, comm="pt_data_worker", environ=inherited),
            process(30, 20, comm="pt_data_worker", environ=inherited),
            process(32, 20, cmdline=("python", "-c", tracker), environ=inherited),
            process(33, 20, cmdline=("python", "-c", server), environ=inherited),
            process(34, 33, comm="pt_data_worker", environ=inherited),
            process(35, 20, cmdline=("python", worker, "--parent=20"), environ=inherited),
            process(36, 35, cmdline=("python", worker, "--parent=20"), environ=inherited),
            process(37, 20, comm="aws", cmdline=("aws", "s3", "cp"), environ=inherited),
            process(38, 20, is_debug_server=True, environ=inherited),
        )
    )
    assert {pid: (a.label, a.rank_pid) for pid, a in found.items() if pid >= 30} == {
        30: ("DataLoader worker 0", 20),
        31: ("DataLoader worker 1", 20),
        32: ("resource tracker", 20),
        33: ("forkserver", 20),
        34: ("DataLoader worker 2", 20),
        35: ("inductor compile worker", 20),
        36: ("inductor compile worker", 20),
        37: ("subprocess aws", 20),
        38: ("debug server", 20),
    }
    assert {a.rank for a in found.values()} == {0}


def test_a_debug_adapter_is_no_rank_and_no_remnant_of_one() -> None:
    """It detaches itself from its rank, and has its environment."""
    adapter = ("python", "/site/debugpy/adapter", "--for-server", "4000")
    found = attribute(table(RANK0, process(40, 1, cmdline=adapter, environ=job_env(0))))
    assert set(found) == {20}


def test_a_learned_worker_id_wins_over_the_order() -> None:
    found = attribute(
        table(
            RANK0,
            process(30, 20, comm="pt_data_worker", worker_id=5),
            process(31, 20, is_worker=True),
        )
    )
    assert (found[30].worker_id, found[31].worker_id) == (5, 1)
    assert found[31].label == "DataLoader worker 1"


def test_forked_copy_of_a_rank_is_its_subprocess() -> None:
    copy = process(40, 20, environ=job_env(0))
    assert roles(attribute(table(RANK0, copy)))[40] == ("subprocess", 0)


def test_shell_wrapper_is_no_rank() -> None:
    wrapper = process(20, 10, comm="bash", cmdline=("bash", "-c", "x"), environ=job_env(0))
    inner = process(50, 20, environ=job_env(0))
    found = attribute(table(LAUNCHER, wrapper, inner))
    assert 20 not in found
    assert (found[50].rank, found[50].launcher_pid) == (0, 10)


def test_python_wrapper_gives_way_to_the_process_in_the_group() -> None:
    wrapper = process(20, 10, cmdline=("python", "wrap.py"), environ=job_env(0))
    inner = process(50, 20, environ=job_env(0), threads=GLOO)
    assert roles(attribute(table(LAUNCHER, wrapper, inner)))[50] == ("rank", 0)


def test_hangtop_run_with_the_variables_of_a_rank_is_none() -> None:
    for words in (("-m", "hangtop"), ("/venv/bin/hangtop",)):
        outer = process(20, 1, cmdline=("python3", *words, "run", "--", *TRAIN), environ=job_env(0))
        witness = outer._replace(pid=21, ppid=20, start=21)
        inner = process(22, 20, environ=job_env(0))  # before it has joined anything
        assert roles(attribute(table(outer, witness, inner))) == {22: ("rank", 0)}


def test_a_probe_of_another_hangtop_with_the_variables_of_a_rank_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a batch script of Slurm's runs `hangtop watch`."""
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    local = LocalLauncher().argv()
    others = (["python3", "-I", "-S", "-u", "-c", code] for code in (boot.BOOT, bundle.PUSHED))
    for words in (local, *others):
        probe = process(20, 1, cmdline=tuple(words), environ=job_env(0))
        assert roles(attribute(table(probe, RANK1))) == {21: ("rank", 1)}, words
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert LocalLauncher().argv() == ["env", "-u", "SLURM_PROCID", *local]


def test_two_jobs_with_the_same_ranks_are_apart() -> None:
    other = process(60, 1, environ=job_env(0, MASTER_PORT="29501"), threads=GLOO)
    assert roles(attribute(table(RANK0, other))) == {20: ("rank", 0), 60: ("rank", 0)}


def test_a_job_started_inside_a_rank_has_its_own_ranks() -> None:
    inner_launcher = process(
        70, 20, comm="pt_elastic", cmdline=(*TORCHRUN[:2], "x.py"), environ=job_env(0)
    )
    inner = process(71, 70, environ=job_env(0, MASTER_PORT="29511"), threads=GLOO)
    found = attribute(table(RANK0, inner_launcher, inner))
    assert (found[71].role, found[71].launcher_pid) == ("rank", 70)


def test_a_variable_named_rank_alone_proves_nothing() -> None:
    assert attribute(table(process(20, 1, environ={"RANK": "3"}))) == {}


def test_open_mpi_ranks() -> None:
    launcher = process(10, 1, comm="mpirun", cmdline=("mpirun", "-np", "2", "python", "t.py"))
    rank = process(20, 10, environ={"OMPI_COMM_WORLD_RANK": "1"})
    found = attribute(table(launcher, rank))
    assert (found[20].rank, found[20].rank_source, found[20].launcher) == (
        1,
        "OMPI_COMM_WORLD_RANK",
        "mpirun",
    )
    assert found[10].label == "mpirun"


def test_slurm_rank_needs_a_step_above_or_a_process_group() -> None:
    environ = {"SLURM_PROCID": "3", "SLURM_JOB_ID": "77"}
    step = process(5, 1, comm="slurmstepd", cmdline=("slurmstepd: [77.0]",))
    assert roles(attribute(table(step, process(20, 5, environ=environ)))) == {20: ("rank", 3)}
    assert attribute(table(process(20, 1, environ=environ))) == {}
    in_group = process(20, 1, environ=environ, threads=GLOO)
    assert roles(attribute(table(in_group))) == {20: ("rank", 3)}


def test_rank_wins_over_slurm() -> None:
    rank = process(20, 1, environ=job_env(1, SLURM_PROCID="0"))
    assert attribute(table(rank))[20].rank_source == "RANK"


def test_spawned_ranks_come_from_their_stacks() -> None:
    parent = process(10, 1, cmdline=("python", "main.py"))
    spawned = ("python", "-c", "from multiprocessing.spawn import x", "--multiprocessing-fork")
    ranks = [process(20 + i, 10, cmdline=spawned, wrap_rank=i) for i in (0, 1)]
    found = attribute(table(parent, *ranks))
    assert roles(found) == {10: ("launcher", None), 20: ("rank", 0), 21: ("rank", 1)}
    assert (found[21].rank_source, found[21].launcher, found[21].launcher_pid) == (
        "mp.spawn",
        "mp.spawn",
        10,
    )


def test_a_program_that_is_an_agent_itself_is_a_launcher() -> None:
    """Also where one that forks it has the same command line; until ranks are found below it."""
    line = ("python", "main.py")
    parent, agent = process(9, 1, cmdline=line), process(10, 9, cmdline=line, is_agent=True)
    found = attribute(table(parent, agent))
    assert roles(found) == {10: ("launcher", None)}
    assert (found[10].label, found[10].launcher) == ("elastic agent", "elastic agent")
    rank = process(20, 10, cmdline=("python", "--multiprocessing-fork"), wrap_rank=0)
    assert attribute(table(parent, agent, rank))[10].label == "mp.spawn"


def test_rank_of_another_user_has_no_number() -> None:
    by_threads = process(20, 1, environ=None, threads=GLOO)
    by_launcher = process(21, 10, environ=None)
    found = attribute(table(LAUNCHER, by_threads, by_launcher))
    assert roles(found) == {10: ("launcher", None), 20: ("rank", None), 21: ("rank", None)}
    assert found[20].label == "rank ?"


def test_worker_that_outlived_its_rank_is_no_rank() -> None:
    found = attribute(table(process(30, 1, comm="pt_data_worker", environ=job_env(2))))
    assert (found[30].role, found[30].rank, found[30].rank_pid) == ("dataloader-worker", 2, None)


def test_the_probe_itself_is_never_a_rank() -> None:
    assert attribute(table(process(20, 1, environ=job_env(0))), frozenset([20])) == {}


def test_named_pids_bring_their_whole_jobs_and_no_other() -> None:
    worker = process(30, 20, comm="pt_data_worker")
    other = process(40, 1, environ=job_env(0, MASTER_PORT="29511"))
    everything = table(LAUNCHER, RANK0, RANK1, worker, other)
    roles = attribute(everything)
    for pid in (10, 20, 21, 30):
        assert sorted(restrict(roles, everything, frozenset([pid, 99]))) == [10, 20, 21, 30]
    assert sorted(restrict(roles, everything, frozenset([40]))) == [40]
    orphans = table(*(c._replace(ppid=1) for c in (RANK0, RANK1)), other)
    assert sorted(restrict(attribute(orphans), orphans, frozenset([20]))) == [20, 21]


def test_ranks_stay_that_outlive_the_launcher_that_was_named() -> None:
    other = process(40, 1, environ=job_env(0, MASTER_PORT="29511"))
    everything, named = table(LAUNCHER, RANK0, RANK1, other), frozenset([10])
    before = restrict(attribute(everything), everything, named)
    orphans = table(*(c._replace(ppid=1) for c in (RANK0, RANK1)), other)
    after = restrict(attribute(orphans), orphans, named, before)
    assert sorted(after) == [20, 21]
    zombie = table(LAUNCHER, *orphans.values())
    assert sorted(restrict(attribute(zombie), zombie, named, before)) == [10, 20, 21]
    assert sorted(restrict(attribute(orphans), orphans, named, after)) == [20, 21]
    alone = table(RANK1._replace(ppid=1), other)
    assert sorted(restrict(attribute(alone), alone, named, after)) == [21]


def test_what_started_the_launcher_brings_its_job() -> None:
    run = process(8, 1, cmdline=("python", "-m", "hangtop", "run", "--", "torchrun", "t.py"))
    shell = process(7, 1, comm="bash", cmdline=("bash", "train.sh"))
    everything = table(run, shell, LAUNCHER._replace(ppid=8), RANK0, RANK1)
    roles = attribute(everything)
    assert sorted(restrict(roles, everything, frozenset([8]))) == [10, 20, 21]
    assert sorted(restrict(roles, everything, frozenset([7]))) == [7]


def test_a_named_pid_of_no_job_is_a_rank_without_number() -> None:
    plain = table(process(44, 1))
    assert restrict({}, plain, frozenset([44]))[44].label == "pid 44"


def test_a_slurm_job_hides_only_what_says_that_it_is_of_another() -> None:
    def rank(pid: int, number: int, **more: str) -> Candidate:
        return process(pid, 1, environ=job_env(number, **more))

    everything = table(
        rank(10, 0, SLURM_JOB_ID="7", SLURM_STEP_ID="0"),
        rank(11, 1, SLURM_JOB_ID="7", SLURM_STEP_ID="1"),
        rank(12, 2, SLURM_JOB_ID="8", SLURM_STEP_ID="0"),
        process(13, 12, comm="pt_data_worker", environ=job_env(2, SLURM_JOB_ID="8")),
        rank(14, 3),
        process(15, 1, environ=None, threads=GLOO),
        process(16, 1, comm="pt_elastic", cmdline=TORCHRUN, environ={"SLURM_JOB_ID": "7"}),
    )
    roles = attribute(everything)
    assert sorted(roles) == [10, 11, 12, 13, 14, 15, 16]
    assert sorted(of_slurm(roles, everything, frozenset({"7"}), None)) == [10, 11, 14, 15, 16]
    assert sorted(of_slurm(roles, everything, frozenset({"7"}), "1")) == [11, 14, 15, 16]
    assert sorted(of_slurm(roles, everything, frozenset({"7", "8"}), None)) == sorted(roles)


def test_launcher_commands() -> None:
    kind = commands.launcher_kind
    assert kind("python", ("python3", "-m", "torch.distributed.run", "x.py")) == "torchrun"
    assert kind("python", ("python3", "-um", "torch.distributed.launch", "x.py")) == "torchrun"
    assert kind("pt_elastic", ("py", "/b/accelerate", "launch", "x.py")) == "torchrun"
    assert kind("pt_elastic", ("python", "/b/accelerate", "launch", "x.py")) == "accelerate"
    assert kind("python", ("python", "/b/accelerate", "config")) is None
    assert kind("python", ("python", "-u", "-m", "deepspeed.launcher.launch")) == "deepspeed"
    assert kind("python", ("python", "-X", "dev", "train.py", "torchrun")) is None
    assert kind("srun", ("srun", "hostname")) is None
    assert kind("srun", ("srun", "-n2", "python3.11", "t.py")) == "srun"
    assert kind("orted", ("orted", "--hnp")) == "mpirun"


@st.composite
def forests(draw: st.DrawFn) -> dict[int, Candidate]:
    pids = draw(st.lists(st.integers(2, 30), unique=True, max_size=12))
    environs = st.sampled_from([None, {}, job_env(0), job_env(1), {"SLURM_PROCID": "1"}])
    commands_ = st.sampled_from([TRAIN, TORCHRUN, ("bash",), (), ("python", "-c", "x")])
    comms = st.sampled_from(["python", "pt_elastic", "pt_data_worker", "slurmstepd"])
    threads = st.sampled_from([frozenset[str](), GLOO])
    return table(
        *(
            process(
                pid,
                draw(st.integers(0, 30)),
                comm=draw(comms),
                cmdline=draw(commands_),
                environ=draw(environs),
                threads=draw(threads),
                wrap_rank=draw(st.none() | st.integers(0, 3)),
            )
            for pid in pids
        )
    )


@given(forests())
def test_any_table_even_with_cycles_gives_roles_of_known_processes(
    candidates: dict[int, Candidate],
) -> None:
    found = attribute(candidates)
    assert set(found) <= set(candidates)
    for pid, attribution in found.items():
        assert (attribution.role == "rank") == (attribution.rank_pid == pid)
        assert attribution.launcher_pid != pid
        if attribution.rank_pid is not None:
            assert found[attribution.rank_pid].role == "rank"


@given(st.text(max_size=30) | st.integers(0, 8000).map("9".__mul__))
def test_no_environment_keeps_the_others_from_being_found(value: str) -> None:
    names = ("RANK", "PMI_RANK", "SLURM_PROCID", "WORLD_SIZE", "LOCAL_RANK")
    odd = process(30, 1, environ=job_env(0, **dict.fromkeys(names, value)), threads=GLOO)
    found = attribute(table(LAUNCHER, RANK0, RANK1, odd))
    assert (found[20].rank, found[21].rank) == (0, 1)
    assert found[30].rank is None or found[30].rank == int(value)


def engine(title: str, pid: int, **fields: Any) -> Candidate:
    """Return a worker of an inference server: a title, no variables, in a process group."""
    return process(pid, 10, cmdline=(title,), comm=title[:15], python=True, threads=GLOO, **fields)


UNTOLD = None, None
"""Number and source of a rank whose number nothing tells."""
CORE = process(10, 1, cmdline=("VLLM::EngineCore",), comm="VLLM::EngineCor", python=True)


def numbers(*members: Candidate) -> dict[int, tuple[int | None, str | None]]:
    """Return number and source of all ranks among these and the process that started them."""
    found = attribute(table(CORE, *members))
    return {p: (a.rank, a.rank_source) for p, a in found.items() if a.role == "rank"}


def test_titles_number_ranks_without_variables() -> None:
    titles = [
        f"VLLM::Worker_DP{dp}_PP{pp}_TP{tp}" for dp in (0, 1) for pp in (0, 1) for tp in (0, 1)
    ]
    members = [engine(title, 50 - at) for at, title in enumerate(titles)]  # not in their order
    assert numbers(*members) == {50 - at: (at, "title") for at in range(8)}
    found = attribute(table(CORE, *members))
    assert (found[10].role, found[10].launcher) == ("launcher", "multiprocessing")
    schedulers = [engine(f"sglang::scheduler_TP{at}", 20 + at) for at in range(12)]
    assert numbers(*schedulers)[31] == (11, "title")
    plain = [engine(f"pretrain llama-8b lr3e-4 TP8 rank {at}: step 0", 20 + at) for at in (1, 0)]
    assert numbers(*plain) == {20: (0, "title"), 21: (1, "title")}


def test_titles_that_are_alike_number_nothing() -> None:
    members = [engine("llama TP8", pid, local_rank=pid - 20) for pid in (21, 20)]
    assert numbers(*members) == {20: (0, "local variable"), 21: (1, "local variable")}
    assert numbers(engine("llama", 20), engine("llama", 21)) == {20: UNTOLD, 21: UNTOLD}


def test_local_ranks_number_those_of_a_node() -> None:
    told = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "NODE_RANK": "1"}
    here = [
        process(20 + at, 1, environ={**told, "LOCAL_RANK": str(3 - at)}, threads=GLOO)
        for at in range(4)
    ]
    assert numbers(*here)[20] == (7, "LOCAL_RANK")
    inherited = [one._replace(environ={**told, "LOCAL_RANK": "0"}) for one in here]
    assert numbers(*inherited)[20] == UNTOLD


def test_arguments_number_ranks() -> None:
    spelt = (("--rank", "1"), ("--rank=0",))
    members = [
        process(
            20 + at,
            1,
            cmdline=(*TRAIN, *words),
            threads=GLOO,
            environ={"MASTER_ADDR": "n1", "MASTER_PORT": "1"},
        )
        for at, words in enumerate(spelt)
    ]
    assert numbers(*members) == {20: (1, "argument"), 21: (0, "argument")}


def test_a_rank_alone_counts_in_a_process_group() -> None:
    assert numbers(process(20, 1, environ={"RANK": "5"}, threads=GLOO)) == {20: (5, "RANK")}
    assert numbers(process(20, 1, environ={"RANK": "5"})) == {}


def test_a_rank_that_started_its_peers_is_no_launcher() -> None:
    told = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
    first = process(20, 1, environ={**told, "LOCAL_RANK": "0"}, threads=GLOO)
    second = process(21, 20, environ={**told, "LOCAL_RANK": "1"}, threads=GLOO)
    assert roles(attribute(table(first, second))) == {20: ("rank", 0), 21: ("rank", 1)}


def test_ranks_that_left_their_group_are_ranks_to_their_end() -> None:
    forked = [process(20 + at, 10, is_exiting=True) for at in range(2)]
    assert numbers(*forked) == {20: UNTOLD, 21: UNTOLD}
    worker = process(22, 20, is_exiting=True)
    assert 22 not in numbers(*forked, worker)


def test_what_ranks_joined_with_numbers_them_before_all_else() -> None:
    members = [engine(f"rank {at}", 20 + at, told_rank=1 - at) for at in range(2)]
    assert numbers(*members) == {
        20: (1, "init_process_group"),
        21: (0, "init_process_group"),
    }
    alone = members[0], members[1]._replace(told_rank=None)
    assert numbers(*alone)[20] == (0, "title"), "it tells not all of them"


def test_the_hook_of_hangtop_run_numbers_ranks() -> None:
    members = [engine("llama", 20 + at, environ={"HANGTOP_RANK": str(1 - at)}) for at in range(2)]
    assert numbers(*members) == {20: (1, "hangtop run"), 21: (0, "hangtop run")}


def test_gpus_in_the_order_of_the_start_number_the_ranks_of_a_node() -> None:
    def on(*gpus: str, **environ: str) -> dict[int, tuple[int | None, str | None]]:
        return numbers(
            *(
                engine("llama", 20 + at, environ={"CUDA_VISIBLE_DEVICES": gpu, **environ})
                for at, gpu in enumerate(gpus)
            )
        )

    assert on("0", "1") == {20: (0, "GPU and order"), 21: (1, "GPU and order")}
    for told in (
        on("1", "0"),
        on("1", "2"),
        on("0"),
        on("0,1", "2,3"),
        on("0", "1", WORLD_SIZE="4"),
    ):
        assert set(told.values()) == {UNTOLD}


def test_first_arguments_that_count_from_0_number_ranks() -> None:
    def called_with(*numbered: int | None, **environ: str) -> list[tuple[int | None, str | None]]:
        members = (
            engine("llama", 20 + at, first_argument=number, environ=environ)
            for at, number in enumerate(numbered)
        )
        return list(numbers(*members).values())

    source = "argument of its function"
    assert called_with(1, 0, 2) == [(1, source), (0, source), (2, source)]
    for told in ((0,), (1, 2), (0, 0), (0, None), (29500, 29501)):
        assert set(called_with(*told)) == {UNTOLD}
    assert set(called_with(0, 1, WORLD_SIZE="4")) == {UNTOLD}


def test_a_rank_that_was_handed_down_counts_nodes() -> None:
    """As the RANK and WORLD_SIZE of a pod, whose program starts a rank for each GPU."""
    pod = job_env(1, WORLD_SIZE="2")
    starts = process(19, 1, environ=pod)
    below = [
        process(20 + at, 19, environ=pod, threads=GLOO, wrap_rank=at, told_rank=2 + at)
        for at in range(2)
    ]
    found = attribute(table(starts, *below))
    assert (found[19].role, found[19].launcher) == ("launcher", "multiprocessing")
    assert numbers(starts, *below) == {
        20: (2, "init_process_group"),
        21: (3, "init_process_group"),
    }
    untold = [one._replace(told_rank=None) for one in below]
    assert numbers(starts, *untold) == {20: UNTOLD, 21: UNTOLD}
    alone = [one._replace(environ=job_env(0, WORLD_SIZE="1")) for one in untold]
    assert numbers(starts._replace(environ=job_env(0, WORLD_SIZE="1")), *alone) == {
        20: (0, "mp.spawn"),
        21: (1, "mp.spawn"),
    }
    anew = [one._replace(environ=job_env(2 + at)) for at, one in enumerate(untold)]
    assert numbers(starts, *anew) == {20: (2, "RANK"), 21: (3, "RANK")}


def test_a_number_stays_when_what_told_it_is_gone() -> None:
    members = [engine("saving", 20 + at, known=(1 - at, "title")) for at in range(2)]
    assert numbers(*members) == {20: (1, "title"), 21: (0, "title")}
    better = [one._replace(told_rank=at) for at, one in enumerate(members)]
    assert numbers(*better)[20] == (0, "init_process_group")
    twice = [one._replace(known=(0, "title")) for one in members]
    assert numbers(*twice) == {20: UNTOLD, 21: UNTOLD}


def test_titles_and_arguments_that_tell_siblings_apart_make_them_ranks() -> None:
    """From their start on, and after they have left their group."""
    titled = [
        process(20 + at, 10, cmdline=(f"VLLM::Worker_TP{at}",), python=True, has_torch=True)
        for at in range(2)
    ]
    assert numbers(*titled) == {20: (0, "title"), 21: (1, "title")}
    started = [
        process(20 + at, 10, cmdline=(*TRAIN, f"--rank={at}"), has_torch=True) for at in range(2)
    ]
    loader = process(30, 20, cmdline=started[0].cmdline, has_torch=True)
    assert numbers(*started, loader) == {20: (0, "argument"), 21: (1, "argument")}
    for others in (
        titled[:1],
        [one._replace(has_torch=False) for one in titled],
        [one._replace(cmdline=titled[0].cmdline) for one in titled],
        [one._replace(cmdline=(f"VLLM::EngineCore_DP{one.pid}",)) for one in titled],
    ):
        assert numbers(*others) == {}


def disputes(*members: Candidate) -> dict[int, str | None]:
    """Return what says another number of each rank than it has."""
    found = attribute(table(CORE, *members))
    return {pid: one.rank_disputed for pid, one in found.items() if one.role == "rank"}


def test_sources_that_contradict_one_another_are_told() -> None:
    first, second = (
        process(
            20 + at, 10, environ=job_env(at), cmdline=(f"train rank {at}: step 7",), python=True
        )
        for at in range(2)
    )
    assert disputes(first, second) == {20: None, 21: None}
    odd = second._replace(cmdline=("train rank 3: step 7",))
    assert disputes(first, odd) == {20: None, 21: "title says 3"}
    assert attribute(table(CORE, odd))[21].rank == 1, "the surer one is used"
    for title in ("train local rank 3", "worker tp_rank 3", "train", "TP3"):
        assert disputes(second._replace(cmdline=(title,))) == {21: None}
    argument = second._replace(cmdline=(*TRAIN, "--rank", "0"))
    assert disputes(argument) == {21: "argument says 0"}
    local = second._replace(cmdline=(*TRAIN, "--local-rank", "0"))
    assert disputes(local) == {21: None}


def test_a_number_that_was_set_anew_is_told_beside_that_of_the_start() -> None:
    changed = process(20, 10, environ=job_env(2), rank_at_start=(0, "RANK"))
    assert disputes(changed) == {20: "environment at its start says 0"}
    assert attribute(table(CORE, changed))[20].rank == 2
    below = changed._replace(ppid=19, threads=GLOO)
    pod = process(19, 10, environ=job_env(0))
    assert disputes(pod, below, below._replace(pid=21))[20] is None, "it was handed down"


def test_two_ranks_that_say_one_number_have_none() -> None:
    twins = [engine("worker rank 1", 20), engine("worker rank 1", 21)]
    assert numbers(*twins) == {20: UNTOLD, 21: UNTOLD}
    assert disputes(*twins) == {
        20: "title says 1, as that of pid 21",
        21: "title says 1, as that of pid 20",
    }


def test_what_is_above_and_beside_an_engine_is_of_its_job() -> None:
    """An API server that starts an engine and a detokenizer; the engine starts the ranks."""
    shell = process(8, 1, comm="bash", cmdline=("bash",), python=False)
    api = process(9, 8, cmdline=("python", "-m", "vllm.entrypoints.api_server"))
    detokenizer = process(11, 9, cmdline=("sglang::detokenizer",), python=True)
    engine = process(10, 9, cmdline=("VLLM::EngineCore",), python=True)
    ranks = [process(20 + i, 10, environ={}, threads=GLOO) for i in (0, 1)]
    found = attribute(table(shell, api, detokenizer, engine, *ranks))
    assert {pid: one.label for pid, one in found.items() if one.role == "launcher"} == {
        9: "vllm.entrypoints.api_server",
        10: "VLLM::EngineCore",
        11: "sglang::detokenizer",
    }
    assert (found[20].launcher_pid, found[10].launcher_pid, found[11].launcher_pid) == (10, 9, 9)


def test_above_torchrun_there_is_no_controller() -> None:
    above = process(9, 1, cmdline=("python", "sweep.py"))
    agent = LAUNCHER._replace(ppid=9)
    rank = process(20, 10, environ=job_env(0), threads=GLOO)
    assert 9 not in attribute(table(above, agent, rank))


def test_the_raylet_and_the_driver_are_of_the_job_of_actors() -> None:
    core = frozenset({"worker.io"})
    driver = process(9, 1, cmdline=("python", "train.py"), threads=core)
    raylet = process(10, 1, comm="raylet", cmdline=("/ray/raylet",), python=False)
    agent = process(12, 10, cmdline=("ray::DashboardAgent",))
    idle = process(13, 10, cmdline=("ray::IDLE",), threads=core)
    actors = [process(20 + i, 10, environ={}, threads=GLOO | core) for i in (0, 1)]
    found = attribute(table(driver, raylet, agent, idle, *actors))
    assert {pid for pid, one in found.items() if one.role == "launcher"} == {9, 10}
    assert (found[9].label, found[9].launcher_pid) == ("train.py", 10)
    assert {one.launcher for one in found.values()} <= {"Ray", "multiprocessing"}


def test_a_program_that_is_named_is_a_rank_with_its_children() -> None:
    single, worker = process(20, 1), process(21, 20, is_worker=True)
    stranger = process(30, 1)
    programs = table(single, worker, stranger)
    named = attribute(programs, named=frozenset({20}))
    assert roles(named) == {20: ("rank", None), 21: ("dataloader-worker", None)}
    assert named[20].rank_source == "--pid"
    assert restrict(named, programs, frozenset({20})) == named
    assert attribute(programs) == {}


def test_a_helper_that_is_named_is_shown_alone_unless_its_program_is_named_too() -> None:
    single, worker = process(20, 1), process(21, 20, is_worker=True)
    programs = table(single, worker)
    assert roles(attribute(programs, named=frozenset({21}))) == {21: ("rank", None)}
    both = attribute(programs, named=frozenset({20, 21}))
    assert roles(both) == {20: ("rank", None), 21: ("dataloader-worker", None)}


def test_a_program_that_is_named_and_started_ranks_is_none() -> None:
    script = process(5, 1)
    programs = table(script, LAUNCHER._replace(ppid=5), RANK0, RANK1)
    assert roles(attribute(programs, named=frozenset({5})))[20] == ("rank", 0)
    assert 5 not in attribute(programs, named=frozenset({5}))
    worker = process(22, 20)
    assert attribute(table(*programs.values(), worker), named=frozenset({22}))[22].role != "rank"


def test_who_is_named_among_controllers_and_their_ranks_has_all_of_them() -> None:
    """An API server starts an engine, and that the workers; a script above starts two of those."""
    above = process(5, 1, cmdline=("python", "sweep.py"))
    kinds = {"cmdline": ("python", "server.py"), "environ": {}}
    some = {}
    for at in (10, 50):
        api, engine = process(at, 5, **kinds), process(at + 1, at, **kinds)
        workers = [process(at + 2 + i, at + 1, environ={}, threads=GLOO) for i in (0, 1)]
        some.update(table(api, engine, process(at + 4, at + 1, **kinds), *workers))
    programs = {5: above, **some}
    found = attribute(programs)
    whole = {5, 10, 11, 12, 13, 14}
    for pid in (10, 11, 12, 14):
        assert restrict(found, programs, frozenset({pid})).keys() == whole, pid
    assert restrict(found, programs, frozenset({5})).keys() == programs.keys()
