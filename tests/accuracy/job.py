"""One job that accuracy is measured on."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Form = Literal["torchrun", "each", "spawn", "mpirun", "nodes"]
"""torchrun; one process per rank with RANK and its kin, by `jobs/each.py`; a script that starts
its ranks by itself; Open MPI's mpirun; two nodes, see `nodes.py`."""


class Job(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One job of the table."""

    subject: str
    """The file of `tables/` that it stands in."""
    name: str
    command: str
    """Script in `jobs/`, and its arguments."""
    cause: str | None = None
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
    missed: bool = False
    """A kept one that was told wrongly, in cause or culprits, when it was first run."""
    environment: dict[str, str] = {}

    @property
    def origin(self) -> str:
        """Who wrote it: the folder of `jobs/kept/`, empty for those that rules were written by."""
        script = self.command.split()[0]
        return script.split("/")[1] if script.startswith("kept/") else ""

    @property
    def kept(self) -> bool:
        """Whether it was kept out while the rules were written: somebody wrote it who had not seen
        these, and they knew nothing of it when it was first run."""
        return bool(self.origin)
