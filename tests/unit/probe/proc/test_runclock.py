"""When a thread ran last, by the clock of the CPU that it ran on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hangtop_probe.proc import procfs
from hangtop_probe.proc.activity import Activity
from hangtop_probe.proc.runclock import RunClock
from support.processes import state, wait_until

SLEEPER = (
    "import os, sys, time; os.sched_setaffinity(0, {int(sys.argv[1])});"
    " print(time.monotonic(), flush=True); time.sleep(60)"
)

JITTER_S = 0.05


class WrongClock(RunClock):
    """The clock of a CPU that is taken for another one's."""

    def __init__(self, off: float) -> None:
        super().__init__()
        self.off = off

    def ran_at(self, cpu: int | None, exec_start: float | None) -> float | None:
        return time.monotonic() + self.off


def last_ran(activity: Activity, clock: RunClock) -> float:
    stat = procfs.read_stat(activity.pid)
    assert stat is not None
    activity.threads()
    value = activity.meters(stat, clock)["main_last_ran_s"]
    assert value is not None
    return float(value)


@pytest.mark.parametrize("cpu", sorted(os.sched_getaffinity(0)))
def test_it_tells_when_a_process_ran_last_on_any_cpu(cpu: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(cpu)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        slept_at = float(child.stdout.readline())
        try:
            assert wait_until(lambda: state(child.pid) == "S")
            slept_by = time.monotonic()
            time.sleep(0.3)
            before = time.monotonic()
            waits = last_ran(Activity(child.pid), RunClock())
            assert before - slept_by - JITTER_S < waits < time.monotonic() - slept_at + JITTER_S
        finally:
            child.kill()


def test_an_unknown_time_stays_unknown() -> None:
    clock = RunClock()
    assert clock.ran_at(None, 5.0) is None
    assert clock.ran_at(0, None) is None
    assert clock.ran_at(10**6, 5.0) is None  # no such CPU


def test_what_was_seen_to_run_did_not_sleep_for_hours() -> None:
    mine = Activity(os.getpid())
    old = WrongClock(-7200.0)
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    assert last_ran(mine, old) <= procfs.age(stat) + 0.1
    began = time.monotonic()
    while time.monotonic() - began < 0.05:
        pass
    assert last_ran(mine, old) < 5.0


def test_nothing_ran_in_the_future() -> None:
    assert last_ran(Activity(os.getpid()), WrongClock(+7200.0)) == 0.0
