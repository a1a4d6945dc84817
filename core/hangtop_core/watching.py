"""What a session watches on all of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hangtop_core.sampling import QUIET

if TYPE_CHECKING:
    from hangtop_core.updates import Options


class Watching(Struct, frozen=True):
    """What the `watch` request of every node asks for, and how often stacks are sampled."""

    interval: float = 1.0
    sample_every: float = 5.0
    sample_early: float | None = None
    all_users: bool = False
    pids: tuple[int, ...] = ()
    readonly: bool = False
    """Nothing but reading /proc and non-blocking py-spy: a flight recorder answers by itself, but
    it is a thread of the rank that does."""
    slurm_jobs: tuple[str, ...] = ()
    slurm_step: str | None = None
    enabled: bool = True
    rest: float = QUIET
    """As in `sampling.Rate`."""
    budget: float | None = None
    """As in `Options`."""

    def request(self) -> dict[str, Any]:
        """Return the parameters of `watch`."""
        params: dict[str, Any] = {
            "interval": self.interval,
            "all_users": self.all_users,
            "pids": list(self.pids) or None,
        }
        if self.slurm_jobs:
            params |= {"slurm_jobs": self.slurm_jobs, "slurm_step": self.slurm_step}
        if self.budget is not None:
            params["budget"] = self.budget
        return params


def watching(options: Options) -> Watching:
    """Return what to watch by the options of a session."""
    return Watching(
        options.interval,
        options.sample_every,
        options.sample_early,
        options.all_users,
        options.pids,
        options.readonly,
        options.slurm_jobs,
        options.slurm_step,
        options.watch,
        options.rest,
        options.budget,
    )
