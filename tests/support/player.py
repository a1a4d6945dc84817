"""A source that plays recorded updates to the app, and remembers what it was asked for."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hangtop.application import HangtopApp
from hangtop.source.dump_files import CaptureSource
from hangtop_core.collect.fan_out import Sampled
from hangtop_core.model.descriptors import Opener, Openers
from hangtop_core.tools.strace_files import StraceResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from textual.app import App
    from textual.pilot import Pilot

    from hangtop_core.attach.wire.command_log import CommandRecord
    from hangtop_core.capture import Capture
    from hangtop_core.collect.requests import Ask
    from hangtop_core.model.updates import Update
    from hangtop_core.state.outputs import Wanted

SCREENS = Path(__file__).parents[1] / "screens" / "pictures"
FRAME_S = 0.03
"""More than Textual lets pass between what is to be drawn and drawing it."""


class Player:
    """Stands in for a session: requests are noted, and answered from the recording."""

    def __init__(self, update: Update | None) -> None:
        self.latest = update
        self.asked: list[tuple[str, Any]] = []
        self.tracing: tuple[Future[Any], Callable[[Sequence[str]], None]] | None = None
        self.commands: tuple[CommandRecord, ...] = ()
        self.answers: dict[str, object] = {}
        """What other requests are answered at their end, by `op`."""
        self._callbacks: list[Callable[[Update], None]] = []

    def play(self, update: Update) -> None:
        """Send another update."""
        self.latest = update
        for callback in list(self._callbacks):
            callback(update)

    def subscribe(
        self, callback: Callable[[Update], None], *, unjudged: bool = False
    ) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def sample(
        self, pids: Mapping[str, Sequence[int]] | None = None, *, mode: str = "nonblocking"
    ) -> Future[Any]:
        self.asked.append(("sample", (pids, mode)))
        assert self.latest is not None
        wanted = None if pids is None else {pid for some in pids.values() for pid in some}
        found = [
            Sampled(rank.node, rank.process.pid, rank.sample)
            for job in self.latest.snapshot.jobs
            for rank in job.ranks
            if rank.sample is not None and (wanted is None or rank.process.pid in wanted)
        ]
        return _done(tuple(found))

    def descriptors(self, node: str, pids: Sequence[int]) -> Future[Any]:
        self.asked.append(("descriptors", (node, tuple(pids))))
        return _done({})

    def recorder(self, node: str, pids: Sequence[int], *, trigger: bool = False) -> Future[Any]:
        self.asked.append(("recorder", (node, tuple(pids), trigger)))
        assert self.latest is not None
        return _done(
            {
                rank.process.pid: rank.recorder
                for job in self.latest.snapshot.jobs
                for rank in job.ranks
                if rank.process.pid in pids
            }
        )

    def log(self, wanted: Wanted, window: int | None = None) -> Future[Any]:
        self.asked.append(("log", wanted))
        return _done(None)

    def ask(self, node: str, ask: Ask, result: Callable[[Any], Any]) -> Future[Any]:
        self.asked.append((ask.op, (node, ask.pids, dict(ask.params))))
        return _done(result(self.answers[ask.op]))

    def strace(
        self, node: str, pid: int, seconds: float, on_lines: Callable[[Sequence[str]], None]
    ) -> Future[Any]:
        self.asked.append(("strace", (node, pid, seconds)))
        future: Future[Any] = Future()
        self.tracing = (future, on_lines)
        return future

    def holders(self, node: str, pid: int, fd: int) -> Future[Any]:
        self.asked.append(("holders", (node, pid, fd)))
        other = Opener(4003, 9, "python3", "S", "rw", "has the other end")
        return _done(Openers("/data/x", (other,), hidden=2))

    def cancel_strace(self, node: str, pid: int) -> None:
        self.asked.append(("cancel_strace", (node, pid)))
        if self.tracing is not None:
            path = "/home/ada/.local/state/hangtop/strace/node1-4004.strace.TID"
            self.tracing[0].set_result(StraceResult(node, pid, path, 2, 0, 1.5, 40, True))

    def retry(self, node: str) -> None:
        self.asked.append(("retry", node))

    def shell(self, node: str) -> list[str] | None:
        return ["ssh", node]

    def note_command(self, node: str, what: str) -> Callable[[str], None]:
        self.asked.append(("note_command", (node, what)))
        return lambda outcome: self.asked.append(("ended", outcome))


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def later(update: Update, seconds: float = 1.0, **changes: Any) -> Update:
    """The same picture, a moment later."""
    return replace(
        update, snapshot=replace(update.snapshot, at=update.snapshot.at + seconds, **changes)
    )


def app_for(update: Update | None, **options: Any) -> HangtopApp:
    """The app on a recording, a moment after it was made."""
    at = update.snapshot.at + 0.4 if update is not None else time.time()
    return HangtopApp(Player(update), clock=lambda: at, **options)


def app_on(capture: Capture) -> HangtopApp:
    """The app on a capture, as `hangtop open` shows it."""
    return HangtopApp(CaptureSource(capture), live=False, capture=capture)


def player_of(app: HangtopApp) -> Player:
    """The source of an app made by `app_for`."""
    assert isinstance(app.source, Player)
    return app.source


def picture(app: App[Any]) -> str:
    """What stands on the screen, as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until the app's event loop has nothing to do, and nothing that is due within a frame.

    Takes the place of Textual's `wait_for_idle`, which waits for 20 ms in which the process used no
    CPU, several times per key: here it is over as soon as it is true, and a machine that gives this
    process no time in 20 ms does not end it too soon.
    """
    loop: Any = asyncio.get_running_loop()
    until = loop.time() + max_sleep
    while loop.time() < until:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        due = min((one.when() for one in loop._scheduled if not one.cancelled()), default=until)
        if due - loop.time() > FRAME_S:
            return
        await asyncio.sleep(max(due - loop.time(), 0.0))


async def keys(pilot: Pilot[Any], *names: str) -> str:
    """Press keys, wait until the picture stands still, and return it."""
    await pilot.press(*names)
    await pilot.pause()
    text = ""
    while _unplaced(pilot.app) or text != (text := picture(pilot.app)):
        await pilot.pause(0.02)
    return text


def _unplaced(app: App[Any]) -> bool:
    """Whether a widget has yet to be laid out anew: two pictures may be the same until then.

    None ever is once the app has ended.
    """
    return app.is_running and any(
        widget._layout_required for widget in app.screen.walk_children(with_self=True)
    )


async def settled(pilot: Pilot[Any], holds: Callable[[], bool], limit_s: float = 60.0) -> bool:
    """Wait until something holds: a busy machine may take its time to draw."""
    until = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until:
            return False
        await pilot.pause(0.02)
    return True


def compare(name: str, text: str, update: bool) -> None:
    """Compare a picture with the stored one; with `update` store it instead."""
    path = SCREENS / f"{name}.txt"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    stored = path.read_text() if path.exists() else "(no stored picture)\n"
    assert text == stored, f"{path.name} differs; pytest tests/screens --update-screens stores it"
