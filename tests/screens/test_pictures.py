"""Pictures of every screen at three sizes, drawn from recordings of real jobs."""

from __future__ import annotations

import pytest

from hangtop.views.common import span
from support.player import app_for, compare, picture
from support.record import load

SIZES = [(80, 24), (120, 36), (200, 50)]
PAGES = {"overview": "1", "stacks": "2", "rank": "3", "recorder": "4",
         "verdict": "5", "nodes": "9"}  # fmt: skip
RECORDINGS = ["skip", "dataloader-worker", "stopped", "lock", "cluster"]
ALONE = {"nodes", "recorder"}
"""Pages that are the same for every job of one machine, or without a recorder."""


def quiet_for(name: str, node: int) -> str:
    """For how long nothing was heard of a node of a recording, as it is shown."""
    snapshot = load(name).snapshot
    seen = snapshot.nodes[node].last_seen
    assert seen is not None
    return span(snapshot.at + 0.4 - seen)


async def draw(name: str, size: tuple[int, int], *keys: str, **options: bool) -> str:
    app = app_for(load(name), **options)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        return picture(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("page", PAGES)
async def test_skip(page: str, size: tuple[int, int], update_screens: bool) -> None:
    text = await draw("skip", size, PAGES[page])
    compare(f"skip-{page}-{size[0]}x{size[1]}", text, update_screens)


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ALONE])
@pytest.mark.parametrize("name", RECORDINGS[1:-1])
async def test_other_hangs(name: str, page: str, update_screens: bool) -> None:
    text = await draw(name, (120, 36), PAGES[page])
    compare(f"{name}-{page}-120x36", text, update_screens)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("what", "keys"),
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
    what: str, keys: tuple[str, ...], size: tuple[int, int], update_screens: bool
) -> None:
    text = await draw("cluster", size, *keys)
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
    ("what", "keys"),
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
async def test_what_keys_open(what: str, keys: tuple[str, ...], update_screens: bool) -> None:
    text = await draw("skip", (120, 36), *keys)
    compare(f"open-{what}-120x36", text, update_screens)


@pytest.mark.parametrize("page", PAGES)
async def test_ascii_has_nothing_else(page: str, update_screens: bool) -> None:
    text = await draw("skip", (120, 36), PAGES[page], ascii=True)
    assert text.isascii()
    compare(f"ascii-{page}-120x36", text, update_screens)


@pytest.mark.parametrize("size", [(10, 3), (1, 1), (20, 5), (40, 12), (300, 90)])
@pytest.mark.parametrize("page", PAGES)
async def test_any_size_is_drawn(page: str, size: tuple[int, int]) -> None:
    text = await draw("dataloader-worker", size, PAGES[page], "tab", "tab", "z")
    assert text.count("\n") == size[1]
    assert max(len(row) for row in text.splitlines()) <= size[0]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", RECORDINGS)
async def test_the_verdict_is_seen_at_every_size(name: str, size: tuple[int, int]) -> None:
    update = load(name)
    (diagnosis,) = update.diagnoses.values()
    best = diagnosis.verdicts[0]
    text = await draw(name, size)
    assert "HUNG" in text
    assert best.cause in text
    words = " ".join(text.replace("│", " ").split())
    assert " ".join(best.summary.split()[:8]) in words
