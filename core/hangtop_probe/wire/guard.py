"""Calls that may hang in the kernel, made on a thread that can be left behind.

Reading the command line or the environment of a process takes its memory lock, which a page
fault on a dead file server may hold for ever; a directory service may not answer either.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Generic, List, Optional, TypeVar

T = TypeVar("T")


class Hanging(Exception):
    """The call did not come back in time; its thread is abandoned."""


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.done = threading.Event()
        self.left = False
        """Whether the caller has given up."""
        self.result: Optional[T] = None
        self.error: Optional[BaseException] = None


class Guard:
    """Runs each call on a helper thread with a deadline; threads may call at the same time.

    At most ``limit`` threads are left behind; after that every call is refused at once, until one
    of them comes back.
    """

    def __init__(self, limit: int = 8) -> None:
        self.hanging = 0
        """Calls that were left behind and have not come back."""
        self.cpu_s = 0.0
        """CPU time of all calls that came back."""
        self._limit = limit
        self._lock = threading.Lock()
        self._idle: List[queue.SimpleQueue[_Call[Any]]] = []

    def call(self, function: Callable[[], T], seconds: float = 1.0) -> T:
        """Return what ``function`` returns; raise `Hanging` after ``seconds``."""
        call = _Call(function)
        with self._lock:
            if self.hanging >= self._limit:
                raise Hanging("too many calls hang")
            # One that works waits for nobody: another caller's may be the one that hangs.
            calls = self._idle.pop() if self._idle else self._start()
        calls.put(call)
        if not call.done.wait(seconds):
            with self._lock:
                # It may have come back since.
                call.left = not call.done.is_set()
                self.hanging += call.left
            if call.left:
                raise Hanging("no answer in %g s" % seconds)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # set when there is no error

    def _start(self) -> queue.SimpleQueue[_Call[Any]]:
        calls: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(calls,), daemon=True).start()
        return calls

    def _serve(self, calls: queue.SimpleQueue[_Call[Any]]) -> None:
        while True:
            call = calls.get()
            began = time.thread_time()
            try:
                call.result = call.function()
            except Exception as error:  # handed to the caller
                call.error = error
            with self._lock:
                self.cpu_s += time.thread_time() - began
                self.hanging -= call.left
                self._idle.append(calls)
                call.done.set()
