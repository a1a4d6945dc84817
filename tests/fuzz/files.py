"""Decoders of files, and of what programs on this machine print."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import fuzz.kernel
import fuzz.local  # noqa: F401
from fuzz.head import shown
from fuzz.node import numerics_files
from fuzz.target import expect_harmless, target, text_of
from hangtop.cli import config
from hangtop.cli.arguments.arguments import in_file
from hangtop_core.attach.clusters import kube
from hangtop_core.attach.clusters import ray_nodes as raynodes
from hangtop_core.attach.connect import bundle
from hangtop_core.attach.connect.engine import MAX_STDERR
from hangtop_core.attach.slurm import my_jobs, slurm, slurm_reasons, srun
from hangtop_core.attach.ways import command, pdsh, reasons, subprocesses, targets
from hangtop_core.attach.ways.ssh import Login
from hangtop_core.capture import Facts, form, is_capture, load, save
from hangtop_core.capture.redact import Redaction, Redactor
from hangtop_core.cores import elf, native, python
from hangtop_core.cores.explain import explain
from hangtop_core.diagnosis import to_json
from hangtop_core.dumps import find
from hangtop_core.errors import BadCaptureError, UsageError
from hangtop_core.logs.judging.conclude import conclude
from hangtop_core.logs.judging.judge import judge
from hangtop_core.logs.meaning import kernel_lines
from hangtop_core.logs.reading import files
from hangtop_core.logs.reading.names import places
from hangtop_core.model.node import core_pattern as pattern
from hangtop_core.model.node import facts
from hangtop_core.model.recorder.ras import LISTED, BadReportError, Ras, from_json
from hangtop_core.model.recorder.ras_text import from_text
from hangtop_core.report import numerics
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.report.logs import document, logs_text
from hangtop_core.text.addresses import is_name
from hangtop_core.text.clean import clean
from hangtop_core.text.launchers import (
    announced_world_size,
    endpoint,
    launch_options,
    program,
    script,
)
from hangtop_core.tools import numerics_files as numericsfiles
from hangtop_probe.wire import tools
from support import ras
from support.cores.image import core
from support.logs import RECORDINGS
from support.record import load as recording

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRATCH = "/dev/shm"
"""Thousands of small files a minute: on no disk."""


@contextlib.contextmanager
def file_of(data: bytes, ending: str = "") -> Iterator[Path]:
    """The bytes as a file."""
    with tempfile.NamedTemporaryFile(suffix=ending, dir=SCRATCH) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


@functools.cache
def captures() -> list[bytes]:
    """The lines of captures; the first is small."""
    found = []
    for name in ("lock", "cluster"):
        with tempfile.TemporaryDirectory() as folder:
            saved = save(Path(folder, "x"), [recording(name)], Facts(hang_after=12.0))
            found.append(gzip.decompress(Path(saved.path).read_bytes()))
    return found


@target(captures)
def capture(data: bytes) -> None:
    """A capture is read as far as it goes, and what is shown of it is harmless."""
    with file_of(gzip.compress(data, 0)) as path, suppress(BadCaptureError):
        found = load(str(path))
        assert all(0 <= one.snapshot.at <= form.LAST_TIME for one in found.pictures)
        shown(found.newest.snapshot)
        for diagnosis in found.newest.diagnoses.values():
            expect_harmless(diagnosis_text(diagnosis), lines=True)


@target(lambda: [gzip.compress(captures()[0], 1)])
def packed_capture(data: bytes) -> None:
    """A damaged file is cut off or refused."""
    with file_of(data) as path, suppress(BadCaptureError):
        is_capture(str(path))
        load(str(path))


def printed() -> list[bytes]:
    samples = [path.read_bytes()[-6000:] for path in sorted(RECORDINGS.glob("*.out"))]
    labels = b"0: step 1\n1: [rank1]: Traceback (most recent call last):\n0: loss 0.5\n" * 3
    watchdog = (
        b"[rank0]:[E1121 11:17:10.508 ProcessGroupNCCL.cpp:688] [Rank 0] Watchdog caught collective"
        b" operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        b"Timeout(ms)=60000) ran for 60021 milliseconds before timing out.\n"
    )
    return [*samples, labels, watchdog]


@target(printed)
def log(data: bytes) -> None:
    """Any log is read, however it comes, and the report of it is harmless."""
    with file_of(data, ".out") as path:
        found = files.Found(str(path), places([str(path)])[str(path)])
        read = files.read(found, 0)
    judged = judge([read])
    expect_harmless(logs_text(judged, conclude(judged), [read], 100), lines=True)
    to_json(document(judged, conclude(judged), [read]))


NAMES = b"""/logs/r_x1/attempt_0/3/stderr.log
/logs/r_x1/attempt_0/4/stdout.log
/job/1/rank.007/stdout
slurm-12_4_1.err
train_0.log
train_1.log
/tmp/nccl_trace_rank_gpu07_3.pkl
"""


@target(lambda: [NAMES])
def names_of_files(data: bytes) -> None:
    """Names of logs and dumps have a rank in them, or none."""
    names = text_of(data).split("\n")
    assert set(places(names)) == set(names)
    for name in names:
        for prefix in (None, "rank_", "a"):
            rank = find.rank_of(name, prefix)
            assert rank is None or 0 <= rank < 1_000_000


@target(lambda: [gzip.compress(b"[rank0]: RuntimeError: NCCL error\n" * 20)])
def packed_log(data: bytes) -> None:
    """A damaged packed log is a problem of that file."""
    with file_of(data, ".out.gz") as path:
        files.read(files.Found(str(path), places([str(path)])[str(path)]), 0)


NAMED = b"""rank 3 on gpu[01-16], train-gpu07.site.org:29500 (10.0.0.7, fe80::1) in /home/alice/x/train.py
step 4 of gpu07 at train.py:3 (train_step) wrote ../ckpt/a b.pt to ~/runs/node-1_gpu07.log
"""


@target(lambda: [NAMED])
def redaction(data: bytes) -> None:
    """Lines keep their number with other names in them, and no name of a host is left by itself."""
    lines = text_of(data).split("\n")
    redactor = Redactor(Redaction(paths=True, hosts=True))
    redactor.learn_hosts(
        ["gpu07.site.org", *(f"gpu{n:02}" for n in range(1, 17)), *lines[0].split()]
    )
    redactor.learn_paths(lines)
    found = redactor.data(lines)
    assert len(found) == len(lines)
    assert redactor.text("on gpu07, gpu07.site.org").count("gpu07") == 0
    assert redactor.anew().data(lines) == found


def reports() -> list[bytes]:
    ranks = [ras.rank(n, 100 + n, counts={"AllReduce": 42 - n // 3}) for n in range(4)]
    whole = ras.document((ranks, [ras.missing(4, 104, dead=True)]), timeouts=2)
    table = "    0         1         1       3-4         4         4   RUNNING  MISMATCH\n"
    warnings = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 42
  Rank 3 has launched up to operation 41 -- GPU 3 managed by process 103 on node 10.0.0.1
  2 ranks have not launched any operations
  1 rank has status INIT
"""
    errors = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 3 on node 10.0.0.1 managing GPU 3

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3
"""
    text = ras.text(table, errors, warnings)
    return [whole.encode(), ras.without_comma(whole).encode(), text.encode()]


@target(reports)
def ras_report(data: bytes) -> None:
    """Both forms are read or refused, and what is kept of them is bounded."""
    text = text_of(data)
    for read in (from_json, from_text):
        with suppress(BadReportError):
            found: Ras = read(text)
            to_json(found)
            expect_harmless(found.version)
            for one in found.communicators:
                assert one.size >= 0
                expect_harmless(one.hash)
                for level in one.levels:
                    assert level.count >= 0
                    expect_harmless(level.op)
                    assert len(level.members) <= LISTED


QUEUE = b"""7|2_4|2|20001|alice|RUNNING|node-1|None
3|3+0|3|0|root|RUNNING|node-[1-2]|None
4|3+1|4|0|root|RUNNING|gpu[07-08]|None
5|5|5|0|root|PENDING||PartitionConfig
9|9_[1-5%2]|9|0|root|PENDING||Resources
8|8|8|0|root|COMPLETING|a,b-1,c[1,3-4]|None
"""


MINE = (
    b"7|RUNNING|1-02:03:04|N/A|n[1-2]|None|train\n",
    b"7_4|PENDING|0:00|N/A||Resources|a b\n8+1|FAILED|INVALID|2026-01-31T12:00:00|n1|None|x\n",
    b"7|CANCELLED by 1000|2026-01-31T12:00:00|train\n",
)
"""What squeue and sacct print where they are to list this user's jobs."""


@target(lambda: [QUEUE, *QUEUE.splitlines(keepends=True), *MINE])
def squeue(data: bytes) -> None:
    """What squeue prints is a job or an error in words."""
    done = subprocesses.Done(0, text_of(data), "")
    for asked in ("7", "3", "3+1", "8.0", "2_4", slurm.MINE):
        with mock.patch.object(subprocesses, "run", return_value=done), suppress(UsageError):
            assert my_jobs.what_became().isprintable()
            job = slurm.find_job(asked)
            assert len(job.nodes) <= targets.MAX_NODES * max(len(job.parts), 1)


PODS = {
    "items": [
        {
            "metadata": {"name": "a-0", "namespace": "ml", "labels": {"job-name": "a"}},
            "spec": {"nodeName": "gpu-7", "containers": [{"name": "main"}, {"name": "proxy"}]},
            "status": {"phase": "Running"},
        },
        {
            "metadata": {"name": "a-1", "namespace": "ml", "ownerReferences": [{"name": "a"}]},
            "spec": {"containers": [{"name": "m", "resources": {"limits": {"x/gpu": "8"}}}]},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled"}]},
        },
    ]
}


@target(lambda: [json.dumps(PODS).encode()])
def kubectl(data: bytes) -> None:
    """What kubectl prints is pods with names that a command can have, or an error in words."""
    done = subprocesses.Done(0, text_of(data), "")
    with (
        mock.patch.object(subprocesses, "run", return_value=done),
        mock.patch.object(command.shutil, "which", return_value="kubectl"),
        suppress(UsageError),
    ):
        for launcher in kube.launchers("a", Login()):
            targets.check_name(launcher.node, "--kube")
            assert launcher.via.isprintable()
            assert launcher.explain(1, text_of(data[:MAX_STDERR]), False).reason.isprintable()


RAY = b'[{"node_id": "2", "node_ip": "10.9.0.2", "state": "ALIVE"}, {"node_ip": "n", "state": "DEAD"}]'


@target(lambda: [RAY, b'{"data": {"result": {"result": ' + RAY + b"}}}"])
def ray_nodes(data: bytes) -> None:
    """What Ray prints of its nodes is names of nodes, or an error in words."""
    done = subprocesses.Done(0, text_of(data), "")
    answer = io.BytesIO(data)
    with mock.patch.object(urllib.request, "urlopen", return_value=answer), suppress(UsageError):
        raynodes._by_http("http://head:8265")
    with mock.patch.object(subprocesses, "run", return_value=done), suppress(UsageError):
        cluster = raynodes.ask("auto")
        assert cluster.notice.isprintable()
        for name in cluster.names:
            targets.check_name(name, "--ray")


STEP = b"""0: \x1eHT1 {"id": 0, "relay": 0}
1: \x1eHT1 {"id": 0, "relay": 1, "room": "7.0", "kept": 1}
0: hello
srun: error: node-2: task 1: Exited with exit code 1
1: slurmstepd: error: *** STEP 7.0 ON node-1 CANCELLED AT 2026-11-21T11:00:00 ***
node-1: \x1eHT1 {"id": 0, "hello": {"hostname": "node-1.x"}}
pdsh@head: node-2: ssh exited with exit code 255
"""


@target(lambda: [STEP])
def shared_commands(data: bytes) -> None:
    """Labels of srun and pdsh name one of the nodes, or nobody."""
    names = ("node-1", "node-2")
    with mock.patch.object(bundle, "relay"), mock.patch.object(pdsh, "command"):
        step = srun.BroadcastStep(names, ["srun"], "7")
        run = pdsh.PdshChannel(names, Login(), None).begin(names)
    for line in data.split(b"\n"):
        for read in (step.output_part, step.error_part, run.output_part, run.error_part):
            part = read(line)
            assert part is None or part.node in names


HOSTS = b"# hosts\ngpu1 slots=8\ngpu2:8\nnode-[003-005]\n10.0.0.7 4\n\nfe80::1%eth0\n"


@target(lambda: [HOSTS])
def hostfile(data: bytes) -> None:
    """A hostfile is nodes that are no options, or an error."""
    with file_of(data) as path, suppress(UsageError):
        for name in targets.read_hostfile(path):
            assert is_name(name)


TOML = b"""nodes = ["gpu[1-2]"]
via = "ssh"
fanout = 8
connect_timeout = 2.5
readonly = true
hostfile = "~/hosts"
[keys]
help = ["f1", "?"]
quit = "ctrl+q"
"""


@target(lambda: [TOML])
def config_file(data: bytes) -> None:
    """A config file is options and keys, or an error that is harmless to show."""
    with file_of(data) as path:
        for read in (lambda: config.read(path, OPTIONS), lambda: config.keymap(path)):
            try:
                read()
            except UsageError as error:
                expect_harmless(str(error))


OPTIONS = in_file()


@target(lambda: [core(environment={"RANK": "3"}, files=((0x1000, 0x2000, 0, "/opt/python"),))])
def core_file(data: bytes) -> None:
    """A core is read or is none; no count in it is believed."""
    with file_of(data) as path, suppress(elf.NotACoreError):
        elf.is_core(str(path))
        header = elf.read(str(path))
        assert len(header.threads) <= elf.MAX_THREADS
        explain(header, ())
        elf.first_page(str(path), 0x1000)


GDB = b"""Thread 2 (Thread 0x7f37771296c0 (LWP 8904)):
#0  0x00007f3796326f36 in epoll_wait (epfd=..., events=...) at /b/epoll_wait.c:30
#1  0x00007f3787f7d62d in gloo::transport::tcp::Loop::run() () from /venv/torch/lib/libtorch.so
Thread 1 (LWP 8903):
#1  0x00007f37964fd9c3 in _PyEval_EvalFrameDefault (tstate=..., f=...) at Python/ceval.c:4769
#2  0x00007f37964fd9c4 in std::function<void ()>::operator()(int) const (this=...) at /a b/f.h:9
hangtop abort message: double free or corruption
"""


@target(lambda: [GDB, *python_threads()])
def core_readers(data: bytes) -> None:
    """What gdb, pystack and py-spy print of a core is threads, or a reason."""
    found = native.parse(text_of(data))
    for frames in found.threads.values():
        to_json(frames)
    with mock.patch.object(tools.Tools, "run", return_value=tools.Done(0, data, b"")):
        for kind in (list[python._Thread], python._Found):
            said, _ = python._by(tools.Tools(), ["x"], kind)
            threads = said.threads if isinstance(said, python._Found) else said
            to_json(python._threads(threads or []))


def python_threads() -> list[bytes]:
    frame = {"name": "step", "filename": "/a.py", "line": 3, "is_entry": True, "locals": []}
    thread = {"os_thread_id": 7, "thread_name": "Main", "owns_gil": True, "frames": [frame]}
    return [json.dumps([thread]).encode(), json.dumps({"threads": [thread]}).encode()]


@target(lambda: [b"core.%e.%p.%h", b"|/lib/systemd/systemd-coredump %P %u", b"/var/%h/core-%p"])
def core_pattern(data: bytes) -> None:
    """Any core_pattern means some place, or none."""
    for uses_pid in (False, True):
        place = pattern.understand(text_of(data), uses_pid)
        pattern.expected(place, pid=1, comm="python", cwd="/", node="n1", signal=11)
        assert isinstance(place.text, str)


@target(numerics_files)
def numerics_file(data: bytes) -> None:
    """A numerics file is read as far as it goes, and its report is harmless."""
    with file_of(data) as path:
        found = numericsfiles.read(path, lambda _: True)
    expect_harmless(numerics.numerics_text([found]), lines=True)
    to_json(numerics.document([found]))


KERNEL = (
    b"NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    b"Out of memory: Killed process 4711 (python3) total-vm:12kB, anon-rss:1kB",
    b"INFO: task python3:4711 blocked for more than 120 seconds.",
    b"python3[4711]: segfault at 0 ip 00007f1 sp 00007f2 error 4 in libc.so[7f+1]",
    b"torchrun\0--nnodes=2\0--nproc-per-node\0008\0--rdzv-endpoint=[::1]:29500\0train.py\0--lr=1",
)


@target(lambda: list(KERNEL))
def lines_of_text(data: bytes) -> None:
    """Lines of the kernel and command lines are understood, or not."""
    text = text_of(data)
    kernel_lines.read(facts.KernelLine(1.0, text[:4096]))
    words = text.split("\0")
    for read in (announced_world_size, endpoint, program, script, launch_options):
        read(words)
    expect_harmless(clean(text))


ENDINGS = (
    b"ssh: connect to host gpu07 port 22: Connection refused\r\n",
    b"alice@gpu07: Permission denied (publickey).\r\n",
    b"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key for [gpu07]:2222 has"
    b" changed and you have requested strict checking.\nHost key verification failed.\n",
    b"bash: line 1: exec: python3: not found\n",
    b"sudo: a password is required\n",
    b"srun: error: Unable to create step for job 7: Invalid job id specified\n",
    b"srun: error: node-2: task 1: Exited with exit code 1\nslurmstepd: error: *** STEP 7.0 ON n1 "
    b"CANCELLED AT 2026-11-21T11:00:00 DUE TO TIME LIMIT ***\n",
)


@target(lambda: list(ENDINGS))
def endings(data: bytes) -> None:
    """Why a connection ended is told in words, with a command that does nothing else."""
    text = text_of(data)
    context = reasons.Context(
        "gpu07", ("ssh", "gpu07"), "python3", True, ("ssh", "gpu07", "python3", "-V")
    )
    step = slurm_reasons.Step("node-2", "7", "alice", ("srun",))
    for code in (255, 127, None):
        for ending in (
            reasons.explain_login(code, text, False, context),
            reasons.explain_login(code, text, True, context, log=text),
            slurm_reasons.explain_srun(code, text, False, step, "python3", False),
            pdsh.explain(code, text, False, "gpu07", Login()),
        ):
            expect_harmless(ending.reason, lines=True)
            expect_harmless(ending.fix_text or "", lines=True)
