"""What every rank's main thread is doing, read from its frames first and from the kernel second.

An activity is never guessed: what cannot be told is `unknown`, with the reason in its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hangtop_core.analysis import native
from hangtop_core.analysis.kernel import waits_in
from hangtop_core.analysis.native import WAITS_FOR_GPU
from hangtop_core.analysis.reading import Reading, read
from hangtop_core.analysis.sourcelines import (
    by_source,
    inner_while,
    sleeps,
    store_text,
    waits_for_gpu,
)
from hangtop_core.analysis.waking import as_it_slept, asking
from hangtop_core.model.frames import where
from hangtop_core.model.snapshot import Frame, Thread
from hangtop_core.stacks.kinds import Kind
from hangtop_core.text.clean import how_ended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop_core.model.snapshot import Process, Rank, StackSample, ThreadStack

_AT_EXIT: frozenset[Kind] = frozenset({"lock", "join", "queue", "sleep", "waiting"})
_OPEN: frozenset[Kind] = frozenset({"waiting", "busy", "unknown"})  # C frames may decide these
_GPU_THREADS = ("cuda", "pt_nccl")
"""How names of threads of CUDA's driver begin, and of torch's NCCL."""


class Activity(Struct, frozen=True, gc=False):
    """What one main thread does."""

    kind: Kind
    text: str
    """For sentences: `rank 2 {text}`."""
    site: Frame | None = None
    top: Frame | None = None
    op: str | None = None
    family: str | None = None
    """What it sleeps on in the kernel, see `kernel.waits_in`."""
    main: Thread | None = None
    running: bool = False
    loading: bool = False
    owner: int | None = None
    """Thread id of the GIL's owner in the sample."""
    by_thread: bool = False
    """Another thread of the rank does this, and the main thread waits for that one."""
    thread: str = ""
    """Its name, where it is looked at like a main thread: `main` is what the kernel says of it."""
    serving: bool = False
    """That thread answers a call of another rank by torch.distributed.rpc."""
    awaited: str = ""
    """`waits in result at train.py:9 (f)`, what the main thread does meanwhile."""
    unseen: str = ""  # why no stack tells where it is, where `text` does not say so
    peer: int | None = None  # the rank at the other end of the socket of its own that it reads from

    @property
    def at(self) -> str:
        """Where in the user's code, for sentences."""
        return where(self.site) + (f" ({self.unseen})" if self.unseen else "")


OVER_MEMORY = "is held up by the kernel because its cgroup is over memory.high"


class Reader:
    """Reads activities out of one snapshot, each distinct stack once."""

    def __init__(self, stacks: Mapping[str, tuple[Frame, ...]]) -> None:
        self._stacks = stacks
        self._readings: dict[str, Reading] = {}

    def reading(self, key: str) -> Reading:
        """What a stack says."""
        found = self._readings.get(key)
        if found is None:
            found = self._readings[key] = read(self._stacks.get(key, ()))
        return found

    def frames(self, key: str) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first."""
        return self._stacks.get(key, ())

    def uses(self, key: str, *files: str) -> bool:
        """Whether a frame of a stack is in one of these files, of which parts are given."""
        return any(part in frame.file for frame in self._stacks.get(key, ()) for part in files)

    def rank(self, rank: Rank) -> Activity:
        """What a rank's main thread does."""
        if rank.state == "exited":
            return Activity("exited", _left(rank.process))
        found = self.process(rank.process, rank.sample)
        if found.kind == "busy" and found.running and (slept := as_it_slept(rank)) is not None:
            found = self.process(slept, rank.sample)
        found = found if found.owner is None else asking(found, rank)
        return found if rank.descriptors is None else _resolved(found, rank)

    def process(self, process: Process, sample: StackSample | None) -> Activity:
        """What the main thread of a rank, child or launcher does."""
        main = process.main_thread
        letter = main.state if main is not None and main.state else process.state
        early = _halted(process, main, letter)
        stack = sample.threads[0] if sample is not None and sample.threads else None
        if stack is not None and main is not None and stack.tid not in (None, main.tid):
            # The node learns only by this stack which thread runs the program.
            main = next((one for one in process.threads if one.tid == stack.tid), None)
        read_ = self.reading(stack.stack) if stack is not None else None
        found = early or doing(read_, stack, sample, main, letter)
        if read_ is not None and found.kind == "busy" and _polls_gpu(process, read_):
            found = msgspec.structs.replace(found, kind="work-wait", text=WAITS_FOR_GPU)
        if read_ is not None and read_.natives and found.kind in _OPEN:
            told = native.decided(read_.natives)
            if told is not None:
                found = msgspec.structs.replace(found, kind=told[0], text=told[1])
        if read_ is not None and read_.after and found.kind in _AT_EXIT:
            text = f"is shutting down: a function that it calls at its end {found.text}"
            found = msgspec.structs.replace(found, kind="teardown", text=text)
        if read_ is not None and found is early:
            found = _with_place(found, read_)
        return found

    def thread(self, process: Process, stack: ThreadStack) -> tuple[Reading, Thread | None]:
        """What another thread's stack says, and what the kernel says of it."""
        found = (one for one in process.threads if one.tid == stack.tid)
        return self.reading(stack.stack), next(found, None)


def _polls_gpu(process: Process, read_: Reading) -> bool:
    """Whether a rank that runs in a line which needs a result of its GPU only waits for that.

    CUDA spins by default while it waits (cudaDeviceScheduleAuto), and calls into C have no frame.
    """
    source = read_.top.source if read_.top is not None else None
    return waits_for_gpu(source) and uses_cuda(process)


def uses_cuda(process: Process) -> bool:
    """Whether it has threads of CUDA's driver, or of a process group of NCCL."""
    return any(thread.name.startswith(_GPU_THREADS) for thread in process.threads)


def _left(process: Process) -> str:
    return "has exited" if process.exit_code is None else how_ended(process.exit_code)


def _halted(process: Process, main: Thread | None, letter: str) -> Activity | None:
    """States in which the frames do not matter."""
    if process.gone_at is not None:
        return Activity("exited", _left(process))
    if process.state in ("Z", "X") or letter in ("Z", "X"):
        return Activity("zombie", f"{_left(process)} and is a zombie", main=main)
    if process.dumping_core:
        return Activity("core-dump", "is writing a core dump", main=main)
    if process.frozen:
        return Activity("frozen", f"is frozen by its cgroup {process.cgroup or ''}".rstrip())
    if letter == "t":
        by = "a debugger that is not seen from here"
        if process.tracer_pid:
            by = f"{process.tracer or 'a debugger'} (pid {process.tracer_pid})"
        return Activity("traced", f"is held by {by}, which traces it", main=main)
    if letter == "T":
        return Activity("stopped", "is stopped by a signal (state T)", main=main)
    return None


def doing(
    read_: Reading | None,
    stack: ThreadStack | None,
    sample: StackSample | None,
    main: Thread | None,
    letter: str,
) -> Activity:
    """What a thread does, of what its frames and the kernel say."""
    family = waits_in(main) if letter != "R" else None
    running = letter == "R" or bool(stack and stack.active and family is None)
    if read_ is None or stack is None or sample is None:
        return _without_stack(sample, main, family, running)
    if family == "poll" and read_.top is not None and sleeps(read_.top.source):
        family = "sleep"  # time.sleep is a select without descriptors, up to Python 3.10
    owner = next((one for one in sample.threads if one.gil), None)
    kind, text = _kind(read_, family, letter, running, main)
    # Who asks for the GIL again, every 5 ms, may be met awake.
    asks = family == "futex" or (family is None and owner is not None and not owner.active)
    if owner is not None and asks and _lacks_gil(kind, read_, owner, main):
        kind, text = "gil", "waits for the GIL"
    return Activity(
        kind=kind,
        text=text,
        site=read_.site,
        top=read_.top,
        op=read_.op,
        family=family,
        main=main,
        running=running,
        loading=read_.loading,
        owner=owner.tid if owner is not None else None,
    )


def _lacks_gil(kind: Kind, read_: Reading, owner: ThreadStack, main: Thread | None) -> bool:
    """Whether a main thread asleep on a futex waits for the GIL, which another thread owns.

    An owner that sleeps lets nobody run Python, whatever a thread was about to do.
    """
    if main is None or owner.tid == main.tid:
        return False
    if kind in ("lock", "join", "queue"):
        return not owner.active
    return read_.own or read_.kind is None or kind in ("waiting", "busy")


def _kind(
    read_: Reading, family: str | None, letter: str, running: bool, main: Thread | None
) -> tuple[Kind, str]:
    """Join what the frames and the kernel say; the frames first."""
    if family == "over-memory":
        return "io", OVER_MEMORY
    if letter == "D" and read_.kind != "checkpoint":
        return "io", "is in uninterruptible sleep (state D)"
    if read_.kind == "backward" and running:
        return "busy", "computes gradients"
    elsewhere = read_.kind == "lock" and family not in (None, "futex")
    if elsewhere or (read_.kind in ("inline-data", "importing") and family in _BLOCKING):
        return _from_kernel(read_, family, main)
    if read_.kind is not None:
        return read_.kind, read_.text
    if running and read_.own and read_.top is not None and sleeps(read_.top.source):
        return _asleep(read_)  # it was seen on its way into that, or out of it
    if running:
        return "busy", "is busy"
    return _from_kernel(read_, family, main)


_BLOCKING = frozenset(
    {"pipe-read", "pipe-write", "fifo-open", "file-lock", "child", "socket", "tty-read"}
)
_READS = frozenset({"read", "readv"})
"""Also of a terminal, in which they sleep in `wait_woken`, as in a socket."""
_EXCHANGES = ("/torch/distributed/", "/torch/futures/", "/torch/nn/parallel/distributed.py")
"""Torch's own code that waits for collectives in C, also where no function is known by name."""
_OUTSTANDING: tuple[Kind, str] = ("work-wait", "waits for outstanding communication")
_FAMILIES: dict[str, tuple[Kind, str]] = {
    "sleep": ("sleep", "sleeps"),
    "file-lock": ("file-lock", "waits for a file lock"),
    "child": ("child", "waits for a child process"),
    "socket": ("remote", "waits for a network peer"),
    "fifo-open": ("io", "waits for the other end of a FIFO it opens"),
    "open": ("io", "is blocked while opening a file"),
    "pipe-read": ("io", "is blocked reading a pipe"),
    "read": ("io", "is blocked reading"),
    "write": ("io", "is blocked writing"),
    "tty-read": ("prompt", "waits for input from the terminal"),
    "signal": ("waiting", "waits for a signal"),
    "ioctl": ("waiting", "is inside a device driver (ioctl)"),
    "core-dump": ("core-dump", "is writing a core dump"),
}


def _from_kernel(read_: Reading, family: str | None, main: Thread | None) -> tuple[Kind, str]:
    source = read_.top.source if read_.top is not None else None
    inside = not read_.own and _exchanges(read_.top)
    told = by_source(source) if read_.own or inside else None
    descriptor = main.fd if main is not None else None
    if told is not None and told[0] == "prompt" and family == "poll":
        return told  # GNU readline
    if told is not None and told[0] == "store" and family in ("socket", "poll", "futex", "sleep"):
        return "store", store_text(read_.top)
    if family == "futex":
        return told or (_OUTSTANDING if inside else ("waiting", "sleeps on a futex"))
    if family == "poll":
        return ("waiting", "waits in poll for a descriptor")
    if family in ("pipe-write", "write") and descriptor in (1, 2):
        name = "stdout" if descriptor == 1 else "stderr"
        return "output", f"is blocked writing to its own {name}"
    if family == "pipe-write":
        return "output", "is blocked writing to a pipe"
    if family in ("pipe-read", "read", "socket") and descriptor == 0:
        return "prompt", "waits for input on its stdin"
    if family is not None and family in _FAMILIES:
        return _asleep(read_) if family == "sleep" else _FAMILIES[family]
    return "unknown", "sleeps, and the kernel does not tell in what (wchan and syscall unreadable)"


def _asleep(read_: Reading) -> tuple[Kind, str]:
    """Who sleeps in a `while` that asks the store waits for keys."""
    told = by_source(inner_while(read_.top)) if read_.own else None
    return told if told is not None and told[0] == "store" else _FAMILIES["sleep"]


def _exchanges(frame: Frame | None) -> bool:
    return frame is not None and any(part in "/" + frame.file for part in _EXCHANGES)


def _without_stack(
    sample: StackSample | None, main: Thread | None, family: str | None, running: bool
) -> Activity:
    failure = sample.failure if sample is not None else None
    why = f"no stack: {failure.text}" if failure is not None else "no stack yet"
    kind: Kind = "io"
    if main is not None and main.state == "D":
        text = OVER_MEMORY if family == "over-memory" else "is in uninterruptible sleep (state D)"
    elif family in ("file-lock", "child", "sleep", "pipe-read", "fifo-open"):
        kind, text = _FAMILIES[family]
    elif running:
        kind, text = "busy", "is busy"
    else:
        text = "has given no stack yet" if failure is None else f"gave no stack ({failure.text})"
        text += f", asleep in {main.wchan or main.syscall}" if main and family else ""
        kind, why = "unknown", ""
    return Activity(kind, text, family=family, main=main, running=running, unseen=why)


def _with_place(found: Activity, read_: Reading) -> Activity:
    return msgspec.structs.replace(
        found, site=read_.site, top=read_.top, op=found.op or read_.op, loading=read_.loading
    )


def _resolved(found: Activity, rank: Rank) -> Activity:
    """What leads to a terminal is a prompt, and to the store's port a wait for other ranks."""
    main, table = rank.process.main_thread, rank.descriptors
    if main is None or main.fd is None or table is None or found.kind not in ("remote", "waiting"):
        return found
    one = table.of(main.fd)
    if one is not None and one.kind == "tty" and main.syscall in _READS:
        kind, text = _FAMILIES["tty-read"]
        return msgspec.structs.replace(found, kind=kind, text=text)
    if one is None or one.socket is None or not rank.process.meets_at(one.socket.remote):
        return found
    return msgspec.structs.replace(found, kind="store", text=store_text(found.top))
