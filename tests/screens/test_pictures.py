"""Pictures of every screen at three sizes, drawn from recordings of real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangtop.views.common import span
from support.player import SCREENS, app_for, app_on, compare, keys
from support.record import capture, load

SIZES = [(80, 24), (120, 36), (200, 50)]
PAGES = {"overview": "1", "stacks": "2", "rank": "3", "recorder": "4",
         "verdict": "5", "nodes": "9"}  # fmt: skip
RECORDINGS = ["skip", "dataloader-worker", "stopped", "lock", "cluster"]
SHOWN = Path(__file__).parents[2] / "screenshots"
SAME = {
    "overview": "skip-overview",
    "stacks": "skip-stacks",
    "verdict": "skip-verdict",
    "recorder": "recorder",
    "dataloader-worker": "dataloader-worker-overview",
    "rank": "dataloader-worker-rank",
    "stopped": "stopped-verdict",
    "lock": "lock-rank",
    "nodes": "cluster-nodes",
    "gpus": "nccl-skip-gpus",
}
"""What the pages of docs/ show, and the picture of these tests that is the same."""
ALONE = {"nodes", "recorder"}
"""Pages that are the same for every job of one machine, or without a recorder."""


def quiet_for(name: str, node: int) -> str:
    """For how long nothing was heard of a node of a recording, as it is shown."""
    snapshot = load(name).snapshot
    seen = snapshot.nodes[node].last_seen
    assert seen is not None
    return span(snapshot.at + 0.4 - seen)


async def draw(name: str, size: tuple[int, int], *pressed: str, **options: bool) -> str:
    """What stands on the screen after some keys."""
    async with app_for(load(name), **options).run_test(size=size) as pilot:
        await pilot.pause()
        return await keys(pilot, *pressed)


async def pages(
    name: str, size: tuple[int, int], *wanted: str, **options: bool
) -> list[tuple[str, str]]:
    """Pages of one app, opened one after the other: their names, and what stands on them."""
    async with app_for(load(name), **options).run_test(size=size) as pilot:
        await pilot.pause()
        return [(page, await keys(pilot, PAGES[page])) for page in wanted]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_skip(size: tuple[int, int], update_screens: bool) -> None:
    for page, text in await pages("skip", size, *PAGES):
        compare(f"skip-{page}-{size[0]}x{size[1]}", text, update_screens)


@pytest.mark.parametrize("name", RECORDINGS[1:-1])
async def test_other_hangs(name: str, update_screens: bool) -> None:
    wanted = [page for page in PAGES if page not in ALONE]
    for page, text in await pages(name, (120, 36), *wanted):
        compare(f"{name}-{page}-120x36", text, update_screens)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("what", "pressed"),
    [
        ("nodes", ("9",)),
        ("equal-nodes", ("9", "t", "tab")),
        ("overview", ()),
        ("by-node", ("t",)),
        ("stacks", ("2",)),
        ("rank", ("3",)),
        ("diff", ("d",)),
    ],
)
async def test_a_node_that_is_lost(
    what: str, pressed: tuple[str, ...], size: tuple[int, int], update_screens: bool
) -> None:
    text = await draw("cluster", size, *pressed)
    compare(f"cluster-{what}-{size[0]}x{size[1]}", text, update_screens)
    if what != "diff" and size[0] >= 120:
        assert "node-3 lost" in text.splitlines()[0]
    if what != "equal-nodes":
        assert quiet_for("cluster", 2) in text, "the age of what was last seen"


async def test_a_job_that_progresses_blames_nobody(update_screens: bool) -> None:
    text = await draw("progressing", (120, 36))
    assert "PROGRESSING" in text
    assert "culprit" not in text
    compare("progressing-overview-120x36", text, update_screens)


@pytest.mark.parametrize(
    ("what", "pressed"),
    [
        ("help", ("question_mark",)),
        ("environment", ("e",)),
        ("information", ("i",)),
        ("palette", ("colon", "2")),
        ("strace-asked", ("3", "s")),
        ("files", ("3", "l")),
        ("libraries", ("2", "x")),
        ("each-rank", ("2", "m")),
        ("diff", ("d",)),
        ("by-class", ("t", "t")),
    ],
)
async def test_what_keys_open(what: str, pressed: tuple[str, ...], update_screens: bool) -> None:
    text = await draw("skip", (120, 36), *pressed)
    compare(f"open-{what}-120x36", text, update_screens)


async def test_ascii_has_nothing_else(update_screens: bool) -> None:
    for page, text in await pages("skip", (120, 36), *PAGES, ascii=True):
        assert text.isascii(), page
        compare(f"ascii-{page}-120x36", text, update_screens)


async def test_the_pictures_of_the_pages_are_current(update_screens: bool) -> None:
    if update_screens:
        pytest.skip("make screenshots draws them")
    made = {
        "logs": (app_for(load("logs")), ("8",)),
        "capture": (app_on(capture("cluster")), ("left_square_bracket",) * 3),
    }
    assert {path.stem for path in SHOWN.glob("*.svg")} == {*SAME, *made}
    for name, same in SAME.items():
        assert (SHOWN / f"{name}.txt").read_text() == (SCREENS / f"{same}-120x36.txt").read_text()
    for name, (app, pressed) in made.items():
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.pause()
            text = await keys(pilot, *pressed)
        assert text == (SHOWN / f"{name}.txt").read_text(), f"{name}: make screenshots draws it"


@pytest.mark.parametrize("size", [(10, 3), (1, 1), (20, 5), (40, 12), (300, 90)])
async def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    async with app_for(load("dataloader-worker")).run_test(size=size) as pilot:
        for page, key in PAGES.items():
            text = await keys(pilot, key, "tab", "tab", "z")
            assert text.count("\n") == size[1], page
            assert max(len(row) for row in text.splitlines()) <= size[0], page


@pytest.mark.parametrize("name", RECORDINGS)
async def test_the_verdict_is_seen_at_every_size(name: str) -> None:
    update = load(name)
    (diagnosis,) = update.diagnoses.values()
    best = diagnosis.verdicts[0]
    async with app_for(update).run_test(size=(300, 90)) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            text = await keys(pilot)
            assert "HUNG" in text, size
            assert best.cause in text, size
            words = " ".join(text.replace("│", " ").split())
            assert " ".join(best.summary.split()[:8]) in words, size
