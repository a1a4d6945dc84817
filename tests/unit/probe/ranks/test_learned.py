"""What is learned of a process from its stacks."""

from __future__ import annotations

from typing import Any

from hangtop_probe.ranks import learned
from hangtop_probe.ranks.learned import Learned
from hangtop_probe.stacks import stacks
from support.spied import dump, frame

C10D = "/site/torch/distributed/distributed_c10d.py"
RENDEZVOUS = "/site/torch/distributed/rendezvous.py"
SPAWN = "/site/torch/multiprocessing/spawn.py"
WORKER = "/site/torch/utils/data/_utils/worker.py"


def test_what_frames_tell_about_a_process() -> None:
    def told_by(*frames: dict[str, Any]) -> Learned | None:
        return learned.learn(stacks.parse(dump(*frames)))

    assert told_by(frame("f", "/a.py"), frame("_wrap", SPAWN, i="3")) == Learned(wrap_rank=3)
    init = frame("init_process_group", C10D, world_size="4", rank="3")
    told = Learned(told=(3, 4, None))
    assert told_by(init) == told
    assert told_by(init, frame("_wrap", SPAWN, i="3")) == told._replace(wrap_rank=3)
    unset = frame("init_process_group", C10D, world_size="-1", rank="-1")
    store = frame("_create_c10d_store", RENDEZVOUS, world_size="4", rank="3", port="29501")
    assert told_by(store, unset) == Learned(told=(3, 4, 29501))
    assert told_by(unset) == Learned(told=(None, None, None))
    assert told_by(frame("init_process_group", C10D)) is None
    assert told_by(frame("_worker_loop", WORKER, worker_id="2")) == Learned(None, True, 2)
    assert told_by(frame("_worker_loop", WORKER)) == Learned(None, True, None)
    debug = frame("main", "/site/torch/distributed/debug/_frontend.py")
    assert told_by(debug) == Learned(is_debug_server=True)
    waits = frame("_delay", "/site/torch/distributed/elastic/rendezvous/utils.py")
    assert told_by(waits, frame("main", "/mine/main.py")) == Learned(is_agent=True)
    assert told_by(frame("_wrap", "/mine/spawn.py", i="3")) is None
    busy = frame("busy_loop", "/site/engine/worker.py", rank="2", world_size="4")
    assert told_by(frame("all_reduce", C10D, rank="9"), busy) == Learned(local_rank=2)
    assert told_by(frame("busy_loop", "/mine/worker.py", rank="'two'")) is None
    run = frame("BaseProcess.run", "/lib/python3.11/multiprocessing/process.py", self="<Process>")
    work = frame("work", "/mine/train.py", number="1", port="23456")
    assert told_by(frame("f", "/a.py", index="7"), work, run) == Learned(first_argument=1)
    assert told_by(work, run, frame("main", "/mine/train.py", count="2"), run).first_argument == 1
    assert told_by(work) is None
    assert told_by(frame("work", "/mine/train.py", queue="<Queue>", number="1"), run) is None
    ends = frame("_exit_function", "/lib/python3.11/multiprocessing/util.py")
    assert told_by(frame("join", "/lib/python3.11/threading.py"), ends) == Learned(is_exiting=True)
    # As py-spy names it from Python 3.11 on: a child whose threads run on, and a rank that leaves.
    child = frame("BaseProcess._bootstrap", "/lib/python3.11/multiprocessing/process.py")
    threads = frame("_shutdown", "/lib/python3.11/threading.py")
    assert told_by(threads, child) == Learned(is_exiting=True)
    assert told_by(threads) is None
    leaves = frame("destroy_process_group", C10D)
    assert told_by(leaves, frame("main", "/mine/train.py")) == Learned(is_exiting=True)
    # A DataLoader worker forked by a spawned rank has both frames: the inner one counts.
    both = (frame("_worker_loop", WORKER, worker_id="1"), frame("_wrap", SPAWN, i="0"))
    assert told_by(*both) == Learned(None, True, 1)
    fit = frame("fit", "/venv/lib/python3.11/site-packages/lightning/pytorch/trainer/trainer.py")
    assert told_by(frame("f", "/a.py"), fit) == Learned(framework="Lightning")
    spawned = told_by(frame("f", "/a.py"), fit, frame("_wrap", SPAWN, i="3"))
    assert spawned == Learned(wrap_rank=3, framework="Lightning")
