"""Further jobs of causes that are seldom met, each of which another hand has written before; in
the two that need an accelerator or an older torch these are doubles."""

from __future__ import annotations

from accuracy.job import Job

SELDOM: tuple[Job, ...] = (
    Job(
        "seeds-by-release",
        "compat.py",
        "version-mismatch",
        (3,),
        "two nodes: a compatibility layer shares seeds only where torch is new enough",
        ready="rank 3: epoch 0 done",
        form="nodes",
        ranks="4 0,1,2/3",
        inside="older_torch",
    ),
    Job(
        "pin-thread-over-share",
        "registrar.py --share 2:60",
        "pin-memory-stuck",
        (2,),
        "the thread that pins memory waits for an agent's answer",
        ready="batch 50",
    ),
    Job(
        "bf16-buffers",
        "flatgrads.py --bf16-rank 2 --bf16-from 5",
        "mismatched-dtype",
        (2,),
        "a rank reduces half as many buffers of the same bytes, as its are bfloat16",
        ready="step 4",
        recorded=True,
    ),
    Job(
        "rank-cut-off",
        "zero.py",
        "all-joined-transport|tcp-peer-dead",
        (1,),
        "the host's filter drops all traffic of one rank to others",
        ready="update 8",
        ranks="4",
        inside="own_network",
        outside="cut_off",
        environment=(("GLOO_SOCKET_IFNAME", "lo"),),
    ),
    Job(
        "two-ranks-cut-off",
        "zero.py",
        "all-joined-transport|tcp-peer-dead",
        (1, 2),
        "the host's filter drops what goes between two ranks: nothing tells which end is to blame",
        ready="update 8",
        ranks="4",
        inside="own_network",
        outside="cut_one",
        environment=(("GLOO_SOCKET_IFNAME", "lo"),),
    ),
    Job(
        "paused-by-file",
        "controls.py pause",
        "file-lock",
        (0,),
        "rank 0 sleeps while there is a file PAUSE, which it looks for between steps",
        ready="step 20",
    ),
    Job(
        "all-paused-by-file",
        "controls.py all",
        "long-phase",
        (0, 1, 2),
        "all ranks look for that file: nobody waits for anybody, and the run is paused",
        ready="step 20",
        slow=True,
    ),
    Job(
        "all-accept",
        "controls.py accept",
        "remote-service-wait",
        (0, 1, 2),
        "each rank waits for another one to connect, and none does",
        ready="step 20",
    ),
)
