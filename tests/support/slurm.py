"""A real Slurm over the nodes of a `Cluster`: slurmctld on a head of its own, slurmd on each node.

Nothing of it is seen from outside: the head, too, has its own network on the cluster's bridge,
host name, processes and /run, and everything ends with it. `bin` holds the user commands (srun,
sbatch, squeue, scontrol, ...) as the user of this process.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support import cluster
from support.cluster import Cluster, run
from support.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = ("srun", "sbatch", "sbcast", "squeue", "scontrol", "scancel", "salloc", "sinfo")
PROGRAMS = ("slurmctld", "slurmd", "munged", *COMMANDS)
CPUS = 16
"""Per node, whatever this machine has."""

_CONFIG = """\
ClusterName=hangtop
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/sock
CredType=cred/munge
StateSaveLocation=/run/slurm
SlurmdSpoolDir=/run/slurm
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
MessageTimeout={patience}
SlurmdTimeout=300
InactiveLimit=0
KillWait=2
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
_MUNGED = """\
mkdir -p /run/munge /run/slurm; chmod 755 /run/munge
chmod 400 /run/node/munge.key; chown root:root /run/node/munge.key
export SLURM_CONF=/run/node/slurm.conf
setsid munged -F --socket /run/munge/sock --key-file /run/node/munge.key \\
    --pid-file /run/munge/pid --log-file /run/munge/log --seed-file /run/munge/seed \\
    </dev/null >/run/munge/out 2>&1 &
until [ -S /run/munge/sock ]; do sleep 0.02; done
"""
_HEAD = (
    """\
set -eu
hostname head
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /run
cp -a "$1" /run/node
for name in passwd group hosts; do mount --bind "/run/node/$name" "/etc/$name"; done
cd /
"""
    + _MUNGED
    + "slurmctld -D -i >/run/slurm/out 2>&1\n"
)
_NODE = _MUNGED + "setsid slurmd -D -N {name} </dev/null >/run/slurm/out 2>&1 &\n"


def why_not() -> str | None:
    """Return why no Slurm can be made here, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"Slurm needs {', '.join(missing)} (see .ci/system-packages)"
    return cluster.why_not()


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class SlurmCluster(Cluster):
    """A cluster whose nodes are also Slurm's; ``patience`` are seconds a message may take."""

    def __init__(
        self, root: Path, count: int, hidden: Sequence[str] = (), patience: int = 2
    ) -> None:
        super().__init__(root, count, hidden)
        self.patience = patience
        self._head: subprocess.Popen[bytes] | None = None
        self._key = secrets.token_hex(64)

    def _files(self) -> dict[str, str]:
        nodes = "".join(
            f"NodeName=node-{n} NodeAddr=10.77.0.{n + 1} CPUs={CPUS} RealMemory=1000 Gres=gpu:2\n"
            for n in range(1, self._count + 1)
        )
        return {
            **super()._files(),
            "munge.key": self._key,
            "slurm.conf": _CONFIG.format(nodes=nodes, patience=self.patience),
            # Counted, but no devices: jobs hold them, nothing uses them.
            "gres.conf": "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n",
            # Not detected where /sys is a fresh one; a name is needed all the same.
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        }

    def _start(self) -> None:
        super()._start()
        script = self.root / "head"
        script.write_text(_HEAD)
        own = ("--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child")
        inside = ("nsenter", "-t", str(self._pid), "--net", "--", "unshare", *own)
        with (self.root / "head.log").open("wb") as log:
            self._head = subprocess.Popen(
                [*inside, "bash", str(script), str(self.root / "node-1")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _path()},
            )
        for node in self.nodes:
            run(*node.argv("env", f"PATH={_path()}", "bash", "-c", _NODE.format(name=node.name)))
        self._make_commands()
        assert wait_until(self._all_idle), (self.root / "head.log").read_text()

    def __exit__(self, *_: object) -> None:
        if self._head is not None:
            self._head.kill()
            self._head.wait(PATIENCE)
        super().__exit__()

    def _init_of_head(self) -> int:
        assert self._head is not None
        children = Path(f"/proc/{self._head.pid}/task/{self._head.pid}/children")
        assert wait_until(lambda: bool(children.read_text().split()))
        return int(children.read_text().split()[0])

    def _make_commands(self) -> None:
        """Make Slurm's commands, as they are on a login node."""
        inside = f"nsenter -t {self._init_of_head()} -m -u -i -n -p --"
        for name in COMMANDS:
            wrapper = self.bin / name
            # Jobs get the PATH of who submits them, and may see these wrappers under /tmp.
            setting = f"SLURM_CONF=/run/node/slurm.conf PATH={shlex.quote(_path())}"
            wrapper.write_text(f'#!/bin/sh\n{setting} exec {inside} {shutil.which(name)} "$@"\n')
            wrapper.chmod(0o755)

    def _all_idle(self) -> bool:
        done = run(str(self.bin / "sinfo"), "-h", "-t", "idle", "-o", "%D", check=False)
        return done.stdout.strip() == str(self._count)

    def path_around_sbcast(self, folder: Path, before: str = "", after: str = "") -> str:
        """Return a PATH on which sbcast is the real one, with something that happens around it.

        There `{room}` is where its file goes to on node-2, and `{enter}` leads to that node.
        """
        init = self.node(2).init
        room, enter = f"/proc/{init}/root/tmp/hangtop-*", f"nsenter -t {init} -m -p"
        script = f'{before}\n{self.bin}/sbcast "$@"\ncode=$?\n{after}\nexit $code\n'
        (folder / "sbcast").write_text("#!/bin/sh\n" + script.format(room=room, enter=enter))
        (folder / "sbcast").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    def path_without_sbcast(self, folder: Path) -> str:
        """Return a PATH on which srun is all there is of Slurm."""
        for path in (self.bin / "srun", shutil.which("env"), shutil.which("nsenter")):
            assert path is not None
            (folder / Path(path).name).symlink_to(path)
        return f"{folder}"

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command of Slurm's as root on the head; return its output."""
        return run(str(self.bin / argv[0]), *argv[1:], check=check).stdout.strip()

    def submit(self, *options: str, script: str) -> str:
        """Submit a job whose batch script is ``script``; return its number."""
        wrapped = ("--output=/dev/null", "--parsable", *options, f"--wrap={script}")
        return self.run("sbatch", *wrapped).partition(";")[0]

    def wait_state(self, job: str, *states: str, timeout: float = PATIENCE) -> None:
        """Wait until a job, with all its components, is in one of these states."""
        ask = ("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")
        deadline = time.monotonic() + timeout
        while not (seen := set(self.run(*ask).split())) or not seen <= set(states):
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)
