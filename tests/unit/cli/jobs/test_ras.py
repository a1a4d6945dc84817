"""When `diagnose --ras` asks, whom, and how often."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from hangtop.cli.jobs.ras import ask_ras, why_not
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.local import LocalLauncher
from hangtop_core.errors import ReadOnlyError
from hangtop_core.model.recorder.ras import Ras
from hangtop_core.model.updates import Update
from hangtop_core.session.session import Options, Session
from support.build import NOW, World
from support.processes import PATIENCE
from support.ras import document, double, rank
from support.situations import FUTEX, INIT, SLEEP, c10d, user

if TYPE_CHECKING:
    from pathlib import Path


def update(world: World) -> Update:
    snapshot = world.snapshot()
    found = {job.key: diagnose(snapshot, job) for job in snapshot.jobs}
    return Update(snapshot, found, 0.0)


def hung(stack: Any = None, nodes: int = 1) -> Update:
    world = World()
    for number in range(4):
        late = number == 3
        place = f"n{number % nodes}"
        world.add(
            user("rest", 4) if late else stack or c10d("all_reduce"),
            SLEEP if late else FUTEX,
            node=place,
        )
    return update(world)


class FakeSession:
    """Answers with what it is told, and remembers whom it asked."""

    def __init__(self, latest: Update, *answers: Ras) -> None:
        self.latest = latest
        self.answers = list(answers)
        self.asked: list[tuple[str, tuple[int, ...], bool]] = []

    def ras(self, node: str, pids: list[int], *, anyway: bool) -> Future[Ras]:
        self.asked.append((node, tuple(pids), anyway))
        future: Future[Ras] = Future()
        future.set_result(self.answers.pop(0))
        return future

    def wait(self, predicate: Any, timeout: float) -> None:
        predicate(self.latest)


def ask(session: FakeSession, anyway: bool = False) -> None:
    ask_ras(cast("Session", session), session.latest.snapshot.jobs[0], anyway=anyway)


def test_a_hung_job_is_asked_through_one_node() -> None:
    session = FakeSession(hung(nodes=2), Ras(NOW))
    ask(session)
    assert session.asked == [("n0", (4000, 4020), False)]


def test_who_cannot_be_asked_leads_to_the_next_and_who_does_not_answer_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cannot = Ras(NOW, failure="listens to nothing", asked=False)
    silent = Ras(NOW, failure="no whole answer\x1b[2J in 10 s")
    session = FakeSession(hung(nodes=4), cannot, silent, Ras(NOW))
    ask(session)
    assert [node for node, _, _ in session.asked] == ["n0", "n1"]
    told = capsys.readouterr().err
    assert "n0: listens to nothing" in told
    assert "n1: no whole answer in 10 s" in told


def test_a_job_that_gets_on_or_starts_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    now = hung()
    job = now.snapshot.jobs[0]
    going = replace(now.diagnoses[job.key], state="progressing")
    session = FakeSession(replace_diagnosis(now, going))
    ask(session)
    assert "is not hung, but progressing" in capsys.readouterr().err
    starting = FakeSession(hung(INIT), Ras(NOW))
    ask(starting)
    assert session.asked + starting.asked == []
    assert "making process groups" in capsys.readouterr().err
    ask(starting, anyway=True)
    assert [anyway for _, _, anyway in starting.asked] == [True]
    assert why_not(now, job, anyway=False) is None


def replace_diagnosis(now: Update, diagnosis: Any) -> Update:
    return Update(now.snapshot, dict.fromkeys(now.diagnoses, diagnosis), 0.0)


@pytest.mark.parametrize(
    ("library", "said", "failure", "asked"),
    [
        ("libnccl.so.2.29.7", document(([rank(0, 1)], [])), None, True),
        ("libnccl.so.2.29.7", "{", "Input data was truncated", True),
        ("libnccl.so.2.27.5", "never", "2.27.5 is not asked", False),
    ],
)
def test_through_a_session(
    tmp_path: Path, library: str, said: str, failure: str | None, asked: bool
) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with (
        double(tmp_path, said, library=library, env=env) as other,
        Session(Options(pids=(other.pid,)), diagnose, [LocalLauncher("here")]) as session,
    ):
        assert session.wait(lambda now: any(job.ranks for job in now.snapshot.jobs), PATIENCE)
        report = session.ras("here", [other.pid]).result(PATIENCE)
        assert report.asked == asked == bool(other.asked)
        assert (failure or "None") in str(report.failure)
        kept = session.wait(lambda now: now.snapshot.jobs[0].ranks[0].ras is not None, PATIENCE)
        assert kept is not None
        assert kept.snapshot.jobs[0].ranks[0].ras == report


def test_a_read_only_session_does_not_ask() -> None:
    with Session(Options(readonly=True), diagnose) as session:
        future = session.ras("anywhere", [1])
        with pytest.raises(ReadOnlyError):
            future.result(PATIENCE)
