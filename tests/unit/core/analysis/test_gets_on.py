"""What gets a rank on although its main thread waits or sleeps, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hangtop_core.model.descriptors import FilePosition
from support import situations
from support.build import NOW, World, judged
from support.situations import (
    FUTEX,
    LOADER,
    POLL,
    RUN,
    SLEEP,
    WAITPID,
    Stack,
    c10d,
    frame,
    user,
    worker_in,
)
from support.verdicts import causes, hung


@pytest.mark.parametrize(
    ("stack", "facts", "printed_ago", "watched", "state"),
    [
        (user("evaluate", 40), RUN, 3.0, 90.0, "progressing"),
        (user("evaluate", 40), RUN, None, 90.0, "hung"),
        # A progress bar alone is not believed for ever.
        (user("evaluate", 40), RUN, 3.0, 700.0, "hung"),
        # Who sleeps and prints may be in a loop that waits; who waits for others does not get on.
        (user("wait_for_file", 40, "time.sleep(1)"), SLEEP, 1.0, 90.0, "hung"),
        (c10d("all_reduce"), FUTEX, 1.0, 90.0, "hung"),
    ],
)
def test_a_log_that_the_main_thread_writes_means_that_it_gets_on(
    stack: Any, facts: Any, printed_ago: float | None, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched - 10)
    printed = None if printed_ago is None else NOW - printed_ago
    moved = NOW - watched - 10 if facts is FUTEX else NOW - 0.2
    world.add(stack, facts, moved_at=moved, printed_at=printed)
    assert judged(world).state == state


@pytest.mark.parametrize(
    ("code", "prints", "state"),
    [(1, False, "hung"), (-9, False, "hung"), (0, False, "progressing"), (1, True, "progressing")],
)
def test_who_only_looks_for_what_a_rank_that_failed_was_to_leave_waits_for_it(
    code: int, prints: bool, state: str
) -> None:
    world = World(observed_since=NOW - 90.0)
    looks = replace(user("merge", 40, "time.sleep(2)")[0], within=((39, "for part in parts:"),))
    for _ in range(3):
        world.add((looks, *situations.BASE), SLEEP, moved_at=NOW - 1.0,
                  printed_at=NOW - 1.0 if prints else None)  # fmt: skip
    world.add(None, None, state="zombie", process={"state": "Z", "exit_code": code})
    found = judged(world)
    assert found.state == state
    assert causes(found)[:1] == (["rank-exited"] if state == "hung" else [])


@pytest.mark.parametrize(
    ("computed_ago", "watched", "state"),
    [(0.4, 90.0, "progressing"), (None, 90.0, "hung"), (80.0, 90.0, "hung"), (0.4, 700.0, "hung")],
)
def test_who_computes_between_sleeps_gets_on_and_who_only_looks_does_not(
    computed_ago: float | None, watched: float, state: str
) -> None:
    world = World(observed_since=NOW - watched)
    world.waiters(3, moved_at=NOW - watched - 10)
    computed = None if computed_ago is None else NOW - computed_ago
    world.add(
        user("generate", 91, "time.sleep(0.03)"), SLEEP, moved_at=NOW - 0.1, computed_at=computed
    )
    found = judged(world)
    assert found.state == state
    assert "sleeps again and again at train.py:91" in found.verdicts[0].summary


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("while not (cache / '_SUCCESS').exists():", "`while not (cache / '_SUCCESS').exists():`"),
        ("while True:", ""),
        ("for n in range(9):", ""),
    ],
)
def test_what_is_looked_for_between_sleeps_is_told(loop: str, said: str) -> None:
    world = World()
    world.waiters(3)
    one, *below = user("prepare", 17, "time.sleep(0.5)")
    world.add((replace(one, within=((16, loop),)), *below), SLEEP, moved_at=NOW - 0.1)
    verdict = hung(world)
    assert verdict.cause == "missing-collective"
    told = f"at train.py:17 (prepare){f', in {said},' if said else ''} for "
    assert told in verdict.summary


def test_who_sleeps_between_attempts_that_fail_does_not_get_on_by_computing() -> None:
    """As one that tries to save to a full disk: what it writes there takes a CPU each time."""
    world = World(observed_since=NOW - 90)
    world.waiters(3, moved_at=NOW - 100)
    one, *below = user("save", 58, "time.sleep(1)")
    stack = (
        replace(one, beside=((53, "torch.save(model, path)"), (56, "except OSError:"))),
        *below,
    )
    world.add(stack, SLEEP, moved_at=NOW - 0.1, computed_at=NOW - 0.4)
    assert judged(world).state == "hung"


def test_a_checkpoint_whose_bytes_grow_is_progress() -> None:
    world = World()
    world.waiters(3)
    world.add(situations.SAVE, ("D", "folio_wait", "write", 9, None), io_moved_at=NOW - 1.0)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", ["checkpoint-slow"])
    assert "not a hang" in found.verdicts[0].summary


@pytest.mark.parametrize(
    ("moved", "sample", "other", "told"),
    [
        (1.0, {"same_functions_since": NOW - 8.0}, None, True),
        (1.0, {"same_functions_since": NOW - 4.0}, None, False),  # as in each tenth step
        (1.0, {"same_functions_since": NOW - 12.0, "count": 2}, None, False),  # met by chance
        (20.0, {}, None, False),
        (1.0, {}, user("train_step", 40), False),
    ],
)
def test_a_checkpoint_that_all_ranks_write_is_told_when_it_takes_long(
    moved: float, sample: dict[str, Any], other: Stack | None, told: bool
) -> None:
    """Nobody waits: each writes its shard, file by file, to a slow disk."""
    world = World()
    wait, moves = ("D", "folio_wait", "write", 9, None), {"io_moved_at": NOW - moved}
    for stack in (situations.SAVE, other or situations.SAVE):
        world.add(stack, wait, sample=sample, moved_at=NOW - 1.0, **moves)
    found = judged(world)
    assert found.state == "progressing"
    assert causes(found) == (["checkpoint-slow"] if told else [])


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        (
            (frame("Slow.write", "train.py", 71, "time.sleep(0.5)"), *situations.SAVE),
            "writes a checkpoint at train.py:71 (Slow.write) and its bytes written grow",
        ),
        (
            user("save_shards", 77, "time.sleep(0.1)"),
            "writes, as train.py:77 (save_shards) is named, a checkpoint at train.py:77",
        ),
        (
            user("Checkpointer.save.<locals>.put", 77, "time.sleep(0.1)"),
            "as train.py:77 (Checkpointer.save.<locals>.put) is named, a checkpoint",
        ),
        (
            (frame("Archive.add", "train.py", 46), *user("Archive.save", 54)),
            "saves, as train.py:54 (Archive.save) is named, at train.py:46",
        ),
        (
            user("Checkpointer.save", 77),
            "writes, as train.py:77 (Checkpointer.save) is named, a checkpoint",
        ),
        (
            (frame("put", "/home/me/ckpt/io.py", 46), *user("run", 54)),
            "",
        ),
        (
            (frame("_write", "/home/me/my_checkpoints.py", 46), *user("run", 54)),
            "writes, as /home/me/my_checkpoints.py:46 (_write) is named, a checkpoint",
        ),
        (user("CheckpointManager._flush_tensors", 77), "a checkpoint at train.py:77"),
        (user("restore_checkpoint", 77), ""),
        (user("save_predictions", 77, "time.sleep(0.1)"), ""),
        (user("autosave", 77, "time.sleep(0.1)"), ""),
    ],
)
def test_who_writes_a_checkpoint_in_pieces_is_no_straggler(stack: Stack, said: str) -> None:
    for wrote_s in (1.0, 30.0):
        world = World()
        world.waiters(3)
        times = {"io_moved_at": NOW - wrote_s, "wrote_at": NOW - wrote_s, "moved_at": NOW - 0.1}
        world.add(stack, SLEEP, computed_at=NOW - 0.3, **times)
        found = judged(world)
        assert found.state == "progressing"
        told = bool(said) and wrote_s < 10
        assert causes(found) == (["checkpoint-slow"] if told else ["straggler"])
        assert not told or said in found.verdicts[0].summary


PART = "/ckpt/step-6/model-00002-of-00040.bin.tmp"
NAMED = "a checkpoint, as the file is named,"


@pytest.mark.parametrize(
    ("function", "path", "signs", "said"),
    [
        ("put", PART, {}, f"writes {NAMED} at train.py:77 (put) and its bytes written grow"),
        ("put", "/out/run/checkpoint-500/rank3.pt", {}, NAMED),
        ("put", "/out/optimizer.pt.partial", {}, NAMED),
        ("put", "/out/epoch_3.pt~", {}, NAMED),
        ("put", "/out/global_step200/part-00001-of-00008.bin", {}, NAMED),
        ("Keeper.save_weights", PART, {}, "as train.py:77 (Keeper.save_weights) is named, a ch"),
        ("Keeper.save", PART, {}, "as train.py:77 (Keeper.save) is named, a checkpoint"),
        # Data, logs, and what is brought from elsewhere.
        ("put", "/data/train-00002-of-00040.bin.tmp", {}, ""),
        ("put", "/out/checkpoint-500/log.txt", {}, ""),
        ("write_shards", "/data/train-00002-of-00040.arrow", {}, ""),
        ("download", "/cache/model.safetensors.incomplete", {}, ""),
        ("put", PART, {"read_at": NOW - 2}, ""),
    ],
)
def test_a_checkpoint_by_the_name_of_its_file(
    function: str, path: str, signs: dict[str, float], said: str
) -> None:
    for long, wait in ((2.0, ("D", "folio_wait", "write", 9, None)), (8.0, RUN)):
        world = World()
        world.waiters(3)
        file = FilePosition(9, path, 140, True, 1 << 20, "/ckpt", "ext4")
        times = {"moved_at": NOW - 0.2, "file_moved_at": NOW - long, "file_rate": 0.0, **signs}
        sample = {"same_functions_since": NOW - 2.0}
        world.add(user(function, 77), wait, process={"file": file}, sample=sample, **times)
        found = judged(world)
        assert found.state == "progressing"
        first = found.verdicts[0]
        assert (first.cause == "checkpoint-slow") == bool(said)
        assert said in first.summary
        if said:
            assert first.confidence == (0.8 if "Keeper" in function else 0.7)
            assert f"its position is 140 B of {path} on /ckpt (ext4), and last " in first.summary


def test_a_large_transfer_in_a_collective_is_progress() -> None:
    world = World()
    world.waiters(4, moved_at=NOW - 45.0, io_moved_at=NOW - 0.5, cpu_share=0.4)
    assert judged(world).state == "progressing"


def test_log_lines_of_a_background_thread_are_no_progress() -> None:
    world = World()
    world.waiters(3, io_moved_at=NOW - 0.5)
    world.add(user("cool_down", 41), SLEEP, io_moved_at=NOW - 0.5)
    assert judged(world).state == "hung"


@pytest.mark.parametrize(("waited_s", "told"), [(20.0, True), (3.0, True), (1.0, False)])
def test_a_compiler_that_runs_is_progress(waited_s: float, told: bool) -> None:
    world = World(observed_since=NOW - 30)
    world.waiters(3, moved_at=NOW - waited_s)
    rank = world.add(situations.COMPILE, FUTEX)
    child = world.process(4999, RUN, role="compile-worker", comm="cc1plus")
    world.give_children(rank, [(child, None)], moved_at=NOW - 0.1)
    found = judged(world)
    assert (found.state, causes(found)) == ("progressing", ["compiling"] if told else [])


def test_a_worker_that_moves_is_progress_for_its_rank() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(LOADER, POLL)
    process, sample = world.worker(rank, worker_in("decode", 80), RUN)
    moving = world.sample(worker_in("decode", 80), pid=process.pid, same_functions_since=NOW - 1.0)
    world.give_children(rank, [(process, moving)], moved_at=NOW)
    found = judged(world)
    assert sample.count == 10
    assert (found.state, causes(found)) == ("progressing", ["data-starved"])


def test_a_child_program_at_work_is_no_hang() -> None:
    world = World()
    world.waiters(3)
    rank = world.add(situations.CHILD, WAITPID)
    child = world.process(4999, RUN, role="subprocess", ppid=rank.process.pid)
    world.give_children(rank, [(child, None)], moved_at=NOW - 0.5)
    assert judged(world).state == "progressing"


@pytest.mark.parametrize(("ago", "state"), [(0.5, "progressing"), (600.0, "hung")])
def test_a_pool_at_work_is_no_hang_and_one_at_rest_is(ago: float, state: str) -> None:
    world = World()
    world.waiters(3)
    pool = (
        frame("wait", "py:threading.py", 327),
        frame("next", "py:multiprocessing/pool.py", 873),
        *user("tokenize", 154),
    )
    rank = world.add(pool, FUTEX)
    child = world.process(4999, RUN, role="subprocess", ppid=rank.process.pid)
    world.give_children(rank, [(child, None)], moved_at=NOW - ago)
    found = judged(world)
    assert found.state == state
    assert state == "progressing" or causes(found) == ["child-process-wait"]


def test_a_writer_that_is_woken_up_by_its_reader_gets_on() -> None:
    world = World()
    world.add(user("upload", 41), situations.PIPE_WRITE, moved_at=NOW - 0.5)
    world.waiters(3)
    assert judged(world).state == "progressing"
