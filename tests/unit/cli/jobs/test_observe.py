"""What the headless commands wait for, and what they say where there is no job."""

from __future__ import annotations

import argparse

import pytest

from hangtop.cli.jobs.observe import chosen_ranks, no_job, wait_for_job, wait_for_nodes
from hangtop.cli.main import main
from hangtop.cli.output.output import StatusLine
from hangtop_core.attach.wire import messages
from hangtop_core.errors import HangtopError
from hangtop_core.model.snapshot import Node, Snapshot
from hangtop_core.model.updates import Update
from hangtop_core.session.observing import STANDSTILL_S
from hangtop_core.state.store import Store
from support.build import World
from support.pieces import EPOCH, piece, process
from support.situations import FUTEX

NOW = 1000.0
SEEN = Node("n1", state="ready", since=0.0, last_seen=NOW)


class Still:
    """A session in which nothing changes; it remembers whether that was enough."""

    age_s = 0.0

    def __init__(self, *nodes: Node) -> None:
        self.update = self.latest = Update(Snapshot(NOW, 0.0, 1, nodes), {}, 0.0)
        self.enough = False

    def wait(self, predicate, timeout: float):  # type: ignore[no-untyped-def]  # as in Session
        self.enough = predicate(self.update)
        return self.update


class Patient:
    """A session that shows no job, and counts for how long that was waited for."""

    def __init__(self, age_s: float, *programs: str) -> None:
        self.age_s, self.waited = age_s, 0.0
        node = Node("n1", state="ready", since=0.0, last_seen=NOW, python_processes=programs)
        self.latest = Update(Snapshot(NOW, 0.0, 1, (node,)), {}, 0.0)

    def wait(self, predicate, timeout: float) -> None:  # type: ignore[no-untyped-def]
        self.waited += timeout
        self.age_s += timeout


@pytest.mark.parametrize(
    ("text", "pids", "chosen"),
    [("1", [], [4010]), ("pid201", [], [201]), ("", [201], [201]), ("", [4000, 201], [4000, 201])],
)
def test_ranks_and_controllers_are_chosen_by_number_and_by_pid(
    text: str, pids: list[int], chosen: list[int]
) -> None:
    session = Still(SEEN)
    session.update = Update(with_engine(), {}, 0.0)
    arguments = argparse.Namespace(job_key=None, pid=pids)
    found = chosen_ranks(session, arguments, text)  # type: ignore[arg-type]
    assert [one.process.pid for one in found] == chosen


@pytest.mark.parametrize(
    ("text", "pids", "said"),
    [
        ("", [], "name a rank by its number, or any process by --pid PID"),
        ("7", [], "there is no rank 7 in this job"),
        ("", [9], "there is no rank of pid 9 in this job"),
    ],
)
def test_who_chooses_nobody_is_told_so(text: str, pids: list[int], said: str) -> None:
    session = Still(SEEN)
    session.update = Update(with_engine(), {}, 0.0)
    arguments = argparse.Namespace(job_key=None, pid=pids)
    with pytest.raises(HangtopError, match=said):
        chosen_ranks(session, arguments, text)  # type: ignore[arg-type]


def with_engine() -> Snapshot:
    """Two ranks, and the engine that started them."""
    world = World()
    world.waiters(2)
    some = {"role": "launcher", "launcher": "multiprocessing", "label": "engine"}
    return world.snapshot(launchers=(world.process(201, FUTEX, **some),))


@pytest.mark.parametrize("age", [0.0, 0.3, 1.0])
def test_that_there_is_no_job_is_told_within_two_seconds(age: float) -> None:
    """Starting and ending take up to another one."""
    session = Patient(age)
    wait_for_job(session, None, named=False)  # type: ignore[arg-type]
    assert age + session.waited <= 2.0
    assert session.waited >= 0.8
    wait_for_job(session, "29500", named=True)  # type: ignore[arg-type]
    assert session.waited >= 3.0  # who names a job may have started it just now


def test_programs_are_given_the_time_that_their_stacks_take() -> None:
    """With starting and ending, 0.3 to 0.4 s, it stays below three seconds."""
    session = Patient(0.3, "pid 7: python agents.py")
    wait_for_job(session, None, named=False)  # type: ignore[arg-type]
    assert session.age_s == pytest.approx(2.4)


@pytest.mark.parametrize("state", ["slow", "lost"])
@pytest.mark.parametrize("age", [1.0, STANDSTILL_S])
def test_a_node_that_connects_and_shows_nothing_is_not_waited_for_long(
    state: str, age: float
) -> None:
    odd = Node("n2", state=state, since=NOW - age)  # type: ignore[arg-type]
    session = Still(SEEN, odd)
    assert not wait_for_nodes(session, StatusLine())  # type: ignore[arg-type]
    assert session.enough == (age >= STANDSTILL_S)


@pytest.mark.parametrize(
    ("node", "enough"),
    [
        (SEEN, True),
        (Node("n2", state="ready"), False),
        (Node("n2", state="connecting"), False),
        (Node("n2", state="denied", since=NOW), True),
    ],
)
def test_all_nodes_answer_or_fail(node: Node, enough: bool) -> None:
    session = Still(SEEN, node)
    wait_for_nodes(session, StatusLine())  # type: ignore[arg-type]
    assert session.enough == enough


def test_leave_to_pause_and_read_only_exclude_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diagnose", "--allow-pause", "--readonly"]) == 2
    assert "--readonly forbids that" in capsys.readouterr().err


@pytest.mark.parametrize("denied", [None, ["it belongs to root", "sudo"]])
def test_a_job_that_cannot_be_read_may_be_the_one_that_was_asked_for(
    denied: list[str] | None,
) -> None:
    store = Store()
    store.add_node("n1", EPOCH)
    store.connected("n1", EPOCH, False, EPOCH)
    raw = piece(0, process(100, None if denied else 0, denied=denied), whole=True)
    store.fold_watch("n1", messages.decode(raw, messages.WatchPiece), print)
    store.change_node("n1", {"state": "ready"})
    told = no_job(store.publish(EPOCH + 1), "29701")
    assert str(told) == "no job goes by '29701'"
    assert ("may not be read" in told.help) is bool(denied), told.help
