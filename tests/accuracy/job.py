"""One job that accuracy is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["torchrun", "each", "spawn", "mpirun", "nodes"]
"""torchrun; one process per rank with RANK and its kin, by `jobs/each.py`; a script that starts
its ranks by itself; Open MPI's mpirun; two nodes, see `nodes.py`."""


@dataclass(frozen=True)
class Job:
    """One job of the table."""

    name: str
    command: str
    """Script in `jobs/`, and its arguments."""
    cause: str | None
    """What the first verdict has to be, `a|b` where two causes are equally right; None for a job
    that does not hang."""
    culprits: tuple[int, ...] = ()
    what: str = ""
    ready: str = r"[Ss]tep'?:? ?[6-9]"
    """Found in its output once it is on its way into the hang."""
    times: int = 1
    """How often that has to be found, on two nodes."""
    form: Form = "torchrun"
    ranks: str = "3"
    """How many; or, for `each`, the world size and which ones: `4 0,1,2`."""
    recorded: bool = False
    """Started by `hangtop run`, so that its flight recorder can be read."""
    inside: str = ""
    """Place in which it runs: a function of `places.py`, or of `nodes.py`."""
    outside: str = ""
    """What happens to the culprit from outside: a function of `places.py` or `nodes.py`."""
    watched: bool = False
    """It ends instead of hanging, and hangtop sees that: what goes wrong does so once there is the
    file `gate` in OUT_DIR."""
    slow: bool = False
    """It gets on as far as anybody can see, and the first verdict has to be this all the same."""
    kept: bool = False
    """Kept out while the rules were written: by somebody who had not seen these, and they knew
    nothing of it when it was first run."""
    missed: bool = False
    """A kept one that was told wrongly, in cause or culprits, when it was first run."""
    environment: tuple[tuple[str, str], ...] = ()


def each(ranks: str = "3 0,1,2") -> dict[str, Any]:
    """One process per rank; see `Job.ranks`."""
    return {"form": "each", "ranks": ranks}
