"""Ranks that sit at a prompt: of a debugger, of an editor, or of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.reading import DISTRIBUTED_BREAKPOINT
from hangtop_core.analysis.verdict.base import Hit, Rule, Subject, alike
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor
from hangtop_core.analysis.verdict.evidence import SHOWN, common_facts, fact
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.sentences import sentence, several, who
from hangtop_core.analysis.verdict.steps import on
from hangtop_core.stacks.dictionary import EDITOR
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.diagnosis import Evidence
    from hangtop_core.text.commands import Step


def _prompt(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    prompting = [s for s in left if s.activity.kind == "prompt"]
    for group in alike(prompting, lambda s: (s.activity.text, s.activity.site)):
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                several(group[0].activity.text, group),
                f"at {group[0].activity.at}",
                case.since(group[0]),
            ),
            evidence=(*_inputs(group), *common_facts(case, group)),
            steps=(*_answering(group[0]), *_taking_out(group[0])),
        )


def _inputs(group: Sequence[Subject]) -> Iterator[Evidence]:
    for subject in group[:SHOWN]:
        read = descriptor(subject)
        if read is not None:
            yield fact("process", subject.number, f"it reads {name_descriptor(read)}")


def _answering(subject: Subject) -> Iterator[Step]:
    """Where somebody could answer the prompt, if anywhere."""
    read = descriptor(subject)
    if subject.activity.text == EDITOR:
        yield Advice(
            "attach from the editor (its launch.json tells host and port), and let it go on"
        )
    elif read is None:
        yield on(subject, "ls", "-l", f"/proc/{subject.pid}/fd/0")
    elif read.kind == "tty":
        go_on = "c goes on; up goes to your own frame"
        yield Advice(
            f"answer it in the terminal {clean(read.target, 60)} of {subject.rank.node}: {go_on}"
        )
    else:
        what = clean(read.target, 80)
        yield Advice(f"nobody can answer it by hand: it reads {what}, which is no terminal")


def _taking_out(subject: Subject) -> Iterator[Step]:
    at = subject.activity.at
    if subject.activity.text == DISTRIBUTED_BREAKPOINT:
        yield (
            Advice(
                f"or take it out at {at}. The other ranks wait in its barrier until their "
                "time-outs, which newer versions of torch set to an hour there"
            )
        )
    else:
        yield Advice(
            f"or take it out at {at}; torch.distributed.breakpoint(rank) lets other ranks wait"
        )


PROMPT = Rule(
    cause="debugger-prompt",
    title="A rank sits at a prompt",
    seen="pdb, bdb or a command loop in the stack, or a read of its own stdin.",
    excluded="None.",
    confidence=0.95,
    next_steps=("Answer it in its terminal", "Remove the breakpoint"),
    find=_prompt,
    decisive=True,
    needs=(More("descriptors", "from where it reads, that is who could answer"),),
)
