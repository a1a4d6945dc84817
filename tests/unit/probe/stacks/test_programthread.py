"""Which thread of a rank runs its program, and that its meters are those of that thread."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from hangtop_probe.proc import procfs
from hangtop_probe.proc.activity import Activity
from hangtop_probe.proc.runclock import RunClock
from hangtop_probe.ranks import rows as stacks_rows
from hangtop_probe.stacks import stacks
from hangtop_probe.stacks.programthread import program_thread
from support.spied import frame

SITE = "/venv/lib/python3.11/site-packages"
SERVES = [
    frame("main_loop", f"{SITE}/ray/_private/worker.py"),
    frame("<module>", f"{SITE}/ray/w.py"),
]
ALL_REDUCE = frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py")
LOOP = [frame("train_loop", "/mine/train.py"), frame("run", "/usr/lib/python3.11/threading.py")]
LOGS = [frame("emit", "/mine/logs.py"), frame("run", "/usr/lib/python3.11/threading.py")]
EXPORTER = [frame("collect", f"{SITE}/opencensus/exporter.py")]


def sampled(*threads: list[dict[str, Any]]) -> int | None:
    """Return what is found for threads, numbered from 1, of which the first is the main one."""
    found, rows = [], {}
    for number, frames in enumerate(threads, 1):
        key = str(number)
        rows[key] = [stacks._row(one) for one in frames]
        name = "MainThread" if number == 1 else f"Thread-{number}"
        found.append({"tid": number, "name": name, "stack": key, "locals": []})
    return program_thread(stacks_rows.Sample(found, rows))


def test_a_framework_may_run_the_program_in_another_thread() -> None:
    assert sampled(SERVES, EXPORTER, LOOP) == 3
    assert sampled(SERVES, LOGS, [ALL_REDUCE, *LOOP]) == 3
    assert sampled(SERVES, EXPORTER) is None


def test_a_function_that_came_pickled_is_the_users() -> None:
    event_loop = [frame("run_forever", "/usr/lib/python3.11/asyncio/base_events.py")]
    serves = [*event_loop, frame("invoke_main", f"{SITE}/monarch/_src/actor/bootstrap_main.py")]
    handle = frame("handle", f"{SITE}/monarch/_src/actor/actor_mesh.py")
    assert sampled(serves, EXPORTER, [frame("score", "<dynamic-code>"), handle, *event_loop]) == 3
    assert sampled(serves, [frame("score", "<ipython-input-3-1f>"), handle]) == 2
    for made in ("<frozen runpy>", "<string>", "<eval_with_key>.7", "<attrs generated init a.B>"):
        assert sampled(serves, [frame("call", made), handle]) is None, made


def test_a_main_thread_that_is_in_the_program_or_in_torch_runs_it() -> None:
    main = [frame("fit", f"{SITE}/lightning/trainer.py"), frame("main", "/mine/train.py")]
    assert sampled(main, [ALL_REDUCE, *LOOP]) is None
    assert sampled([ALL_REDUCE, *SERVES], LOOP) is None
    assert sampled([frame("_shutdown", "/usr/lib/python3.11/threading.py")], LOOP) is None


def test_meters_are_of_the_thread_that_runs_the_program() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert thread.native_id is not None
    activity, clock = Activity(os.getpid()), RunClock()
    activity.lead(thread.native_id)
    try:
        time.sleep(0.05)
        readings = []
        for _ in range(2):
            rows = activity.threads()
            stat = procfs.read_stat(os.getpid())
            assert stat is not None
            readings.append(activity.meters(stat, clock))
            sum(range(100_000))  # the main thread runs, that one does not
        assert rows[0].tid == thread.native_id
        assert rows[0].syscall == "futex"
        assert readings[0]["main_cpu_ns"] == readings[1]["main_cpu_ns"]
        assert readings[1]["main_last_ran_s"] >= 0.05
    finally:
        over.set()
        thread.join()
