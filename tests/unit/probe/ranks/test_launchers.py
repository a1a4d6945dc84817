"""The table of launchers: each entry names its ranks, and a new one is used everywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hangtop_core.text import launchers as launchline
from hangtop_core.text.launchers import script, starts_together
from hangtop_probe.ranks import launchers, naming
from hangtop_probe.ranks.candidates import Candidate
from hangtop_probe.ranks.commands import launcher_kind
from hangtop_probe.ranks.discovery import attribute
from hangtop_probe.table import environment

ROOT = Path(__file__).parents[4]
TRAIN = ("python", "train.py")
GLOO = frozenset(["python", "gloo_tcp_loop"])
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}
ELASTIC = {**TORCH, "TORCHELASTIC_RUN_ID": "none"}
RAY = "ray::RayTrainWorker.execute"


def started_by(
    environ: dict[str, str], above: Candidate | None = None, **rank: object
) -> tuple[int | None, str | None]:
    """The number of a rank in a process group, and its launcher."""
    fields = {"cmdline": TRAIN, "python": True, "threads": GLOO, **rank}
    known = {20: Candidate(20, 10, 20, "python", environ=environ, **fields)}
    if above is not None:
        known[10] = above
    found = attribute(known)[20]
    return found.rank, found.launcher


def parent(comm: str, *cmdline: str) -> Candidate:
    return Candidate(10, 1, 10, comm, cmdline, {}, python=bool(cmdline) and "python" in cmdline[0])


@pytest.mark.parametrize(
    ("name", "environ", "above", "rank"),
    [
        ("torchrun", ELASTIC, parent("pt_elastic"), {}),
        ("accelerate", {**ELASTIC, "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False"}, None, {}),
        (  # a Trainer that compiles, below torchrun
            "torchrun",
            {**ELASTIC, "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"},
            None,
            {"framework": "Lightning"},
        ),
        ("torchx", {**ELASTIC, "TORCHX_JOB_ID": "local_cwd://s/x"}, parent("pt_elastic"), {}),
        (
            "deepspeed",
            TORCH,
            parent("python", "python", "-m", "deepspeed.launcher.launch", "x.py"),
            {},
        ),
        ("composer", TORCH, parent("python", "/bin/python", "/bin/composer", "x.py"), {}),
        ("composer", TORCH, parent("python", "/bin/python", "-m", "composer.cli", "x.py"), {}),
        ("verl", {**TORCH, "WG_BACKEND": "ray"}, None, {"cmdline": ("ray::WorkerDict.update",)}),
        ("OpenRLHF", TORCH, None, {"cmdline": ("ray::PolicyModelActor.fit",)}),
        ("Ray Train", TORCH, None, {"cmdline": (RAY,)}),
        ("Ray Train", TORCH, None, {"cmdline": (RAY,), "framework": "Lightning"}),
        ("Ray", TORCH, None, {"cmdline": ("ray::Policy.update",)}),
        (
            "Monarch",
            TORCH,
            None,
            {"cmdline": ("/bin/python", "-m", "monarch._src.actor.bootstrap_main")},
        ),
        ("vLLM", {}, None, {"cmdline": ("VLLM::Worker_TP1",)}),
        ("vLLM", {}, None, {"cmdline": ("ours::Worker_DP0_TP1",)}),
        ("vLLM", {}, None, {"cmdline": ("ray::RayWorkerWrapper rank 1",), "framework": "vLLM"}),
        (None, {}, None, {"cmdline": ("ours::Worker_7 of rank 1",)}),
        ("SGLang", {}, None, {"cmdline": ("sglang::scheduler_TP1",)}),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "1"}, None, {}),
        ("mpirun", {"PMIX_RANK": "1"}, None, {}),
        ("mpiexec", {"PMI_RANK": "1"}, None, {}),
        ("flux", {"FLUX_TASK_RANK": "1", "PMI_RANK": "1"}, parent("flux-shell"), {}),
        ("jsrun", {"JSM_NAMESPACE_RANK": "1"}, parent("jsmd"), {}),
        ("srun", {"SLURM_PROCID": "1"}, parent("slurmstepd"), {}),
        ("srun", {"SLURM_PROCID": "1"}, parent("slurmstepd"), {"framework": "Lightning"}),
        ("Lightning", {"LOCAL_RANK": "1"}, parent("python", *TRAIN), {"framework": "Lightning"}),
        ("Fabric", {"LOCAL_RANK": "1"}, parent("python", *TRAIN), {"framework": "Fabric"}),
        ("Lightning", {}, None, {"wrap_rank": 1, "framework": "Lightning"}),
        ("mp.spawn", {}, parent("python", *TRAIN), {"wrap_rank": 1}),
        ("multiprocessing", {}, parent("python", *TRAIN), {"local_rank": 1}),
        ("PyTorchJob", {**TORCH, "PET_RDZV_ENDPOINT": "a:1"}, None, {}),
        ("torchrun", {**ELASTIC, "PET_RDZV_ENDPOINT": "a:1"}, None, {}),
        ("PyTorchJob", {**TORCH, "PET_NODE_RANK": "0"}, None, {}),
        (
            "TrainJob",
            {**TORCH, "PET_NODE_RANK": "0", "JOB_COMPLETION_INDEX": "0"},
            None,
            {},
        ),
        ("MPIJob", {**TORCH, "K_MPI_JOB_ROLE": "worker"}, None, {}),
        ("Volcano", {**TORCH, "VC_TASK_INDEX": "0"}, None, {}),
        ("JobSet", {**TORCH, "JOB_COMPLETION_INDEX": "0"}, None, {}),
        (None, TORCH, None, {"framework": "Lightning"}),  # RANK by hand
    ],
)
def test_the_most_specific_launcher_names_a_rank(
    name: str | None, environ: dict[str, str], above: Candidate | None, rank: dict[str, object]
) -> None:
    number, launcher = started_by(environ, above, **rank)
    assert launcher == name
    assert number == 1


@pytest.mark.parametrize("one", launchers.TABLE, ids=lambda one: one.name.replace(" ", "-"))
def test_an_entry_can_be_told_from_the_others(one: launchers.Launcher) -> None:
    numbers = {*one.ranks, *one.pmi_ranks, *one.tasks} - {"RANK"}
    own = (one.marks, one.modules, one.title, one.frames, numbers)
    assert any(own) or one.name in (launchers.AGENT, launchers.SPAWN, launchers.MULTIPROCESSING)
    assert all(environment.is_allowed(name) for name in one.variables())


def test_frames_name_the_launcher_that_comes_first() -> None:
    site = "/venv/lib/python3.11/site-packages"
    paths = [f"{site}/lightning/fabric/strategies/ddp.py", f"{site}/torch/nn/modules/module.py"]
    assert naming.of_stack(paths) == "Fabric"
    assert naming.of_stack([*paths, f"{site}/lightning/pytorch/trainer/trainer.py"]) == "Lightning"
    assert naming.of_stack(["/home/me/lightning_trainer.py"]) is None


def test_scripts_of_users_are_no_launchers() -> None:
    run = ("python", "/venv/lib/python3.11/site-packages/torch/distributed/run.py")
    assert launcher_kind("python", (*run, "train.py")) == "torchrun"
    assert script((*run, "--nproc-per-node=2", "run.py")) == "run.py"
    assert launcher_kind("python", ("python", "run.py")) is None


def test_whether_ranks_of_a_node_start_at_once() -> None:
    alone = [{"SLURM_LOCALID": "0"}, {"SLURM_LOCALID": "1"}]
    assert starts_together("torchrun", [])
    assert starts_together("srun", alone)
    assert not starts_together("srun", [alone[0], alone[0]])
    assert not any(starts_together(name, []) for name in ("Ray", "Ray Train", None))


def test_variables_of_torch_come_first() -> None:
    assert launchline.RANKS[0] == "RANK"
    assert launchline.LOCAL_RANKS[0] == "LOCAL_RANK"
    assert launchline.NODE_RANKS[0] == "GROUP_RANK"


ADDED = """
import json, sys
from hangtop_probe.ranks import launchers
new = launchers.Launcher("launchit", ranks="LAUNCHIT_RANK", worlds="LAUNCHIT_SIZE",
    local_ranks="LAUNCHIT_LOCAL", ids="LAUNCHIT_JOB", scripts="launchit", logs="launchit.log")
launchers.TABLE = (new, *launchers.TABLE)
import os
os.environ.update(json.loads(sys.argv[1]))
from hangtop_core import errors
from hangtop_core.text import launchers as launchline
from hangtop_hook import processes
from hangtop_probe.ranks import candidates, commands, discovery, rankvariables
from hangtop_probe.table import environment
rank = candidates.Candidate(20, 1, 20, "python", ("python", "x.py"), dict(os.environ), python=True)
found = discovery.attribute({20: rank})[20]
sys.path.append(sys.argv[2])
from support import launcherdocs
print(json.dumps([
    found.rank, found.rank_source, found.launcher,
    commands.launcher_kind("python", ("python", "/bin/launchit", "x.py")),
    "j" in rankvariables.identity(os.environ), environment.is_allowed("LAUNCHIT_SIZE"),
    launchline.number_in(os.environ, launchline.WORLD_SIZES),
    launchline.number_in(os.environ, launchline.LOCAL_RANKS),
    processes.rank_in_environment(), processes.is_launcher(["python", "/bin/launchit"]),
    "LAUNCHIT_RANK" in errors.NoJobError.HELP,
    "LAUNCHIT_RANK" in launcherdocs.table() and "launchit.log" in launcherdocs.table(),
]))
"""


def test_an_added_entry_is_used_by_discovery_hook_core_help_and_pages() -> None:
    told = {"LAUNCHIT_RANK": "3", "LAUNCHIT_SIZE": "8", "LAUNCHIT_LOCAL": "2", "LAUNCHIT_JOB": "j"}
    path = os.pathsep.join(str(ROOT / part) for part in ("core", "tui"))
    argv = [sys.executable, "-c", ADDED, json.dumps(told), str(ROOT / "tests")]
    plain = {"PYTHONPATH": path, "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=plain)
    assert json.loads(done.stdout) == [
        *(3, "LAUNCHIT_RANK", "launchit", "launchit"),
        *(True, True, 8, 2, 3, True, True, True),
    ]


def test_the_program_of_nettest_knows_the_same_variables() -> None:
    """It runs alone, in any Python with torch, and so has no table."""
    source = (ROOT / "core/hangtop_probe/nettest/nettest_rank.py").read_text()
    told = re.findall(r"(rank|world|local) = number\((.*?)\)", source)
    assert [name for name, _ in told] == ["rank", "world", "local"]
    known = {name for one in launchers.TABLE for name in one.variables()}
    assert set(re.findall(r'"(\w+)"', " ".join(words for _, words in told))) <= known


def test_the_pages_list_the_table() -> None:
    from support import launcherdocs

    page = (ROOT / "docs/launchers.md").read_text()
    assert launcherdocs.table() in page, "python tests/support/launcherdocs.py writes it"
    readme = (ROOT / "README.md").read_text()
    assert launcherdocs.short_table() in readme, "python tests/support/launcherdocs.py writes it"


def test_a_rank_of_a_prepared_run_has_the_table_beside_the_hook(tmp_path: Path) -> None:
    from hangtop_core.tools.prepare import copy_hook

    copy_hook(tmp_path)
    code = "from hangtop_hook import processes as p; print(p.launchers.__name__, p._NUMBERS)"
    plain = {"PYTHONPATH": str(tmp_path)}
    argv = [sys.executable, "-S", "-s", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=plain)
    assert re.match(r"hangtop_hook\.launchers \('RANK', 'OMPI_COMM_WORLD_RANK'", done.stdout)
