"""The jobs that accuracy is measured on: what each does, and what is right to say of it.

They are written apart from the demo gallery and from the rules, each script in another style.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["torchrun", "each", "spawn", "mpirun"]
"""torchrun; one process per rank with RANK and its kin, by `jobs/each.py`; a script that starts
its ranks by itself; Open MPI's mpirun."""


@dataclass(frozen=True)
class Job:
    """One job of the table."""

    name: str
    command: str
    """Script in `jobs/`, and its arguments."""
    cause: str | None
    """What the first verdict has to be; None for a job that does not hang."""
    culprits: tuple[int, ...] = ()
    what: str = ""
    ready: str = r"[Ss]tep'?:? ?[6-9]"
    """Found in its output once it is on its way into the hang."""
    form: Form = "torchrun"
    ranks: str = "3"
    """How many; or, for `each`, the world size and which ones: `4 0,1,2`."""
    recorded: bool = False
    """Started by `hangtop run`, so that its flight recorder can be read."""
    inside: str = ""
    """Place in which it runs: a function of `places.py` or `support/places.py`."""
    outside: str = ""
    """What happens to the culprit from outside: a function of `places.py`."""
    environment: tuple[tuple[str, str], ...] = ()


def _each(ranks: str = "3 0,1,2") -> dict[str, str]:
    return {"form": "each", "ranks": ranks}


GPT = r"iter [6-9]"
LATE = r"iter 1\d"

JOBS: tuple[Job, ...] = (
    # Collectives
    Job(
        "gpt-bad-batch",
        "gpt.py trouble=bad-batch max_iters=20",
        "uneven-inputs",
        (1,),
        "DDP with accumulation: one rank drops a bad batch, and is early at the end",
        ready=r"iter 19",
    ),
    Job(
        "fit-early-stop",
        "fit.py early-stop",
        "missing-collective",
        (1,),
        "a loop with hooks: one rank stops early and polls for a file that nobody writes",
    ),
    Job(
        "fit-log-rank0",
        "fit.py log-rank0",
        "mismatched-collective",
        (0,),
        "a loop with hooks: a metric is gathered by rank 0 only",
        recorded=True,
    ),
    Job(
        "fit-short-shard",
        "fit.py short-shard",
        "uneven-inputs",
        (2,),
        "FSDP2: one rank has fewer batches",
        ready=r"step 6",
    ),
    Job(
        "grid-crossed",
        "grid.py crossed",
        "group-order-inversion",
        (0, 1, 2, 3),
        "tensor and data groups are used in opposite order by two ranks",
        ready=r"step 4",
        ranks="4",
        recorded=True,
    ),
    Job(
        "grid-wrong-verb",
        "grid.py wrong-verb",
        "mismatched-collective",
        (3,),
        "one rank reduces where the others gather",
        ready=r"step 4",
        ranks="4",
    ),
    Job(
        "grid-late-group",
        "grid.py late-group",
        "subset-new-group",
        (2, 3),
        "a group is made by half of the ranks",
        ready=r"step 4",
        ranks="4",
    ),
    Job(
        "pipe-both-listen",
        "pipe.py both-listen",
        "p2p-deadlock",
        (0, 1),
        "two pipeline stages both receive first",
        ready="iteration 3",
        recorded=True,
    ),
    Job(
        "pipe-source-dry",
        "pipe.py source-dry",
        "missing-collective",
        (0,),
        "the first pipeline stage waits for data; the others receive in a chain",
        ready="no new shard",
    ),
    Job(
        "pipe-source-dry-4",
        "pipe.py source-dry",
        "missing-collective",
        (0,),
        "the same, four stages deep, with recorders",
        ready="no new shard",
        ranks="4",
        recorded=True,
    ),
    # Deaths
    Job(
        "plain-segfault",
        "plain.py segfault",
        "rank-crashed",
        (1,),
        "a rank crashes",
        ready="step 5",
        **_each(),
    ),
    Job(
        "plain-kill",
        "plain.py kill",
        "rank-exited",
        (1,),
        "a rank is killed from outside",
        ready="step 5",
        **_each(),
    ),
    Job(
        "plain-exit",
        "plain.py exit",
        "rank-exited",
        (2,),
        "a rank leaves by SystemExit",
        ready="step 5",
        environment=(("CULPRIT", "2"),),
        **_each(),
    ),
    Job(
        "plain-oom",
        "plain.py oom",
        "rank-oom-killed",
        (1,),
        "a cache grows over the limit",
        ready="step 5",
        inside="limited",
        **_each(),
    ),
    Job(
        "plain-core",
        "plain.py core",
        "rank-dumping-core",
        (1,),
        "a rank aborts, and its core goes to a disk that does not take it",
        ready="step 5",
        inside="frozen_disk",
        **_each(),
    ),
    # Held from outside
    Job(
        "mpi-stopped",
        "plain.py",
        "rank-stopped",
        (1,),
        "mpirun: a rank gets SIGSTOP",
        form="mpirun",
        outside="stop",
    ),
    Job(
        "plain-strace",
        "plain.py",
        "rank-traced",
        (2,),
        "a rank is held by a stopped strace",
        outside="trace",
        environment=(("CULPRIT", "2"),),
    ),
    Job(
        "plain-frozen",
        "plain.py",
        "cgroup-frozen",
        (2,),
        "a rank's cgroup is frozen",
        inside="freezer",
        outside="freeze",
        environment=(("CULPRIT", "2"),),
    ),
    # Data
    Job(
        "hf-pipe-reader",
        "hf.py --stream --dataloader_num_workers 1 --bug pipe-reader --bug_rank 2",
        "dataloader-worker-stuck",
        (2,),
        "a loader worker reads from the pipe of a command that falls silent",
        ready="'step': 2",
    ),
    Job(
        "hf-pipe-reader-inline",
        "hf.py --stream --bug pipe-reader --bug_rank 1",
        "io-wait",
        (1,),
        "the same without workers",
        ready="'step': 2",
    ),
    Job(
        "plain-fifo",
        "plain.py fifo",
        "io-wait",
        (1,),
        "a rank reads a file nobody writes",
        ready="step 5",
        **_each(),
    ),
    Job(
        "hf-cache-lock",
        "hf.py --bug cache-lock --bug_rank 2",
        "file-lock",
        (2,),
        "a rank polls for a lock of the file lock package that another process has",
        ready="loading cached",
    ),
    Job(
        "plain-disk-full",
        "plain.py full",
        "disk-full",
        (1,),
        "a checkpoint meets a full disk",
        ready="will try again",
        inside="small_disk",
    ),
    # Python
    Job(
        "rl-broken-actor",
        "rl.py --env broken",
        "queue-wait",
        (0,),
        "the actor thread ended with an exception; the learner waits for its queue",
        ready="joint limit",
    ),
    Job(
        "rl-native",
        "rl.py --env native",
        "gil-held",
        (2,),
        "a native simulator sleeps with the GIL",
        ready="recompiling",
    ),
    Job(
        "rl-native-spawn",
        "rl.py --env native --spawn 3",
        "gil-held",
        (2,),
        "the same by mp.spawn",
        ready="recompiling",
        form="spawn",
    ),
    Job(
        "rl-server",
        "rl.py --env server",
        "remote-service-wait",
        (2,),
        "a simulation server does not answer",
        ready="update 8",
    ),
    Job(
        "rl-ema-lock",
        "rl.py --env ema --spawn 3",
        "lock-wait",
        (1,),
        "two threads take two locks in opposite order, by mp.spawn",
        ready="update 9",
        form="spawn",
    ),
    Job(
        "rl-judge",
        "rl.py --env judge",
        "busy-in-python",
        (1,),
        "an answer is scored by an explosive regular expression",
        ready="update 9",
    ),
    Job(
        "rl-fork",
        "rl.py --env fork",
        "fork-deadlock",
        (1,),
        "a child is forked while a thread has the lock that it needs",
        ready="update 9",
    ),
    Job(
        "hf-commit",
        "hf.py --bug commit --bug_rank 0",
        "child-process-wait",
        (0,),
        "git asks a remote that does not answer",
        ready="'step': 4",
    ),
    Job(
        "hf-raise-finish",
        "hf.py --bug raise --bug_rank 1",
        "teardown",
        (1,),
        "after an exception the interpreter waits for the metrics thread",
        ready="waiting for uploads",
    ),
    Job(
        "hf-raise-join",
        "hf.py --bug raise-join --bug_rank 2",
        "lock-wait",
        (2,),
        "after an exception a rank joins its metrics thread",
        ready="waiting for uploads",
    ),
    Job(
        "plain-ask",
        "plain.py ask",
        "debugger-prompt",
        (1,),
        "a rank asks a question",
        ready="overwrite",
    ),
    Job(
        "plain-chatty",
        "plain.py chatty",
        "output-pipe-full",
        (0,),
        "debug output goes into a pager nobody scrolls",
        ready="debug",
        inside="pager",
        environment=(("CULPRIT", "0"),),
        **_each(),
    ),
    # Start-up
    Job(
        "start-missing",
        "plain.py",
        "rank-never-joined",
        (3,),
        "the last rank was not started",
        ready="joining",
        **_each("4 0,1,2"),
    ),
    Job(
        "start-late",
        "plain.py late",
        "io-wait",
        (2,),
        "a rank reads its configuration before it joins",
        ready="reading the conf",
        environment=(("CULPRIT", "2"),),
        **_each(),
    ),
    Job(
        "start-twice",
        "plain.py",
        "launch-misconfigured",
        (1,),
        "rank 1 was started twice",
        ready="joining",
        **_each("3 0,1,1"),
    ),
    Job(
        "start-port-taken",
        "plain.py",
        "store-port-taken",
        (),
        "a web server has the port",
        ready="joining",
        inside="web_server",
        **_each("4 0,1,2,3"),
    ),
    Job(
        "start-unreachable",
        "plain.py",
        "store-unreachable",
        (),
        "the master's address leads nowhere",
        ready="joining",
        environment=(("MASTER_ADDR", "10.255.255.1"),),
        **_each(),
    ),
    Job(
        "start-one-node",
        "plain.py",
        "rendezvous-incomplete",
        (),
        "torchrun waits for a second node",
        ready="",
        ranks="2:2",
    ),
    Job(
        "plain-abort",
        "plain.py abort",
        "rank-exited",
        (2,),
        "a library calls abort(), of which the kernel log says nothing",
        ready="step 5",
        environment=(("CULPRIT", "2"),),
        **_each(),
    ),
    Job(
        "gpt-stopped",
        "gpt.py",
        "rank-stopped",
        (2,),
        "DDP: a rank gets SIGSTOP",
        ready=GPT,
        outside="stop",
    ),
    Job(
        "grid-strace",
        "grid.py healthy",
        "rank-traced",
        (3,),
        "groups of groups: a rank is held by a stopped strace",
        ranks="4",
        outside="trace",
    ),
    Job(
        "mpi-fifo",
        "plain.py fifo",
        "io-wait",
        (1,),
        "the same by mpirun",
        ready="step 5",
        form="mpirun",
    ),
    Job(
        "hf-pipe-reader-two",
        "hf.py --stream --dataloader_num_workers 2 --bug pipe-reader --bug_rank 0",
        "dataloader-worker-stuck",
        (0,),
        "the same with two workers",
        ready="'step': 2",
    ),
    Job(
        "start-missing-two",
        "plain.py",
        "rank-never-joined",
        (2, 5),
        "two ranks were not started",
        ready="joining",
        **_each("6 0,1,3,4"),
    ),
    # Not hung
    Job("gpt-healthy", "gpt.py", None, (), "DDP", ready=GPT),
    Job(
        "gpt-eval", "gpt.py trouble=eval", None, (), "rank 0 evaluates for long", ready="evaluating"
    ),
    Job(
        "gpt-checkpoint",
        "gpt.py trouble=checkpoint",
        None,
        (),
        "rank 0 saves for long",
        ready="saving",
    ),
    Job(
        "gpt-compile",
        "gpt.py trouble=compile",
        None,
        (),
        "one rank compiles its model",
        ready="iter 0",
    ),
    Job("fit-healthy", "fit.py", None, (), "a loop with hooks"),
    Job(
        "hf-tokenize",
        "hf.py --bug tokenize",
        None,
        (),
        "rank 0 tokenizes in processes",
        ready="map: 5/",
    ),
    Job(
        "hf-slow-rows",
        "hf.py --bug slow-rows --dataloader_num_workers 1",
        None,
        (),
        "loader workers are slow",
        ready="'step': 3",
    ),
    Job("mpi-healthy", "plain.py", None, (), "mpirun", form="mpirun"),
    Job(
        "plain-slow",
        "plain.py slow",
        None,
        (),
        "one rank needs five seconds a step",
        ready="step 2",
        **_each(),
    ),
    Job("pipe-healthy", "pipe.py", None, (), "a pipeline", ready="iteration 3"),
    Job("rl-healthy", "rl.py --spawn 3", None, (), "mp.spawn", ready="update 8", form="spawn"),
)
