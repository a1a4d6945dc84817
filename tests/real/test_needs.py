"""What rules ask for, asked of a real job, and verdicts that get better by it.

One job: rank 0 waits in all_reduce, ranks 1 and 2 for a service that never answers, in poll, which
tells no descriptor, and rank 3 for a lock in a C library.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.main import main
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.collect import needs
from hangtop_core.session.session import Options, Session
from support.launch import SUPPORT, Started, torchrun
from support.processes import PATIENCE, state, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.diagnosis import Diagnosis, Need, Verdict
    from hangtop_core.model.updates import Update

pytestmark = pytest.mark.real

HANG_AFTER_S = 3.0


@dataclass
class Waiting:
    """The job, and the port of the service."""

    started: Started
    port: int

    def options(self, **more: Any) -> Options:
        return Options(
            interval=0.5,
            sample_every=1.0,
            pids=(self.started.pid,),
            hang_after=HANG_AFTER_S,
            **more,
        )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    library = tmp_path_factory.mktemp("pool") / "libpool.so"
    source = str(SUPPORT / "pool.c")
    subprocess.run([compiler, "-g", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        service.settimeout(PATIENCE)
        with torchrun(str(port), str(library), file="needs_job.py") as started, ExitStack() as held:
            # Until both wait their stacks differ, and that alone has their descriptors read.
            for _ in range(2):
                held.enter_context(service.accept()[0])
            yield Waiting(started, port)


def concluded(update: Update, kind: str | None = None) -> Diagnosis | None:
    """The diagnosis, once the job hangs and something of this kind has been asked for."""
    (found,) = update.diagnoses.values() or [None]
    if found is None or found.state != "hung":
        return None
    return found if kind is None or any(one.kind == kind for one in found.needs) else None


def stacks_needed(update: Update) -> list[Need]:
    (found,) = update.diagnoses.values() or [None]
    return [one for one in getattr(found, "needs", ()) if one.kind == "stacks"]


def undecided(update: Update) -> bool:
    """Whether the same is said of the two that wait in poll, and asked where they do."""
    found = concluded(update, "descriptors")
    some = found.verdicts if found is not None else ()
    blamed = [{c.rank for c in v.culprits} for v in some if v.cause == "missing-collective"]
    return any(ranks >= {1, 2} for ranks in blamed)


def about(found: Diagnosis | dict[str, Any], rank: int) -> Verdict:
    return next(v for v in found.verdicts if rank in [c.rank for c in v.culprits])


def test_descriptors_are_asked_for_where_a_rule_needs_them(
    job: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a session that may not ask for anything
    monkeypatch.setattr(needs, "A_MINUTE", 0)
    with Session(job.options(readonly=True), diagnose) as session:
        update = session.wait(undecided, PATIENCE)
        assert update is not None, session.latest
        before = concluded(update, "descriptors")
        assert before is not None
        # THEN it is only known that ranks wait in poll
        assert about(before, 1).cause == "missing-collective"
        assert about(before, 2) == about(before, 1)
        monkeypatch.undo()
        # WHEN it may
        update = session.wait(
            lambda u: any(
                one.kind == "descriptors" and one.state == "answered"
                for one in getattr(concluded(u, "descriptors"), "needs", ())
            ),
            PATIENCE,
        )
        assert update is not None, session.latest
        after = concluded(update, "descriptors")
        assert after is not None
        # THEN the service is named, for both
        assert about(after, 2).cause == "remote-service-wait"
        assert f"127.0.0.1:{job.port}" in about(after, 1).summary
        assert [one.rank for one in about(after, 1).culprits] == [1, 2]
        # And one of the two was asked, once, by reading alone; nothing has paused a rank.
        pids = {r.rank: r.process.pid for r in update.snapshot.jobs[0].ranks}
        tables = [c for c in session.commands if c.what == "read /proc/PID/fd"]
        assert [c.pids for c in tables if set(c.pids) & {pids[1], pids[2]}] == [(pids[1],)]
        assert not any(c.pauses for c in session.commands)
        offered = {one.rank: one for one in after.needs if one.kind == "native stacks"}
        assert offered[3].state == "not possible"
        assert "--readonly" in offered[3].told


def test_c_frames_are_taken_where_that_is_allowed_and_decide(
    job: Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--hang-after", str(HANG_AFTER_S), "--pid", str(job.started.pid))
    for _ in range(5):  # a rank is not paused for long, however long py-spy takes on this machine
        status = main(["diagnose", "--json", "--allow-pause", "--observe", "1", *options])
        said = capsys.readouterr()
        assert status == 10, said.err
        found = json.loads(said.out)
        native = [one for one in found["needs"] if one["kind"] == "native stacks"]
        if all(one["state"] == "answered" for one in native):
            break
    verdict = next(v for v in found["verdicts"] if [c["rank"] for c in v["culprits"]] == [3])
    assert verdict["cause"] == "lock-wait"
    assert "a lock of C code, in take_buffer (" in verdict["summary"]
    assert [(one["rank"], one["state"]) for one in native] == [(3, "answered")]
    assert "py-spy dump --native on " in said.err
    # Whoever was paused goes on.
    assert not {state(pid) for pid in job.started.pids()} & {"t", "T"}


def test_stacks_are_asked_for_where_nobody_has_looked_lately(tmp_path: Path) -> None:
    """Of what runs stacks are taken seldom on a node that has no time for it; here never again."""
    path = tmp_path / "done"
    with torchrun("missing", str(path), nproc=2) as started:
        assert wait_until(Path(f"{path}.looks").exists)
        options = Options(
            interval=0.5, sample_every=600.0, pids=(started.pid,), hang_after=HANG_AFTER_S
        )
        with Session(options, diagnose) as session:
            # GIVEN a rank that runs, and may be anywhere since its only sample
            update = session.wait(lambda u: bool(stacks_needed(u)), PATIENCE)
            assert update is not None, session.latest
            (found,) = update.diagnoses.values()
            (need,) = stacks_needed(update)
            assert (found.state, need.rank) == ("unknown", 1)
            assert need.state in ("wanted", "asked")
            # THEN it is looked at again, without pausing it, and that decides
            update = session.wait(lambda u: concluded(u) is not None, PATIENCE)
            assert update is not None, session.latest
            verdict, *_ = concluded(update).verdicts
            assert [one.rank for one in verdict.culprits] == [1]
            taken = [c for c in session.commands if need.pid in c.pids and "py-spy" in c.what]
            assert len(taken) > 1
            assert {c.what for c in taken} == {"py-spy dump --nonblocking"}
