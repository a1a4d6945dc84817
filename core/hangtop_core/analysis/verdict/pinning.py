"""The thread of a DataLoader that copies batches into pinned memory, where it is what is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.frames import is_library, where
from hangtop_core.analysis.kernel import waits_in
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.evidence import common_facts, fact, sentence, who
from hangtop_core.analysis.verdict.naming import thread_text
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.steps import on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model import Frame, ThreadStack

_FILE = "/torch/utils/data/_utils/pin_memory.py"


def _pinning(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind not in ("data", "queue"):
            continue
        found = _stuck_thread(case, subject)
        if found is None:
            continue
        thread, stack = found
        facts = next((t for t in subject.rank.process.threads if t.tid == thread.tid), None)
        own = next((frame for frame in stack if not is_library(frame)), stack[0])
        doing = "works" if facts is not None and facts.state == "R" else "is stuck"
        waits = waits_in(facts)
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} waits for data that is there: the thread that pins memory "
                f"{doing} at {where(own)}{f' ({waits})' if waits else ''}",
                case.since(subject),
            ),
            evidence=(
                fact(
                    "stacks",
                    subject.number,
                    f"thread {thread.tid} ({thread.name or '?'}) is in {where(stack[0])}, called "
                    f"from the loop that pins memory",
                ),
                *([fact("process", subject.number, thread_text(facts))] if facts else []),
                *common_facts(case, [subject]),
            ),
            steps=(
                on(subject, f"hangtop dump --pid {subject.pid} --native"),
                "run once with pin_memory=False; look at pin_memory() of your batch class",
            ),
        )


def _stuck_thread(case: Case, subject: Subject) -> tuple[ThreadStack, tuple[Frame, ...]] | None:
    """The thread that pins memory, where it does not wait for something to pin."""
    sample = subject.rank.sample
    for thread in sample.threads[1:] if sample is not None else ():
        stack = case.snapshot.stacks.get(thread.stack, ())
        # A loop that has nothing to pin is in one of its queues, and not in that function; what
        # is pinned may wait for a queue of its own in there.
        if any(one.name == "pin_memory" and _FILE in f"/{one.file}" for one in stack):
            return thread, stack
    return None


PIN_MEMORY = Rule(
    cause="pin-memory-stuck",
    title="The thread that pins memory is stuck",
    seen="The rank waits for its DataLoader, and the thread in `_pin_memory_loop` is inside "
    "pin_memory and not in its queue.",
    excluded="That thread waits for a worker: `dataloader-worker-stuck`, `data-starved`.",
    confidence=0.85,
    next_steps=("Run once with pin_memory=False", "Look at the native stack of that thread"),
    find=_pinning,
    needs=(More("native stacks", "which call of CUDA that thread is in"),),
)
