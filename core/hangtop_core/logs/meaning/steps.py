"""Next steps for causes in logs, where nothing but the logs is available.

The text before a command, `HERE`, `FIRST` or `LIVE`, names the place to run it: the node of the
culprit, that of rank 0, or, for hangtop, a job that still hangs.
"""

from __future__ import annotations

from hangtop_core.text.commands import Advice, Command, Sign, Step, Word, shown

HERE = "On that node"
FIRST = "On the node of rank 0"
LIVE = "While the job hangs, stacks, sockets and the kernel tell more"
KILLS = (Sign.KERNEL_LOG, Sign.PIPE, "grep", "-i", *("-e", "oom", "-e", "killed", "-e", "segfault"))
"""Kernel messages on processes that it has ended."""


def _on_node(*words: Word) -> Command:
    return Command("", words, HERE)


_LIVE = Command("", ("hangtop", "diagnose"), LIVE)
_KERNEL = _on_node(*KILLS, "-e", "xid")
_LISTENS = Command("", ("ss", "-ltnp", "sport", "=", Sign.MASTER_SOCKET), FIRST)

STEPS: dict[str, tuple[Step, ...]] = {
    "rank-exited": (
        Advice("Correct what is reported there; errors of other ranks follow from it"),
    ),
    "rank-crashed": (
        _KERNEL,
        Advice("Run with PYTHONFAULTHANDLER=1: then Python says where it was"),
    ),
    "rank-oom-killed": (
        _KERNEL,
        Advice("Give the job more memory, or use fewer DataLoader workers and less prefetch"),
    ),
    "missing-collective": (
        _LIVE,
        Advice(
            "Look for code before that call that not every rank runs: if rank == 0, an early break"
        ),
        Advice("Recorder dumps name the place in the code: start it by `hangtop run -- COMMAND`"),
    ),
    "mismatched-collective": (
        Advice("Make all ranks call the same collectives in the same order"),
    ),
    "mismatched-size": (
        Advice(
            "Compare the shapes and types that ranks pass: a last batch that is smaller, padding, "
            "capacity, autocast on one rank"
        ),
        Advice("TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective on the next run"),
    ),
    "all-joined-transport": (
        Advice("Run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET, and look for WARN"),
        _KERNEL,
        _LIVE,
    ),
    "nccl-ib-error": (
        Advice("See whether the peer's process is alive, and why it died if not: that comes first"),
        _on_node("ibstat", Sign.THEN, "grep", ".", Sign.PORTS_DOWN),
        Advice("The same on the node of the peer"),
        Advice("If links are lossy: NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=13"),
    ),
    "ib-port-down": (
        _on_node("ibstat", Sign.THEN, "rdma", "link"),
        _on_node(Sign.KERNEL_LOG, Sign.PIPE, "grep", "-i", "mlx5"),
    ),
    "wrong-interface": (
        Advice(
            "Name the interface that leads to the other nodes: NCCL_SOCKET_IFNAME=eth0 (or ib0); "
            "NCCL_SOCKET_IFNAME=^lo,docker leaves some out; GLOO_SOCKET_IFNAME, too"
        ),
    ),
    "port-blocked": (
        Advice(
            "`hangtop nettest` with the same nodes tries every way between them, high ports "
            "included"
        ),
    ),
    "store-unreachable": (
        _on_node("getent", "hosts", Sign.MASTER_ADDR),
        _on_node("timeout", "5", "bash", "-c", Sign.CONNECT, Sign.AND, "echo", "connected"),
        Advice("See whether rank 0 has started at all, and listens"),
        _LISTENS,
    ),
    "store-port-taken": (
        _LISTENS,
        Advice("End who has the port, or choose another MASTER_PORT"),
    ),
    "rank-never-joined": (Advice("Look for the ranks that did not start, in the launcher's log"),),
    "rendezvous-incomplete": (
        Advice(
            "Start torchrun on all nodes, with the same --rdzv-endpoint, --rdzv-id and --nnodes"
        ),
    ),
    "nccl-init-incomplete": (_LIVE, Advice("Look at what the ranks do that never began to join")),
    "launch-misconfigured": (
        Advice("Give every rank its own RANK and GPU, and all one WORLD_SIZE"),
    ),
    "version-mismatch": (Advice("Use one environment on all nodes"),),
    "shm-too-small": (
        _on_node("df", "-h", "/dev/shm"),  # noqa: S108 - a command for people
        Advice("Containers: --shm-size=16g, or --ipc=host"),
        Advice("Or use fewer DataLoader workers"),
    ),
    "dataloader-worker-dead": (_KERNEL, Advice("Give the workers more memory, or start fewer")),
    "pin-memory-stuck": (_LIVE, Advice("Try pin_memory=False")),
    "gil-held": (_LIVE, Advice("To see which thread holds the GIL: hangtop dump --all-threads")),
    "disk-full": (_on_node("df", "-h", Sign.THEN, "df", "-i"), Advice("Look at your quota, too")),
    "gpu-xid": (_on_node("nvidia-smi", "-q"), Advice("Drain it if the GPU is lost")),
    "gpu-ecc": (
        _on_node("nvidia-smi", "-q", "-d", "ECC,ROW_REMAPPER"),
        Advice("Reset the GPU, or have it replaced"),
    ),
    "gpu-nvlink": (_on_node("nvidia-smi", "nvlink", "-e"),),
    "io-wait": (
        Advice("Look at the server behind the path"),
        _on_node(Sign.KERNEL_LOG, Sign.PIPE, "tail", "-n", "50"),
    ),
    "node-unreachable": (Advice("See whether that node is up"),),
}

NO_PATH: tuple[Step, ...] = (
    Advice(
        "Have the nodes allocated together: a placement group, an Azure availability set, one "
        "cluster"
    ),
    Advice("Run with NCCL_IB_DISABLE=1: if that works, only the way over InfiniBand is closed"),
    Command("", ("ibstat", Sign.THEN, "ibv_devinfo", "-v"), "On both nodes"),
    Advice(
        "See whether both ports have one partition key (P_Key) and one subnet, or one VLAN with "
        "RoCE"
    ),
)
"""For two ends of an InfiniBand connection that each report the other as not responding."""
TOLD_TO_END: tuple[Step, ...] = (
    Advice("See who ended it: a limit of time, a preemption, scancel (sacct -j JOBID)"),
    Advice("With a limit of time: hangtop watch captures a hang before the job is ended"),
)
"""For a launcher that got a signal, or a job that a scheduler ended."""

NOT_ALIKE: tuple[Step, ...] = (
    Advice(
        "Recorder dumps tell which rank issued what: `hangtop flight` on those that torch wrote"
    ),
    Advice("Where all issued the same, compare NCCL_* of all ranks, as NCCL_PROTO and NCCL_ALGO"),
)
"""For data of an unexpected size in NCCL, beside the steps of `mismatched-size`."""
GONE: tuple[Step, ...] = (
    Advice("See how that rank ended, which the log of its launcher or scheduler tells"),
    _KERNEL,
    Advice("Look for os._exit in the program: who leaves by it prints nothing"),
)
"""For a lost rank that printed nothing."""

_BARRIER = Advice(
    "Where it hangs, on the next run: torch.distributed.monitored_barrier() of a gloo group names "
    "the ranks that do not come"
)
UNTOLD: tuple[Step, ...] = (
    _LIVE,
    Advice("Start it by `hangtop run -- COMMAND`: recorder dumps then tell how far each rank was"),
    _BARRIER,
)
"""For a timeout whose missing ranks are unknown."""
UNTOLD_FEW: tuple[Step, ...] = (
    Advice("Give the logs of all ranks and nodes: who has not waited may be the one to look at"),
    *UNTOLD,
)
"""For such a timeout where most ranks have no line."""

FINISHED: tuple[Step, ...] = (
    Advice("Read where that rank left its last loop: it did a step or a collective less"),
    Advice("Where ranks have unequal data: torch.distributed.algorithms.join, or drop_last=True"),
)
"""For a rank that finished while others still waited for it."""
BY_TEXT: dict[str, Step] = {
    shown(step).text: step
    for steps in (*STEPS.values(), NO_PATH, TOLD_TO_END, NOT_ALIKE, GONE, UNTOLD_FEW)
    for step in steps
}
"""All steps by their text in a verdict on logs."""
