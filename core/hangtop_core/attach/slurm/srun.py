"""Probes in a Slurm job, as a step beside it: where ssh is not allowed.

A step of its own on every node is a clean pipe, and isolates nodes from each other; but each is a
process here and a request to slurmctld. So a job on many nodes gets one step for all of them: srun
gives every task the same standard input, of which `hangtop_probe.wire.relay` picks the node's
share, and labels the output of each. Measured with Slurm 22.05: it cuts labelled lines at 1,024
bytes (the probe keeps to 900, with a check sum for every part of a message), and mixes lines when
unbuffered (so it is not).

A node that does not answer when a step is started ends the step for all (after 12 to 20 seconds);
srun names the node. From then on it gets a step of its own, and the others are started together
again.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from hangtop_core.attach.connect import bundle
from hangtop_core.attach.connect.channel import Action, Part
from hangtop_core.attach.connect.launcher import ByHand, Wave
from hangtop_core.attach.slurm.sbcast import Carrier
from hangtop_core.attach.slurm.slurm_reasons import TIME_LIMIT, Step, explain_srun, launch_failures
from hangtop_core.attach.ways.local import RANK_VARIABLES
from hangtop_core.text import rank_sets
from hangtop_probe.wire import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.attach.connect.launcher import Ending
    from hangtop_core.attach.slurm.slurm import SlurmJob
    from hangtop_core.attach.ways.ssh import Login

SHARE_FROM = 9
"""Number of nodes from which one step serves all. Below, steps of their own cost slurmctld little
and are better: independent, and faster for bulk data (200 KB from each in 0.14 s; shared, 0.2 s a
node)."""
KEEP_FROM = 16 * 1024
"""Bytes from which data for several nodes are sent once and kept by them until used."""
PATIENCE_S = 75.0
"""Maximum seconds that srun needs to give up on a node: its default MessageTimeout is 10 s."""

_KEPT_VARIABLES = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_RELAY = wire.MAGIC + b'{"id": 0, "relay": '
_LABEL = re.compile(rb" *(\d{1,6}): ?")
_EXITED = re.compile(
    rb"srun: error: ([A-Za-z0-9_.-]+): task \d+: (?:Exited with exit code (\d{1,3})|(.+))$"
)
_STEPD = re.compile(rb"slurmstepd-([A-Za-z0-9_.-]+): ")


def srun_argv(
    job: SlurmJob, component: int | None, nodes: Sequence[str], command: str, *, label: bool
) -> list[str]:
    """Return the srun that runs ``command`` in a shell on each of ``nodes``; see srun(1).

    Inside an allocation, SLURM_* variables would act as options: they are removed.
    """
    options = {
        "jobid": job.id,
        "nodes": f"{len(nodes)}",
        "ntasks": f"{len(nodes)}",
        "ntasks-per-node": "1",
        "nodelist": ",".join(nodes),
        "job-name": "hangtop",
        # Without these the step would wait for resources that the job's own steps hold.
        "gres": "none",
        # The end of one task, or its exit status, must not end the others.
        "wait": "0",
        "kill-on-bad-exit": "0",
        "mpi": "none",
        "propagate": "NONE",
        "chdir": "/",
    }
    if component is not None:
        options["het-group"] = f"{component}"
    flags = ["--overlap", "--no-kill", "--quiet", *(["--label"] if label else [])]
    return [
        *_without_allocation(),
        "srun",
        *flags,
        *(f"--{name}={value}" for name, value in options.items()),
        "/bin/sh",
        "-c",
        f"unset {' '.join(RANK_VARIABLES)}; {command}",
    ]


def _without_allocation() -> list[str]:
    """Return the prefix that hides this shell's own job from a command of Slurm's."""
    prefixes = ("SLURM_", "SRUN_", "SBCAST_")
    own = sorted(n for n in os.environ if n.startswith(prefixes) and n not in _KEPT_VARIABLES)
    return ["env", *(word for name in own for word in ("-u", name))] if own else []


class SrunChannel:
    """One step for many nodes of a job (of one of its components, where it has several)."""

    timing = None

    def __init__(
        self, job: SlurmJob, component: int | None, nodes: Sequence[str], login: Login
    ) -> None:
        self.nodes = frozenset(nodes)
        self._job = job
        self._component = component
        self._login = login

    def begin(self, nodes: Sequence[str]) -> BroadcastStep:
        """Prepare a step on these nodes."""
        command = self._login.shell_command()
        argv = srun_argv(self._job, self._component, nodes, command, label=True)
        # sbcast writes as the job's user, and into a directory that only its owner can write to.
        ours = self._job.uid == os.geteuid() and not self._login.sudo
        component = f"+{self._component}" if self._component is not None else ""
        return BroadcastStep(nodes, argv, self._job.id + component if ours else None)

    def leave(self, node: str) -> None:
        """Do not wait for this node any more."""
        self.nodes -= {node}


class BroadcastStep:
    """One broadcast srun: which node a line is from, and how to address one node."""

    def __init__(self, nodes: Sequence[str], argv: list[str], job: str | None = None) -> None:
        """``job`` is the target of sbcast, None when sbcast cannot be used."""
        self.argv = argv
        self.opening = bundle.relay(nodes)
        self._nodes = tuple(nodes)
        self._number = {node: number for number, node in enumerate(nodes)}
        self._by_task: dict[int, str] = {}
        self._kept: list[bytes | None] = []
        """Data that relays keep, in their order."""
        self._carrier = Carrier(job, nodes, self._kept) if job is not None else None

    def output_part(self, line: bytes) -> Part | None:
        """Return the node's part in a line, by its label; learn which task is on which node."""
        label = _LABEL.match(line)
        if label is None:
            return None
        task, text = int(label[1]), line[label.end() :]
        node = self._by_task.get(task)
        if node is not None and _RELAY not in text:
            return Part(node, text)
        at = text.find(wire.MAGIC)
        try:
            message = json.loads(text[at + len(wire.MAGIC) :]) if at >= 0 else {}
            number = message["relay"]
            own = self._nodes[number]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return None
        if node is None and number >= 0 and own not in self._by_task.values():
            self._by_task[task] = own
        elif node is not None and self._carrier is not None:
            self._carrier.heard(node, message)
        return None

    def error_part(self, line: bytes) -> Part | None:
        """Return the node's part in a line of standard error."""
        exited = _EXITED.match(line)
        if exited is not None:
            node = exited[1].decode()
            code = int(exited[2]) if exited[2] is not None else None
            return Part(node, line, over=True, code=code) if node in self._number else None
        label = _LABEL.match(line)
        if label is None or b"*** STEP" in line:
            return None  # one node reports the end of a step for all
        node_of_task = self._by_task.get(int(label[1]))
        stepd = _STEPD.match(line, label.end())
        if node_of_task is None and stepd is not None:
            node_of_task = stepd[1].decode()
        return Part(node_of_task, line) if node_of_task in self._number else None

    def frame(self, nodes: Sequence[str], data: bytes | None) -> bytes:
        """Return ``data`` in a frame of `hangtop_probe.wire.relay`."""
        to = self._to(nodes)
        if data is None:
            return f"{to} e 0\n".encode()
        if len(data) < KEEP_FROM:
            return f"{to} d {len(data)}\n".encode() + data
        first = b""
        by_index: dict[int, list[str]] = {}
        for node in nodes:
            index = self._carrier.index(node, data) if self._carrier is not None else None
            if index is None:
                if data not in self._kept:
                    self._kept.append(data)
                    first = f"* k {len(data)}\n".encode() + data
                index = self._kept.index(data)
            by_index.setdefault(index, []).append(node)
        uses = (f"{self._to(index_nodes)} u {index}\n" for index, index_nodes in by_index.items())
        return first + "".join(uses).encode()

    def _to(self, nodes: Sequence[str]) -> str:
        everyone = len(nodes) == len(self._nodes)
        return "*" if everyone else rank_sets.fold(self._number[node] for node in nodes)

    def waits(self, node: str, data: bytes | None) -> bool:
        """Return whether sbcast is about to bring ``data``."""
        return data is not None and self._carrier is not None and self._carrier.waits(node, data)

    def act(self, mono: float) -> Action:
        """Return the work that is due for sbcast."""
        if self._carrier is None:
            return Action(b"", None, 0.0, "", ())
        action = self._carrier.act(mono)
        argv = [*_without_allocation(), *action.argv] if action.argv is not None else None
        return action._replace(argv=argv)

    def acted(self, code: int | None, stderr: str) -> list[bytes]:
        """Handle the end of sbcast; a node that it did not reach would not read srun's input."""
        return self._carrier.acted(code, stderr) if self._carrier is not None else []


class SrunLauncher:
    """The probe in a step of a Slurm job: one of its own, or its share of one for many nodes."""

    via = "srun"

    def __init__(
        self,
        node: str,
        job: SlurmJob,
        component: int | None,
        login: Login,
        channel: SrunChannel | None = None,
    ) -> None:
        self._node = node
        self._job = job
        self._component = component
        self._login = login
        self._channel = channel
        self._limit = ""
        """Slurm's message about the job's time limit, if it was reached."""

    @property
    def node(self) -> str:
        """Return Slurm's name of the node."""
        return self._node

    @property
    def by_hand(self) -> ByHand:
        """Return how a person starts a step beside those of the job."""
        options = ["--job", self._job.name, "-w", self._node, "--via", "srun"]
        return ByHand((*self._step(), "sh", "-c"), tuple(options))

    def _step(self) -> list[str]:
        beside = ["--overlap", "--gres=none", f"--jobid={self._job.id}"]
        return ["srun", *beside, "-N1", "-n1", "-w", self._node]

    @property
    def channel(self) -> SrunChannel | None:
        """Return the step for many nodes, unless this node has broken it."""
        return self._channel

    @property
    def wave(self) -> Wave:
        """Return the limit of steps started at once: slurmctld serves others, too."""
        if self._channel is not None:
            return Wave("srun", 1 << 20, PATIENCE_S)
        return Wave("srun, one by one", SHARE_FROM, 10.0)

    @property
    def patience(self) -> float:
        """Return the seconds that srun takes to report that a node does not answer."""
        return PATIENCE_S

    def argv(self) -> list[str]:
        """Return the srun for this node alone."""
        command = self._login.shell_command()
        return srun_argv(self._job, self._component, [self._node], command, label=False)

    def opening(self) -> bytes:
        """Return the boot."""
        return bundle.opening(self._login.keep)

    def shell(self) -> list[str]:
        """Return a step with a terminal."""
        return [*self._step(), "--pty", "/bin/sh", "-c", "exec ${SHELL:-/bin/sh}"]

    def explain(self, code: int | None, stderr: str, was_ready: bool) -> Ending:
        """Return why srun ended; a node that ended it for all gets its own step from now on."""
        self.late(stderr)
        step = Step(self._node, self._job.id, self._job.user, tuple(self._step()))
        output = self._limit + stderr
        return explain_srun(code, output, was_ready, step, self._login.python, self._login.sudo)

    def late(self, stderr: str) -> None:
        """Note why the step fails for this node, whenever that is reported."""
        if self._channel is not None and self._node in launch_failures(stderr):
            self._channel.leave(self._node)
            self._channel = None
        if (limit := TIME_LIMIT.search(stderr)) is not None:
            self._limit = f"{limit[0]}\n"


def srun_launchers(job: SlurmJob, login: Login, nodes: Sequence[str]) -> list[SrunLauncher]:
    """Return a launcher for each of ``nodes``, which belong to the job; many share a step."""
    wanted = frozenset(nodes)
    node_launchers = []
    for part in job.parts:
        part_nodes = [node for node in part.nodes if node in wanted]
        wanted -= set(part_nodes)
        channel = (
            SrunChannel(job, part.component, part_nodes, login)
            if len(part_nodes) >= SHARE_FROM
            else None
        )
        node_launchers += [
            SrunLauncher(node, job, part.component, login, channel) for node in part_nodes
        ]
    return node_launchers
