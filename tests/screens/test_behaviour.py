"""What the app does over time: pausing, filtering, asking, and bad news shown well."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hangtop.application import KEYS_S
from hangtop.screens.dialogs import Reader
from hangtop.screens.turns import PAUSE_S
from hangtop.widgets.line_table import LineTable
from support.player import app_for, keys, later, picture, player_of
from support.record import load

replace = msgspec.structs.replace
SIZE = (120, 36)
YAMA = "sysctl kernel.yama.ptrace_scope=0"


async def test_pause_holds_the_picture_and_goes_on() -> None:
    update = load("skip")
    app = app_for(update)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        text = await keys(pilot, "p")
        assert "paused" in text
        assert "as of 00:00:" in text
        player_of(app).play(later(update, jobs=()))
        await pilot.pause()
        assert "missing-collective" in picture(app)
        text = await keys(pilot, "p")
        assert "No training job found" in text
        assert "live" in text.splitlines()[0]


async def test_turns_are_apart_only_while_somebody_presses_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        delays: list[float] = []
        loop = asyncio.get_running_loop()

        def soon() -> float:
            with monkeypatch.context() as patched:
                patched.setattr(loop, "call_later", lambda delay, *_: delays.append(delay))
                app.soon(lambda: None)
            return delays[-1]

        assert soon() == 0.0
        await keys(pilot, "j")
        assert soon() == PAUSE_S
        app._keyed_at -= KEYS_S
        assert soon() == 0.0


async def test_tasks_begin_in_turn_whatever_the_python() -> None:
    """textual lets them begin at once from Python 3.12 on, with which the app does not start."""
    loop = asyncio.get_running_loop()
    at_once = getattr(asyncio, "eager_task_factory", None)
    loop.set_task_factory(at_once or (lambda loop, job, **named: asyncio.Task(job, **named)))
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert loop.get_task_factory() is None
        assert "missing-collective" in picture(app)


async def test_a_filter_goes_from_the_table_it_is_about_wherever_the_cursor_is() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await keys(pilot, "3")
        assert app.page is not None
        table = app.page.query_one("#files", LineTable)
        whole = len(table.given)
        for pane, key in (("threads", "escape"), ("stack", "escape"), ("stack", "q")):
            app.page.focus_pane("files")
            await keys(pilot, "slash", *"socket", "enter")
            assert 0 < len(table.items) < whole
            app.page.focus_pane(pane)
            text = await keys(pilot, key)
            assert len(table.items) == whole, (pane, key)
            assert "Esc clears" not in text
        assert app.is_running


async def test_what_no_row_passes_says_so_and_not_that_there_is_nothing() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        for screen, moves in (("1", ()), ("2", ()), ("3", ("tab", "tab")), ("3", ("tab",))):
            text = await keys(pilot, screen, *moves, "slash", *"zzz", "enter")
            assert "No row passes the filter 'zzz'; Esc clears it." in text, (screen, moves)
            await keys(pilot, "escape")


async def test_a_row_of_rank_opens_with_the_names_of_its_columns() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        text = await keys(pilot, "3", "tab", "tab", "enter")
        for part in ("OPEN FILE", "FD         1", "TARGET     /"):
            assert part in text, part
        assert isinstance(app.screen, Reader)
        assert app.screen.pane.size.height < 12, "as high as its text"
        text = await keys(pilot, "escape", "question_mark")
        assert app.screen.pane.size.height > 30, "and no higher than the screen"


async def test_threads_are_filtered_by_the_state_that_is_shown() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await keys(pilot, "3", *["tab"] * 3, "slash", *"state", "equals_sign", *"sleeping", "enter")
        assert app.page is not None
        assert app.page.query_one("#threads", LineTable).items


async def test_a_filter_can_be_read_on_a_small_screen() -> None:
    app = app_for(load("dataloader-worker"))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = await keys(pilot, "3", *["tab"] * 4, "slash", *"state", "equals_sign", "b", "enter")
        assert " filter state=b  Esc clears" in text


@pytest.mark.parametrize("opened", ["", "question_mark", "colon"])
async def test_ten_by_three_has_no_scroll_bars(opened: str) -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=(10, 3)) as pilot:
        await pilot.pause()
        await keys(pilot, *filter(None, [opened]))
        assert not any(one.show_vertical_scrollbar for one in app.screen_stack)


async def test_enter_on_the_empty_palette_changes_nothing() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        before = app.state.interval
        await keys(pilot, "colon", "enter")
        assert app.state.interval == before
        assert app.page is not None
        assert app.page.NAME == "overview"


async def test_filter_by_rank_state_and_text() -> None:
    app = app_for(load("stopped"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()

        def ranks() -> list[int]:
            return [row.rank.rank for row in app.screen.ranks.items]  # type: ignore[attr-defined]

        await keys(pilot, "slash", *"1-2", "enter")
        assert ranks() == [1, 2]
        await keys(pilot, "escape")
        assert sorted(ranks()) == [0, 1, 2, 3]
        await keys(pilot, "slash", *"state", "equals_sign", *"stopped", "enter")
        assert ranks() == [3]
        text = await keys(pilot, "escape", "slash", *"colour", "equals_sign", "x")
        assert "no field 'colour'" in text
        await keys(pilot, "escape")
        assert len(ranks()) == 4


async def test_enter_leads_from_rank_and_class_and_evidence() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert "STACK  rank 2" in await keys(pilot, "enter")
        assert app.current_mode == "rank"
        await keys(pilot, "escape")
        assert app.current_mode == "overview"
        text = await keys(pilot, "tab", "tab", "enter")
        assert app.current_mode == "stacks"
        assert "THIS CLASS  rank 2" in text
        await keys(pilot, "5", "down", "enter")
        assert app.current_mode == "rank"


async def test_the_culprit_of_a_class_stands_for_it_and_who_was_come_for() -> None:
    # rank 3 is stopped in the line where ranks 0-2 wait: one class, whose first is not to blame
    app = app_for(load("stopped"))
    async with app.run_test(size=SIZE) as pilot:
        assert "THIS CLASS  rank 3" in await keys(pilot, "2")
        assert "STACK  rank 3" in await keys(pilot, "3")
        app.go("stacks", 1)
        assert "THIS CLASS  rank 1" in await keys(pilot)
        assert "STACK  rank 1" in await keys(pilot, "3")


async def test_a_core_is_taken_only_after_its_cost_was_agreed_to() -> None:
    app = app_for(load("skip"))
    player = player_of(app)
    cost = {"dir": "/data/run7", "size": 9 << 30, "seconds": 40.0, "free": 50 << 30}
    taken = {"path": "/data/run7/core.4004.1", "size": 9 << 30, "seconds": 41.0}
    player.answers["core"] = cost
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "3", "K")
        assert "9.0 GiB, of 50.0 GiB that are free" in text
        assert "40 s" in text
        assert [ask[1][2].get("take") for ask in player.asked if ask[0] == "core"] == [None]
        assert "no core was taken" in await keys(pilot, "n")
        await keys(pilot, "K")
        player.answers["core"] = taken
        text = await keys(pilot, "y")
        assert [ask[1][2].get("take") for ask in player.asked if ask[0] == "core"][-1] is True
        assert "core.4004.1" in text
        player.answers["core"] = {**cost, "free": 1 << 30}
        assert "too little room" in await keys(pilot, "K")


async def test_why_there_is_no_prompt_is_shown() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "3", "D")
        assert "A PROMPT IN RANK 2" in text
        assert "No prompt: it " in text
        assert "--native" in text


async def test_strace_asks_once_runs_counts_and_is_saved() -> None:
    app = app_for(load("skip"))
    player = player_of(app)
    async with app.run_test(size=SIZE) as pilot:
        text = await keys(pilot, "3", "s")
        assert "strace -f -p 4004" in text
        assert not [ask for ask in player.asked if ask[0] == "strace"]
        text = await keys(pilot, "n")
        assert "not run" in text
        text = await keys(pilot, "s", "y")
        assert ("strace", ("node1", 4004, 10.0)) in player.asked
        assert "10 s left" in text
        assert player.tracing is not None
        net = '[pid 4011] 00:00:01.2 recvfrom(8<TCP:[10.0.0.1:5->10.0.0.2:6]>, "", 1) = 0 <0.250>'
        idle = [f"[pid {tid}] 00:00:01.3 futex(0x1, FUTEX_WAIT" for tid in range(4020, 4030)]
        player.tracing[1]([*idle, "00:00:01.1 clock_nanosleep(\x1b[2JCLOCK_MONOTONIC", net, net])
        await pilot.pause()
        text = picture(app)
        assert "thread 4004 (main)" in text
        assert "in it now  clock_nanosleep" in text
        assert "2x 0.500 s  recvfrom  8<TCP:[10.0.0.1:5->10.0.0.2:6]>" in text
        assert "10 threads wait in futex: 4020-4029" in text
        assert "thread 4020" not in text
        text = await keys(pilot, "f")
        assert "clock_nanosleep  " not in text.partition("STRACE")[2]
        assert "2x 0.500 s  recvfrom" in text
        text = await keys(pilot, "f")
        assert "No such call" in text
        text = await keys(pilot, "f")
        assert "thread 4020" in text
        text = await keys(pilot, "f")
        assert "00:00:01.1 clock_nanosleep" in text
        text = await keys(pilot, "s")
        assert "a trace is running; S stops it" in text
        text = await keys(pilot, "S")
        assert "saved in /home/ada/.local/state/hangtop/strace" in text
        player.asked.clear()
        await keys(pilot, "s")
        assert ("strace", ("node1", 4004, 10.0)) in player.asked


async def test_a_trace_is_seen_where_there_is_room_for_one_pane() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=(80, 24)) as pilot:
        text = await keys(pilot, "3", "s", "y")
        assert "STRACE" in text
        assert "s left" in text


async def test_ranks_of_a_small_job_fold_and_unfold_as_their_keys_say() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        whole = await keys(pilot, "2", "m", "home")
        assert "▾ rank 0" in whole
        for folding, unfolding in (("minus", "plus"), ("minus", "asterisk"), ("enter", "enter")):
            assert "▾ rank 0" in await keys(pilot, "plus")
            assert "▸ rank 0" in await keys(pilot, folding), folding
            assert "▾ rank 0" in await keys(pilot, unfolding), unfolding


async def test_fold_on_a_frame_below_a_rank_folds_the_rank() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert "▾ rank 0" in await keys(pilot, "2", "m", "home", "down", "down")
        text = await keys(pilot, "minus")
        assert "▸ rank 0" in text
        assert "▾ rank 1" in text
        assert "▾ rank 0" in await keys(pilot, "plus"), "the cursor is on the rank"


async def test_the_focus_goes_back_from_a_filter_that_was_opened_twice() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        focused = app.screen.focused
        await keys(pilot, "f3")
        await keys(pilot, "f3", "enter")
        assert focused is not None
        assert app.screen.focused is focused
