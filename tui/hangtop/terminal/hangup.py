"""The end of the app with its terminal, also where no signal tells of that.

A process that ignores SIGHUP (`nohup`), or whose terminal does not control it (`setsid`, some
containers), is told nothing when the terminal goes. Textual (8.2 drivers/linux_driver.py) then
reads the end of its input again and again, on a whole processor, and nobody is left to press `q`.
"""

from __future__ import annotations

import os
import select
import signal
import threading


def end_with_terminal(fileno: int) -> None:
    """End this process, as SIGHUP would, as soon as the terminal behind a descriptor is gone."""
    threading.Thread(target=_wait, args=(fileno,), name="hangtop-hangup", daemon=True).start()


def _wait(fileno: int) -> None:
    poll = select.poll()
    poll.register(fileno, 0)  # a hang-up is told in any case, and nothing else is asked for
    if any(told & select.POLLHUP for _, told in poll.poll()):
        # Probes and tools end with their input: nothing of ours outlives this.
        os._exit(128 + signal.SIGHUP)
