"""Everything that hangtop does under --readonly, or by itself, in one process that can be traced.

readonly_tour.py PID FOLDER: commands first, then every key on the screens that know it. Prints a
line of JSON with the exit status of each command, and the actions whose keys were pressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
from pathlib import Path

from textual.widgets import Input

from hangtop.application import HangtopApp
from hangtop.cli.main import main as hangtop
from hangtop.keys.keymap import ACTIONS
from hangtop.terminal import clipboard, pager
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.session.session import Options, Session

PAGE_KEYS = {"overview": "1", "stacks": "2", "rank": "3", "recorder": "4", "verdict": "5",
             "gpus": "6", "logs": "8", "nodes": "9"}  # fmt: skip
LEAVING = {"quit", "suspend"}
"""Actions that end the app, or hand the terminal back."""


def commands(pid: str, folder: str) -> dict[str, list[str]]:
    """Command lines by name; those that are to be refused, too."""
    one = ["--readonly", "--hang-after", "1", "--pid", pid]
    found = {
        "dump": ["dump", "--each", "--all-threads", "--locals", *one],
        "diagnose": ["diagnose", "--observe", "1", *one],
        "diagnose, by itself": ["diagnose", "--observe", "1", *one[1:]],
        "watch": ["watch", "--once", "--interval", "1", *one],
        "capture": ["capture", "--observe", "1", "-o", f"{folder}/x.hangtop", *one],
        "open": ["diagnose", f"{folder}/x.hangtop"],
        "numerics": ["numerics", *one],
        "files": ["files", "0", *one],
        "doctor": ["doctor"],
        "logs": ["logs", *one],
        "flight": ["flight", *one],
        "strace": ["strace", "0", *one],
        "core": ["core", "--take", "--yes", "--rank", "0", "--to", folder, *one],
        "debug": ["debug", "0", *one],
        "dump --native": ["dump", "--native", *one],
        "diagnose --allow-pause": ["diagnose", "--allow-pause", *one],
        "flight --trigger": ["flight", "--trigger", *one],
        "flight --allow-inject": ["flight", "--allow-inject", *one],
    }
    return found


def run(words: list[str]) -> int | str | None:
    """Run one command; its exit status."""
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        try:
            return hangtop(words)
        except SystemExit as end:
            return end.code


async def press_everything(session: Session) -> list[str]:
    """Press the keys of all actions, each on a screen that knows it; the actions."""
    pressed = []
    app = HangtopApp(session, readonly=True)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        for action in ACTIONS:
            if action.id in LEAVING:
                continue
            if action.screens and app.current_mode not in action.screens:
                await pilot.press(PAGE_KEYS[action.screens[0]])
            await pilot.press(action.keys[0])
            if len(app.screen_stack) > 1:
                await pilot.press("y", "escape")
            elif isinstance(app.focused, Input):
                await pilot.press("escape")
            pressed.append(action.id)
    return pressed


def main() -> None:
    """Make the tour."""
    pid, folder = sys.argv[1:]
    said = {name: run(words) for name, words in commands(pid, folder).items()}
    clipboard.user_cache_path = lambda name: Path(folder)  # type: ignore[assignment]
    # Pager, editor and shell are programs of the user's, not hangtop.
    pager._run = lambda command, *descriptors: None  # type: ignore[assignment]
    pager.status = lambda command, *descriptors: 0  # type: ignore[assignment]
    HangtopApp.suspend = lambda self: contextlib.nullcontext()  # type: ignore[assignment,method-assign]
    os.chdir(folder)  # into which key w writes
    with Session(Options(pids=(int(pid),), readonly=True), diagnose) as session:
        session.wait(lambda update: bool(update.snapshot.jobs), 180)
        pressed = asyncio.run(press_everything(session))
    sys.stdout.write(json.dumps({"said": said, "pressed": pressed}))


if __name__ == "__main__":
    main()
