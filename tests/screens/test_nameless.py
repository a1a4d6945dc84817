"""Every screen of a job of whose ranks nothing tells the numbers."""

from __future__ import annotations

import re

from msgspec.structs import replace

from support.nameless import judged
from support.player import app_for, keys
from support.record import load

SIZE = (140, 40)


async def test_a_title_tells_ranks_without_a_number_apart_in_the_list() -> None:
    update = judged(load("recorder"))
    first, *others = update.snapshot.jobs[0].ranks
    titled = replace(first, process=replace(first.process, cmdline=("VLLM::Worker_TP1",)))
    job = replace(update.snapshot.jobs[0], ranks=(titled, *others))
    app = app_for(replace(update, snapshot=replace(update.snapshot, jobs=(job,))))
    async with app.run_test(size=SIZE) as pilot:
        assert f"VLLM::Worker_TP1  pid{first.process.pid}" in await keys(pilot, "1")


async def test_ranks_without_a_number_are_named_by_their_pids_on_every_screen() -> None:
    app = app_for(judged(load("recorder")))
    async with app.run_test(size=SIZE) as pilot:
        shown = {key: await keys(pilot, key) for key in "12345689"}
        for key, text in shown.items():
            assert not re.search(r"\d{12}", text), f"what stands for a number, on screen {key}"
        assert re.search(r"pid\d+", shown["1"])
        assert re.search(r"rank \? \(pid \d+", shown["3"])
        assert re.search(r"rank \? \(", shown["5"])
        text = await keys(pilot, "1", "/", *"pid9", "enter")
        assert "no such" not in text
