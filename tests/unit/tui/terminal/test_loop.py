"""The loop that goes before what takes in what nodes say."""

from __future__ import annotations

import asyncio

from hangtop.terminal.loop import run
from hangtop_core.scheduling.ui_priority import SCREENS


def test_others_have_their_way_only_while_the_loop_waits() -> None:
    busy: list[bool] = []
    waited: list[bool] = []

    async def app() -> None:
        busy.append(not SCREENS._rests.is_set())
        waited.append(await asyncio.to_thread(SCREENS._rests.wait, 30))
        busy.append(not SCREENS._rests.is_set())

    run(app())
    assert busy == [True, True]
    assert waited == [True]
    assert SCREENS._rests.is_set(), "nobody waits for one that has ended"
