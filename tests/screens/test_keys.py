"""Every key of the registry does something that can be seen, or says why it does not."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from hangtop.application import HangtopApp
from hangtop.keys.keymap import ACTIONS, Keymap
from hangtop.screens.page import Page
from hangtop.terminal import clipboard, pager
from hangtop.views.footer import FOOTERS
from support.gpus import with_gpus
from support.logs import recording, with_log
from support.player import app_for, picture, player_of, settled
from support.readonly_tour import PAGE_KEYS
from support.record import load

if TYPE_CHECKING:
    from pathlib import Path

BY_ID = Keymap().by_id
RECORDED = {"nodes": "cluster", "recorder": "recorder"}

BEFORE: dict[str, tuple[str, ...]] = {
    "overview": ("2",),
    "up": ("down",),
    "line_up": ("j",),
    "page_up": ("end",),
    "home": ("end",),
    "end": ("home",),
    "page_down": ("home",),
    "down": ("home",),
    "line_down": ("home",),
    "next_rank": ("k", "k", "k"),
    "previous_rank": ("j", "j", "j"),
    "back": ("z",),
    "unfold": ("home", "minus"),
    "unfold_all": ("home", "minus"),
    "fold": ("home",),
    "invert": ("greater_than_sign",),
    "unmark": ("space",),
    "next_outlier": ("end",),
    "previous_outlier": ("end",),
    "sort_next": ("tab",),
}
"""Keys that make it possible to see what an action does."""

ON_RANK = {"sort_next": ("tab", "tab"), "sort_previous": ("tab", "tab"), "invert": ("tab", "tab"),
           "filter": ("tab", "tab"), "home": ("tab", "tab", "end"), "up": ("tab", "tab", "down"),
           "down": ("tab", "tab"), "end": ("tab", "tab"), "page_down": ("tab", "tab"),
           "page_up": ("tab", "tab", "end")}  # fmt: skip
ON_OVERVIEW = {
    "unfold": ("t", "home", "minus"),
    "unfold_all": ("t", "home", "minus"),
    "fold": ("t",),
}
ON_RECORDER = {name: ("tab", *keys) for name, keys in {
    "home": ("end",), "up": ("end",), "line_up": ("end",), "page_up": ("end",), "invert": (),
    "down": ("home",), "line_down": ("home",), "end": ("home",), "page_down": ("home",),
    "sort_next": (), "sort_previous": (), "filter": (),
}.items()}  # fmt: skip
IMPOSSIBLE = {
    "jobs": "there is only one job",
    "stop": "no trace is running",
    "follow": "there is no trace; s starts one",
    "step_back": "no earlier picture is kept",
    "step_forward": "this is live: [ goes back",
    "oldest": "no earlier picture is kept",
    "newest": "this is live: [ goes back",
}


def state_of(app: HangtopApp) -> tuple[object, ...]:
    """All that a user could notice."""
    return (
        picture(app),
        app.current_mode,
        len(app.screen_stack),
        app.told,
        len(player_of(app).asked),
        app.mouse_on,
        app._exit,
    )


def cases() -> list[tuple[str, str]]:
    return [
        (action.id, screen)
        for action in ACTIONS
        for screen in (action.screens or (("rank",) if action.id in ON_RANK else ("overview",)))
    ]


@pytest.fixture(autouse=True)
def _nothing_leaves_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pager, editor, shell and clipboard are outside of this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clipboard, "user_cache_path", lambda name: tmp_path)
    monkeypatch.setattr(pager, "_run", lambda command, *descriptors: f"ran {command[0]}")
    monkeypatch.setattr(pager, "status", lambda command, *descriptors: 0)
    # Python 3.14 asks this of captures, too.
    known = (".py", ".hangtop")
    monkeypatch.setattr(pager.os.path, "isfile", lambda path: str(path).endswith(known))
    monkeypatch.setattr(HangtopApp, "suspend", lambda self: contextlib.nullcontext())


@pytest.mark.parametrize(("name", "screen"), cases(), ids=lambda value: value)
async def test_every_action_shows_or_says(
    name: str, screen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = BY_ID[name]
    update = load(RECORDED.get(screen, "dataloader-worker"))
    update = with_gpus(update) if screen == "gpus" else update
    app = app_for(with_log(recording("tee_raise")) if screen == "logs" else update)
    redrawn: list[str] = []
    monkeypatch.setattr(app, "action_suspend_process", lambda: redrawn.append("suspended"))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(PAGE_KEYS[screen])
        await pilot.pause()
        special = {"rank": ON_RANK, "overview": ON_OVERVIEW, "recorder": ON_RECORDER}.get(
            screen, {}
        )
        setup = special.get(name)
        await pilot.press(*(setup or BEFORE.get(name, ())))
        await pilot.pause()
        before = state_of(app)
        if name == "redraw":
            monkeypatch.setattr(app.screen, "refresh", lambda **_: redrawn.append("redrawn"))
        await pilot.press(action.keys[0])
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        if name in IMPOSSIBLE:
            assert await settled(pilot, lambda: app.told[0] == IMPOSSIBLE[name])
        else:
            assert await settled(pilot, lambda: bool(state_of(app) != before or redrawn))


async def test_every_key_does_its_action() -> None:
    app = app_for(load("skip"))
    done: list[str] = []
    async with app.run_test(size=(100, 30)) as pilot:
        for screen, opens in PAGE_KEYS.items():
            await pilot.press(opens)
            assert await settled(pilot, lambda: app.current_mode == screen)  # noqa: B023
            app.perform = done.append  # type: ignore[method-assign]
            for action in ACTIONS:
                if action.screens and screen not in action.screens:
                    continue
                done.clear()
                for key in action.keys:
                    await pilot.press(key)
                assert done == [action.id] * len(action.keys)
            del app.perform


async def test_a_key_of_another_screen_says_where_it_works() -> None:
    app = app_for(load("skip"))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("s")
        await pilot.pause()
        assert app.told[0].startswith("s works on Rank: Trace")
        await pilot.press("down")
        await pilot.pause()
        assert app.told[0] == "", "it was about the key before"


def test_keys_that_terminals_take_are_free() -> None:
    taken = {"ctrl+b", "ctrl+a", "ctrl+p", "ctrl+n", "ctrl+t", "ctrl+o", "ctrl+s", "ctrl+g"}
    used = {key for action in ACTIONS for key in action.keys}
    assert not used & (taken | {"ctrl+h", "ctrl+q", "tilde"})


def test_footers_are_short_and_known() -> None:
    for screen, names in FOOTERS.items():
        assert len(names) <= 9
        for name in names:
            assert not BY_ID[name].screens or screen in BY_ID[name].screens


def test_every_action_is_done_somewhere() -> None:
    pages = [page for page in HangtopApp.MODES.values() if isinstance(page, type)]
    for action in ACTIONS:
        for page in pages:
            assert issubclass(page, Page)
            if not action.screens or page.NAME in action.screens:
                assert hasattr(page, f"do_{action.id}") or hasattr(HangtopApp, f"do_{action.id}")


async def test_keys_of_ones_own_work_and_are_shown() -> None:
    keymap = Keymap({"pause": ("ctrl+p",), "redraw": ("p",), "filter": ("equals_sign",)})
    app = app_for(load("lock"), keymap=keymap)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("p")
        assert not app.state.paused, "it draws the screen again now"
        await pilot.press("ctrl+p")
        assert app.state.paused
        foot = picture(app).splitlines()[-1]
        assert "Ctrl-p" in foot
        assert "  = filter" in foot
        await pilot.press("question_mark")
        assert await settled(pilot, lambda: "Ctrl-p" in picture(app))
