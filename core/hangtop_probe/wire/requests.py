"""One request of the head while it is answered: pieces, credit, cancelling, its end."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Optional

from ..secrets.mask import mask_text

FIRST_CREDIT = 64
_NOBODY = nullcontext()
Message = Dict[str, Any]


class Refused(Exception):
    """A request that fails as a whole: sent as `err`."""

    def __init__(self, kind: str, text: str, fix: Optional[str] = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.fix = fix

    def message(self) -> Message:
        """Return the failure as it is sent."""
        return failure(self.kind, str(self), self.fix)


class Cancelled(Exception):
    """The head cancelled the request or the probe is ending."""


def clock() -> float:
    """Return the time for a piece: seconds since the epoch, to the millisecond."""
    return round(time.time(), 3)


def pids_of(message: Message) -> List[int]:
    """Return the processes a request is about."""
    return [p for p in message.get("pids") or [] if isinstance(p, int) and p > 0]


def failure(kind: str, text: str, fix: Optional[str] = None) -> Message:
    """Return why something did not come; ``fix`` is one of `fixes`, or None."""
    return {"kind": kind, "text": mask_text(text), "fix": fix}


class Request:
    """A request under way. Handlers call `piece`; the server calls `grant` and `cancel`."""

    def __init__(self, message: Message, send: Callable[[Message, bool], None]) -> None:
        self.id: int = message["id"]
        self.op: str = message["op"]
        self.message = message
        self.cancelled = threading.Event()
        self._send = send
        self._credit = FIRST_CREDIT
        self._changed = threading.Condition()
        self._order = threading.Lock()
        self._seq = 0
        self._lost = 0

    def grant(self, n: int) -> None:
        """Allow ``n`` more pieces."""
        with self._changed:
            self._credit += n
            self._changed.notify_all()

    def cancel(self) -> None:
        """Make the handler stop at its next piece."""
        self.cancelled.set()
        with self._changed:
            self._changed.notify_all()

    def check(self) -> None:
        """Raise `Cancelled` when the request was cancelled."""
        if self.cancelled.is_set():
            raise Cancelled

    def wait_credit(self) -> None:
        """Wait until a piece may be sent; raise `Cancelled` when that will not be."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit > 0 or self.cancelled.is_set())
        self.check()

    def piece(self, make: Callable[[], Message], among: ContextManager[Any] = _NOBODY) -> None:
        """Send what ``make`` gives, as soon as there is credit.

        It is called when the piece is put in the queue and not before, so that what it counts
        as sent is sent: before any piece of another request that counts on it, where both are sent
        under the lock ``among``. Other threads may grant and cancel meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._credit > 0 or self.cancelled.is_set())
            self.check()
            self._credit -= 1
        with among, self._order:
            self._put(make())

    def give(self, data: Message) -> None:
        """Send ``data`` as soon as there is credit."""
        self.piece(lambda: data)

    def offer(self, data: Message) -> bool:
        """Send ``data`` if there is credit, else drop it and count it as lost."""
        self.check()
        with self._changed:
            if self._credit <= 0:
                self._lost += 1
                return False
            self._credit -= 1
            lost, self._lost = self._lost, 0
        with self._order:
            self._put(dict(data, lost=lost) if lost else data)
        return True

    def _put(self, data: Message) -> None:
        self._send({"id": self.id, "seq": self._seq, "data": data}, False)
        self._seq += 1

    def end(self, summary: Optional[Message] = None) -> None:
        """Say that the request is over. Small answers overtake the pieces of others."""
        self._send({"id": self.id, "end": summary or {}}, self._seq == 0)

    def fail(self, error: Message) -> None:
        """Say that the request failed as a whole."""
        self._send({"id": self.id, "err": error}, self._seq == 0)
