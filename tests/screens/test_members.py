"""Programs that are no ranks in the app: controllers of a job, and those that can be opened."""

from __future__ import annotations

import msgspec
import pytest

from hangtop.source.programs import Programs
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.updates import Update
from support.build import World
from support.player import app_for, keys, later, settled
from support.record import load
from support.situations import FUTEX, POLL, frame, inside, user

replace = msgspec.structs.replace
WHILE = (40, "while True:")
RECEIVES = inside(
    (frame("Socket.recv_pyobj", "zmq/sugar/socket.py", 1033), *user("busy_loop", 13)), WHILE
)
STUCK = inside(user("step", 34, "lock.acquire()"), WHILE)


def serving(stack: tuple[object, ...]) -> Update:
    """Two ranks that wait for requests, and the engine that started them."""
    world = World()
    for _ in range(2):
        world.add(RECEIVES, POLL, node="n1")
    engine = world.process(
        201, FUTEX, role="launcher", launcher="multiprocessing", label="VLLM::EngineCore", node="n1"
    )
    sample = world.sample(stack, pid=201)  # type: ignore[arg-type]
    snapshot = world.snapshot(launchers=(engine,), launcher_samples={"n1:201": sample})
    found = diagnose(snapshot, snapshot.jobs[0])
    return Update(snapshot, {snapshot.jobs[0].key: found})


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=str)
async def test_a_controller_stands_below_the_ranks_and_opens_as_one(size: tuple[int, int]) -> None:
    app = app_for(serving(RECEIVES))
    async with app.run_test(size=size) as pilot:
        text = await keys(pilot)
        assert "○ IDLE" in text
        assert "Nobody asks this server for anything" in text
        text = await keys(pilot, "end", "enter")
        assert "VLLM::EngineCore (pid 201)" in text
        assert "busy_loop" in text


async def test_a_controller_in_a_group_is_no_rank() -> None:
    app = app_for(serving(RECEIVES))
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "t")
        assert "n1  2 ranks 0-1, VLLM::EngineCore (pid 201)" in text


async def test_a_controller_that_is_stuck_stands_first_as_the_culprit() -> None:
    app = app_for(serving(STUCK))
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot)
        assert "controller-stuck" in text
        rows = [row for row in text.splitlines() if "400" in row or "4010" in row]
        assert len(rows) == 2
        culprit = next(row for row in text.splitlines() if "◀ controller-stuck" in row)
        assert text.index(culprit) < text.index(rows[0])
        text = await keys(pilot, "5")
        assert "culprit VLLM::EngineCore" in " ".join(text.split())
        text = await keys(pilot, "home", "enter")
        assert "STACK  VLLM::EngineCore (pid 201)" in text
        assert "lock.acquire()" in text


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=str)
async def test_a_python_program_is_opened_from_the_list_by_enter(size: tuple[int, int]) -> None:
    update = load("skip")
    node = replace(
        update.snapshot.nodes[0],
        python_processes=("pid 4711: python serve.py", "pid 4712: python -m http.server"),
    )
    app = app_for(Update(replace(update.snapshot, jobs=(), nodes=(node,)), {}))
    app.programs = Programs()
    async with app.run_test(size=size) as pilot:
        text = await keys(pilot)
        assert "PYTHON PROGRAMS  Enter opens one" in text
        assert "4711  python serve.py" in text
        await keys(pilot, "space", "n", "t", "t", "t")
        await keys(pilot, "end", "enter")
        assert await settled(pilot, lambda: not app.is_running)
    assert app.programs.chosen == 4712


async def test_once_there_is_a_job_programs_give_way_to_its_ranks() -> None:
    update = load("skip")
    node = replace(update.snapshot.nodes[0], python_processes=("pid 4711: python serve.py",))
    app = app_for(Update(replace(update.snapshot, jobs=(), nodes=(node,)), {}))
    async with app.run_test(size=(120, 36)) as pilot:
        await keys(pilot)
        app.source.play(later(update))  # type: ignore[attr-defined]
        text = await keys(pilot, "home", "enter")
        assert "PYTHON PROGRAMS" not in text
        assert "STACK  rank" in text
