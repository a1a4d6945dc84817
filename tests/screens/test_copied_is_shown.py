"""Every pane on captures that are meant to do harm: what is copied stands on the screen, whole."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from textual.widgets import Input

import hangtop
from hangtop.cli.commands.opening import opened
from hangtop.screens.dialogs import Reader
from hangtop.terminal import clipboard
from hangtop.terminal.spans import plain_lines
from hangtop.widgets.line_pane import LinePane
from hangtop_core.text.clean import is_plain
from support.hostile import EVIL, spoiled_capture
from support.player import app_on, picture
from support.readonly_tour import PAGE_KEYS
from support.record import capture as captured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.pilot import Pilot

    from hangtop.application import HangtopApp
    from hangtop.terminal.spans import Line

OSC52 = re.compile(r"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07")
READ = ("environment", "information", "help", "commands")
"""Actions that open a text over a page."""


def bare(text: str) -> str:
    """A text without blanks and line breaks, which differ where a line is broken."""
    return "".join(text.split())


def rows(pane: LinePane) -> list[str]:
    """What a pane has given to the screen, inside its frame."""
    inside = range(1, pane.size.height - 1)
    return [pane.render_line(y).crop(2, pane.size.width - 2).text for y in inside]


class Walk:
    """Goes through the app; what is copied and what is opened is kept, not done."""

    def __init__(self, app: HangtopApp, pilot: Pilot[None], patch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.pilot = pilot
        self.copied: list[str] = []
        self.opened: list[str] = []
        self.kinds: set[tuple[str, bool]] = set()
        """Panes, and whether what was copied of them had to be opened."""
        patch.setattr(app, "_to_clipboard", self.copied.append)
        patch.setattr(app, "read", self._read)

    def _read(self, title: str, lines: Sequence[Line], note: str = "") -> None:
        self.opened.append(plain_lines(lines))

    async def pages(self) -> None:
        """All pages."""
        for key in PAGE_KEYS.values():
            await self.pilot.press(key)
            page = self.app.page
            assert page is not None
            for pane in filter(page.wanted, page.PANES):
                page.focus_pane(pane)
                await self.pilot.pause()
                assert all(map(is_plain, picture(self.app).splitlines())), picture(self.app)
                self.pane(page.pane(pane))
        for action in READ:
            getattr(self.app, f"do_{action}")()
            text = self.opened.pop()
            assert all(map(is_plain, text.splitlines())), text

    def pane(self, pane: LinePane) -> None:
        """Copy at several places of a pane."""
        self.copy(self.app.do_copy_all, pane)
        for move in (lambda: pane.move_end(-1), lambda: pane.move(1), lambda: pane.move_end(1)):
            move()
            self.copy(self.app.do_copy, pane)

    def copy(self, copy: Callable[[], None], pane: LinePane) -> None:
        """What is copied is what stands there, or what is opened then."""
        shown = "".join(rows(pane))
        copy()
        text = self.copied.pop()
        assert all(map(is_plain, text.split("\n"))), text
        self.kinds.add((pane.id or "", bool(self.opened)))
        if self.opened:
            assert self.opened.pop() == text
        else:
            assert bare(text) in bare(shown), (text, shown)


@pytest.mark.parametrize(("name", "size"), [("logs", (120, 36)), ("recorder", (80, 24))])
async def test_what_is_copied_is_shown_or_opened(
    name: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, _ = opened(str(spoiled_capture(name, EVIL, tmp_path / "a.hangtop")))
    app = app_on(capture)
    async with app.run_test(size=size) as pilot:
        walk = Walk(app, pilot, monkeypatch)
        await walk.pages()
    assert len({pane for pane, _ in walk.kinds}) > 20
    assert {is_opened for _, is_opened in walk.kinds} == {False, True}


@pytest.mark.parametrize("flat", [False, True], ids=["unicode", "ascii"])
async def test_what_the_terminal_gets_is_read_in_the_panel(
    flat: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TMUX", "STY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(clipboard, "user_cache_path", lambda _: tmp_path / "cache")
    text = "  ".join(["a row that no line holds …", "é" * 90, EVIL, "end"])
    app = app_on(captured("stopped"))
    app.ascii = flat
    written: list[str] = []
    async with app.run_test(size=(80, 24)) as pilot:
        monkeypatch.setattr(app._driver, "write", written.append)
        app.copy_text(text)
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, Reader)
        pane = app.screen.query_one(LinePane)
        (told,) = OSC52.findall("".join(written))
        copied = base64.b64decode(told).decode()
        assert all(map(is_plain, copied.split("\n")))
        assert copied.isascii() == flat
        assert copied.endswith("end")
        assert bare(copied) == bare("".join(rows(pane)))
        await pilot.press("y")
        await app.workers.wait_for_complete()
        assert OSC52.findall("".join(written)) == [told, told]
        assert len(app.screen_stack) == 2, "it is read already"


async def test_what_is_cut_from_a_line_that_is_typed_goes_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = app_on(captured("stopped"))
    copied: list[str] = []
    monkeypatch.setattr(app, "_to_clipboard", copied.append)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"rank", "shift+home", "ctrl+x", "ctrl+v")
        assert copied == ["rank"]
        assert app.query_one(Input).value == "rank", "it was pasted again"


def test_one_function_alone_writes_to_the_clipboard() -> None:
    package = Path(hangtop.__file__).parent
    users = {
        path.name for path in package.rglob("*.py") if "clipboard.copy(" in path.read_text("utf-8")
    }
    assert users == {"handlers.py"}
