"""Ending the app with its terminal, also where no signal reports that.

A process that ignores SIGHUP (`nohup`), or whose terminal does not control it (`setsid`, some
containers), gets no signal when the terminal closes. Textual (8.2 drivers/linux_driver.py) then
reads the end of its input again and again, using a whole processor, with no user to press `q`.
"""

from __future__ import annotations

import os
import select
import signal
import threading


def end_with_terminal(fileno: int) -> None:
    """End this process, as SIGHUP would, as soon as the terminal behind a descriptor closes."""
    threading.Thread(target=_wait, args=(fileno,), name="hangtop-hangup", daemon=True).start()


def _wait(fileno: int) -> None:
    poll = select.poll()
    poll.register(fileno, 0)  # a hang-up is always reported, and no other event is wanted
    if any(events & select.POLLHUP for _, events in poll.poll()):
        # Probes and tools end with their input, so no child outlives this process.
        os._exit(128 + signal.SIGHUP)
