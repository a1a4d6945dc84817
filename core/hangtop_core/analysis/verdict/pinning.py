"""The thread of a DataLoader that copies batches into pinned memory, where it is what is stuck."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hangtop_core.analysis.kernel import waits_in
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.endings import dead_in
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.naming import thread_text
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import dump_step, on
from hangtop_core.model.frames import is_library, plain_name, where
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.model.snapshot import Frame, ThreadStack

_FILE = "/torch/utils/data/_utils/pin_memory.py"


def _pinning(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind not in ("data", "queue"):
            continue
        if _is_without(case, subject):
            yield _died(case, subject)
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
                dump_step(subject, "--native"),
                Advice("run once with pin_memory=False; look at pin_memory() of your batch class"),
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


def _is_without(case: Case, subject: Subject) -> bool:
    """Whether a rank waits for what only the thread that pins memory can give it, and has none.

    Batches that are pinned come by a queue of threads, all others by one of processes. Without a
    timeout torch looks every five seconds whether that thread lives.
    """
    sample = subject.rank.sample
    threads = sample.threads if sample is not None else ()
    stacks = [case.snapshot.stacks.get(thread.stack, ()) for thread in threads]
    queued = stacks and any(
        plain_name(outer.name) == "_try_get_data" and inner.file.endswith("/queue.py")
        for inner, outer in pairwise(stacks[0])
    )
    # A thread of Python has a name; of those that gave no stack it may be one. Others are of torch.
    named = [bool(thread.name) for thread in threads]
    if not queued or not named[0] or any(n and not s for n, s in zip(named, stacks, strict=True)):
        return False
    return not any(_FILE in f"/{frame.file}" for stack in stacks for frame in stack)


def _died(case: Case, subject: Subject) -> Hit:
    dead = dead_in(case, subject, _FILE)
    why = f": {dead.text}" if dead is not None else ""
    return Hit(
        subjects=(subject,),
        summary=sentence(
            case,
            f"{who([subject])} waits for data that nobody can give it: the thread that pins memory "
            f"is not there any more{why}",
        ),
        evidence=(
            fact(
                "stacks",
                subject.number,
                "the main thread waits in a queue.Queue that only the thread in `_pin_memory_loop` "
                "fills, and no thread of the rank is in that",
            ),
            *(dead.facts if dead is not None else ()),
            *common_facts(case, [subject]),
        ),
        steps=(
            *(
                ()
                if dead is not None
                else (Advice("look for `Exception in thread` in the rank's output"),)
            ),
            on(
                subject,
                "ls",
                f"/proc/{subject.pid}/fd",
                Sign.PIPE,
                "wc",
                "-l",
                Sign.THEN,
                "grep",
                "open files",
                f"/proc/{subject.pid}/limits",
            ),
            Advice("DataLoader(timeout=0), the default, raises an error when that thread has died"),
        ),
        needs=(),
        confidence=dead.confidence if dead is not None else None,
    )


PIN_MEMORY = Rule(
    cause="pin-memory-stuck",
    title="The thread that pins memory is stuck, or has died",
    seen="The rank waits for its DataLoader, and the thread in `_pin_memory_loop` is inside "
    "pin_memory and not in its queue. Or the rank waits in the queue.Queue that only this thread "
    "fills, and no thread is in `_pin_memory_loop`.",
    excluded="That thread waits for a worker: `dataloader-worker-stuck`, `data-starved`.",
    confidence=0.85,
    next_steps=("Run once with pin_memory=False", "Look at the native stack of that thread"),
    find=_pinning,
    needs=(More("native stacks", "which call of CUDA that thread is in"),),
)
