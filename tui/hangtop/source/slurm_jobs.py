"""This user's Slurm jobs in the app: listed beside the jobs on the nodes, to be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.keys.items import Item
from hangtop.terminal.spans import line
from hangtop_core.attach.slurm.my_jobs import running_jobs, what_became
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.attach.slurm.my_jobs import ListedJob

_KEY = "Slurm "


class SlurmJobs:
    """Slurm jobs that the app can be reopened on, and the chosen job."""

    def __init__(self, shown: str | None, jobs: Sequence[ListedJob] = ()) -> None:
        """Create it; ``shown`` is the observed job, ``jobs`` the choice offered at the start."""
        self.jobs = tuple(jobs)
        self.chosen: str | None = None
        self._shown = shown.partition(".")[0] if shown else None  # a step belongs to its job

    def ask(self) -> str:
        """Ask Slurm for the jobs; return why there is nothing to choose, ``""`` where there is."""
        try:
            self.jobs = tuple(job for job in running_jobs() if job.name != self._shown)
        except UsageError as error:
            return str(error)
        if self.jobs:
            return ""
        qualifier = "other " if self._shown else ""
        return f"no {qualifier}Slurm job of yours runs; {what_became()}".removesuffix("; ")

    def items(self) -> list[Item]:
        """Return the jobs to choose from."""
        return [
            Item(_KEY + job.name, (line((f"Slurm {job.name}  ", "bold"), job.in_words()),), 2)
            for job in self.jobs
        ]

    def take(self, key: str) -> bool:
        """Remember the job of an item; return whether it is one of these."""
        if not key.startswith(_KEY):
            return False
        self.chosen = key.removeprefix(_KEY)
        return True
