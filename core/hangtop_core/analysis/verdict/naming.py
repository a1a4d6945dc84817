"""How ranks, processes and what they wait in are named in the sentences of verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.pipes import command
from hangtop_core.model.frames import where
from hangtop_core.text.clean import clean, of_several
from hangtop_core.text.rank_sets import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hangtop_core.analysis.activity import Activity
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.waitclasses import Classes
    from hangtop_core.model.snapshot import Process, Thread


def name_ranks(subjects: Iterable[Subject] | Iterable[int]) -> str:
    """`rank 2`, or `ranks 0-1,3`."""
    numbers = [one if isinstance(one, int) else one.number for one in subjects]
    return names(numbers)


def wait_text(activity: Activity) -> str:
    """`in all_reduce at train.py:56 (step)`, from what a waiter does."""
    text = activity.text.removeprefix("waits ").removeprefix("sleeps ")
    return f"{text} at {where(activity.site)}" if activity.site is not None else text


def name_waiters(some: Sequence[Subject], text: str = "") -> str:
    """`ranks 0-1 wait in barrier at train.py:9`, or in what the first of them waits in."""
    said = f"waits {text or wait_text(some[0].activity)}"
    return f"{name_ranks(some)} {said if len(some) == 1 else of_several(said)}"


def name_classes(some: Classes) -> str:
    """The same of the first few classes of waiters."""
    return "; ".join(name_waiters(members, text) for text, members in some[:4])


def name_subject(subject: Subject) -> str:
    """`rank 2 (n1, pid 4711)`."""
    return subject.rank.place


def kernel_text(subject: Subject) -> str:
    """`state S, wchan anon_pipe_read, read(13)`: what /proc says of the main thread."""
    main = subject.activity.main or subject.rank.process.main_thread
    if main is None:
        return f"state {subject.rank.process.state}"
    by = tracer(subject.rank.process)
    return thread_text(main) + (f"; {by} traces it" if by else "")


def tracer(process: Process) -> str | None:
    """`strace (pid 4711)`: who traces a process, whether it holds it or lets it run."""
    if not process.tracer_pid:
        return None
    return f"{clean(process.tracer or 'a debugger')} (pid {process.tracer_pid})"


def thread_text(main: Thread) -> str:
    """The same of any thread."""
    parts = [f"state {main.state}"]
    if main.wchan:
        parts.append(f"wchan {main.wchan.partition('.')[0]}")
    if main.syscall:
        argument = main.fd if main.fd is not None else (main.futex or "")
        parts.append(f"syscall {main.syscall}({argument})")
    return clean(", ".join(parts))


def name_process(process: Process) -> str:
    """`pid 4712 'sleep 1000000' (state S)`; how multiprocessing starts Python says nothing."""
    ours = "--multiprocessing-fork" in process.cmdline
    named = "" if ours else f" {command(process)}"
    return clean(f"pid {process.pid}{named} (state {process.state})")
