"""Reader processes: one per processor, each with one file at a time and a deadline."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.dumps import wire
from hangtop_core.dumps.find import Problem
from hangtop_core.errors import StartError
from hangtop_core.model.recorder.trace import Trace
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hangtop_core.dumps.find import DumpFile, Kind

MAX_READERS = 8
FILES_PER_READER = 4
"""Number of files whose reading takes about as long as the start of a reader."""
START_SECONDS = 60.0
BASE_SECONDS = 20.0
SECONDS_PER_BYTE = 1e-6
MAX_ANSWER = 512 << 20
"""Maximum number of bytes of an answer: twice those of the largest dump, and a trace is smaller."""
_CODE = "import sys; sys.path[:] = {path!r}; from hangtop_core.dumps.reader import main; main()"


class _Reader:
    """A process and its current file."""

    def __init__(self) -> None:
        # The same interpreter and packages, without the environment that could change them.
        code = _CODE.format(path=sys.path)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise StartError(f"cannot start a process to read dumps: {error}") from error
        self.file: DumpFile | None = None
        """The file that it reads; None while it starts."""
        self.alive = True
        self.deadline = time.monotonic() + START_SECONDS
        self.buffer = bytearray()

    def give(self, file: DumpFile, limit_s: float) -> None:
        """Request a file."""
        assert self.process.stdin is not None  # noqa: S101 - it was made with a pipe
        self.file = file
        self.deadline = time.monotonic() + limit_s + file.size * SECONDS_PER_BYTE
        self.buffer.clear()
        ask = wire.Ask(os.fsencode(file.path), file.rank)
        with suppress(BrokenPipeError):
            # A reader that has just died is noticed when its answer is missing.
            self.process.stdin.write(wire.frame(ask))
            self.process.stdin.flush()

    def take(self) -> bytes | None:
        """Read available bytes; return the answer once it is complete.

        Raises:
            EOFError: the process has ended.
            OverflowError: it announces more than `MAX_ANSWER`.
        """
        data = os.read(self.fileno(), 1 << 20)
        if not data:
            raise EOFError
        self.buffer += data
        if len(self.buffer) < wire.LENGTH.size:
            return None
        size = wire.LENGTH.size + wire.LENGTH.unpack_from(self.buffer)[0]
        if size > MAX_ANSWER:
            raise OverflowError
        return bytes(self.buffer[wire.LENGTH.size : size]) if len(self.buffer) >= size else None

    def fileno(self) -> int:
        """Return the descriptor of the answers."""
        assert self.process.stdout is not None  # noqa: S101 - it was made with a pipe
        return self.process.stdout.fileno()

    def close(self) -> int:
        """Kill the process, whatever it does; return its exit status."""
        self.alive = False
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return self.process.wait()


class Reading(Struct):
    """The results of a number of files."""

    traces: list[Trace]
    problems: list[Problem]


def read(
    files: Sequence[DumpFile],
    progress: Callable[[int], None] | None = None,
    limit_s: float = BASE_SECONDS,
) -> Reading:
    """Read files in processes of their own; a problem of one file affects no other.

    Args:
        files: the files to read.
        progress: called with the number of files that are done.
        limit_s: seconds for a file, besides those that its size allows.
    """
    waiting = deque(files)
    done = Reading([], [])
    unpacker = wire.Unpacker()
    wanted = max(1, min(os.cpu_count() or 1, MAX_READERS, -(-len(files) // FILES_PER_READER)))
    readers: set[_Reader] = set()
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or readers:
                while len(readers) < wanted and _starting(readers) < len(waiting):
                    reader = _Reader()
                    readers.add(reader)
                    selector.register(reader, selectors.EVENT_READ)
                for reader in _finished(selector, readers, done, unpacker):
                    if progress is not None:
                        progress(len(done.traces) + len(done.problems))
                    if waiting and reader.alive:
                        reader.give(waiting.popleft(), limit_s)
                        continue
                    selector.unregister(reader)
                    readers.discard(reader)
                    reader.close()
        finally:
            for reader in readers:
                reader.close()
    return done


def _starting(readers: set[_Reader]) -> int:
    return sum(reader.file is None for reader in readers)


def _finished(
    selector: selectors.BaseSelector, readers: set[_Reader], done: Reading, unpacker: wire.Unpacker
) -> list[_Reader]:
    """Return readers that are ready for a file, or no longer alive.

    Raises:
        StartError: a reader did not start.
    """
    soonest = min(reader.deadline for reader in readers)
    events = selector.select(max(soonest - time.monotonic(), 0.0))
    finished = []
    for key, _ in events:
        reader = key.fileobj
        assert isinstance(reader, _Reader)  # noqa: S101 - nothing else was registered
        try:
            body = reader.take()
        except (EOFError, OSError):
            status = reader.close()
            how = f"signal {-status}" if status < 0 else f"status {status}"
            _failed(done, reader, f"refused: the process that read it broke down ({how})")
            finished.append(reader)
            continue
        except OverflowError:
            reader.close()
            why = f"refused: what was read of it has over {MAX_ANSWER >> 20} MiB"
            _failed(done, reader, why)
            finished.append(reader)
            continue
        if body is not None:
            if reader.file is not None and not _take(done, reader.file, body, unpacker):
                reader.close()
            finished.append(reader)
    now = time.monotonic()
    for reader in readers.difference(finished):
        if reader.deadline <= now:
            reader.close()
            _failed(done, reader, "refused: reading it takes far too long")
            finished.append(reader)
    return finished


def _failed(done: Reading, reader: _Reader, why: str) -> None:
    if reader.file is None:
        raise StartError("a process to read dumps did not come up")
    _problem(done, reader.file, "refused", why)


def _take(done: Reading, file: DumpFile, body: bytes, unpacker: wire.Unpacker) -> bool:
    """Take an answer; return False for an invalid one, whose reader gets no other file."""
    try:
        answer = wire.ANSWER.decode(body)
        if answer.kind:
            _problem(done, file, answer.kind, answer.why)
        else:
            trace = unpacker.unpack(answer)
            trace.source = file.path
            done.traces.append(trace)
    except ValueError as error:  # also msgspec's errors
        why = f"refused: the process that read it gave no answer ({clean(str(error), 200)})"
        _problem(done, file, "refused", why)
        return False
    return True


def _problem(done: Reading, file: DumpFile, kind: Kind, why: str) -> None:
    done.problems.append(Problem(file.path, kind, why, file.rank))
