"""The cause of a core, from the functions on its stacks and its signal. Pure.

Names of torch's functions: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of torch 1.13 to 2.15
(`ncclCommWatchdog`, `watchdogHandler`, since 2.8 `Watchdog::runLoop`; `heartbeatMonitor`, since 2.8
`HeartbeatMonitor::runLoop`; `handleNCCLGuard`, since 2.0 `handleException`) and
c10/util/Exception.cpp. Signal codes: include/uapi/asm-generic/siginfo.h.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.text.clean import clean, signal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangtop_core.cores.elf import Header, Mapped, Signal
    from hangtop_core.cores.threads import CoreThread
    from hangtop_core.model.frame import Frame

DEEP = 250
"""Number of frames from which a stack that ends in a fault counts as overflowed."""
NEAR_STACK = 1 << 16
"""Maximum distance in bytes between stack pointer and fault for a push or a call."""
_BUS_ADRERR = 2

LOOK_AT_THE_HANG = (
    "hangtop logs FILE: the first error, and which collective timed out",
    "hangtop flight: the recorders that the ranks left then say who did not join it",
)
_COMPARE_MEMORY = ("compare the memory limit of the job with what it uses: hangtop, screen 3",)


class Explanation(Struct, frozen=True):
    """A known fact about a crash."""

    code: str
    text: str
    steps: tuple[str, ...] = ()


class _Known(Struct, frozen=True):
    code: str
    pattern: re.Pattern[str]
    text: str
    steps: tuple[str, ...] = ()


_KNOWN = (
    _Known(
        "watchdog",
        re.compile(
            r"ProcessGroup\w+::(Watchdog::run|ncclCommWatchdog|watchdogHandler|workCleanupLoop|"
            r"WorkNCCL::(handleNCCLGuard|handleException))"
        ),
        "torch's watchdog ended this rank on purpose: a collective did not end within its "
        "timeout, or one failed on another rank. The crash is no fault of this rank's code, and "
        "its core does not tell why: look at why the collective hung",
        LOOK_AT_THE_HANG,
    ),
    _Known(
        "heartbeat-monitor",
        re.compile(r"ProcessGroup\w+::(HeartbeatMonitor::|heartbeatMonitor|terminateProcess)"),
        "torch's heartbeat monitor ended this rank on purpose: its watchdog thread itself stood "
        "still for longer than TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, or another rank had timed out. "
        "Look for the thread that is in a CUDA or NCCL call or waits for the GIL, and at why the "
        "collective hung",
        ("hangtop core CORE --all-threads: what the watchdog thread waited for", *LOOK_AT_THE_HANG),
    ),
    _Known(
        "out-of-memory",
        re.compile(r"std::bad_alloc|operator new\b|__throw_bad_alloc|alloc_cpu"),
        "it could not get memory (std::bad_alloc): the node, its cgroup or a limit "
        "(ulimit -v) was exhausted, or it asked for a size that makes no sense",
        _COMPARE_MEMORY,
    ),
    _Known(
        "python-fatal-error",
        re.compile(r"fatal_error|Py_FatalError|_Py_CheckRecursiveCall|faulthandler_"),
        "Python itself gave up (Fatal Python error): its message on standard error says why",
        ("hangtop logs FILE: the lines that begin with Fatal Python error",),
    ),
    _Known(
        "torch-error",
        re.compile(
            r"c10::(Error|detail::torch|detail::deprecated|DistBackendError)|torchCheckFail"
        ),
        "a C++ error of torch (c10::Error) was thrown where nothing catches it, in a thread of "
        "its own or a destructor: its message is on standard error",
        ("hangtop logs FILE: the lines after `terminate called after throwing`",),
    ),
    _Known(
        "assertion",
        re.compile(r"_*assert_fail(_base)?$|__assert"),
        "an assertion of a C or C++ library failed",
        ("hangtop logs FILE: the line with `Assertion`",),
    ),
    _Known(
        "heap-corruption",
        re.compile(r"malloc_printerr|_int_free|__libc_message|malloc_consolidate|unlink_chunk"),
        "the heap is damaged (double free, or a write behind the end of a block): what damaged it "
        "ran earlier, so the stack only shows who noticed",
        ("run once with MALLOC_CHECK_=3, or with compute-sanitizer or AddressSanitizer",),
    ),
    _Known(
        "uncaught-exception",
        re.compile(r"std::terminate|__cxxabiv1::__terminate|__verbose_terminate_handler"),
        "a C++ exception was thrown where nothing catches it (terminate called after throwing): "
        "its type and message are on standard error",
        ("hangtop logs FILE: the lines after `terminate called after throwing`",),
    ),
)
"""In the order of priority: the first match is the first explanation."""


def explain(
    header: Header, threads: Sequence[CoreThread], message: str | None = None
) -> tuple[Explanation, ...]:
    """Return the known causes of the process's end, the most specific first.

    Args:
        header: the content of the core.
        threads: its threads, the one that got the signal first; empty if no stack was read.
        message: glibc's message before an abort.
    """
    sent = header.signal
    if sent.number in (0, signal.SIGTRAP, signal.SIGSTOP, signal.SIGINT):
        return (Explanation("taken-live", "it was taken of a process that ran: nothing crashed"),)
    explanations = _by_signal(header, threads)
    ended_by_other = any(e.code == "sent-by-process" for e in explanations)
    if threads and not ended_by_other:
        explanations += _by_functions(threads[0], message)
    uncaught = any(e.code == "uncaught-exception" for e in explanations)
    if uncaught and _thrown_by_library(threads[0]):
        explanations.insert(0, _NO_MEMORY)
    return tuple(explanations or _aborted(sent.number, message))


def _by_functions(thread: CoreThread, message: str | None) -> list[Explanation]:
    """Return the meaning of the first known function on a stack."""
    names = [frame.name for frame in thread.frames if frame.native]
    for row in _KNOWN:
        if any(row.pattern.search(name) for name in names):
            ending = f"; it said: {clean(message, 300)}" if message else ""
            return [Explanation(row.code, row.text + ending, row.steps)]
    return []


def _aborted(number: int, message: str | None) -> list[Explanation]:
    """Return the explanation without a stack: the message, or an abort."""
    if message:
        return [Explanation("aborted", f"it aborted and said: {clean(message, 300)}")]
    if number == signal.SIGABRT:
        text = "it called abort(): its last lines on standard error say why"
        return [Explanation("aborted", text, ("hangtop logs FILE",))]
    return []


_NO_MEMORY = Explanation(
    "out-of-memory",
    "the C++ library itself threw it, which mostly is std::bad_alloc: no memory could be had",
    _COMPARE_MEMORY,
)


def _thrown_by_library(thread: CoreThread) -> bool:
    """Whether the caller of __cxa_throw is a nameless part of libstdc++, such as operator new."""
    frames = thread.frames
    at = next((at for at, frame in enumerate(frames) if frame.name == "__cxa_throw"), len(frames))
    return any(
        caller.name == "??" and "libstdc++" in caller.file for caller in frames[at + 1 : at + 2]
    )


def _by_signal(header: Header, threads: Sequence[CoreThread]) -> list[Explanation]:
    """Return what the signal alone shows."""
    sent = header.signal
    own = sent.sender in (header.pid, None)
    if sent.code is not None and sent.code <= 0 and not own:
        # A sender without a pid here is in another PID namespace; the kernel's own codes are
        # above 0: signal.c, __send_signal_locked.
        user = f"user {sent.sender_uid}"
        outside = f"a process of {user} outside of its PID namespace, as container runtimes are"
        sender = f"process {sent.sender} of {user}" if sent.sender else outside
        text = (
            f"{signal_name(sent.number)} was sent by {sender}: somebody ended it, as timeout(1), "
            "schedulers and operators do. Its stacks show where it was then, not a fault of its own"
        )
        return [Explanation("sent-by-process", text)]
    if sent.number == signal.SIGBUS:
        return [_bus(header)]
    if sent.number == signal.SIGSEGV:
        return _segmentation(header, threads)
    return []


def _bus(header: Header) -> Explanation:
    mapping = _at(header.mapped, header.signal.address)
    shared = mapping is not None and mapping.path.startswith(("/dev/shm/", "/run/shm/"))  # noqa: S108
    if mapping is not None and shared:
        return Explanation(
            "shared-memory-full",
            f"it touched {clean(mapping.path, 120)}, for which shared memory had no room: /dev/shm "
            "is full. DataLoader workers and NCCL put their buffers there",
            ("df -h /dev/shm", "docker run --shm-size=16g, or an emptyDir with medium: Memory"),
        )
    if mapping is not None and header.signal.code == _BUS_ADRERR:
        return Explanation(
            "mapped-file",
            f"it touched a part of {clean(mapping.path, 160)} that could not be read: the file was "
            "cut while it was mapped, its disk is full, or its file server failed",
            ("look at the file's size and at the kernel log of the node",),
        )
    text = "a bus error: mapped memory whose file was cut, whose disk is full, or bad hardware"
    return Explanation("bus-error", text)


def _segmentation(header: Header, threads: Sequence[CoreThread]) -> list[Explanation]:
    address, pointer = header.signal.address, header.stack_pointer
    if address is None:
        return []
    frames = threads[0].frames if threads else ()
    near = pointer is not None and abs(address - pointer) <= NEAR_STACK
    overflow = _overflow(frames) if near else None
    if overflow is not None:
        return [overflow]
    if address < 4096:
        inside = next((frame for frame in frames if not frame.native), None)
        where = f", called from {clean(inside.name, 80)}" if inside else ""
        text = f"it used a null pointer (address {address:#x}){where}"
        return [Explanation("null-pointer", text)]
    file = _at(header.mapped, address)
    where = f", in {clean(file.path, 120)}" if file is not None else ", which is mapped nowhere"
    text = f"it touched memory it may not (address {address:#x}{where})"
    return [Explanation("bad-access", text)]


def _overflow(frames: Sequence[Frame]) -> Explanation | None:
    """Return a stack overflow for a fault near the stack's end: deep, or without any frame."""
    if not frames:
        return Explanation("stack-overflow", "it touched memory just below its stack")
    if len(frames) < DEEP:
        return None
    name, count = Counter(frame.name for frame in frames).most_common(1)[0]
    text = f"its stack overflowed: {clean(name, 100)} is on it {count} times or more"
    return Explanation("stack-overflow", text, ("ulimit -s, or an end to the recursion",))


def _at(mapped: Sequence[Mapped], address: int | None) -> Mapped | None:
    if address is None:
        return None
    return next((file for file in mapped if file.start <= address < file.end), None)


def signal_text(sent: Signal) -> str:
    """Return how the process ended, in one line."""
    if not sent.number:
        return "no signal: taken of a process that ran"
    meaning = signal.strsignal(sent.number) if sent.number < signal.NSIG else None
    name = signal_name(sent.number)
    text = f"{name} ({meaning})" if meaning else name
    if sent.address is not None:
        text += f" at address {sent.address:#x}"
    return text
