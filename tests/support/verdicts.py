"""What tests ask of a diagnosis: its causes, and whom the first of them blames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.diagnosis import Diagnosis, Verdict
from hangtop_core.model.output import Output
from hangtop_core.state.outputs import parse
from support.build import NOW, World, judged

if TYPE_CHECKING:
    from hangtop_core.diagnosis import JobState


def diagnosis(state: JobState, *, verdicts: int = 0, stalled: float | None = None) -> Diagnosis:
    """One that says no more than its state, how many verdicts there are, and for how long."""
    verdict = Verdict("lock-wait", 0.9, (), (), "", (), ())
    return Diagnosis(
        "hangtop.diagnosis/1", "0", "", 5.0, state, None, None, None, (verdict,) * verdicts,
        stalled_for_s=stalled,
    )  # fmt: skip


def causes(found: Diagnosis) -> list[str]:
    """What may be wrong, the likeliest first."""
    return [one.cause for one in found.verdicts]


def blamed(verdict: Verdict) -> list[int | None]:
    """Ranks of whom it blames; None for what is no rank."""
    return [one.rank for one in verdict.culprits]


def first(found: Diagnosis) -> tuple[str, list[int | None]]:
    """The likeliest cause, and whom it blames."""
    return found.verdicts[0].cause, blamed(found.verdicts[0])


def hung(world: World, **job: Any) -> Verdict:
    """The likeliest verdict on a job that hangs; fields go to the job."""
    found = judged(world, **job)
    assert found.state == "hung", found
    assert found.verdicts, found
    return found.verdicts[0]


def told(verdict: Verdict) -> str:
    """All that a verdict says: summary, evidence and next steps, a line each."""
    facts = (one.text for one in verdict.evidence)
    return "\n".join([verdict.summary, *facts, *verdict.next_steps])


def printing(world: World, *lines: str, **job: Any) -> Diagnosis:
    """The diagnosis of a job whose ranks, and what started them, print these lines to one file."""
    text = "".join(f"{line}\n" for line in lines)
    snapshot = world.snapshot(**job)
    pids = (100, *(rank.process.pid for rank in snapshot.jobs[0].ranks))
    log = parse("n1", "/logs/job.log", text, 0, len(text), NOW)
    output = Output("n1", "1:2", "/logs/job.log", pids, NOW, len(text), NOW, 0, text, log)
    snapshot = msgspec.structs.replace(snapshot, outputs=(output,) if lines else ())
    return diagnose(snapshot, snapshot.jobs[0])
