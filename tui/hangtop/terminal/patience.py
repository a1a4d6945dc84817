"""A time limit for operations that may never end, as a pattern that a user typed: `(a+)+$`.

Nothing else ends a match once it has begun: other threads wait for the interpreter, and the screen
with them. Python checks for signals while it matches (Modules/_sre), so a timer's signal ends it.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupt the body after this many seconds; on the main thread only.

    The limit counts the processor time that the whole process, with all threads, spends in user
    mode.

    Raises:
        TimeoutError: the limit was exceeded.
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
