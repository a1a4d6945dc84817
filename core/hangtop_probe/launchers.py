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
    """One launcher; each field is words with blanks between, kept as a tuple."""

    def __init__(
        self,
        name: str,
        ranks: str = "",
        pmi_ranks: str = "",
        tasks: str = "",
        worlds: str = "",
        local_ranks: str = "",
        local_sizes: str = "",
        nodes: str = "",
        ids: str = "",
        marks: str = "",
        modules: str = "",
        scripts: str = "",
        programs: str = "",
        daemons: str = "",
        comms: str = "",
        parents: str = "",
        verb: str = "",
        title: str = "",
        frames: str = "",
        starts: str = "at once",
        logs: str = "",
    ) -> None:
        self.name = name
        # Variables. Those of `ranks` number ranks, and nothing else has them.
        self.ranks = _words(ranks)
        # These may also number one process for each node, which starts the ranks.
        self.pmi_ranks = _words(pmi_ranks)
        # These number tasks, and what a task starts inherits them: they count below `parents`,
        # or in a process group.
        self.tasks = _words(tasks)
        self.worlds = _words(worlds)
        self.local_ranks = _words(local_ranks)
        self.local_sizes = _words(local_sizes)
        self.nodes = _words(nodes)
        # Those that tell one job from another.
        self.ids = _words(ids)
        # Those that it alone sets: one of them names it.
        self.marks = _words(marks)
        # Its own processes: `python -m MODULE`, scripts, programs that start all sorts of things
        # (a Python must be among their words), programs that serve one, names of main threads.
        self.modules = _words(modules)
        self.scripts = _words(scripts)
        self.programs = _words(programs)
        self.daemons = _words(daemons)
        self.comms = _words(comms)
        # Names of processes that start its tasks.
        self.parents = _words(parents)
        # A word without which its script does something else.
        self.verb = verb
        # A pattern for the command line, or the title, of its ranks.
        self.title = title
        # Parts of paths in the stacks of its ranks.
        self.frames = _words(frames)
        # How it starts the ranks of a node: "at once", by torch's "agent", or "one by one".
        self.starts = starts
        self.logs = logs

    def variables(self) -> Tuple[str, ...]:
        """Return all variables that it sets."""
        numbers = self.ranks + self.pmi_ranks + self.tasks + self.local_ranks
        sizes = self.worlds + self.local_sizes + self.nodes
        return numbers + sizes + self.ids + self.marks


def _words(text: str) -> Tuple[str, ...]:
    return tuple(text.split())


AGENT = "elastic agent"
"""A program that calls torchrun's agent itself (torch.distributed.launcher)."""
TORCHRUN, SPAWN, MULTIPROCESSING = "torchrun", "mp.spawn", "multiprocessing"

_RAY_LOGS = "session_latest/logs in /tmp/ray"

TABLE = (
    # accelerate 1.15 accelerate/utils/launch.py; a Trainer sets ACCELERATE_DYNAMO_BACKEND, too
    # (transformers 5.24 training_args.py), but not whether that is for a full graph.
    Launcher(
        "accelerate",
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
    # composer 0.31 composer/cli/launcher.py
    Launcher(
        "composer",
        ranks="RANK",
        local_sizes="LOCAL_WORLD_SIZE",
        nodes="NODE_RANK",
        modules="composer.cli.launcher",
        scripts="composer",
        logs="--stdout and --stderr; else rank{N}.stdout.txt in a temporary folder",
    ),
    # verl 0.6 verl/single_controller/ray/base.py
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
    # OpenRLHF 0.8 openrlhf/trainer/ray/launcher.py, ppo_actor.py, ppo_critic.py
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
    # ray 2.60 ray/_private/worker.py, ray_constants.py
    Launcher("Ray", title=r"ray::\w", starts="one by one", logs=_RAY_LOGS),
    # torchmonarch 0.7 monarch/_src/spmd/actor.py, monarch/_src/actor/bootstrap_main.py
    Launcher(
        "Monarch",
        ranks="RANK",
        nodes="GROUP_RANK",
        title=r"\S*python\S* .*-m monarch\.",
        starts="one by one",
        logs="monarch_log.log in /tmp/USER",
    ),
    # vllm 0.11 vllm/utils/system_utils.py `set_process_title`, vllm/v1/executor
    Launcher(
        "vLLM",
        title=r"\S+::(Worker(_|\b)|EngineCore|APIServer|DPCoordinator)",
        frames="/site-packages/vllm/",
    ),
    # sglang 0.5 python/sglang/srt/managers/scheduler.py `configure_scheduler_process`
    Launcher("SGLang", title=r"sglang::", frames="/sglang/srt/"),
    # torchx 0.7 torchx/tracker/api.py; runs torchrun (torchx/components/dist.py)
    Launcher(
        "torchx",
        marks="TORCHX_JOB_ID",
        modules="torchx.apps.main",
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
    ),
    Launcher(AGENT, starts="agent"),
    # Open MPI 5 docs/tuning-apps/environment-var.rst; prrte src/prted; PMIx on RANK
    Launcher(
        "mpirun",
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
    # flux-core 0.78 src/shell/task.c, src/shell/shell.c; before MPICH, whose PMI it speaks
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
    # MPICH 4 src/pm/hydra/proxy; MPI_LOCALRANKID is Hydra's, and so Intel MPI's
    Launcher(
        "mpiexec",
        pmi_ranks="PMI_RANK",
        worlds="PMI_SIZE",
        local_ranks="MPI_LOCALRANKID",
        local_sizes="MPI_LOCALNRANKS",
        programs="mpiexec mpiexec.hydra",
        daemons="hydra_pmi_proxy",
        logs="-outfile-pattern and -errfile-pattern",
    ),
    # slurm 22.05 src/slurmd/slurmstepd/task.c; enroot and pyxis keep its variables
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
    Launcher(MULTIPROCESSING),  # CPython 3.11 Lib/multiprocessing, also by fork
    # Around all of these: what started the containers, where nothing else is known.
    # training-operator 1.8 pkg/controller.v1/pytorch/envvar.go
    Launcher(
        "PyTorchJob",
        ranks="RANK",
        marks="PET_RDZV_ENDPOINT",
        starts="one by one",
        logs="kubectl logs",
    ),
    # trainer 2.0 pkg/runtime/framework/plugins/torch/torch.go
    Launcher("TrainJob", marks="PET_NODE_RANK", starts="one by one", logs="kubectl logs"),
    # mpi-operator 0.6 pkg/controller/mpi_job_controller.go
    Launcher("MPIJob", marks="K_MPI_JOB_ROLE", starts="one by one", logs="kubectl logs"),
    # volcano 1.10 pkg/controllers/job/plugins/env/env.go
    Launcher(
        "Volcano", marks="VC_TASK_INDEX VK_TASK_INDEX", starts="one by one", logs="kubectl logs"
    ),
    # jobset 0.8: pods of indexed jobs (kubernetes pkg/controller/job/indexed_job_utils.go)
    Launcher("JobSet", marks="JOB_COMPLETION_INDEX", starts="one by one", logs="kubectl logs"),
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
