"""Diagnoses and stacks as text."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.snapshot import Failure, Local, Snapshot
from hangtop_core.report.diagnosis import diagnosis_text, headline
from hangtop_core.report.stacks import each_text, merged_text
from hangtop_core.stacks.merging import merge
from support.build import NOW, World
from support.situations import FUTEX, SLEEP, c10d, user


def skipped() -> Snapshot:
    world = World()
    world.waiters(2)
    world.add(user("cool_down", 41, "time.sleep(3600)"), SLEEP)
    failure = Failure("denied", "ptrace is not permitted", "run as root")
    world.add(None, FUTEX, sample={"failure": failure})
    return world.snapshot()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_diagnosis_fits_its_width_and_names_what_matters(width: int) -> None:
    snapshot = skipped()
    found = diagnose(snapshot, snapshot.jobs[0])
    text = diagnosis_text(found, width)
    assert all(len(line) <= width for line in text.splitlines())
    for part in ("HUNG for 5:00", "missing-collective", "rank 2", "4020", "Blind spots", "run as"):
        assert part in text


def test_headlines_tell_hung_from_stalled_and_nothing() -> None:
    assert headline(diagnose(skipped(), skipped().jobs[0])) == "HUNG for 5:00"
    world = World()
    world.waiters(3, moved_at=NOW - 12.0)
    stalled = world.snapshot()
    assert headline(diagnose(stalled, stalled.jobs[0])).startswith("STALLED for 12 s")
    assert headline(diagnose(stalled, None)) == "NO TRAINING JOB FOUND"


def test_merged_text_marks_the_fewest_and_lists_who_gave_no_stack() -> None:
    snapshot = skipped()
    text = merged_text(merge(snapshot, snapshot.jobs[0]), 100)
    lines = text.splitlines()
    assert lines[0] == "3 ranks of 4 gave a stack, 2 classes"
    assert any("cool_down (train.py:41)  [2]" in line and "fewest" in line for line in lines)
    assert "no stack from 3 (n1): ptrace is not permitted (fix: run as root)" in text
    assert max(map(len, lines)) <= 100


def test_merged_text_of_a_whole_job_counts_and_names_ranks_that_were_not_found() -> None:
    snapshot = skipped()
    job = replace(snapshot.jobs[0], world_size=7)
    lines = merged_text(merge(snapshot, job), job=job, whole=True).splitlines()
    assert lines[0] == "3 ranks of 7 gave a stack, 2 classes"
    assert lines[-1] == "no process was found of ranks 4-6: WORLD_SIZE is 7"
    # Of ranks that were named nobody asked for the others.
    assert merged_text(merge(snapshot, job), job=job).startswith("3 ranks of 4 gave a stack")


def test_merged_text_names_the_nodes_of_a_job_on_several() -> None:
    world = World()
    world.waiters(3)
    world.waiters(2, node="n2")
    world.add(user("cool_down", 41), SLEEP, node="n3")
    snapshot = world.snapshot()
    lines = merged_text(merge(snapshot, snapshot.jobs[0]), 100, job=snapshot.jobs[0]).splitlines()
    assert any("cool_down (train.py:41)  [5] n3" in line for line in lines)
    assert any(line.endswith("[0-4] n[1-2]") for line in lines)
    narrow = merged_text(merge(snapshot, snapshot.jobs[0]), 60, job=snapshot.jobs[0])
    assert any("…  [0-4] n[1-2]" in line for line in narrow.splitlines())
    assert max(map(len, narrow.splitlines())) <= 60


def test_merged_text_takes_numbers_that_nobody_would_type() -> None:
    world = World()
    world.waiters(2, node="n2")
    world.add(user("cool_down", 41), SLEEP, rank=5_000_000, node="n3")
    snapshot = world.snapshot()
    told = merged_text(merge(snapshot, snapshot.jobs[0]), 100, job=snapshot.jobs[0])
    assert "[5000000] n3" in told


def test_merged_text_can_do_with_ascii() -> None:
    snapshot = skipped()
    tree = merge(snapshot, snapshot.jobs[0], libraries=False)
    assert merged_text(tree, 100, ascii_only=True).isascii()


def test_each_text_is_laid_out_like_a_dump_of_one_process() -> None:
    snapshot = skipped()
    text = each_text(snapshot, snapshot.jobs[0])
    assert text.startswith("n1:0  process 4000: python3 -u train.py\nState sleeping\n")
    assert 'Thread 4000 (idle): "MainThread"' in text
    assert "    all_reduce (torch/distributed/distributed_c10d.py:3252)" in text
    assert "No stack: ptrace is not permitted (fix: run as root)" in text


def test_each_text_shows_locals_and_cleans_them() -> None:
    world = World()
    rank = world.add(c10d("all_reduce"), FUTEX)
    assert rank.sample is not None
    local = Local("step", "7\x1b[2J")
    first = replace(rank.sample.threads[0], locals=((local,),))
    world.ranks[0] = replace(rank, sample=replace(rank.sample, threads=(first,)))
    text = each_text(world.snapshot(), world.snapshot().jobs[0])
    assert "        step: 7\n" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, ""), (408.0, "times out in about 6:48."), (0.0, "should have timed out already.")],
)
def test_when_the_first_operation_times_out(seconds: float | None, said: str) -> None:
    snapshot = skipped()
    found = diagnose(snapshot, snapshot.jobs[0])
    text = diagnosis_text(replace(found, watchdog_in_s=seconds))
    assert said in text
    assert ("first operation" in text) == bool(said)
