"""Stack samples of a process from py-spy."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from hangtop_core.model.descriptors import Failure
from hangtop_core.text.clean import Text


class Local(Struct, frozen=True, gc=False):
    """One local variable of a frame."""

    name: Text
    value: Text
    argument: bool = False


class ThreadStack(Struct, frozen=True, gc=False):
    """One thread's stack in a sample."""

    tid: int | None
    name: Text | None
    active: bool
    gil: bool
    stack: str
    """Key into `Snapshot.stacks`."""
    locals: tuple[tuple[Local, ...], ...] = ()
    """Variables per frame, innermost first; empty unless requested."""


class StackSample(Struct, frozen=True, gc=False):
    """One sample of a process by py-spy, or why it failed."""

    at: float
    took_s: float
    mode: Literal["nonblocking", "blocking", "native"]
    threads: tuple[ThreadStack, ...] = ()
    """Threads, first the one that runs the program: mostly the main thread."""
    failure: Failure | None = None
    count: int = 1
    """Consecutive samples, this one included, whose main thread had the same stack."""
    same_since: float | None = None
    """When the main thread's present stack (functions and lines) was first seen."""
    same_functions_since: float | None = None
    """When the functions of the main thread's stack were first seen: a loop changes its lines, not
    its functions."""
    loops: tuple[tuple[Text, Text, int, float], ...] = ()
    """File, function and line of each `while` of the main thread that may loop for ever, outermost
    first, and since when the thread has been in it and gained no memory."""
    in_passing: bool = False
    """Whether the thread was sampled in a function that it is seldom in, and soon returns from."""
    first_at: float | None = None
    """When this process gave its first sample: whatever is unchanged since then never moved."""


def continued(
    sample: StackSample, last: StackSample | None, lines: bool, functions: bool
) -> StackSample:
    """Return a sample that continues the counts of the last one where the stacks match."""
    same_lines = last is not None and lines
    same_functions = last is not None and functions
    first = last.first_at if last is not None else None
    if first is None and sample.failure is None:
        first = sample.at
    return msgspec.structs.replace(
        sample,
        first_at=first,
        count=last.count + 1 if last is not None and same_lines else 1,
        same_since=last.same_since if last is not None and same_lines else sample.at,
        same_functions_since=(
            last.same_functions_since if last is not None and same_functions else sample.at
        ),
    )


def with_native_frames(sample: StackSample, last: StackSample) -> StackSample:
    """Return a sample with the native main thread of the last one."""
    threads = (last.threads[0], *sample.threads[1:])
    return msgspec.structs.replace(sample, mode="native", threads=threads)
