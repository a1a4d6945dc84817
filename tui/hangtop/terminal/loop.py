"""The app's event loop, which has priority over the threads that process node messages."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

from hangtop_core.scheduling.ui_priority import SCREENS

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from selectors import SelectorKey


class _Selector(selectors.DefaultSelector):
    """A selector that reports to `SCREENS` when the loop is busy and when it is idle."""

    def __init__(self) -> None:
        super().__init__()
        SCREENS.begin()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        SCREENS.end()
        try:
            return super().select(timeout)
        finally:
            SCREENS.begin()

    def close(self) -> None:
        super().close()
        SCREENS.end()


def _new() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(_Selector())


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Run the app in such a loop, on this thread, until it ends."""
    with asyncio.Runner(loop_factory=_new) as runner:
        runner.run(work)
