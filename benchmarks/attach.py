"""Attaching to N nodes and dumping all stacks, against pdsh and py-spy on the same nodes.

The nodes are network namespaces with an sshd each (`tests/support/cluster.py`), so this needs root,
and pdsh. All nodes share this machine's cores, where real ones have their own: what runs on the
nodes costs both sides more here than it would there.

    PYTHONPATH=core:tui:tests python benchmarks/attach.py [N ...] [--rounds R] [--torch]

Per N: `dump`, all stacks with the connections up, as a screen asks for them; `again`, the same when
no sample of a process that rests may be used again, in the mode that py-spy has in the pdsh line;
`one-shot`, the command `hangtop dump`; `cold` and `warm`, attaching with and without sending probe
and py-spy; medians in seconds of some rounds, in each of which everything runs. `x` is how many
times longer pdsh took in the same run. Then what the head needs: MiB of hangtop, and of each ssh.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.attach.ways.ssh import Login, SshLauncher
from hangtop_core.report.stacks import merged_text
from hangtop_core.session.session import Options, Session, Update
from hangtop_core.stacks.merging import merge
from hangtop_probe.node import node as probe_node
from support.cluster import Cluster, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[1]
DUMPS = 3
"""Dumps over one warm connection, per round."""
TRAIN = """
import threading

def all_reduce(store):
    store.wait()

def backward(depth, store):
    return backward(depth - 1, store) if depth else all_reduce(store)

for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
backward(20, threading.Event())
"""
"""A rank as small as Python is: 32 with torch in them would leave two cores no time for us."""
PGREP = "pgrep -f '[p]ython[^ ]* -u .*train.py'"


def place(cluster: Cluster, py_spy: str, script: str) -> None:
    """Put a py-spy for pdsh and the training script into /run of every node."""
    for node in cluster.nodes:
        run = Path(f"/proc/{node.init}/root/run")
        shutil.copy(py_spy, run / "py-spy")
        (run / "train.py").write_text(script)


def light(cluster: Cluster, count: int, ranks: int) -> list[subprocess.Popen[bytes]]:
    """Start the small ranks."""
    started = []
    for number in range(count * ranks):
        node = cluster.nodes[number // ranks]
        variables = {
            "RANK": number,
            "LOCAL_RANK": number % ranks,
            "WORLD_SIZE": count * ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": cluster.nodes[0].address,
            "MASTER_PORT": 29500,
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        argv = node.argv("env", *words, sys.executable, "-u", "/run/train.py")
        started.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))
    return started


def real(cluster: Cluster, count: int, ranks: int) -> list[subprocess.Popen[bytes]]:
    """Start torchrun on every node: a gloo job whose rank 2 does not come to its all_reduce."""
    started = []
    for number, node in enumerate(cluster.nodes[:count]):
        argv = node.argv("env", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=eth0", sys.executable)
        argv += ["-m", "torch.distributed.run", f"--nnodes={count}", f"--node-rank={number}"]
        argv += [f"--nproc-per-node={ranks}", f"--master-addr={cluster.nodes[0].address}"]
        argv += ["--master-port=29500", "/run/train.py", "collective"]
        null = subprocess.DEVNULL
        started.append(subprocess.Popen(argv, stdin=null, stdout=null, stderr=null))
    return started


class Times(dict[str, list[float]]):
    """What was measured, in seconds, by name."""

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Measure what is done inside."""
        began = time.perf_counter()
        yield
        self.setdefault(name, []).append(time.perf_counter() - began)

    def median(self, name: str) -> float:
        """Return the median of what was measured under this name."""
        return statistics.median(self[name])


class Bench:
    """N nodes of a cluster with their ranks."""

    def __init__(self, cluster: Cluster, count: int, ranks: int) -> None:
        self.cluster = cluster
        self.nodes = cluster.nodes[:count]
        self.ranks = count * ranks
        self.names = [node.name for node in self.nodes]
        self.times = Times()

    def session(self) -> Session:
        """Return a session on all nodes."""
        login = Login()
        return Session(Options(), diagnose, [SshLauncher(name, login) for name in self.names])

    def attach(self, session: Session) -> None:
        """Wait until every node has shown its processes."""

        def up(update: Update) -> bool:
            return all(node.last_seen is not None for node in update.snapshot.nodes)

        if session.wait(up, 120) is None:
            raise SystemExit(f"not attached: {session.latest and session.latest.snapshot.nodes}")

    def dump(self, session: Session, mode: Literal["nonblocking", "blocking"]) -> None:
        """Take all stacks now and merge them into text, as a screen does."""
        found = session.sample(mode=mode).result(60)
        seen = sum(bool(one.sample.threads) for one in found)
        expect(seen, self.ranks, found)
        latest = session.latest
        if latest is not None:
            merged_text(merge(latest.snapshot, latest.snapshot.jobs[0]), 100)

    def pdsh(self) -> None:
        """Do what people do without hangtop."""
        line = f"{PGREP} | xargs -n1 /run/py-spy dump --pid"
        argv = ["pdsh", "-R", "ssh", "-f", "64", "-w", ",".join(self.names), line]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        expect(done.stdout.count("MainThread"), self.ranks, done.stdout[-2000:] + done.stderr)

    def one_shot(self) -> None:
        """Run the command, caches on the nodes being there."""
        argv = [sys.executable, "-m", "hangtop", "dump", "-w", ",".join(self.names)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if f"{self.ranks} ranks of {self.ranks} gave a stack" not in done.stdout:
            raise SystemExit(f"dump: {done.stdout[:2000]}{done.stderr}")

    def wait_for_ranks(self) -> None:
        """Wait until all ranks are where they stay."""
        with self.session() as session:
            started = session.wait(
                lambda u: any(
                    len(job.ranks) == self.ranks
                    and all(r.moved_at and u.snapshot.at - r.moved_at > 2 for r in job.ranks)
                    for job in u.snapshot.jobs
                ),
                120,
            )
        if started is None:
            raise SystemExit("the ranks did not come up")

    def round(self) -> None:
        """Do everything once."""
        for node in self.nodes:
            node.sh("rm -rf /run/home/root/.cache/hangtop")
        with self.times.of("cold"), contextlib.closing(self.session()) as session:
            session.start()
            self.attach(session)
        with self.times.of("pdsh"):
            self.pdsh()
        with self.times.of("one-shot"):
            self.one_shot()
        with contextlib.closing(self.session()) as session:
            with self.times.of("warm"):
                session.start()
                self.attach(session)
            session.wait(sampled, 60)
            for _ in range(DUMPS):
                with self.times.of("dump"):
                    self.dump(session, "nonblocking")
            with self.times.of("again"):
                self.dump(session, "blocking")

    def memory(self) -> tuple[float, float]:
        """Return what the head needs: MiB of PSS of hangtop, and of all ssh together."""
        with subprocess.Popen(
            [sys.executable, __file__, "--hold", ",".join(self.names)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as head:
            assert head.stdout
            head.stdout.readline()
            tasks = Path(f"/proc/{head.pid}/task").glob("*/children")
            children = [int(word) for path in tasks for word in path.read_text().split()]
            found = pss(head.pid), sum(map(pss, children))
            head.communicate()
        return found


def sampled(update: Update) -> bool:
    """Whether the session has seen every rank's stack by itself, so that it rests."""
    ranks = [rank for job in update.snapshot.jobs for rank in job.ranks]
    return bool(ranks) and all(rank.sample is not None for rank in ranks)


def expect(seen: int, wanted: int, what: object) -> None:
    """Stop where one side does less than the other."""
    if seen != wanted:
        raise SystemExit(f"{seen} stacks instead of {wanted}: {what}")


def pss(pid: int) -> float:
    """Return the proportional set size of a process in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def hold(names: Sequence[str]) -> None:
    """Be attached to nodes until the end of input."""
    login = Login()
    session = Session(Options(), diagnose, [SshLauncher(name, login) for name in names])
    with session:
        session.wait(sampled, 120)
        print("up", flush=True)
        sys.stdin.read()


HEADING = """\
             seconds                                                            MiB
nodes ranks    pdsh   dump           again          one-shot       warm    cold  hangtop   ssh"""


def row(bench: Bench) -> str:
    """One line of the table."""
    times = bench.times
    pdsh = times.median("pdsh")
    text = f"{len(bench.nodes):5} {bench.ranks:5} {pdsh:7.2f}"
    for name in ("dump", "again", "one-shot"):
        seconds = times.median(name)
        text += f" {seconds:7.3f} {pdsh / seconds:5.1f}x"
    head, ssh = bench.memory()
    attach = f" {times.median('warm'):7.2f} {times.median('cold'):7.2f}"
    return f"{text}{attach} {head:8.1f} {ssh / len(bench.nodes):5.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("counts", nargs="*", type=int, default=[1, 4, 8, 16], metavar="N")
    parser.add_argument("--ranks", type=int, default=2, help="per node (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--torch", action="store_true", help="real gloo ranks instead of small ones"
    )
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(options.hold.split(","))
        return
    py_spy = probe_node.find_py_spy()
    reason = why_not() or ("pdsh is not installed" if shutil.which("pdsh") is None else None)
    if reason or py_spy is None:
        raise SystemExit(reason or "py-spy is not installed")
    print(HEADING)
    hidden = (str(ROOT / "core"), os.path.realpath(py_spy))
    folder = Path(tempfile.mkdtemp(prefix="hangtop-bench-"))
    path, torch = os.environ["PATH"], options.torch
    try:
        for count in options.counts:
            with Cluster(folder / f"c{count}", count, hidden) as cluster:
                os.environ["PATH"] = f"{cluster.bin}:{path}"
                script = (ROOT / "tests/support/gloo_job.py").read_text() if torch else TRAIN
                place(cluster, py_spy, script)
                measure(cluster, count, options)
    finally:
        shutil.rmtree(folder)


def measure(cluster: Cluster, count: int, options: argparse.Namespace) -> None:
    """Measure one number of nodes."""
    started = (real if options.torch else light)(cluster, count, options.ranks)
    try:
        bench = Bench(cluster, count, options.ranks)
        bench.wait_for_ranks()
        for _ in range(options.rounds):
            bench.round()
        print(row(bench), flush=True)
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
