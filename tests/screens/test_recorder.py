"""The Recorder screen: on a recorded gloo job, on dump files, and where there is nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop.application import FilesApp, HangtopApp
from hangtop.source import recordings
from hangtop.source.dump_files import NOTHING_RUNS, FileSource
from hangtop.views.verdict.goals import Goal
from hangtop.widgets.item_list import ItemList
from hangtop.widgets.line_table import LineTable
from hangtop_core.analysis.flight.picture import FileProblem, examine
from hangtop_core.model.snapshot import Failure, Recorder, RecorderWay
from support.flight import Job, large, stalled, traces
from support.player import app_for, compare, keys, picture, player_of, settled
from support.record import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hangtop_core.model.updates import Update

replace = msgspec.structs.replace
SIZES = [(80, 24), (120, 36), (200, 50)]


def files(job: Job, ranks: Iterable[int] | None = None, **options: bool) -> FilesApp:
    """The app on the dumps of a job, or of some of its ranks; one more file is refused."""
    found = traces(job.dumps(ranks))
    why = "refused: it asks for builtins.eval, which no dump does"
    problem = FileProblem("/dumps/rank_9", "refused", why)
    seen = examine(found, [problem], len(found) + 1)
    return FilesApp(FileSource(seen, "/dumps"), live=False, files=seen, **options)


def current(app: HangtopApp, name: str) -> Any:
    """The row under the cursor of a table."""
    assert app.page is not None
    return app.page.query_one(f"#{name}", LineTable).current


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    ("what", "pressed"),
    [
        ("", ()),
        ("members", ("enter", "enter")),
        ("waiting", ("tab", "tab", "tab", "tab", "tab")),
        ("source", ("shift+tab",)),
    ],
)
async def test_a_gloo_job_that_hangs(
    what: str, pressed: tuple[str, ...], size: tuple[int, int], update_screens: bool
) -> None:
    app = app_for(load("recorder"))
    async with app.run_test(size=size) as pilot:
        text = await keys(pilot, "4", *pressed)
        compare(f"recorder{'-' * bool(what)}{what}-{size[0]}x{size[1]}", text, update_screens)
        assert "1  (2)" in text, "who has not joined is seen at every size"
        assert "first cause" in text
    if size[0] >= 120 and not what:
        for part in ("time.sleep(3600)", "dist.all_reduce", "■■□■", "4 of 4 recorders read"):
            assert part in text, "the stack of the missing rank stands beside those that wait"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_dump_files(size: tuple[int, int], update_screens: bool) -> None:
    async with files(stalled(), [0, 1, 2, 3, 4]).run_test(size=size) as pilot:
        text = await keys(pilot)
        compare(f"recorder-files-{size[0]}x{size[1]}", text, update_screens)
        text = await keys(pilot, "shift+tab")
        compare(f"recorder-files-source-{size[0]}x{size[1]}", text, update_screens)
        assert "rank 5: no dump of these ranks" in text
        assert "builtins.eval" in text


async def test_a_dump_that_cannot_be_read_blames_nobody() -> None:
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 2], done=False)
    problem = FileProblem("/dumps/rank_3", "truncated", "ends too early", 3)
    seen = examine(traces(job.dumps([0, 1, 2])), [problem], 4)
    app = FilesApp(FileSource(seen, "/dumps"), live=False, files=seen)
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "enter", "enter")
        assert "unreadable" in text, "said of rank 3 among the members"
        text = await keys(pilot, "5")
        assert "rank 3: 1 file cut off" in text
        assert "left no dump" not in text


async def test_ascii_has_nothing_else() -> None:
    async with files(stalled(), ascii=True).run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "n")
        assert text.isascii()
        assert "1-5" not in text
        assert "0-4  .#" in text, "0 has not joined, 4 has"


async def test_groups_lead_to_numbers_to_members_to_the_rank_and_back() -> None:
    app = app_for(load("recorder"))
    async with app.run_test(size=(120, 36)) as pilot:
        await keys(pilot, "4")
        assert app.page is not None
        for pane in ("groups", "numbers", "members"):
            assert app.page.active == pane
            await keys(pilot, "enter")
        assert app.current_mode == "rank"
        assert app.state.rank is not None
        assert app.state.rank.rank == 2
        await keys(pilot, "4")
        for pane in ("members", "numbers", "groups"):
            assert app.page.active == pane
            await keys(pilot, "escape")
        assert app.current_mode == "overview"


async def test_evidence_of_recorders_leads_to_the_group_that_lacks_the_rank() -> None:
    app = app_for(load("recorder"))
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "5")
        assert "4 Recorder" in text
        assert app.page is not None
        items = app.page.query_one("#evidence", ItemList).items
        down = [item.target for item in items].index(Goal("recorder", 2))
        await keys(pilot, *["down"] * down, "enter")
        assert app.current_mode == "recorder"
        assert 2 in current(app, "groups").operation.missing


async def test_the_panes_below_follow_the_group_under_the_cursor() -> None:
    app = files(stalled())
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot)
        assert "COLLECTIVES  tp (1)" in text
        assert (current(app, "numbers").seq, current(app, "members").attendee.rank) == (4, 2)
        text = await keys(pilot, "n")
        assert "COLLECTIVES  dp (2)" in text
        assert "tp (1)" in text
        assert current(app, "members").attendee.rank == 0
        text = await keys(pilot, "n")
        assert "recv 1 → 5" in text
        await keys(pilot, "n")
        assert current(app, "groups").uid == "1", "and round again"
        text = await keys(pilot, "tab", "up")
        assert "all_reduce #3" in text
        assert "all 4 joined" in text
        assert "No rank waits in this one." in text


async def test_calls_that_differ_are_told_side_by_side() -> None:
    job = Job(3).call("all_reduce").call("all_reduce", [0, 2], done=False)
    job.call("broadcast", [1], done=False, sizes=((4,),))
    async with files(job).run_test(size=(120, 36)) as pilot:
        text = await keys(pilot)
        for part in ("all_reduce / broadcast", "[8] f32 / [4] f32", "mismatches 1", "differ: 1",
                     "2 of 3 joined, 1 with another call", "■✖■"):  # fmt: skip
            assert part in text, part


async def test_filters_are_of_one_table_and_go_with_escape() -> None:
    app = files(stalled())
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "slash", *"state=missing", "enter")
        assert "pp (3)" not in text.split("COLLECTIVES")[0]
        assert "dp (2)" in text
        text = await keys(pilot, "tab", "slash", *"seq>3", "enter")
        assert "pp (3)" in text, "a filter of another table takes the place of the first one"
        assert "all_reduce #4" in text
        assert current(app, "numbers").seq == 4
        assert app.page is not None
        assert len(app.page.query_one("#numbers", LineTable).items) == 1
        await keys(pilot, "escape")
        assert len(app.page.query_one("#numbers", LineTable).items) == 4
        text = await keys(pilot, "slash", *"sequence=3")
        assert "no field 'sequence'" in text


async def test_of_files_it_says_what_there_is_not() -> None:
    app = files(stalled())
    async with app.run_test(size=(120, 36)) as pilot:
        for key in ("1", "2", "3", "9", "b", "r", "R", "d"):
            assert NOTHING_RUNS in await keys(pilot, key), key
            assert app.current_mode == "recorder"
        text = await keys(pilot, "5")
        assert "rank 2 did not issue all_reduce #4" in text
        await keys(pilot, "escape")
        assert app.current_mode == "verdict", "there is no overview to go up to"


async def test_a_rank_without_a_process_cannot_be_opened() -> None:
    app = files(stalled())
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "enter", "enter", "enter")
        assert "there is no running rank to look at" in text


def failing(update: Update) -> Update:
    """The recording, where no recorder could be read any more."""
    why = Recorder(update.snapshot.at, failure=Failure("timeout", "gave no answer in 5 s"))
    (job,) = update.snapshot.jobs
    ranks = tuple(replace(rank, recorder=why) for rank in job.ranks)
    snapshot = replace(update.snapshot, jobs=(replace(job, ranks=ranks),))
    return replace(update, snapshot=snapshot)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_without_any_recorder_it_says_why(
    size: tuple[int, int], update_screens: bool
) -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=size) as pilot:
        text = await keys(pilot, "4")
        compare(f"recorder-none-{size[0]}x{size[1]}", text, update_screens)
        words = " ".join(text.replace("┃", " ").split())
        (spot,) = (
            one
            for one in load("skip").diagnoses[app.state.job_key or ""].blind_spots
            if one.what == "flight recorder"
        )
        assert spot.why in words
        assert spot.fix in words
        assert ("0 of 4 recorders" if size[0] >= 100 else "0/4 read") in text


async def test_recorders_that_come_and_go_leave_no_old_picture() -> None:
    app = app_for(load("recorder"))
    async with app.run_test(size=(120, 36)) as pilot:
        assert "first cause" in await keys(pilot, "4")
        player_of(app).play(failing(load("recorder")))
        assert await settled(pilot, lambda: "No flight recorder could be read" in picture(app))
        player_of(app).play(load("recorder"))
        assert await settled(pilot, lambda: "first cause" in picture(app))


async def test_nothing_recorded_yet_and_no_job_at_all() -> None:
    blank = examine(traces({0: {"version": "2.10", "entries": []}}))
    app: HangtopApp = FilesApp(FileSource(blank, "/dumps"), live=False, files=blank)
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot)
        assert "hold no process group: nothing was recorded yet" in text
        assert "NOTHING UNDER WAY" in text
    update = load("recorder")
    app = app_for(replace(update, snapshot=replace(update.snapshot, jobs=()), diagnoses={}))
    async with app.run_test(size=(120, 36)) as pilot:
        assert "No training job, so no recorders" in await keys(pilot, "4")
    (job,) = update.snapshot.jobs
    waits = replace(update.snapshot, jobs=(replace(job, ranks=()),))
    app = app_for(replace(update, snapshot=waits))
    async with app.run_test(size=(120, 36)) as pilot:
        assert "No rank of this job is seen" in await keys(pilot, "4")
        assert "no rank of this job is seen" in await keys(pilot, "R")
        assert "there is no rank to ask" in await keys(pilot, "r")


async def test_what_cannot_be_put_together_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("numbers far out of range")

    monkeypatch.setattr(recordings, "group_lines", broken)
    async with files(stalled()).run_test(size=(120, 36)) as pilot:
        text = await keys(pilot)
        assert "The recorders cannot be put together: ValueError: numbers far out" in text


async def test_reading_tells_what_came() -> None:
    app = app_for(load("recorder"))
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "4", "r")
        assert "flight recorders: 4 of 4 ranks read" in text
        asked = [ask for ask in player_of(app).asked if ask[0] == "recorder"]
        assert asked == [("recorder", ("node1", (4002, 4003, 4004, 4005), False))]
        player_of(app).latest = failing(load("recorder"))
        text = await keys(pilot, "r")
        assert "0 of 4 ranks read; gave no answer in 5 s" in text


def with_pipes(update: Update, *ranks: int) -> Update:
    """The recording, as if ranks had torch's dump pipe, which only NCCL makes."""
    (job,) = update.snapshot.jobs
    found = []
    for rank in job.ranks:
        said = rank.recorder
        assert said is not None
        ways = tuple(
            RecorderWay("pipe", "there") if one.way == "pipe" and rank.rank in ranks else one
            for one in said.ways
        )
        found.append(replace(rank, recorder=replace(said, ways=ways)))
    snapshot = replace(update.snapshot, jobs=(replace(job, ranks=tuple(found)),))
    return replace(update, snapshot=snapshot)


async def test_ranks_are_made_to_dump_only_when_that_was_agreed_to() -> None:
    app = app_for(with_pipes(load("recorder"), 0, 1, 3))
    asked = player_of(app).asked
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "4", "R")
        assert "torch's dump pipe of 3 ranks (0-1,3)" in text
        assert "rank 2: gloo has no dump pipe" in text
        await keys(pilot, "n")
        assert not any(kind == "recorder" for kind, _ in asked)
        text = await keys(pilot, "R", "y")
        assert [what[2] for kind, what in asked if kind == "recorder"] == [True]
        assert "dumps of all flight recorders: 4 of 4 ranks read" in text


async def test_why_no_rank_can_be_made_to_dump() -> None:
    app = app_for(load("recorder"))
    async with app.run_test(size=(120, 36)) as pilot:
        text = await keys(pilot, "4", "R")
        assert "ranks 0-3: gloo has no dump pipe" in text
        assert "not needed: it is read another way" in text
        await keys(pilot, "y", "escape")
        assert not any(kind == "recorder" for kind, _ in player_of(app).asked)
    app = app_for(load("recorder"), readonly=True)
    async with app.run_test(size=(120, 36)) as pilot:
        assert "--readonly" in await keys(pilot, "4", "R")


async def test_the_cursor_follows_the_hang_until_somebody_moves_it() -> None:
    first, second = stalled(), stalled()
    second.call("all_reduce", [2], "1", done=False)
    for rank in (0, 1, 2, 3):
        second.entries[rank][-1].update(state="completed", retired=True)
    second.call("all_reduce", [0, 1, 3], "1", done=False)
    for moved in (False, True):
        app = files(first)
        async with app.run_test(size=(120, 36)) as pilot:
            await keys(pilot, "tab", *(["up"] if moved else []))
            later = examine(traces(second.dumps()))
            app.recordings._fixed = later
            app.show()
            await keys(pilot)
            assert current(app, "numbers").seq == (3 if moved else 5)


async def test_a_thousand_ranks_are_counted_aside_and_keys_are_answered() -> None:
    seen = examine(large(1024, 1000, 341))
    app = FilesApp(FileSource(seen, "/dumps"), live=False, files=seen)
    async with app.run_test(size=(120, 36)) as pilot:
        assert await settled(pilot, lambda: "□" in picture(app))
        text = picture(app)
        for part in ("1023/1024", "1  (341)", "1000", "0-"):
            assert part in text
        took = []
        for action in ("down", "next_pane", "up", "page_up", "home", "end", "next_pane", "end"):
            began = time.process_time()
            app.perform(action)
            took.append(time.process_time() - began)
            await pilot.pause()
        # Measured 3 ms; the limit leaves room for a busy machine.
        assert sorted(took)[-2] < 0.05, took
        began = time.process_time()
        app.show()
        assert time.process_time() - began < 0.3


async def test_without_recorders_no_group_is_said_to_be_through() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = await keys(pilot, "4", "n")
        assert "nothing is under way" not in text
        assert "nothing is listed here" in text
