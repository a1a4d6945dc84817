"""What a session promises its user, with the real probe on this machine and no job."""

from __future__ import annotations

import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from hangtop_core.attach.connect.apart import MANY
from hangtop_core.attach.connect.timing import Moment, Timing
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.collect.requests import Asks
from hangtop_core.errors import (
    ClosedError,
    NodeNotReadyError,
    ReadOnlyError,
    RequestError,
    UnknownNodeError,
)
from hangtop_core.scheduling.ui_priority import SCREENS
from hangtop_core.session.session import DRAWN_S, MANY_RANKS, UNJUDGED_S, Options, Session, Update
from hangtop_core.state.outputs import Wanted
from hangtop_core.tools import strace_files
from support.judge import judge
from support.large import Large
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hangtop_core.diagnosis import Diagnosis
    from hangtop_core.model.snapshot import Job, Snapshot


def ready(update: Update) -> bool:
    return update.snapshot.nodes[0].state == "ready"


class Scripted(LocalLauncher):
    """A node whose probe is a line of Python."""

    def __init__(self, code: str, name: str = "scripted") -> None:
        super().__init__(name)
        self._code = code

    def argv(self) -> list[str]:
        return [sys.executable, "-ISc", self._code]


def test_updates_come_with_a_verdict() -> None:
    with Session(Options(pids=(1,), hang_after=7.0), judge) as session:
        update = session.wait(ready, PATIENCE)
        assert update is not None
        assert update.diagnoses
        assert all(d.hung_for_s == 7.0 for d in update.diagnoses.values())
        node = update.snapshot.nodes[0]
        assert (node.clock_skew_s, node.generation) == (0.0, 0)
        assert session.wait(lambda u: u.snapshot.nodes[0].processes is not None, PATIENCE)


def test_a_subscriber_that_fails_is_dropped_and_the_others_go_on() -> None:
    calls: list[str] = []
    enough = threading.Event()

    def broken(update: Update) -> None:
        calls.append("broken")
        raise RuntimeError("a mistake of the caller's")

    def good(update: Update) -> None:
        calls.append("good")
        if calls.count("good") == 3:
            enough.set()

    with Session(Options(interval=0.1), judge) as session:
        session.subscribe(broken)
        stop = session.subscribe(good)
        assert enough.wait(PATIENCE)
        assert calls.count("broken") == 1
        stop()
        stop()


def test_many_ranks_are_seen_before_they_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    rested: list[float] = []
    monkeypatch.setattr(SCREENS, "rest", rested.append)
    large = Large(MANY_RANKS // 8, hang_at=-1.0)
    large.hear(0.0)
    session = Session(Options(), judge)
    session._collector.store = large.store
    arrivals, now = session._collector.arrivals, Moment.now()
    arrivals.expect("the last one", now.mono)
    seen: list[Update] = []
    judged: list[Update] = []
    session.subscribe(seen.append, unjudged=True)
    session.subscribe(judged.append)
    session._publish(now)
    assert [len(one.diagnoses) for one in seen] == [0], "more is known in a moment"
    assert (judged, session.latest) == ([], None)

    assert not rested

    session._judged = now.mono - UNJUDGED_S - 1.0
    session._publish(now)
    assert [len(one.diagnoses) for one in seen] == [0, 0, 1], "they come in for long"
    assert rested == [DRAWN_S], "and what was seen goes on the screen first"
    assert seen[1].snapshot is seen[2].snapshot
    assert judged == [session.latest] == seen[2:]

    arrivals.came("the last one", now.mono)
    session._publish(now)
    assert [one.snapshot.tick for one in seen] == [1, 2, 2, 3, 3]
    assert seen[3].diagnoses == seen[2].diagnoses, "what was concluded stands meanwhile"
    arrivals.shown(now.mono - 60.0)
    session._publish(now)
    assert [one.snapshot.tick for one in (seen[-1], judged[-1])] == [4, 4]
    assert len(seen) == 6, "once all are there, each picture comes once"


def test_nothing_is_judged_for_nobody_while_many_nodes_come_in() -> None:
    nodes = [LocalLauncher(f"node{number}") for number in range(MANY + 1)]
    session = Session(Options(), judge, nodes)
    arrivals, now = session._collector.arrivals, Moment.now()
    arrivals.expect("the last one", now.mono)
    session._publish(now)
    assert session._collector.store.publish(0.0).tick == 1, "nor any picture made"
    seen: list[Update] = []
    session.subscribe(seen.append, unjudged=True)
    session._publish(now)
    assert [len(one.diagnoses) for one in seen] == [0], "there is no job yet"
    arrivals.came("the last one", now.mono)
    session._publish(now)
    assert [len(one.diagnoses) for one in seen] == [0, 0, 1]


def test_who_waits_for_many_nodes_gets_all_pictures() -> None:
    nodes = [LocalLauncher(f"node{number}") for number in range(MANY + 1)]
    session = Session(Options(), judge, nodes)
    session._collector.arrivals.expect("the last one", (now := Moment.now()).mono)
    waits = threading.Thread(target=session.wait, args=(bool, PATIENCE))
    waits.start()
    while not session._waiting:
        time.sleep(0.01)
    session._publish(now)
    waits.join(PATIENCE)
    assert session.latest is not None
    assert session.latest.diagnoses


def test_few_ranks_are_judged_at_once() -> None:
    large = Large(1, hang_at=-1.0)
    large.hear(0.0)
    session = Session(Options(), judge)
    session._collector.store = large.store
    session._collector.arrivals.expect("the last one", (now := Moment.now()).mono)
    seen: list[Update] = []
    session.subscribe(seen.append, unjudged=True)
    session._publish(now)
    assert [len(one.diagnoses) for one in seen] == [1]


def test_a_diagnosis_that_fails_harms_no_update() -> None:
    def failing(snapshot: Snapshot, job: Job | None, hang_after: float) -> Diagnosis:
        raise ValueError("a mistake in a rule")

    with Session(Options(), failing) as session:
        update = session.wait(ready, PATIENCE)
        assert update is not None
        assert update.diagnoses
        for found in update.diagnoses.values():
            assert (found.state, found.verdicts) == ("unknown", ())
            assert "a mistake in a rule" in found.blind_spots[0].why


def test_read_only_refuses_what_pauses_a_process() -> None:
    with Session(Options(readonly=True), judge) as session:
        name = _name(session)
        for future in (
            session.strace(name, 1, 1, print),
            session.sample(mode="native"),
            session.sample(mode="blocking"),
            session.recorder(name, [1]),
        ):
            with pytest.raises(ReadOnlyError):
                future.result(PATIENCE)
        assert session.sample({name: []}).result(PATIENCE) == ()


def test_a_request_is_described_on_the_thread_that_changes_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def describe(*_: object, **__: object) -> NoReturn:
        seen.append(threading.current_thread().name)
        raise RequestError("enough")

    with Session(Options(), judge) as session:
        name = _name(session)
        for what in ("log", "recorder", "descriptors"):
            monkeypatch.setattr(Asks, what, describe)
        for future in (
            session.log(Wanted(name, (1,), ())),
            session.recorder(name, [1]),
            session.descriptors(name, [1]),
        ):
            with pytest.raises(RequestError, match="enough"):
                future.result(PATIENCE)
        assert seen == [session._thread.name] * 3


def test_a_trace_that_does_not_begin_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strace_files, "folder", lambda: tmp_path)
    with Session(Options(), judge) as session:
        with pytest.raises(UnknownNodeError):
            session.strace("nowhere", 1, 1, print).result(PATIENCE)
        name = _name(session)
        (tmp_path / "file").touch()
        monkeypatch.setattr(strace_files, "folder", lambda: tmp_path / "file")
        with pytest.raises(RequestError, match="no file can be made for it"):
            session.strace(name, 1, 1, print).result(PATIENCE)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def _name(session: Session) -> str:
    update = session.wait(ready, PATIENCE)
    assert update is not None
    return update.snapshot.nodes[0].name


def test_unknown_nodes_are_refused() -> None:
    with Session(Options(), judge) as session:
        for future in (
            session.descriptors("nowhere", [1]),
            session.strace("nowhere", 1, 1, print),
            session.sample({"nowhere": [1]}),
        ):
            with pytest.raises(UnknownNodeError):
                future.result(PATIENCE)
        session.retry("nowhere")
        session.cancel_strace("nowhere", 1)
        assert session.wait(ready, PATIENCE)


def test_a_node_without_a_probe_is_a_state_with_its_reason() -> None:
    missing = LocalLauncher("n1", python="/nowhere/python3")
    dying = Scripted("import sys; sys.exit('ImportError: no module named psutil')", "n2")
    silent = Scripted("import time; time.sleep(1000)", "n3")
    timing = Timing(hello=0.5, retry_first=30)
    with Session(Options(), judge, [missing, dying, silent], timing) as session:
        update = session.wait(
            lambda u: all(n.state != "connecting" for n in u.snapshot.nodes), PATIENCE
        )
        assert update is not None
        n1, n2, n3 = update.snapshot.nodes
        assert (n1.state, n2.state, n3.state) == ("no-python", "unreachable", "unreachable")
        assert "/nowhere/python3" in (n1.reason or "")
        assert "ImportError: no module named psutil" in (n2.reason or "")
        assert "no hello" in (n3.reason or "")
        failed = session.sample({"n1": [7], "n2": [8]}).result(PATIENCE)
        assert [s.sample.failure is not None for s in failed] == [True, True]
        with pytest.raises(NodeNotReadyError):
            session.descriptors("n2", [1]).result(PATIENCE)


def test_a_probe_that_floods_does_not_drown_the_others() -> None:
    flood = Scripted("while True: print('x' * 1000)", "flood")
    with Session(Options(), judge, [flood, LocalLauncher("here")]) as session:
        update = session.wait(
            lambda u: u.snapshot.nodes[1].state == "ready" and u.snapshot.nodes[0].noise_lines > 99,
            PATIENCE,
        )
        assert update is not None
        assert len(update.snapshot.nodes[0].noise) <= 8


def test_a_closed_session_says_so() -> None:
    session = Session(Options(), judge)
    with pytest.raises(ClosedError):
        session.sample().result(PATIENCE)
    session.start()
    session.close()
    session.close()
    with pytest.raises(ClosedError):
        session.sample().result(PATIENCE)
    with pytest.raises(ClosedError):
        session.start()
    assert session.wait(lambda u: False, PATIENCE) is None


def test_ctrl_c_while_waiting_for_updates_is_no_error() -> None:
    """Of so many, `threading.Condition` answers some with an error about its lock."""
    session, times, interrupted = Session(Options(), judge, []), 1500, 0
    limit = signal.getitimer(signal.ITIMER_REAL)  # of this test
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(times):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003 + number % 50 * 1e-5)
                while True:
                    session.wait(ready, 0.0002)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)
    assert interrupted == times


def test_a_shell_is_known_and_what_a_person_runs_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/zsh")
    session = Session(Options(), judge, [LocalLauncher("n1")])
    assert session.shell("n1") == ["/bin/zsh"]
    assert session.shell("n2") is None
    ended = session.note_command("n1", "/bin/zsh")
    ended("done")
    (record,) = session.commands
    assert (record.node, record.what, record.outcome) == ("n1", "/bin/zsh", "done")
    assert not record.by_itself


def test_what_is_asked_for_while_it_closes_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(Options(), judge) as session:
        closing = threading.Thread(target=session.close)
        put = session._inbox.put

        def put_late(item: Callable[[], None]) -> None:
            monkeypatch.undo()
            closing.start()
            closing.join(2)
            put(item)

        monkeypatch.setattr(session._inbox, "put", put_late)
        asked = session.sample()
        closing.join(PATIENCE)
        assert asked.done()
