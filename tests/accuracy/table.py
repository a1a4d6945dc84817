"""The jobs that accuracy is measured on: what each does, and what is right to say of it.

They are written apart from the demo gallery and from the rules, each script in another style.
"""

from __future__ import annotations

from accuracy.job import Job, each
from accuracy.table_doubles import DOUBLES
from accuracy.table_fifth import FIFTH
from accuracy.table_first import FIRST, GPT
from accuracy.table_guards import GUARDS
from accuracy.table_held import HELD
from accuracy.table_kept_alive import ALIVE
from accuracy.table_kept_calls import CALLS
from accuracy.table_kept_data import DATA
from accuracy.table_kept_ends import ENDS
from accuracy.table_kept_joining import JOINING
from accuracy.table_kept_logic import LOGIC
from accuracy.table_kept_network import NETWORK
from accuracy.table_kept_oncall import ONCALL
from accuracy.table_kept_operations import OPERATIONS
from accuracy.table_kept_patient import PATIENT
from accuracy.table_kept_platform import PLATFORM
from accuracy.table_kept_pretraining import PRETRAINING
from accuracy.table_kept_processes import PROCESSES
from accuracy.table_kept_research import RESEARCH
from accuracy.table_kept_starting import STARTING
from accuracy.table_kept_teams import TEAMS
from accuracy.table_kept_training import TRAINING
from accuracy.table_kept_work import WORK
from accuracy.table_knots import KNOTS
from accuracy.table_lazy import LAZY
from accuracy.table_members import MEMBERS
from accuracy.table_models import MODELS
from accuracy.table_more import MORE
from accuracy.table_own import OWN
from accuracy.table_paces import PACES
from accuracy.table_pieces import PIECES
from accuracy.table_rare import RARE
from accuracy.table_restarts import RESTARTS
from accuracy.table_retries import RETRIES
from accuracy.table_rollouts import ROLLOUTS
from accuracy.table_rounds import ROUNDS
from accuracy.table_second import SECOND
from accuracy.table_seldom import SELDOM
from accuracy.table_served import SERVED
from accuracy.table_slow import SLOW
from accuracy.table_stops import STOPS
from accuracy.table_store import STORE
from accuracy.table_third import THIRD
from accuracy.table_ways import WAYS

JOBS: tuple[Job, ...] = (
    *FIRST,
    # Start-up
    Job(
        "start-missing",
        "plain.py",
        "rank-never-joined",
        (3,),
        "the last rank was not started",
        ready="joining",
        **each("4 0,1,2"),
    ),
    Job(
        "start-late",
        "plain.py late",
        "io-wait",
        (2,),
        "a rank reads its configuration before it joins",
        ready="reading the conf",
        environment=(("CULPRIT", "2"),),
        **each(),
    ),
    Job(
        "start-twice",
        "plain.py",
        "launch-misconfigured",
        (1,),
        "rank 1 was started twice",
        ready="joining",
        **each("3 0,1,1"),
    ),
    Job(
        "start-port-taken",
        "plain.py",
        "store-port-taken",
        (),
        "a web server has the port",
        ready="joining",
        inside="web_server",
        **each("4 0,1,2,3"),
    ),
    Job(
        "start-unreachable",
        "plain.py",
        "store-unreachable",
        (),
        "the master's address leads nowhere",
        ready="joining",
        inside="nowhere",
        environment=(("MASTER_ADDR", "10.255.255.1"),),
        **each(),
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
        "rank-crashed",
        (2,),
        "a library calls abort(), of which the kernel log says nothing",
        ready="step 5",
        environment=(("CULPRIT", "2"),),
        **each(),
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
        **each("6 0,1,3,4"),
    ),
    *MORE,
    *THIRD,
    *WAYS,
    *GUARDS,
    *ROLLOUTS,
    *ROUNDS,
    *KNOTS,
    *LAZY,
    *STORE,
    *STOPS,
    *OWN,
    *PIECES,
    *DOUBLES,
    *SELDOM,
    *PACES,
    *RARE,
    *SECOND,
    *RETRIES,
    *RESTARTS,
    *HELD,
    *FIFTH,
    *MEMBERS,
    *SERVED,
    *SLOW,
    *MODELS,
    *TRAINING,
    *CALLS,
    *ENDS,
    *NETWORK,
    *ONCALL,
    *PATIENT,
    *ALIVE,
    *TEAMS,
    *STARTING,
    *PRETRAINING,
    *JOINING,
    *DATA,
    *PROCESSES,
    *LOGIC,
    *WORK,
    *OPERATIONS,
    *RESEARCH,
    *PLATFORM,
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
        **each(),
    ),
    Job("pipe-healthy", "pipe.py", None, (), "a pipeline", ready="iteration 3"),
    Job("rl-healthy", "rl.py --spawn 3", None, (), "mp.spawn", ready="update 8", form="spawn"),
)
