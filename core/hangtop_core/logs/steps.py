"""What to do about causes that logs show, where nothing but the logs is at hand."""

from __future__ import annotations

_LIVE = "While the job hangs: hangtop diagnose, which also sees stacks, sockets and the kernel"
_KERNEL = "On that node: journalctl -k --since -2h | grep -i -e oom -e killed -e segfault -e xid"

STEPS: dict[str, tuple[str, ...]] = {
    "rank-exited": ("Correct what that rank reports; the errors of the others follow from it",),
    "rank-crashed": (_KERNEL, "Run with PYTHONFAULTHANDLER=1: then Python says where it was"),
    "rank-oom-killed": (
        _KERNEL,
        "Give the job more memory, or use fewer DataLoader workers and less prefetch",
    ),
    "missing-collective": (
        _LIVE,
        "Look for code before that call that not every rank runs: if rank == 0, an early break",
        "Recorder dumps name the place in the code: TORCH_FR_BUFFER_SIZE=2000, then hangtop flight",
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
        "On both nodes: ibstat; cat /sys/class/infiniband/*/ports/*/counters/link_downed",
        "If links are lossy: NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=13",
    ),
    "ib-port-down": ("On that node: ibstat; rdma link; journalctl -k | grep -i mlx5",),
    "wrong-interface": (
        "Name the interface that leads to the other nodes: NCCL_SOCKET_IFNAME=eth0 (or ib0); "
        "NCCL_SOCKET_IFNAME=^lo,docker leaves some out; GLOO_SOCKET_IFNAME, too",
    ),
    "port-blocked": ("From one node to the other: nc -vz NODE PORT, also for high ports",),
    "store-unreachable": (
        "From that node: getent hosts NAME, and nc -vz NAME PORT of MASTER_ADDR and MASTER_PORT",
        "See whether rank 0 has started at all, and listens: ss -ltnp on its node",
    ),
    "store-port-taken": (
        "See who has the port: ss -ltnp on rank 0's node; end it, or choose another MASTER_PORT",
    ),
    "rank-never-joined": ("Look for the ranks that did not start, in the launcher's log",),
    "rendezvous-incomplete": (
        "Start torchrun on all nodes, with the same --rdzv-endpoint, --rdzv-id and --nnodes",
    ),
    "nccl-init-incomplete": (_LIVE, "Look at what the ranks do that never began to join"),
    "launch-misconfigured": ("Give every rank its own RANK and GPU, and all one WORLD_SIZE",),
    "version-mismatch": ("Use one environment on all nodes",),
    "shm-too-small": (
        "df -h /dev/shm on that node; containers: --shm-size=16g, or --ipc=host",
        "Or use fewer DataLoader workers",
    ),
    "dataloader-worker-dead": (_KERNEL, "Give the workers more memory, or start fewer"),
    "pin-memory-stuck": (_LIVE, "Try pin_memory=False"),
    "gil-held": (_LIVE, "hangtop dump --all-threads names the thread that holds the GIL"),
    "disk-full": ("On that node: df -h, df -i and quota",),
    "gpu-xid": ("nvidia-smi -q on that node; drain it if the GPU is lost",),
    "gpu-ecc": ("nvidia-smi -q -d ECC,ROW_REMAPPER on that node; reset the GPU",),
    "gpu-nvlink": ("nvidia-smi nvlink -e on that node",),
    "io-wait": ("On that node: the server behind the path, and journalctl -k",),
    "node-unreachable": ("See whether that node is up",),
}
