"""Ranks that are blocked in writing what they print, as nobody reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.verdict.base import Hit, Rule, Subject
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor
from hangtop_core.analysis.verdict.doing import does, waits_back
from hangtop_core.analysis.verdict.evidence import common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import sentence, who
from hangtop_core.analysis.verdict.steps import on
from hangtop_core.text.commands import Advice, Sign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case


def _output(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind != "output":
            continue
        pipe = descriptor(subject)
        holders = pipe.holders if pipe is not None else ()
        # Who only reads comes before those that opened it both ways, as a FIFO can be.
        readers = [h for h in holders if h.how == "reads"]
        readers = readers or [h for h in holders if h.how.startswith("reads") and h.state == "T"]
        told = ", ".join(
            f"its reader is pid {h.pid} ({h.comm}), state {h.state}{_which(case, subject, h.pid)}"
            for h in readers
        )
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} {subject.activity.text} at {subject.activity.at}",
                f"{case.since(subject)}: the pipe is full".lstrip(": "),
                f"and {told}" if told else "",
            ),
            evidence=(
                *([fact("process", subject.number, name_descriptor(pipe))] if pipe else []),
                *common_facts(case, [subject]),
            ),
            steps=(
                *(
                    on(
                        subject,
                        "cat",
                        f"/proc/{h.pid}/status",
                        Sign.PIPE,
                        "grep",
                        "State",
                        Sign.THEN,
                        "kill",
                        "-CONT",
                        h.pid,
                    )
                    for h in readers[:1]
                ),
                on(subject, "ls", "-l", f"/proc/{subject.pid}/fd/{pipe.fd if pipe else 1}"),
                *(
                    (Advice("read while it is written: communicate(), or a thread for each"),)
                    if any(
                        waits_back(subject, child)
                        for child in subject.rank.children
                        if any(h.pid == child.pid for h in readers)
                    )
                    else ()
                ),
            ),
        )


def _which(case: Case, subject: Subject, pid: int) -> str:
    """`, which is itself blocked in sending`, of a child that reads what a rank writes."""
    child = next((c for c in subject.rank.children if c.pid == pid), None)
    text = does(case, subject, child) if child is not None and child.state[:1] != "T" else ""
    return f", which {text}" if text else ""


OUTPUT = Rule(
    cause="output-pipe-full",
    title="A rank is blocked writing its output",
    seen="The main thread sleeps in write to stdout, stderr or another pipe (pipe_write).",
    excluded="The descriptor is a file: `io-wait`.",
    confidence=0.95,
    next_steps=("Look at the reader of the pipe: it may be stopped or stuck",),
    find=_output,
    needs=(More("descriptors", "who reads the pipe, and whether that one is stopped"),),
)
