"""The `strace` request: the system calls of one process for a bounded time.

strace stops every thread for a moment at each call, so it runs only on request, never where no
tracer may attach (`tracing`), and afterwards the process is checked to run again. It writes to a
file in memory: if the probe itself were stopped, a full pipe would stop strace, and with it the
process.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import tempfile
import time
from typing import TYPE_CHECKING, List, Set

from ..node import permission
from ..proc import procfs
from ..secrets import mask
from ..wire import fixes
from ..wire.requests import Message, Refused, Request
from ..wire.tools import Tools, has_ended
from . import tracing

if TYPE_CHECKING:
    import subprocess

MAX_SECONDS = 60.0
MAX_LINES = 20000
_IDLE = re.compile(rb"epoll_p?wait2?(?:\(| resumed>).*\) = 0(?: \(Timeout\))?(?: <[0-9.]+>)?$")
_POLLING = re.compile(rb"(\[pid +\d+\])?.* epoll_p?wait2?\(.*<unfinished \.\.\.>$")
_EXECVE = re.compile(r'(execve(?:at)?\([^\[]*\[)((?:"[^"]*"(?:\.\.\.)?(?:, )?)+)')
_DATA = re.compile(
    r"\b(?:p?readv?2?|p?writev?2?|pread64|pwrite64|recv\w*|send\w*|getrandom)(?:\(| resumed>)"
)
"""System calls whose texts are buffers."""
_STRING = re.compile(r'"[^"]*"(?:\.\.\.)?')
_BUFFER = re.compile(r'(<UNIX[-\w]*:\[[^\]"]*"[^"]*"\]>)|' + _STRING.pattern)
"""A buffer, or before it the name of a socket, which strace quotes as well."""
_CUT = re.compile(r'"[^"]*"\.\.\.')
_LONG = re.compile(r"[A-Za-z0-9+/_=.-]{20,}")
_DIGIT = re.compile(r"[0-9]")
_HEX = re.compile(r"(?=[a-f]{0,20}[0-9])(?=[0-9]{0,20}[a-f])[0-9a-f]{8,}$")
_FIRST = re.compile(r'^"[A-Za-z0-9+/_-]{8,}(?![A-Za-z0-9+/_-])')
"""The first word of a buffer, which may be the rest of a longer one."""
_LAST = re.compile(r'(\\(?:[0-7]{1,3}|.))|[^\s\\"]{8,}(?="\.\.\.$)')
"""An escape, or the last word of a cut text, which may be the first part of a longer one."""
_SUSPENDED = (b"<unfinished ...>", b"<detached ...>")
_COMES_S = 3.0
"""Seconds after which strace counts as attached, where the process does not show it."""
_FLUSH = 0.3
_STEP = 0.1
_MAX_LOG = 32 << 20
"""Bytes strace may write unread; then the kernel ends it, and the process runs on."""


def handle(request: Request, tools: Tools, rights: permission.Rights) -> Message:
    """Answer `strace`: pieces of lines as they arrive, then a summary."""
    seconds = min(max(float(request.message.get("seconds") or 10), 0.5), MAX_SECONDS)
    strace = shutil.which("strace")
    if strace is None:
        raise Refused("missing", "strace is not on PATH", fixes.STRACE)
    pid = tracing.target_of(request, rights)
    argv = [strace, "-q", "-f", "-p", str(pid), "-tt", "-T", "-yy", "-s", "64"]
    log = _memory()
    try:
        process = tools.start(argv, signal.SIGTERM, log)
    except OSError as error:
        os.close(log)
        raise Refused("error", "strace does not start: %s" % error) from None
    trace = Trace(request, process, log, tools)
    try:
        trace.run(pid, seconds)
    finally:
        running = trace.stop(pid)
        os.close(log)
    if trace.refused:
        raise Refused("denied", *permission.why_denied(pid, rights))
    return dict(trace.summary(), running_again=running)


def _memory() -> int:
    """Open a file in memory, or a deleted one where Python has no memfd."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("strace")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Trace:
    """One running strace and its output in ``log``."""

    def __init__(
        self, request: Request, process: "subprocess.Popen[bytes]", log: int, tools: Tools
    ) -> None:
        self._request = request
        self._process = process
        self._log = log
        self._read = 0
        self._tools = tools
        self._rest = b""
        self._shown = b""
        self._lines: List[str] = []
        self._began = time.monotonic()
        self._sent = 0
        self._dropped = 0
        self._idle = 0
        self._polling: Set[bytes] = set()
        self.refused = False

    def run(self, pid: int, seconds: float) -> None:
        """Read and send lines for ``seconds``, or until strace ends or is cancelled.

        The seconds count from the time strace has attached, which may take seconds on a busy node.
        """
        for limit, value in ((resource.RLIMIT_FSIZE, _MAX_LOG), (resource.RLIMIT_CORE, 0)):
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(self._process.pid, limit, (value, value))
        flushed = started = time.monotonic()
        came = False
        while True:
            now = time.monotonic()
            if not came and (self._read or _is_traced(pid) or now > started + _COMES_S):
                came, self._began = True, now
            left = self._began + seconds - now if came else seconds
            if left <= 0 or self._sent + self._dropped > MAX_LINES:
                break
            ended = has_ended(self._process)  # asked first: what it wrote before is read below
            if not self._take():
                if ended:
                    break
                self._show_rest()
                self._request.cancelled.wait(min(left, _STEP))
            self._request.check()
            if time.monotonic() - flushed > _FLUSH:
                self._flush()
                flushed = time.monotonic()
        self._flush()

    def _take(self) -> bool:
        data = os.pread(self._log, 65536, self._read)
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._add(line)
        return bool(data)

    def _add(self, line: bytes) -> None:
        if b"attach: ptrace(PTRACE_SEIZE" in line and b"not permitted" in line:
            self.refused = True
        shown, self._shown = self._shown, b""
        if shown and line.startswith(shown) and line.endswith(_SUSPENDED):
            return
        if _IDLE.search(line) or self._polls_again(line):
            self._idle += 1
        else:
            self._lines.append(_shown(line))

    def _polls_again(self, line: bytes) -> bool:
        """Whether a thread polls again: only its first poll is shown."""
        polling = _POLLING.match(line)
        if polling is None:
            return False
        thread = polling.group(1) or b""
        again = thread in self._polling
        self._polling.add(thread)
        return again

    def _show_rest(self) -> None:
        """Send the unfinished last line: strace only ends it at the next event."""
        if self._rest and self._rest != self._shown:
            self._shown = self._rest
            self._lines.append(_shown(self._rest))

    def _flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self._request.offer({"lines": lines}):
            self._sent += len(lines)
        else:
            self._dropped += len(lines)

    def stop(self, pid: int) -> bool:
        """End strace so that it detaches; return whether the process runs again."""
        deadline = time.monotonic() + 2.0
        if not has_ended(self._process):
            self._process.send_signal(signal.SIGINT)
        while not has_ended(self._process) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._tools.end(self._process, signal.SIGINT)
        while self._take():
            pass
        if not self._request.cancelled.is_set():
            self._flush()
        return tracing.resume(pid)

    def summary(self) -> Message:
        """Return the counts; polls that timed out are counted and not sent."""
        return {
            "lines": self._sent,
            "dropped": self._dropped,
            "idle_polls": self._idle,
            "seconds": round(time.monotonic() - self._began, 2),
        }


def _is_traced(pid: int) -> bool:
    return bool(procfs.value_of(procfs.read("/proc/%d/status" % pid) or b"", b"TracerPid"))


def _shown(line: bytes) -> str:
    """Return a line as it may leave the node: buffers and program arguments may hold secrets.

    strace cuts texts after 64 bytes, and a read may begin anywhere, so a part of a key has no
    recognisable form. In buffers and cut texts, long words with a digit are masked; in buffers also
    a first word that looks random, and the last word of cut texts.
    """
    text = procfs.text(line[:2000]).replace('\\"', "'")
    text = _EXECVE.sub(_arguments, text)
    text = mask.mask_text(text)
    text = (_BUFFER if _DATA.search(text) else _CUT).sub(_without_long_words, text)
    return text[:1000]


def _arguments(match: "re.Match[str]") -> str:
    given = _STRING.findall(match.group(2))
    masked = mask.mask_arguments(word.rstrip(".")[1:-1] for word in given)
    cut = ["..." if word.endswith(".") else "" for word in given]
    return match.group(1) + ", ".join('"%s"%s' % each for each in zip(masked, cut))


def _without_long_words(match: "re.Match[str]") -> str:
    if match.re is _BUFFER and match.group(1):
        return match.group(0)
    text = _LONG.sub(
        lambda word: mask.MASK if _DIGIT.search(word.group(0)) else word.group(0), match.group(0)
    )
    text = _FIRST.sub(_without_chance, text, 1) if match.re is _BUFFER else text
    return _LAST.sub(lambda word: word.group(1) or mask.MASK, text)


def _without_chance(match: "re.Match[str]") -> str:
    """Mask a first word that mixes digits with both letter cases, or is a number in hex."""
    word = match.group(0)[1:]
    mixed = _DIGIT.search(word) and word != word.lower() and word != word.upper()
    return '"' + mask.MASK if mixed or _HEX.match(word) else match.group(0)
