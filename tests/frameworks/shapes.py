"""Ways to start ranks that are tried with the real framework, and what must be said of each."""

from __future__ import annotations

from dataclasses import dataclass
from shutil import which

TORCHRUN = "{python} -m torch.distributed.run --nproc-per-node 2 --master-port {port}"


@dataclass(frozen=True)
class Shape:
    """One way to start two ranks, of which rank 1 hangs in a function of the user's."""

    name: str
    launcher: str
    """By this name of the table it must be called."""
    command: str
    """How it is started; `{jobs}`, `{bin}`, `{python}`, `{port}` and `{mpirun}` are filled in."""
    line: str
    """The function of the user's in which rank 1 hangs."""
    packages: tuple[str, ...]
    """Whose versions it was tried with."""
    causes: tuple[str, ...] = ("missing-collective",)
    """The first verdict must be one of these."""
    numbered: bool = True
    """Whether anything tells which is rank 1; else it may have no number, but no wrong one."""


LOCKED = ("lock-wait",)
SHAPES = (
    Shape(
        "torchrun, with titles",
        "torchrun",
        f"{TORCHRUN} {{jobs}}/script.py --title",
        "write_sample",
        ("torch", "setproctitle"),
    ),
    Shape(
        "accelerate launch",
        "accelerate",
        "{bin}/accelerate launch --multi_gpu --num_processes 2 --num_machines 1"
        " --mixed_precision no --dynamo_backend no --main_process_port {port}"
        " {jobs}/accelerated.py",
        "wait_for_shard",
        ("accelerate",),
        ("missing-collective", "retry-loop", "file-wait"),
    ),
    Shape(
        "transformers Trainer",
        "torchrun",
        f"{TORCHRUN} {{jobs}}/hf_trainer.py",
        "push_to_hub",
        ("transformers", "accelerate"),
    ),
    Shape(
        "torchx",
        "torchx",
        "{bin}/torchx run -s local_cwd dist.ddp -j 1x2 --script {jobs}/script.py",
        "write_sample",
        ("torchx", "torch"),
    ),
    Shape(
        "DeepSpeed",
        "deepspeed",
        "{bin}/deepspeed --num_gpus 2 --master_port {port} {jobs}/deepspeed_engine.py",
        "tokenize",
        ("deepspeed",),
    ),
    Shape(
        "Lightning, ddp",
        "Lightning",
        "{python} {jobs}/lightning_trainer.py ddp",
        "load_features",
        ("lightning",),
    ),
    Shape(
        "Lightning, ddp_spawn",
        "Lightning",
        "{python} {jobs}/lightning_trainer.py ddp_spawn",
        "load_features",
        ("lightning",),
    ),
    Shape(
        "Fabric",
        "Fabric",
        "{python} {jobs}/fabric.py",
        "count_tokens",
        ("lightning",),
        ("busy-in-python", "missing-collective"),
    ),
    Shape(
        "Ray Train",
        "Ray Train",
        "{python} {jobs}/ray_train.py",
        "fetch_features",
        ("ray",),
    ),
    Shape(
        "Ray actors",
        "Ray",
        "{python} {jobs}/ray_actors.py {port}",
        "play_games",
        ("ray",),
        numbered=False,
    ),
    Shape(
        "Monarch",
        "Monarch",
        "{python} {jobs}/monarch_actors.py",
        "score_answers",
        ("torchmonarch",),
    ),
    Shape(
        "mp.spawn",
        "mp.spawn",
        "{python} {jobs}/processes.py mp.spawn {port}",
        "wait_for_writer",
        ("torch",),
        LOCKED,
    ),
    Shape(
        "mp.Process, spawn",
        "multiprocessing",
        "{python} {jobs}/processes.py spawn {port}",
        "wait_for_writer",
        ("torch",),
        LOCKED,
    ),
    Shape(
        "mp.Process, fork",
        "multiprocessing",
        "{python} {jobs}/processes.py fork {port}",
        "wait_for_writer",
        ("torch",),
        LOCKED,
    ),
    Shape(
        "mp.Process, fork, with titles",
        "multiprocessing",
        "{python} {jobs}/processes.py fork {port} --title",
        "wait_for_writer",
        ("torch", "setproctitle"),
        LOCKED,
    ),
    Shape(
        "mpirun",
        "mpirun",
        "env MASTER_ADDR=127.0.0.1 MASTER_PORT={port} {mpirun} --allow-run-as-root --oversubscribe"
        " -n 2 {python} {jobs}/accelerated.py",
        "wait_for_shard",
        ("accelerate",),
        ("missing-collective", "retry-loop", "file-wait"),
    ),
    Shape(
        "PRRTE of Open MPI 5",
        "mpirun",
        "{bin}/prterun --allow-run-as-root --map-by :OVERSUBSCRIBE -n 2"
        " {python} {jobs}/mpi.py PMIX_RANK {port}",
        "read_manifest",
        ("openmpi", "torch"),
    ),
    Shape(
        "MPICH",
        "mpiexec",
        "{bin}/mpiexec.hydra -n 2 {python} {jobs}/mpi.py PMI_RANK {port}",
        "read_manifest",
        ("mpich", "torch"),
    ),
)


def arguments(shape: Shape, bins: str, jobs: str, port: int) -> list[str]:
    """Return the command line that starts the job of a shape."""
    filled = {"bin": bins, "python": f"{bins}/python", "jobs": jobs, "port": str(port)}
    filled["mpirun"] = which("mpirun") or "mpirun"  # the machine's: others are in the environment
    return [word.format(**filled) for word in shape.command.split()]
