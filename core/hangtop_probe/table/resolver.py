"""Identify ranks of torch.multiprocessing.spawn and agents of torchrun by their stacks.

The environment of such a rank has no RANK; its stack shows the rank: `_wrap` of
torch/multiprocessing/spawn.py holds the index in its local `i`. `unconfirmed` processes with torch
loaded are sampled in the background until such a frame appears, a few times at most, and never in a
table pass.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Callable, Dict, NamedTuple

from .mapped import has_torch

if TYPE_CHECKING:
    from .entry import Identity
    from .table import Table

_DELAYS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0)
"""Seconds between one try and the next: importing torch takes a while before `_wrap` runs."""
_PACE = 0.5
"""Seconds between two looks at candidates that are still to be tried."""


class _Try(NamedTuple):
    tries: int
    not_before: float


class Resolver:
    """Samples candidates on its own thread; the table takes in the results."""

    def __init__(self, processes: Table, take: Callable[[int], None]) -> None:
        self._table = processes
        self._take = take
        self._tries: Dict[Identity, _Try] = {}
        self._passes = _PACE
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)

    def start(self, passes: float) -> None:
        """Start, once; ``passes``: seconds between two passes, which alone bring new candidates."""
        self._passes = max(passes, _PACE)
        if not self._thread.is_alive() and not self._stop.is_set():
            self._thread.start()

    def stop(self) -> None:
        """Start nothing new."""
        self._stop.set()

    def _run(self) -> None:
        pause = _PACE / 4
        while not self._stop.wait(pause):
            candidates = self._table.unconfirmed()
            self._tries = {k: v for k, v in self._tries.items() if k in candidates}
            for identity in candidates:
                if self._stop.is_set():
                    return
                self._attempt(identity)
            open_ = any(one.tries < len(_DELAYS) for one in self._tries.values())
            pause = _PACE if open_ else self._passes

    def _attempt(self, identity: Identity) -> None:
        now = time.monotonic()
        last = self._tries.get(identity, _Try(0, 0.0))
        if last.tries >= len(_DELAYS) or now < last.not_before:
            return
        self._tries[identity] = _Try(last.tries + 1, now + _DELAYS[last.tries])
        if has_torch(identity[0]):
            self._table.note_torch(identity)
            self._take(identity[0])
