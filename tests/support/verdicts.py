"""What tests ask of a diagnosis: its causes, and whom the first of them blames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.build import World, judged

if TYPE_CHECKING:
    from hangtop_core.diagnosis import Diagnosis, Verdict


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
