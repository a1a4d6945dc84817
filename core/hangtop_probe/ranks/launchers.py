"""The table of all launchers: how each numbers ranks, how its processes are known, where logs lie.

To add one, add an entry. Discovery, the hook, the core, help texts and pages all read it here. The
more specific comes first: where several fit a rank, the first names it. A copy of this module goes
to every node and into every rank of `hangtop run`, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing would cost every Python some milliseconds at its start
if TYPE_CHECKING:
    from typing import Optional, Tuple


class Launcher:
    """One launcher; fields of several words are written as one text, with blanks between."""

    ranks: Tuple[str, ...] = ()
    """Variables that number ranks, which nothing else has."""
    pmi_ranks: Tuple[str, ...] = ()
    """Those that may also number one process for each node, which starts the ranks."""
    tasks: Tuple[str, ...] = ()
    """Those that number tasks, and that what a task starts inherits: they count below `parents`,
    or in a process group."""
    worlds: Tuple[str, ...] = ()
    local_ranks: Tuple[str, ...] = ()
    local_sizes: Tuple[str, ...] = ()
    nodes: Tuple[str, ...] = ()
    ids: Tuple[str, ...] = ()
    """Variables that distinguish one job from another."""
    marks: Tuple[str, ...] = ()
    """Variables that it alone sets: one of them names it, or all of `A+B`."""
    modules: Tuple[str, ...] = ()
    """Its own processes: `python -m MODULE`."""
    scripts: Tuple[str, ...] = ()
    programs: Tuple[str, ...] = ()
    """Programs that start all sorts of things: a Python must be among their words."""
    daemons: Tuple[str, ...] = ()
    """Programs that serve one of those."""
    comms: Tuple[str, ...] = ()
    """Names of its main thread."""
    parents: Tuple[str, ...] = ()
    """Names of processes that start its tasks."""
    verb: str = ""
    """A word without which its script does something else."""
    title: str = ""
    """A pattern for the command line, or the title, of its ranks."""
    frames: Tuple[str, ...] = ()
    """Parts of paths in the stacks of its ranks."""
    starts: str = "at once"
    """How it starts the ranks of a node: "at once", by torch's "agent", or "one by one"."""
    logs: str = ""
    also: str = ""
    """What else starts ranks by it, for the pages."""

    def __init__(self, name: str, **fields: str) -> None:
        self.name = name
        for field, text in fields.items():
            is_text = isinstance(getattr(Launcher, field), str)
            setattr(self, field, text if is_text else _words(text))

    def variables(self) -> Tuple[str, ...]:
        """Return all variables that it sets."""
        numbers = self.ranks + self.pmi_ranks + self.tasks + self.local_ranks
        sizes = self.worlds + self.local_sizes + self.nodes
        return numbers + sizes + self.ids + _words(" ".join(self.marks).replace("+", " "))


def _words(text: str) -> Tuple[str, ...]:
    return tuple(text.split())


AGENT = "elastic agent"
"""A program that calls torchrun's agent itself (torch.distributed.launcher)."""
TORCHRUN, SPAWN, MULTIPROCESSING, RAY = "torchrun", "mp.spawn", "multiprocessing", "Ray"

_RAY_LOGS = "session_latest/logs in /tmp/ray"

TABLE = (
    # accelerate 1.15 accelerate/utils/launch.py; a Trainer sets ACCELERATE_DYNAMO_BACKEND, too
    # (transformers 5.24 training_args.py), but not whether that is for a full graph.
    Launcher(
        "accelerate",
        ranks="RANK",
        marks="ACCELERATE_DYNAMO_USE_FULLGRAPH",
        modules="accelerate.commands.launch accelerate.commands.accelerate_cli",
        scripts="accelerate accelerate-launch",
        verb="launch",
        starts="agent",
        logs="--log_dir with --redirects or --tee, as torchrun",
    ),
    # deepspeed 0.19 deepspeed/launcher/launch.py, runner.py
    Launcher(
        "deepspeed",
        ranks="RANK",
        worlds="WORLD_SIZE",
        local_ranks="LOCAL_RANK",
        local_sizes="LOCAL_SIZE",
        nodes="CROSS_RANK",
        modules="deepspeed.launcher.launch deepspeed.launcher.runner",
        scripts="deepspeed ds",
        logs="--enable_each_rank_log DIR",
    ),
    # mosaicml/composer composer/cli/launcher.py
    Launcher(
        "composer",
        ranks="RANK",
        local_sizes="LOCAL_WORLD_SIZE",
        nodes="NODE_RANK",
        modules="composer.cli composer.cli.launcher",
        scripts="composer",
        logs="--stdout and --stderr; else rank{N}.stdout.txt in a temporary folder",
    ),
    # volcengine/verl verl/single_controller/ray/base.py
    Launcher(
        "verl",
        ranks="RANK",
        local_ranks="RAY_LOCAL_RANK",
        local_sizes="RAY_LOCAL_WORLD_SIZE",
        marks="WG_BACKEND WG_PREFIX",
        title=r"ray::\S*WorkerDict",
        starts="one by one",
        logs=_RAY_LOGS,
    ),
    # OpenRLHF/OpenRLHF openrlhf/trainer/ray/launcher.py, ppo_actor.py
    Launcher(
        "OpenRLHF",
        ranks="RANK",
        title=r"ray::(Policy|Reference|Critic|Reward)ModelActor",
        starts="one by one",
        logs=_RAY_LOGS,
    ),
    # ray 2.60 ray/train/torch/config.py, ray/train/v2/_internal/execution/worker_group/worker.py
    Launcher(
        "Ray Train",
        ranks="RANK",
        nodes="NODE_RANK",
        title=r"ray::_?RayTrainWorker",
        starts="one by one",
        logs=_RAY_LOGS,
    ),
    # torchmonarch 0.7 monarch/_src/spmd/actor.py, monarch/_src/actor/bootstrap_main.py
    Launcher(
        "Monarch",
        ranks="RANK",
        nodes="GROUP_RANK",
        title=r"(?=\S*python)\S* .*-m monarch\.",
        starts="one by one",
        logs="monarch_log.log in /tmp/USER",
    ),
    # vllm-project/vllm vllm/utils/system_utils.py `set_process_title`
    Launcher(
        "vLLM",
        title=r"VLLM::|\S+::(Worker_(TP|PP|DP|EP)\d|EngineCore|APIServer_\d|DPCoordinator)",
        frames="/site-packages/vllm/",
    ),
    # sgl-project/sglang python/sglang/srt/managers/scheduler.py `run_scheduler_process`
    Launcher("SGLang", title=r"sglang::", frames="/sglang/srt/"),
    # ray 2.60 ray/_private/worker.py, ray_constants.py
    Launcher(RAY, title=r"ray::\w", starts="one by one", logs=_RAY_LOGS),
    # pytorch/torchx torchx/tracker/api.py; runs torchrun (torchx/components/dist.py)
    Launcher(
        "torchx",
        ranks="RANK",
        marks="TORCHX_JOB_ID",
        modules="torchx.cli.main",
        scripts="torchx",
        verb="run",
        logs="torchx log; the local scheduler: stdout.log and stderr.log below --log_dir",
    ),
    # torch 2.13 torch/distributed/run.py, elastic/agent/server/local_elastic_agent.py; the name of
    # its main thread: elastic/agent/server/api.py
    Launcher(
        TORCHRUN,
        ranks="RANK",
        worlds="WORLD_SIZE",
        local_ranks="LOCAL_RANK",
        local_sizes="LOCAL_WORLD_SIZE",
        nodes="GROUP_RANK",
        ids="TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT",
        marks="TORCHELASTIC_RUN_ID",
        modules="torch.distributed.run torch.distributed.launch torch.distributed.elastic",
        scripts="torchrun",
        comms="pt_elastic",
        starts="agent",
        logs="--log-dir with --redirects 3: stdout.log and stderr.log by local rank",
        also="torch.distributed.launch, the Trainer of transformers",
    ),
    Launcher(AGENT, starts="agent", also="programs that call torch.distributed.launcher"),
    # open-mpi/ompi orte/mca/schizo/ompi/schizo_ompi.c; PMIx: openpmix/prrte, by Open MPI 5
    Launcher(
        "mpirun",
        also="Open MPI and PRRTE",
        ranks="OMPI_COMM_WORLD_RANK",
        pmi_ranks="PMIX_RANK",
        worlds="OMPI_COMM_WORLD_SIZE",
        local_ranks="OMPI_COMM_WORLD_LOCAL_RANK",
        local_sizes="OMPI_COMM_WORLD_LOCAL_SIZE",
        ids="PMIX_NAMESPACE OMPI_MCA_ess_base_jobid",
        programs="mpirun orterun prterun",
        daemons="orted prted",
        logs="--output-filename DIR, Open MPI 5: --output dir=DIR",
    ),
    # flux-framework/flux-core src/shell/task.c; before MPICH, whose PMI it speaks
    Launcher(
        "flux",
        tasks="FLUX_TASK_RANK",
        worlds="FLUX_JOB_SIZE",
        local_ranks="FLUX_TASK_LOCAL_ID",
        ids="FLUX_JOB_ID",
        marks="FLUX_TASK_RANK",
        programs="flux",
        daemons="flux-shell",
        parents="flux-shell",
        logs="flux job attach, or --output",
    ),
    # IBM Job Step Manager, by lightning 2.6 lightning/fabric/plugins/environments/lsf.py
    Launcher(
        "jsrun",
        tasks="JSM_NAMESPACE_RANK",
        worlds="JSM_NAMESPACE_SIZE",
        local_ranks="JSM_NAMESPACE_LOCAL_RANK",
        ids="LSB_JOBID",
        marks="JSM_NAMESPACE_RANK",
        programs="jsrun",
        daemons="jsmd",
        parents="jsmd",
        logs="--stdio_stdout and --stdio_stderr",
    ),
    # pmodels/mpich src/pm/hydra/proxy/pmip_cb.c; Intel MPI has the same Hydra
    Launcher(
        "mpiexec",
        also="MPICH and Intel MPI (Hydra)",
        pmi_ranks="PMI_RANK",
        worlds="PMI_SIZE",
        local_ranks="MPI_LOCALRANKID",
        local_sizes="MPI_LOCALNRANKS",
        programs="mpiexec mpiexec.hydra",
        daemons="hydra_pmi_proxy",
        logs="-outfile-pattern and -errfile-pattern",
    ),
    # SchedMD/slurm src/slurmd/slurmstepd/task.c; enroot and pyxis keep its variables
    Launcher(
        "srun",
        tasks="SLURM_PROCID",
        worlds="SLURM_NTASKS",
        local_ranks="SLURM_LOCALID",
        nodes="SLURM_NODEID",
        ids="SLURM_JOB_ID SLURM_STEP_ID",
        programs="srun",
        parents="slurmstepd srun",
        logs="slurm-JOBID.out, or --output 'log-%t.out' by task",
        also="containers of enroot and pyxis",
    ),
    # lightning 2.6 lightning/pytorch/strategies/launchers/subprocess_script.py
    Launcher(
        "Lightning",
        worlds="WORLD_SIZE",
        local_ranks="LOCAL_RANK",
        nodes="NODE_RANK",
        frames="/lightning/pytorch/ /pytorch_lightning/",
        logs="lightning_logs/version_N",
    ),
    # lightning 2.6 lightning/fabric/strategies/launchers/subprocess_script.py, fabric/cli.py
    Launcher(
        "Fabric",
        worlds="WORLD_SIZE",
        local_ranks="LOCAL_RANK",
        nodes="NODE_RANK",
        frames="/lightning/fabric/ /lightning_fabric/",
    ),
    Launcher(SPAWN),  # torch 2.13 torch/multiprocessing/spawn.py
    Launcher(MULTIPROCESSING, also="mp.Process, fork"),  # CPython 3.11 Lib/multiprocessing
    # Around all of these: what started the containers, where nothing else is known.
    # kubeflow/trainer pkg/runtime/framework/plugins/torch/torch.go: the pods are of a JobSet
    Launcher(
        "TrainJob",
        marks="PET_NODE_RANK+JOB_COMPLETION_INDEX",
        starts="one by one",
        logs="kubectl logs",
    ),
    # kubeflow/training-operator pkg/controller.v1/pytorch/envvar.go, elastic.go
    Launcher(
        "PyTorchJob",
        ranks="RANK",
        marks="PET_NODE_RANK PET_RDZV_ENDPOINT",
        starts="one by one",
        logs="kubectl logs",
    ),
    # kubeflow/mpi-operator pkg/controller/mpi_job_controller.go
    Launcher("MPIJob", marks="K_MPI_JOB_ROLE", starts="one by one", logs="kubectl logs"),
    # volcano-sh/volcano pkg/controllers/job/plugins/env/env.go
    Launcher(
        "Volcano", marks="VC_TASK_INDEX VK_TASK_INDEX", starts="one by one", logs="kubectl logs"
    ),
    # Jobs of a JobSet are indexed: kubernetes/kubernetes pkg/controller/job/indexed_job_utils.go
    Launcher(
        "JobSet",
        marks="JOB_COMPLETION_INDEX",
        starts="one by one",
        logs="kubectl logs",
        also="other indexed jobs of Kubernetes",
    ),
)


def every(field: str) -> Tuple[str, ...]:
    """Return the words of one field of all launchers, each once.

    Those of torch come first: who starts ranks of torch sets them last. The rest are in the order
    of the table.
    """
    rows = sorted(TABLE, key=lambda one: one.name != TORCHRUN)
    return tuple(dict.fromkeys(word for one in rows for word in getattr(one, field)))


def owner(field: str, word: str) -> Optional[Launcher]:
    """Return the first launcher that has a word in one of its fields."""
    return next((one for one in TABLE if word in getattr(one, field)), None)


def named(name: str) -> Optional[Launcher]:
    """Return the launcher of this name."""
    return next((one for one in TABLE if one.name == name), None)


def of_script(path: str) -> Optional[Launcher]:
    """Return whose a Python script is, by its name or as the file of a module."""
    dotted = path.replace("/", ".")
    for one in TABLE:
        files = tuple(module + ".py" for module in one.modules)
        if path.rsplit("/", 1)[-1] in one.scripts or dotted.endswith(files):
            return one
    return None
