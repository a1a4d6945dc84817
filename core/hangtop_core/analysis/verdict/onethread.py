"""The Python threads of a rank: where each of them is, and whether it has anything to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.analysis.idle import in_task, is_idle
from hangtop_core.analysis.kernel import waits_in
from hangtop_core.analysis.reading import Reading
from hangtop_core.analysis.serving import ENDS
from hangtop_core.analysis.sourcelines import by_source, needs_no_lock
from hangtop_core.model.frames import where
from hangtop_core.model.snapshot import Frame, Thread, ThreadStack
from hangtop_core.text.clean import clean

if TYPE_CHECKING:
    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Process, StackSample


class OneThread(Struct, frozen=True):
    """One Python thread of a rank: its stack, what that says, what the kernel says."""

    stack: ThreadStack
    reading: Reading
    facts: Thread | None
    frames: tuple[Frame, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether it waits for work, as threads of pools do, and of libraries that feed them."""
        return is_idle(self.frames)

    @property
    def pool(self) -> str | None:
        """The pool whose task it runs, by its name: `reader` of `reader_3`."""
        name = (self.stack.name or "").rpartition("_")[0]
        return name or None if in_task(self.frames) else None

    @property
    def name(self) -> str:
        """`thread 'writer'`."""
        return f"thread '{clean(self.stack.name or str(self.stack.tid), 60)}'"

    @property
    def family(self) -> str | None:
        """What it sleeps on."""
        if self.facts is None or self.facts.state == "R":
            return None
        return waits_in(self.facts)

    @property
    def source(self) -> str | None:
        """The line that its innermost frame is in."""
        return self.reading.top.source if self.reading.top is not None else None

    @property
    def wants_gil(self) -> bool:
        """Whether it sleeps on a futex in a line that never does: it wants the GIL back."""
        return self.family == "futex" and needs_no_lock(self.source)

    @property
    def wants_lock(self) -> bool:
        """Whether it waits in user code for a lock, or for what else sleeps on a futex."""
        if self.reading.kind is not None or not self.reading.own or self.family != "futex":
            return False
        told = by_source(self.source)
        return not self.wants_gil and (told is None or told[0] in ("lock", "work-wait"))

    @property
    def takes_lock(self) -> bool:
        """Whether the line that it waits in takes a lock."""
        told = by_source(self.source)
        return self.wants_lock and told is not None and told[0] == "lock"

    @property
    def does(self) -> str:
        """What it does, before ` at train.py:7`."""
        if self.wants_gil:
            return "wants the GIL back"
        if self.takes_lock:
            return "waits for a lock"
        return "sleeps on a futex" if self.wants_lock else "is"

    @property
    def place(self) -> str:
        """Where it is, with its line of code."""
        top = self.reading.site or self.reading.top
        source = f" `{top.source.strip()}`" if top is not None and top.source else ""
        return f"{where(top)}{source}"

    @property
    def futex(self) -> str:
        """`, futex 0x5640`: equal addresses are one lock."""
        waits = self.facts is not None and self.facts.futex and self.facts.child is None
        return f", futex {self.facts.futex}" if waits and self.facts is not None else ""


def threads_in(case: Case, process: Process, sample: StackSample | None) -> list[OneThread]:
    """All Python threads of a process, the main thread first."""
    found = []
    for stack in sample.threads if sample is not None else ():
        reading, facts = case.reader.thread(process, stack)
        frames = case.snapshot.stacks.get(stack.stack, ())
        found.append(OneThread(stack, reading, facts, frames))
    return found


def threads_of(case: Case, subject: Subject) -> list[OneThread]:
    """All Python threads of a subject, the main thread first."""
    found = threads_in(case, subject.rank.process, subject.rank.sample)
    if subject.activity.serving:  # that thread, and not the main one, is to be told of
        found.sort(key=lambda one: one.facts is None or one.facts != subject.activity.main)
        found = [one for one in found if one.reading.op != ENDS]
    return found
