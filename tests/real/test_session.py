"""A session on a job that really hangs, with a real probe that is stopped, killed and garbled."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.connect.timing import Timing
from hangtop_core.session.session import Options, Session, Update
from support.garbled import Garbled
from support.jobs import POOL_VARIABLE
from support.judge import judge
from support.launch import Started, torchrun
from support.processes import PATIENCE, wait_until
from support.standing import main_stack, stand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.snapshot import Node, Rank

pytestmark = pytest.mark.real

RANKS = 4


@pytest.fixture(scope="module")
def job() -> Iterator[Started]:
    """Four gloo ranks: 0, 1 and 3 wait in all_reduce, 2 sleeps."""
    outlives_a_test = {POOL_VARIABLE: "session"}
    with (
        torchrun("collective", env=outlives_a_test) as started,
        Session(Options(), judge) as session,
    ):
        assert session.wait(lambda u: hung(u, started), PATIENCE), session.latest
        session.close()
        yield started


def mine(update: Update, started: Started) -> tuple[Rank, ...]:
    """The ranks of the job under test; other jobs may run on this machine."""
    for job in update.snapshot.jobs:
        if any(launcher.pid == started.pid for launcher in job.launchers):
            return job.ranks
    return ()


def hung(update: Update, started: Started) -> bool:
    return stand(update, mine(update, started), RANKS)


def sampled(ranks: tuple[Rank, ...]) -> bool:
    return len(ranks) == RANKS and all(r.sample and r.sample.threads for r in ranks)


def node(update: Update) -> Node:
    return update.snapshot.nodes[0]


def probes() -> list[psutil.Process]:
    """Probes that this process has started; what they start to read dumps and GPUs is none."""
    found: dict[psutil.Process, int] = {}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # as of a py-spy that ends just now
            if any("hangtop_probe" in word for word in child.cmdline()):
                found[child] = child.ppid()
    pids = {child.pid for child in found}
    return [child for child, parent in found.items() if parent not in pids]


def test_a_hung_job_is_seen_whole_within_seconds(job: Started) -> None:
    began = time.monotonic()
    with Session(Options(), judge) as session:
        update = session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        took = time.monotonic() - began
        assert update is not None
        ranks = mine(update, job)
        assert [r.rank for r in ranks] == [0, 1, 2, 3]
        waiting = [r.rank for r in ranks if "all_reduce" in main_stack(update, r)]
        assert waiting == [0, 1, 3]
        assert "hang_in_collective" in main_stack(update, ranks[2])
        # Less than half a second of it is work; the rest is what else this machine has to do.
        assert took < 45, f"{took:.1f} s from start to all stacks"
        found = next(j for j in update.snapshot.jobs if j.ranks == ranks)
        assert (found.world_size, found.launcher, found.name) == (4, "torchrun", "gloo_job.py")
        # Known from the scheduler, though nobody was watching then.
        assert all(r.moved_at is not None and r.moved_at < update.snapshot.at - 2 for r in ranks)
        assert node(update).noise_lines == 0, node(update).noise
        assert update.diagnoses.keys() == {j.key for j in update.snapshot.jobs}


def test_samples_of_ranks_that_do_not_move_cost_nothing(job: Started) -> None:
    with Session(Options(sample_every=1.0), judge) as session:
        found = session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        assert found is not None
        runs = [c for c in session.commands if c.what.startswith("py-spy")]
        later = session.wait(
            lambda u: all(r.sample is not None and r.sample.count > 3 for r in mine(u, job)),
            PATIENCE,
        )
        assert later is not None
        pids = {r.process.pid for r in mine(later, job)}
        again = [c for c in session.commands if c.what.startswith("py-spy")][len(runs) :]
        assert not [c for c in again if pids.intersection(c.pids)]
        first, last = mine(found, job), mine(later, job)
        for old, new in zip(first, last, strict=True):
            assert old.sample is not None
            assert new.sample is not None
            assert new.sample.same_since == old.sample.same_since
            assert new.sample.at > old.sample.at


def test_stacks_are_sampled_when_asked(job: Started) -> None:
    with Session(Options(), judge) as session:
        update = session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        assert update is not None
        pids = [r.process.pid for r in mine(update, job)]
        name = node(update).name
        wanted = {name: [*pids, 2**22 + 7]}
        result = session.sample(wanted, locals=True, deadline=60).result(PATIENCE)
        assert [s.pid for s in result] == wanted[name]
        assert all(s.sample.threads for s in result[:RANKS])
        culprit = result[2].sample.threads[0]
        assert any(v.name == "culprit" and v.value == "2" for f in culprit.locals for v in f)
        assert result[4].sample.failure is not None
        assert result[4].sample.failure.kind == "gone"


def test_descriptors_are_read_and_folded(job: Started) -> None:
    with Session(Options(), judge) as session:
        update = session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        assert update is not None
        pid = mine(update, job)[0].process.pid
        tables = session.descriptors(node(update).name, [pid, 2**22 + 7]).result(PATIENCE)
        table = tables[pid]
        assert table is not None
        assert table.failure is None
        assert any(d.kind == "socket" and d.socket is not None for d in table.descriptors)
        assert tables[2**22 + 7] is None
        assert session.wait(lambda u: mine(u, job)[0].descriptors is not None, PATIENCE)


def test_a_killed_probe_is_started_again(job: Started) -> None:
    timing = Timing(retry_first=0.2)
    with Session(Options(), judge, timing=timing) as session:
        assert session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        (old,) = probes()
        old.kill()
        lost = session.wait(lambda u: node(u).generation == 1, PATIENCE)
        assert lost is not None
        assert "SIGKILL" in (node(lost).reason or "")
        assert len(mine(lost, job)) == RANKS, "what was known stays"
        back = session.wait(lambda u: node(u).state == "ready" and sampled(mine(u, job)), PATIENCE)
        assert back is not None
        assert [p.pid for p in probes()] != [old.pid]
        assert session.wait(
            lambda u: all(r.sample and r.sample.count > 1 for r in mine(u, job)), PATIENCE
        ), "samples go on after the reconnection"


def test_a_stopped_probe_is_slow_and_comes_back(job: Started) -> None:
    timing = Timing(ping=0.5, slow=0.5, lost=30)
    with Session(Options(), judge, timing=timing) as session:
        assert session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        (probe,) = probes()
        probe.send_signal(signal.SIGSTOP)
        slow = session.wait(lambda u: node(u).state == "slow", PATIENCE)
        probe.send_signal(signal.SIGCONT)
        assert slow is not None
        assert node(slow).reason
        back = session.wait(lambda u: node(u).state == "ready", PATIENCE)
        assert back is not None
        assert node(back).generation == 0
        assert [p.pid for p in probes()] == [probe.pid]


def test_a_probe_that_stays_stopped_is_replaced(job: Started) -> None:
    timing = Timing(ping=0.3, slow=0.3, lost=1.5, kill=0.3, retry_first=0.2)
    with Session(Options(), judge, timing=timing) as session:
        assert session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        (probe,) = probes()
        probe.send_signal(signal.SIGSTOP)
        back = session.wait(
            lambda u: node(u).state == "ready" and node(u).generation >= 1, PATIENCE
        )
        assert back is not None
        probe.wait(PATIENCE)
        assert wait_until(lambda: len(probes()) == 1), probes()


def test_garbage_is_counted_and_shown(job: Started, tmp_path: Path) -> None:
    with Session(Options(interval=0.2), judge, [Garbled(tmp_path)]) as session:
        update = session.wait(
            lambda u: (
                sampled(mine(u, job)) and node(u).noise_lines >= 4 and node(u).state == "ready"
            ),
            PATIENCE,
        )
        assert update is not None, session.latest
        assert node(update).generation == 0
        assert "Welcome to n1! red" in node(update).noise
        assert not any("\x1b" in line or "\x00" in line for line in node(update).noise)


def test_a_damaged_stream_is_started_again(job: Started, tmp_path: Path) -> None:
    garbled = Garbled(tmp_path, damaged=True)
    with Session(Options(interval=0.2), judge, [garbled], Timing(retry_first=0.2)) as session:
        update = session.wait(lambda u: node(u).generation >= 1 and sampled(mine(u, job)), PATIENCE)
        assert update is not None, session.latest
        assert any("damaged" in line for line in node(update).noise)


def test_system_calls_are_traced_and_saved(
    job: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Session(Options(), judge) as session:
        update = session.wait(lambda u: sampled(mine(u, job)), PATIENCE)
        assert update is not None
        if not node(update).capabilities["strace"].ok:
            pytest.skip(f"no strace: {node(update).capabilities['strace'].why}")
        got: list[str] = []
        rank = mine(update, job)[2]
        result = session.strace(node(update).name, rank.process.pid, 1.0, got.extend).result(
            PATIENCE
        )
        assert result.running_again
        tick = update.snapshot.tick
        later = session.wait(lambda u: u.snapshot.tick > tick + 3, PATIENCE)
        assert later is not None
        moved = mine(later, job)[2].moved_at
        assert moved is not None
        assert rank.moved_at is not None
        assert moved - rank.moved_at < 0.5, "tracing wakes a rank; that is no progress of the job"
        folder, name = os.path.split(result.path.removesuffix("TID"))
        saved = [path for path in Path(folder).iterdir() if path.name.startswith(name)]
        texts = {path.suffix: path.read_text() for path in saved}
        assert len(texts) == result.files
        assert sum(text.count("\n") for text in texts.values()) == result.lines == len(got)
        assert sum(path.stat().st_size for path in saved) == result.size
        assert not [path for path in saved if path.stat().st_mode & 0o077]
        assert "nanosleep" in texts[f".{rank.process.pid}"]
        assert not any("[pid" in text for text in texts.values())
        (record,) = [c for c in session.commands if "strace" in c.what]
        assert record.pauses
        assert record.outcome == "done"


def test_holding_a_rank_for_a_moment_is_no_progress_and_a_small_step_is(job: Started) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    with torchrun("slow", nproc=2) as slow, Session(Options(hang_after=4.0), diagnose) as session:

        def hung_for(update: Update, started: Started) -> float | None:
            key = next(
                (j.key for j in update.snapshot.jobs if j.ranks == mine(update, started)), ""
            )
            return update.diagnoses[key].hung_for_s if key in update.diagnoses else None

        def steps(update: Update) -> bool:
            return all((r.left_at or 0) > began for r in mine(update, slow))

        began = time.time()
        found = session.wait(
            lambda u: len(mine(u, slow)) == 2 and hung_for(u, job) is not None, PATIENCE
        )
        assert found is not None
        pids = [r.process.pid for r in mine(found, job)]
        # WHEN somebody else traces one rank and stops and continues all of them
        traced = ["timeout", "1", "strace", "-f", "-o", os.devnull, "-p", str(pids[0])]
        subprocess.run(traced, check=False, capture_output=True)
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, sign)
        touched = time.time()
        later = session.wait(
            lambda u: all((r.moved_at or 0) > touched - 1 for r in mine(u, job)) and steps(u),
            PATIENCE,
        )
        # THEN its ranks ran, but the hang is as old as it was
        assert later is not None
        for_s = hung_for(later, job)
        assert for_s is not None, later.diagnoses
        assert for_s > later.snapshot.at - touched + 4.0
        # AND a job of which every rank runs as little, for a real step, never hangs
        began = later.snapshot.at
        states: list[float | None] = []

        def watched(update: Update) -> bool:
            states.append(hung_for(update, slow))
            return update.snapshot.at > began + 5 and steps(update)

        assert session.wait(watched, PATIENCE) is not None
        assert set(states) == {None}


def test_a_rank_that_dies_stays_listed() -> None:
    with torchrun("collective") as started, Session(Options(), judge) as session:
        update = session.wait(lambda u: hung(u, started), PATIENCE)
        assert update is not None
        os.kill(started.pid, signal.SIGSTOP)  # torchrun would end the others
        os.kill(mine(update, started)[3].process.pid, signal.SIGKILL)
        gone = session.wait(
            lambda u: bool(mine(u, started)) and mine(u, started)[3].state == "zombie", PATIENCE
        )
        assert gone is not None, session.latest
        ranks = mine(gone, started)
        assert [r.rank for r in ranks] == [0, 1, 2, 3]
        assert ranks[3].process.exit_code == -9


def test_nothing_is_left_after_closing(job: Started) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        session = Session(Options(), judge)
        session.start()
        session.wait(lambda u: bool(u.snapshot.jobs), PATIENCE)
        assert probes()
        began = time.monotonic()
        session.close()
        session.close()
        assert time.monotonic() - began < 20
        assert not probes()
    assert set(threading.enumerate()) <= before


NOTEBOOK = """
import asyncio, functools, io, json, sys, threading
import psutil

def run(code, said):
    exec(code, {"print": functools.partial(print, file=said)})

async def main(*codes):
    said = [io.StringIO() for _ in codes]
    await asyncio.to_thread(run, codes[2], said[2])  # it waits until the job is called hung
    other = asyncio.create_task(asyncio.to_thread(run, codes[1], said[1]))
    await asyncio.sleep(0.1)
    run(codes[0], said[0])  # as a cell of a notebook: on the thread of a loop that runs
    await other
    threads = [one.name for one in threading.enumerate() if "hangtop" in one.name]
    left = [one.pid for one in psutil.Process().children(recursive=True)]
    return [[one.getvalue() for one in said], sorted(sys.modules), threads, left]

print(json.dumps(asyncio.run(main(*json.load(sys.stdin)))))
"""


def test_examples_of_the_pages_run_in_a_notebook_and_leave_nothing(job: Started) -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/api.md").read_text("utf-8")
    codes = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[:3]
    assert f"```python\n{codes[0]}```" in (root / "README.md").read_text("utf-8")
    assert len([line for line in codes[0].splitlines() if line]) == 4
    # Other jobs may run on this machine, and it has no node of the page's name.
    mine = f"ht.attach(pids=[{job.pid}])"
    # That it hangs may be known before there are stacks, and so before anybody is to blame.
    changes = {", hang_after=60": "", 'one.state == "hung"': 'one.state == "hung" and one.verdicts'}
    here = [re.sub(r"ht\.attach\(.*?\)", mine, code) for code in codes]
    for old, new in changes.items():
        here = [code.replace(old, new) for code in here]
    assert all(mine in code for code in here)
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=json.dumps(here),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (five, nodes, waiting), modules, threads, left = json.loads(done.stdout)
    assert five.startswith("hung\nrank 2 ")
    assert re.search(r"^\S+ ready $", nodes, re.MULTILINE)
    assert "gloo_job.py hung\n" in nodes
    assert nodes.splitlines()[-2:][0].startswith("2 ")
    assert "missing-collective" in waiting
    assert {"textual", "rich", "torch", "hangtop"}.isdisjoint(modules)
    assert (threads, left) == ([], [])
