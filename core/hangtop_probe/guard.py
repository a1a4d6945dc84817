"""Calls that may hang in the kernel, made on a thread that can be left behind.

Reading the command line or the environment of a process takes its memory lock, which a page
fault on a dead file server may hold for ever; a directory service may not answer either.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class Hanging(Exception):
    """The call did not come back in time; its thread is abandoned."""


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.done = threading.Event()
        self.result: Optional[T] = None
        self.error: Optional[BaseException] = None


class Guard:
    """Runs calls one after the other on a helper thread, each with a deadline.

    At most ``limit`` threads are left behind; after that every call is refused at once.
    """

    def __init__(self, limit: int = 8) -> None:
        self.hanging = 0
        self.cpu_s = 0.0
        """CPU time of all calls that came back."""
        self._limit = limit
        self._queue: "Optional[queue.SimpleQueue[_Call[Any]]]" = None

    def call(self, function: Callable[[], T], seconds: float = 1.0) -> T:
        """Return what ``function`` returns; raise `Hanging` after ``seconds``."""
        if self.hanging >= self._limit:
            raise Hanging("too many calls hang")
        if self._queue is None:
            self._queue = self._start()
        call = _Call(function)
        self._queue.put(call)
        if not call.done.wait(seconds):
            self.hanging += 1
            self._queue = None
            raise Hanging("no answer in %g s" % seconds)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # set when there is no error

    def _start(self) -> "queue.SimpleQueue[_Call[Any]]":
        calls: "queue.SimpleQueue[_Call[Any]]" = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(calls,), daemon=True).start()
        return calls

    def _serve(self, calls: "queue.SimpleQueue[_Call[Any]]") -> None:
        while True:
            call = calls.get()
            began = time.thread_time()
            try:
                call.result = call.function()
            except Exception as error:  # handed to the caller
                call.error = error
            self.cpu_s += time.thread_time() - began
            call.done.set()
            if calls is not self._queue:
                self.hanging -= 1  # it came back after all
                return
