"""Starting the probe on this machine: the same process and the same protocol as on any node."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import hangtop_probe
from hangtop_core.attach.connect.launcher import ByHand, Ending, Wave
from hangtop_core.text.clean import clean, how_ended
from hangtop_core.text.launchers import LOCAL_RANKS, RANKS, WORLD_SIZES

RANK_VARIABLES = (*RANKS, *WORLD_SIZES, *LOCAL_RANKS)
"""Variables removed for the probe and its children, which would otherwise look like a rank."""
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from hangtop_probe.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


LOCAL = Wave("this machine", 64, 5.0)
"""A limit of no effect: there is one process, and no login."""


class LocalLauncher:
    """The probe as a child of this process, under the same Python."""

    channel = None
    via = "this machine"
    patience = 0.0

    def __init__(self, node: str | None = None, python: str | None = None) -> None:
        self._node = node or socket.gethostname() or "localhost"
        self._python = python or sys.executable

    @property
    def node(self) -> str:
        """Return this machine's host name."""
        return self._node

    @property
    def by_hand(self) -> ByHand:
        """Return an empty value: nothing is needed."""
        return ByHand()

    def argv(self) -> list[str]:
        """Return the command; -I ignores the user's PYTHON* settings and folder."""
        # In a batch script of Slurm's, or below mpirun, this process has a rank's variables.
        rank = [word for name in RANK_VARIABLES if name in os.environ for word in ("-u", name)]
        probe = [self._python, "-I", "-c", _BOOT, str(Path(hangtop_probe.__file__).parents[1])]
        return ["env", *rank, *probe] if rank else probe

    @property
    def wave(self) -> Wave:
        """Return a limit of no effect: there is no login."""
        return LOCAL

    def opening(self) -> bytes:
        """Return nothing: the probe is imported from where hangtop is installed."""
        return b""

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return the meaning of an exit status of the local probe."""
        last = clean(stderr.strip().rpartition("\n")[2], 300)
        how = "does not end, not even when killed" if code is None else how_ended(code)
        reason = f"the probe {how}" + (f": {last}" if last else "")
        return Ending("lost" if was_ready else "unreachable", reason, retry=True)

    def late(self, stderr: str) -> None:
        """Do nothing: an earlier probe does not explain the present one."""

    def shell(self) -> list[str]:
        """Return the user's own shell."""
        return [os.environ.get("SHELL") or "/bin/sh"]


def is_here(name: str) -> bool:
    """Return whether a node is this machine, by its name."""
    own = socket.gethostname()
    return name in ("localhost", own, own.partition(".")[0])


def boot_id() -> str | None:
    """Return the kernel's id of this boot: equal ids mean one machine and one clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None
