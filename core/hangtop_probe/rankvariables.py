"""What variables of its environment tell of a rank: its number, its job, who started it."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from . import procfs

_NUMBERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_IDENTITY = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
)
_RENDEZVOUS = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHED_BY = {
    "OMPI_COMM_WORLD_RANK": "mpirun",
    "PMIX_RANK": "mpirun",
    "PMI_RANK": "mpirun",
    "SLURM_PROCID": "srun",
}


def rank_number(environ: Mapping[str, str]) -> Optional[Tuple[int, str]]:
    """Return the rank and the variable that says so, not looking at Slurm's.

    RANK alone proves nothing, many programs use the name: it takes a variable of the
    rendezvous beside it.
    """
    for name in _NUMBERS:
        number = procfs.decimal(environ.get(name, ""))
        if number is None:
            continue
        if name == "RANK" and not any(other in environ for other in _RENDEZVOUS):
            continue
        return number, name
    return None


def identity(environ: Mapping[str, str]) -> Tuple[Optional[str], ...]:
    """Return what tells one job from another."""
    return tuple(environ.get(name) for name in _IDENTITY)


def told_launcher(environ: Mapping[str, str], source: Optional[str]) -> Optional[str]:
    """Return who has started a rank, by its variables and what its number is from."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return "torchrun"
    return _LAUNCHED_BY.get(source or "")
