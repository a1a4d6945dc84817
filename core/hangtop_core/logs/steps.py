"""What to do about causes that logs show, where nothing but the logs is at hand.

A step that begins with `HERE`, `FIRST` or `LIVE` is a command after its colon: for the node of who
is blamed, for that of rank 0, and of hangtop for a job that still hangs.
"""

from __future__ import annotations

HERE = "On that node: "
FIRST = "On the node of rank 0: "
LIVE = "While the job hangs, stacks, sockets and the kernel tell more: "
KERNEL_LOG = "(dmesg -T || journalctl -k --since -1h)"
"""The first may be refused where the second is not, which is empty on nodes without systemd."""
KILLS = f"{KERNEL_LOG} | grep -i -e oom -e killed -e segfault"
"""What the kernel says of processes that it has ended."""
_LIVE = f"{LIVE}hangtop diagnose"
_KERNEL = f"{HERE}{KILLS} -e xid"

STEPS: dict[str, tuple[str, ...]] = {
    "rank-exited": ("Correct what is reported there; errors of other ranks follow from it",),
    "rank-crashed": (_KERNEL, "Run with PYTHONFAULTHANDLER=1: then Python says where it was"),
    "rank-oom-killed": (
        _KERNEL,
        "Give the job more memory, or use fewer DataLoader workers and less prefetch",
    ),
    "missing-collective": (
        _LIVE,
        "Look for code before that call that not every rank runs: if rank == 0, an early break",
        "Recorder dumps name the place in the code: start it by `hangtop run -- COMMAND`",
    ),
    "mismatched-collective": ("Make all ranks call the same collectives in the same order",),
    "mismatched-size": (
        "Compare the shapes and types that ranks pass: a last batch that is smaller, padding, "
        "capacity, autocast on one rank",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective on the next run",
    ),
    "all-joined-transport": (
        "Run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET, and look for WARN",
        _KERNEL,
        _LIVE,
    ),
    "nccl-ib-error": (
        "See whether the peer's process is alive, and why it died if not: that comes first",
        f"{HERE}ibstat; grep . /sys/class/infiniband/*/ports/*/counters/link_downed",
        "The same on the node of the peer",
        "If links are lossy: NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=13",
    ),
    "ib-port-down": (
        f"{HERE}ibstat; rdma link",
        f"{HERE}{KERNEL_LOG} | grep -i mlx5",
    ),
    "wrong-interface": (
        "Name the interface that leads to the other nodes: NCCL_SOCKET_IFNAME=eth0 (or ib0); "
        "NCCL_SOCKET_IFNAME=^lo,docker leaves some out; GLOO_SOCKET_IFNAME, too",
    ),
    "port-blocked": (
        "`hangtop nettest` with the same nodes tries every way between them, high ports included",
    ),
    "store-unreachable": (
        f"{HERE}getent hosts $MASTER_ADDR",
        f"{HERE}timeout 5 bash -c '</dev/tcp/$MASTER_ADDR/$MASTER_PORT' && echo connected",
        "See whether rank 0 has started at all, and listens",
        f"{FIRST}ss -ltnp sport = :$MASTER_PORT",
    ),
    "store-port-taken": (
        f"{FIRST}ss -ltnp sport = :$MASTER_PORT",
        "End who has the port, or choose another MASTER_PORT",
    ),
    "rank-never-joined": ("Look for the ranks that did not start, in the launcher's log",),
    "rendezvous-incomplete": (
        "Start torchrun on all nodes, with the same --rdzv-endpoint, --rdzv-id and --nnodes",
    ),
    "nccl-init-incomplete": (_LIVE, "Look at what the ranks do that never began to join"),
    "launch-misconfigured": ("Give every rank its own RANK and GPU, and all one WORLD_SIZE",),
    "version-mismatch": ("Use one environment on all nodes",),
    "shm-too-small": (
        f"{HERE}df -h /dev/shm",
        "Containers: --shm-size=16g, or --ipc=host",
        "Or use fewer DataLoader workers",
    ),
    "dataloader-worker-dead": (_KERNEL, "Give the workers more memory, or start fewer"),
    "pin-memory-stuck": (_LIVE, "Try pin_memory=False"),
    "gil-held": (_LIVE, "To see which thread holds the GIL: hangtop dump --all-threads"),
    "disk-full": (f"{HERE}df -h; df -i", "Look at your quota, too"),
    "gpu-xid": (f"{HERE}nvidia-smi -q", "Drain it if the GPU is lost"),
    "gpu-ecc": (f"{HERE}nvidia-smi -q -d ECC,ROW_REMAPPER", "Reset the GPU, or have it replaced"),
    "gpu-nvlink": (f"{HERE}nvidia-smi nvlink -e",),
    "io-wait": ("Look at the server behind the path", f"{HERE}{KERNEL_LOG} | tail -n 50"),
    "node-unreachable": ("See whether that node is up",),
}

NO_PATH = (
    "Have the nodes allocated together: a placement group, an Azure availability set, one cluster",
    "Run with NCCL_IB_DISABLE=1: if that works, only the way over InfiniBand is closed",
    "On both nodes: ibstat; ibv_devinfo -v | grep -i -e state -e gid",
    "See whether both ports have one partition key (P_Key) and one subnet, or one VLAN with RoCE",
)
"""Where both ends of a connection over InfiniBand say that the other does not answer."""
TOLD_TO_END = (
    "See who ended it: a limit of time, a preemption, scancel (sacct -j JOBID)",
    "With a limit of time: hangtop watch captures a hang before the job is ended",
)
"""Where a launcher was told to end, or a scheduler ended the job."""

NOT_ALIKE = (
    "Recorder dumps tell which rank issued what: `hangtop flight` on those that torch wrote",
    "Where all issued the same, compare NCCL_* of all ranks, as NCCL_PROTO and NCCL_ALGO",
)
"""Where NCCL has got what does not fit, beside those of `mismatched-size`."""
GONE = (
    "See how that rank ended, which the log of its launcher or scheduler tells",
    _KERNEL,
    "Look for os._exit in the program: who leaves by it prints nothing",
)
"""Where a rank was lost that has printed nothing."""
