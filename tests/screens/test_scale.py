"""8,192 ranks on 1,024 nodes: a picture a second and an answer to every key, in time."""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import pytest

from hangtop.screens import turns
from hangtop.screens.page import Page
from support.player import app_for
from support.processes import PATIENCE
from support.record import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hangtop_core.model.updates import Update

RANKS = 8192
CULPRIT = 3121
NODES = 1024
LOST = frozenset({7, *range(512, 768)})
replace = msgspec.structs.replace


@cache
def large() -> Update:
    update = load("skip")
    job = update.snapshot.jobs[0]
    ranks = tuple(
        replace(
            job.ranks[2 if number == CULPRIT else 0],
            rank=number,
            node=f"node{number // 8:04d}",
            process=replace(job.ranks[0].process, pid=5000 + number, rank=number),
        )
        for number in range(RANKS)
    )
    big = replace(job, ranks=ranks, world_size=RANKS)
    nodes = tuple(
        replace(
            update.snapshot.nodes[0],
            name=f"node{number:04d}",
            state="lost" if number in LOST else "ready",
            reason=f"no answer for {number} s; connecting again in 3 s" if number in LOST else None,
        )
        for number in range(NODES)
    )
    return replace(update, snapshot=replace(update.snapshot, jobs=(big,), nodes=nodes))


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("1", f"0-{CULPRIT - 1}"),
        ("1t", "node0007  8 ranks 56-63  lost"),
        ("1tt", "by class"),
        ("2", "8192 of 8192 ranks"),
        ("3", "RANK"),
        ("5", "VERDICT  missing-collective"),
        ("9", "767 ready  257 lost"),
        ("9t", "node[0000-0006,0008-051"),
    ],
)
async def test_a_large_job_is_drawn_and_answers(page: str, told: str) -> None:
    app = app_for(large())
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press(*page)
        await pilot.pause()
        shown = app.screen
        assert isinstance(shown, Page)
        began = time.process_time()
        shown.show()
        drawn = time.process_time() - began
        began = time.process_time()
        for action in ("down", "page_down", "end", "home"):
            app.perform(action)
        keys = (time.process_time() - began) / 4
        # Measured 45 ms and 3 ms; the limits leave room for a busy machine.
        assert drawn < 0.3, f"{drawn * 1000:.0f} ms for a picture"
        assert keys < 0.05, f"{keys * 1000:.0f} ms for a key"
        text = "\n".join(strip.text for strip in shown._compositor.render_strips())
        assert told in text


async def test_between_two_turns_the_loop_looks_for_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn after the other as messages of the app alone would be one piece of work to it."""
    app = app_for(large())
    async with app.run_test(size=(120, 36)):
        page, done, end = app.screen, list[str](), asyncio.Event()
        assert isinstance(page, Page)
        steps, loop = page.steps, asyncio.get_running_loop()

        def noted() -> Iterator[None]:
            for _ in steps():
                done.append("turn")
                loop.call_soon(done.append, "loop")
                yield
            end.set()

        monkeypatch.setattr(page, "steps", noted)
        monkeypatch.setattr(turns, "TURN_S", 0.0)
        page.turns.begin()
        async with asyncio.timeout(PATIENCE):
            await end.wait()
        assert done.count("turn") > 4
        assert "turn turn" not in " ".join(done)


async def test_a_picture_is_filled_to_its_end_on_a_machine_that_is_late_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Textual leaves a timer out whose time has come before its task began."""
    app = app_for(large())
    async with app.run_test(size=(120, 36)):
        page, end = app.screen, asyncio.Event()
        assert isinstance(page, Page)
        steps, late = page.steps, iter(range(1_000_000_000))

        def noted() -> Iterator[None]:
            yield from steps()
            end.set()

        monkeypatch.setattr("textual._time.get_time", lambda: time.monotonic() + next(late) * 0.01)
        monkeypatch.setattr(page, "steps", noted)
        monkeypatch.setattr(turns, "TURN_S", 0.0)
        page.turns.begin()
        async with asyncio.timeout(PATIENCE):
            await end.wait()
