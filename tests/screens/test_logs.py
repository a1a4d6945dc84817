"""The Logs screen: on what a real job has printed, and where nothing can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop.terminal.spans import cells, plain
from hangtop.views.logs import Stream, title_of
from hangtop.widgets.line_table import LineTable
from hangtop.widgets.text_pane import TextPane
from support.logs import recording, with_log
from support.player import app_for, compare, keys, player_of
from support.record import load

if TYPE_CHECKING:
    from hangtop.application import HangtopApp
    from hangtop_core.model.updates import Update

replace = msgspec.structs.replace
SIZES = [(80, 24), (120, 36), (200, 50)]


def without_log() -> Update:
    """The same job, printing to a terminal."""
    update = load("skip")
    (job,) = update.snapshot.jobs
    tty = ("/dev/pts/3", "/dev/pts/3")
    ranks = tuple(replace(r, process=replace(r.process, outputs=tty)) for r in job.ranks)
    snapshot = replace(update.snapshot, jobs=(replace(job, ranks=ranks),), outputs=())
    return replace(update, snapshot=snapshot)


def output(app: HangtopApp) -> TextPane:
    """The pane with the lines of one rank."""
    assert app.page is not None
    return app.page.query_one("#output", TextPane)


def shown(app: HangtopApp) -> list[str]:
    """The lines in it."""
    return [plain(one) for one in output(app).text_lines()]


def current(app: HangtopApp) -> Any:
    """The stream under the cursor."""
    assert app.page is not None
    return app.page.query_one("#streams", LineTable).current


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_pictures(size: tuple[int, int], update_screens: bool) -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        text = await keys(pilot, "8")
        compare(f"logs-{size[0]}x{size[1]}", text, update_screens)


async def test_the_cursor_begins_at_the_first_error() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = await keys(pilot, "8")
        assert "FIRST   rank 1 raised KeyError: 'labels' at job.py:13 (step)" in text
        assert current(app).rank == 1
        assert "KeyError: 'labels'" in shown(app)[-1]


async def test_lines_of_another_rank_are_its_own() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = await keys(pilot, "8", "k")
        assert current(app).rank == 0
        assert "OUTPUT  rank 0" in text
        assert not any("KeyError" in one for one in shown(app))
        assert any("↑ its connection to [127.0.0.1]:11688 was closed" in one for one in shown(app))


async def test_from_error_to_error_and_to_where_it_was_printed() -> None:
    lines = "".join(f"[default1]:2026-11-21 11:17:50,048 INFO step {n}\n" for n in range(200))
    app = app_for(with_log(lines + recording("tee_raise") + lines))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = await keys(pilot, "8")
        assert "INFO step 199" in text
        text = await keys(pilot, "n")
        assert "Traceback (most recent call last):" in text
        assert "not following" in text
        text = await keys(pilot, "F")
        assert "INFO step 199" in text
        await keys(pilot, "tab", "tab")
        text = await keys(pilot, "enter")
        assert "Traceback (most recent call last):" in text


async def test_a_text_is_searched_in_the_lines() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        await keys(pilot, "8", "tab", "slash", *"step 2", "enter")
        assert shown(app) == ["2026-11-21 11:57:50,155 INFO train: step 2"]
        await keys(pilot, "escape", "slash", *"step [02]$", "enter")
        assert [text[-6:] for text in shown(app)] == ["step 0", "step 2"]
        # A pattern that takes for ever ends, and is not tried with each new picture again.
        text = await keys(pilot, "escape", "slash", *r"(\S+\s*)+!$", "enter")
        assert "takes too long; Esc clears it" in text
        assert "No line holds" in await keys(pilot, "escape", "slash", *"a{9999999999}", "enter")
        await keys(pilot, "escape")
        assert len(shown(app)) > 5
        await keys(pilot, "shift+tab", "slash", *"state=first", "enter")
        assert app.page is not None
        table = app.page.query_one("#streams", LineTable)
        assert [one.rank for one in table.items] == [1]
        # By the words that are shown.
        await keys(pilot, "escape", "slash", *"state=follows", "enter")
        assert [one.rank for one in table.items] == [0, 2, 3]
        await keys(pilot, "escape", "slash", *"2-3", "enter")
        assert [one.rank for one in table.items] == [2, 3]
        text = await keys(pilot, "escape", "slash", *"7", "enter")
        assert "No row passes the filter '7'" in text


async def test_a_search_and_a_filter_take_the_place_of_each_other() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        await keys(pilot, "8", "tab", "slash", *"step 2", "enter")
        whole = len(shown(app))
        text = await keys(pilot, "shift+tab", "slash", *"2-3", "enter")
        assert "filter 2-3" in text
        assert len(shown(app)) > whole, "the search is over"
        assert app.page is not None
        table = app.page.query_one("#streams", LineTable)
        assert len(table.items) == 2
        await keys(pilot, "tab", "escape")
        assert len(table.items) == 5


async def test_following_is_told_where_the_lines_are_not_seen() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "the log stays; F follows" in await keys(pilot, "8", "F")
        assert "following the log" in await keys(pilot, "F")


def test_the_name_of_the_file_stays_when_there_is_little_room() -> None:
    path = "/tmp/hangtop-demo-ezp8dgqx/logs/demo-bcca56af5724_0p3kgy1c/attempt_0/2/stderr.log"
    stream = Stream("k", 2, "n", path, "", False, 9, None, "")
    for room in (30, 60, 90):
        heading, note = title_of(stream, 1, room)
        assert plain(heading).endswith("/stderr.log")
        assert room < 40 or cells(heading) + cells(note) <= room


async def test_long_lines_are_cut_or_wrapped() -> None:
    app = app_for(with_log("[default0]:" + "word " * 60 + "end\n"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert "word end" not in await keys(pilot, "8", "g")
        assert "word end" in await keys(pilot, "W")


async def test_enter_leads_to_the_rank_and_log_evidence_here() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert "OUTPUT" not in await keys(pilot, "8", "j", "enter")
        assert app.page is not None
        assert app.page.NAME == "rank"
        assert app.state.rank is not None
        assert app.state.rank.rank == 2


async def test_what_is_new_is_asked_for_while_it_is_looked_at() -> None:
    app = app_for(with_log(recording("tee_raise")))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        player = player_of(app)
        await keys(pilot, "8")
        wanted = [value for kind, value in player.asked if kind == "log"]
        assert "node1" in [one.node for one in wanted]
        await keys(pilot, "r")
        assert len([kind for kind, _ in player.asked if kind == "log"]) == 2 * len(wanted)


async def test_where_there_is_no_log_it_says_why_and_what_to_do() -> None:
    app = app_for(without_log())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = await keys(pilot, "8")
        assert "prints to a terminal" in text
        assert "torchrun --redirects 3 --log-dir DIR" in text


async def test_mixed_tracebacks_are_said_with_what_tells_them_apart() -> None:
    head = "Traceback (most recent call last):\n"
    text = head * 2 + '  File "a.py", line 1, in f\n' * 2 + "KeyError: 1\n" * 2
    app = app_for(with_log(text))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        shown_text = await keys(pilot, "8")
        assert "2 tracebacks are mixed line by line" in shown_text
        assert "torchrun --role $(hostname -s): --tee 3" in shown_text
