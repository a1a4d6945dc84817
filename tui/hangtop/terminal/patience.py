"""A bound on what may take for ever, as a pattern can that somebody has typed: `(a+)+$`.

Nothing else ends a match that has begun: threads wait for the interpreter meanwhile, and so would
the screen. Python looks for signals while it matches (Modules/_sre), so one of a timer does.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """End what is done meanwhile; on the main thread only.

    What counts is processor time that the whole process spends in user mode, other threads too.

    Raises:
        TimeoutError: it was ended.
    """

    def late(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
