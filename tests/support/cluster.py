"""A cluster on this machine: nodes that are namespaces, each with its own sshd.

Every node has its own network, hostname, process table, /tmp, /run, /dev/shm, homes and host key;
the file system below is this machine's, unless `hidden` covers a part of it. All nodes hang on a
bridge in a network namespace of its own, so nothing is seen of them from outside, and everything
is gone with its processes: no named namespaces, no interfaces, no mounts are left behind.

Users on the nodes: root, and alice, who may do nothing else. Both log in with the cluster's key.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from unittest import mock

from hangtop_probe.node import node as probe_node
from support.processes import PATIENCE, all_pids, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

PROGRAMS = ("/usr/sbin/sshd", "ssh", "ssh-keygen", "ip", "unshare", "nsenter", "mount", "bash")
REPOSITORY = Path(__file__).parents[2]
SSHD = "/usr/sbin/sshd -D -e -f /run/node/sshd_config"
SSH = shutil.which("ssh")
"""Found before any cluster puts its own on PATH."""
ALICE = 20001

_SSHD_CONFIG = """\
ListenAddress 0.0.0.0
HostKey /run/node/host_key
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
AuthorizedKeysFile /run/node/authorized_keys
DenyUsers bob
MaxStartups 200:30:400
UseDNS no
PrintMotd no
"""
_SSH_CONFIG = """\
Host stranger
  HostName 10.77.0.2
  UserKnownHostsFile {root}/client/stranger_hosts
Host changed
  HostName 10.77.0.2
  HostKeyAlias changed
  UserKnownHostsFile {root}/client/changed_hosts
Host behind
  HostName 10.77.0.3
  HostKeyAlias node-2
  ProxyJump node-1
Host *
  IdentityFile {root}/client/id
  IdentitiesOnly yes
  UserKnownHostsFile {root}/client/known_hosts
  GlobalKnownHostsFile /dev/null
  KexAlgorithms curve25519-sha256
"""
_INIT = """\
set -eu
hostname "$1"
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/sshd /run/lock /run/home
cp -a "$2" /run/node
install -d -m 700 -o {alice} -g {alice} /run/home/alice
install -d -m 700 /run/home/root
for name in passwd group shadow hosts; do mount --bind "/run/node/$name" "/etc/$name"; done
for path in $3; do
    if [ -d "$path" ]; then mount -t tmpfs none "$path"; else mount --bind /dev/null "$path"; fi
done
mkdir /run/of-outer-tmp
number=0
for path in $4; do
    number=$((number + 1))
    mkdir "/run/of-outer-tmp/$number"
    mount --rbind "$path" "/run/of-outer-tmp/$number"
done
mount -t tmpfs -o mode=1777 none /tmp
number=0
for path in $4; do
    number=$((number + 1))
    mkdir -p "$path"
    mount --rbind "/run/of-outer-tmp/$number" "$path"
done
mount -t tmpfs -o mode=1777 none /dev/shm
ip link set lo up
cd /
{sshd} 2>>/run/sshd.log &
: >/run/ready
while :; do sleep 100000 & wait $! || true; done
"""


def hangtop_files() -> tuple[str, ...]:
    """What is to be ``hidden`` from nodes that nothing was brought to: hangtop, and py-spy."""
    py_spy = probe_node.find_py_spy()
    assert py_spy is not None
    return str(REPOSITORY / "core"), os.path.realpath(py_spy)


def why_not() -> str | None:
    """Return why no cluster can be made here, or None."""
    if os.geteuid() != 0:
        return "a cluster of namespaces needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"a cluster of namespaces needs {', '.join(missing)} (see .ci/system-packages)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "veth"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        return f"no namespaces or no veth here: {tried.stderr.strip()[:100]}"
    return None


def run(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert not check or done.returncode == 0, (argv, done.stderr)
    return done


class Node:
    """One node: its init process, as this machine sees it."""

    def __init__(self, number: int, unshare: subprocess.Popen[bytes]) -> None:
        self.name = f"node-{number}"
        self.address = f"10.77.0.{number + 1}"
        self.unshare = unshare
        self.init = 0

    def argv(self, *argv: str) -> list[str]:
        """Return a command that runs ``argv`` on the node as root, without sshd."""
        return ["nsenter", "-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "--", *argv]

    def sh(self, script: str) -> str:
        """Run a shell script on the node as root."""
        return run(*self.argv("bash", "-c", script)).stdout

    def pids(self) -> list[int]:
        """Every process of the node, by its number on this machine."""
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for pid in all_pids():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == own:
                    found.append(pid)
        return found

    def freeze(self) -> None:
        """Stop everything on the node, as if the machine hung."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        told: set[int] = set()
        while new := set(self.pids()) - told:  # those that were started meanwhile, too
            for pid in new:
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                    os.kill(pid, number)
            told |= new

    def stop_sshd(self) -> None:
        """End the listener; sessions live on."""
        self.sh("kill $(pgrep -o -x sshd); while pgrep -f '[s]shd -D' >/dev/null; do :; done; true")

    def start_sshd(self) -> None:
        """Start the listener again."""
        self.sh(f"setsid {SSHD} </dev/null >/dev/null 2>>/run/sshd.log &")


class Cluster:
    """Nodes node-1 to node-N; a context manager. `bin` holds the `ssh` that reaches them."""

    def __init__(self, root: Path, count: int, hidden: Sequence[str] = ()) -> None:
        """``hidden`` are paths of this machine that the nodes do not have."""
        self.root = root
        self.bin = root / "bin"
        self.hidden = tuple(hidden)
        self.nodes: list[Node] = []
        self._count = count
        self._switch: subprocess.Popen[bytes] | None = None

    def node(self, number: int) -> Node:
        """Return node-NUMBER."""
        return self.nodes[number - 1]

    @property
    def path(self) -> str:
        """PATH with the programs that reach its nodes first."""
        return f"{self.bin}:{os.environ['PATH']}"

    def on_path(self) -> AbstractContextManager[object]:
        """As long as this lasts, `ssh` on PATH reaches its nodes."""
        return mock.patch.dict(os.environ, PATH=self.path)

    def unplug(self, number: int) -> None:
        """Take a node off the network as if its cable were pulled behind the switch: no reset."""
        self._ip("link", "set", f"v{number}", "nomaster")

    def plug(self, number: int) -> None:
        """Undo `unplug`."""
        self._ip("link", "set", f"v{number}", "master", "bridge")

    def at_head(self, *argv: str) -> list[str]:
        """Return a command that runs ``argv`` on this machine, but in the cluster's network."""
        return ["nsenter", "-t", str(self._pid), "--net", "--", *argv]

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The inits die with their unshare (--kill-child), and with an init its whole node.
        processes = [node.unshare for node in self.nodes]
        if self._switch is not None:
            processes.append(self._switch)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(PATIENCE)
        inits = [node.init for node in self.nodes if node.init]
        assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in inits))

    def _prepare(self) -> None:
        client = self.root / "client"
        client.mkdir(parents=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(client / "id"))
        known = []
        files = self._files()
        for number in range(1, self._count + 1):
            folder = self.root / f"node-{number}"
            folder.mkdir()
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key"))
            key = " ".join((folder / "host_key.pub").read_text().split()[:2])
            known.append(f"node-{number} {key}\n")
            for name, text in files.items():
                (folder / name).write_text(text)
        (client / "known_hosts").write_text("".join(known))
        wrong = " ".join((client / "id.pub").read_text().split()[:2])
        (client / "changed_hosts").write_text(f"changed {wrong}\n")
        hosts = [
            f"Host node-{n}\n  HostName 10.77.0.{n + 1}\n  HostKeyAlias node-{n}\n"
            for n in range(1, self._count + 1)
        ]
        config = "".join(hosts) + _SSH_CONFIG.format(root=self.root)
        (client / "config").write_text(config)
        (self.root / "init").write_text(_INIT.format(alice=ALICE, sshd=SSHD))

    def _files(self) -> dict[str, str]:
        names = "".join(f"10.77.0.{n + 1} node-{n}\n" for n in range(1, self._count + 1))
        users = {"root": 0, "alice": ALICE, "bob": ALICE + 1}
        others = "".join(
            line + "\n"
            for line in Path("/etc/passwd").read_text().splitlines()
            if line.partition(":")[0] not in users
        )
        return {
            "sshd_config": _SSHD_CONFIG,
            "authorized_keys": (self.root / "client/id.pub").read_text(),
            "hosts": f"127.0.0.1 localhost\n{names}",
            "passwd": others
            + "".join(f"{n}:x:{i}:{i}::/run/home/{n}:/bin/bash\n" for n, i in users.items()),
            "group": Path("/etc/group").read_text() + f"alice:x:{ALICE}:\n",
            "shadow": "".join(f"{n}:*:19000:0:99999:7:::\n" for n in (*users, "sshd")),
        }

    def _start(self) -> None:
        self._switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        assert wait_until(lambda: _has_own_net(self._pid))
        self._ip("link", "add", "bridge", "type", "bridge")
        self._ip("addr", "add", "10.77.0.1/16", "dev", "bridge")
        self._ip("link", "set", "bridge", "up")
        self._ip("link", "set", "lo", "up")
        # Every node has a /tmp of its own, in which what runs these tests is where it was.
        kept = " ".join(p for p in (str(REPOSITORY), sys.prefix) if p.startswith("/tmp/"))
        for number in range(1, self._count + 1):
            own = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc")
            words = [f"node-{number}", str(self.root / f"node-{number}"), " ".join(self.hidden)]
            script = ["bash", str(self.root / "init"), *words, kept]
            log = (self.root / f"node-{number}.log").open("wb")
            with log:
                process = subprocess.Popen(
                    ["unshare", *own, "--kill-child", *script],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.nodes.append(Node(number, process))
        for number, node in enumerate(self.nodes, 1):
            self._connect(number, node)
        self._make_ssh()

    @property
    def _pid(self) -> int:
        assert self._switch is not None
        return self._switch.pid

    def _ip(self, *words: str) -> None:
        run("nsenter", "-t", str(self._pid), "--net", "ip", *words)

    def _connect(self, number: int, node: Node) -> None:
        log = self.root / f"{node.name}.log"

        def ready() -> bool:
            children = Path(f"/proc/{node.unshare.pid}/task/{node.unshare.pid}/children")
            node.init = int((children.read_text().split() or ["0"])[0])
            return node.init > 0 and os.path.exists(f"/proc/{node.init}/root/run/ready")

        assert wait_until(ready), log.read_text()
        veth = f"v{number}"
        peer = ("peer", "name", "eth0", "netns", str(node.init))
        self._ip("link", "add", veth, "type", "veth", *peer)
        self._ip("link", "set", veth, "master", "bridge", "up")
        address = f"ip addr add {node.address}/16 dev eth0 && ip link set eth0 up"
        run("nsenter", "-t", str(node.init), "--net", "bash", "-c", address)

    def _make_ssh(self) -> None:
        """Make an `ssh` that knows this cluster, as the user's own configuration would."""
        self.bin.mkdir()
        config = self.root / "client/config"
        wrapper = self.bin / "ssh"
        inside = f"nsenter -t {self._pid} --net"
        wrapper.write_text(f'#!/bin/sh\nexec {inside} {SSH} -F {config} "$@"\n')
        wrapper.chmod(0o755)
        deadline = time.monotonic() + PATIENCE
        for node in self.nodes:
            while run(str(wrapper), "-oBatchMode=yes", node.name, "true", check=False).returncode:
                assert time.monotonic() < deadline, node.sh("cat /run/sshd.log")
                time.sleep(0.1)


def _has_own_net(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    return False
