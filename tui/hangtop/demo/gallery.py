"""The scenarios of the demo: what hangs, and the expected diagnosis.

The scenario suite under `tests/real/` checks diagnoses against this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["torchrun", "nodes", "env", "spawn"]
"""How the ranks are started: torchrun on this machine; torchrun that waits for a second node; one
process per rank with RANK and its kin in the environment; torch.multiprocessing.spawn.
"""

Outside = Literal["stop", "trace", "kill-launcher"]
"""What happens to the announced rank, or its launcher, once the job runs."""


@dataclass(frozen=True)
class Scenario:
    """One small job: what goes wrong in it, and the culprits."""

    name: str
    description: str
    cause: str | None
    """Code of the expected first verdict; None for a healthy job."""
    culprits: tuple[int, ...] = ()
    program: str | None = None
    """Name of the scenario in the training program, when it differs."""
    ranks: int = 4
    world_size: int = 4
    form: Form = "torchrun"
    outside: Outside | None = None
    needs: tuple[str, ...] = ()
    """Programs that must be installed."""

    @property
    def hangs(self) -> bool:
        """Whether the job hangs at all."""
        return self.cause is not None


GALLERY: tuple[Scenario, ...] = (
    Scenario(
        "skip",
        "rank 2 leaves a step early and skips an all_reduce that the others wait for",
        "missing-collective",
        (2,),
    ),
    Scenario(
        "dataloader-worker",
        "a DataLoader worker of rank 1 blocks while opening a file",
        "dataloader-worker-stuck",
        (1,),
    ),
    Scenario(
        "stopped",
        "rank 3 is stopped by a signal (SIGSTOP) in the middle of training",
        "rank-stopped",
        (3,),
        outside="stop",
    ),
    Scenario(
        "lock",
        "two threads of rank 1 take two locks in opposite order",
        "lock-wait",
        (1,),
    ),
    Scenario(
        "skip-silent",
        "rank 2 drops one all_reduce; nobody notices until it is alone at a barrier",
        "mismatched-collective",
        (2,),
    ),
    Scenario(
        "mismatched",
        "rank 1 calls broadcast where the others call all_reduce",
        "mismatched-collective",
        (1,),
    ),
    Scenario(
        "recorder",
        "as skip, in a job whose flight recorder can be read",
        "missing-collective",
        (2,),
    ),
    Scenario(
        "ddp-skip",
        "DistributedDataParallel: rank 3 never starts its backward pass",
        "missing-collective",
        (3,),
    ),
    Scenario(
        "ddp-uneven",
        "DistributedDataParallel: rank 1 has fewer batches than the others",
        "uneven-inputs",
        (1,),
    ),
    Scenario(
        "traced",
        "a debugger is attached to rank 3 and holds it",
        "rank-traced",
        (3,),
        outside="trace",
        needs=("gdb",),
    ),
    Scenario(
        "data-slow",
        "a DataLoader worker of rank 2 computes without end; its rank starves",
        "data-starved",
        (2,),
    ),
    Scenario(
        "data-inline",
        "rank 1 loads data in its main thread and blocks while opening a file",
        "io-wait",
        (1,),
    ),
    Scenario(
        "fifo",
        "rank 1 reads a file whose server never answers",
        "io-wait",
        (1,),
    ),
    Scenario(
        "dstate",
        "rank 2 sleeps uninterruptibly in the kernel (state D), as with a dead NFS server",
        "io-wait",
        (2,),
    ),
    Scenario(
        "file-lock",
        "rank 3 waits for a file lock that a process outside the job holds",
        "file-lock",
        (3,),
    ),
    Scenario(
        "busy",
        "rank 3 runs a search in Python that never converges",
        "busy-in-python",
        (3,),
    ),
    Scenario(
        "regex",
        "rank 2 matches a regular expression with catastrophic backtracking",
        "busy-in-python",
        (2,),
    ),
    Scenario(
        "gil",
        "a thread of rank 1 sleeps in C code and keeps the GIL",
        "gil-held",
        (1,),
    ),
    Scenario(
        "queue",
        "rank 1 waits for a queue whose producer has ended",
        "queue-wait",
        (1,),
    ),
    Scenario(
        "child",
        "rank 2 waits for a program it started",
        "child-process-wait",
        (2,),
    ),
    Scenario(
        "debugger",
        "rank 0 sits at a dist.breakpoint() that was left in the code",
        "debugger-prompt",
        (0,),
    ),
    Scenario(
        "output-pipe",
        "rank 0 prints into a pipe whose reader has stopped reading",
        "output-pipe-full",
        (0,),
    ),
    Scenario(
        "remote",
        "rank 2 waits for the answer of a service that stays silent",
        "remote-service-wait",
        (2,),
    ),
    Scenario(
        "exited",
        "rank 2 has left; the others wait in the store for its result",
        "rank-exited",
        (2,),
    ),
    Scenario(
        "rendezvous",
        "torchrun waits for a second node that is not there; no rank exists yet",
        "rendezvous-incomplete",
        program="progressing",
        ranks=0,
        world_size=8,
        form="nodes",
    ),
    Scenario(
        "never-joined",
        "five ranks are expected, four were started",
        "rank-never-joined",
        (4,),
        world_size=5,
        form="env",
    ),
    Scenario(
        "misconfigured",
        "rank 3 was started with another MASTER_PORT than the others",
        "launch-misconfigured",
        (3,),
        form="env",
    ),
    Scenario(
        "orphaned",
        "as skip, after torchrun was killed and left its ranks alone",
        "missing-collective",
        (2,),
        program="skip",
        outside="kill-launcher",
    ),
    Scenario(
        "mpspawn",
        "as skip, with ranks started by torch.multiprocessing.spawn",
        "missing-collective",
        (2,),
        program="skip",
        form="spawn",
    ),
    Scenario("progressing", "a healthy job", None),
    Scenario("slow-step", "not a hang: rank 1 needs six seconds for each step", None),
    Scenario("slow-compute", "not a hang: rank 2 computes four seconds in each step", None),
)

BY_NAME = {scenario.name: scenario for scenario in GALLERY}
