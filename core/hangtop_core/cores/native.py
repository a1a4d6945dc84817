"""Native frames of the threads of a core, by gdb in batch mode.

gdb runs without its start-up files, loads no script of an executable, a library or the core's
directory, uses no debuginfod server, and has a time limit. Its output (gdb 9 to 16, `thread apply
all backtrace`) is parsed as text, line by line.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from hangtop_core.model.frame import Frame

if TYPE_CHECKING:
    from hangtop_probe.wire.tools import Tools

SECONDS = 90.0
"""Reading symbols of torch's libraries takes 3 to 10 s."""
DEPTH = 400
"""Maximum number of innermost frames of a thread."""
MAX_TEXT = 1000
"""Maximum number of characters of a function's name, and of a file's."""
_THREAD = re.compile(r"Thread \d+ \(.*?(?:LWP|process) (\d{1,10})\)?")
_FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?(.*)")
_LINE = re.compile(r"(\S.*):(\d{1,10})")
_ARGUMENTS = re.compile(r" \((?:[\w<>:]+=\.\.\.|\.\.\.|, )*\)$")
_ABORT = re.compile(r"hangtop abort message: (.*)")
_SETTINGS = (
    "set auto-load no",
    "set debuginfod enabled off",
    "set print frame-arguments none",
    "set print frame-info source-and-location",
    "set filename-display absolute",
    "set width 0",
    "set height 0",
    "set confirm off",
)
_OUTSIDE = ("env", "-u", "DEBUGINFOD_URLS", "HOME=/nonexistent")
"""No server is asked for symbols, and none of the user's settings are read."""


class Native(Struct, frozen=True):
    """The output of gdb."""

    threads: Mapping[int, tuple[Frame, ...]] = {}
    """By thread id, innermost frame first."""
    message: str | None = None
    """The message of glibc or assert(3) before the abort."""
    problem: str | None = None


def read(tools: Tools, core: str, executable: str) -> Native:
    """Run gdb on a core; failures are in `problem`."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return Native(problem="gdb is not on this machine: native frames are missing")
    argv = [*_OUTSIDE, gdb, "-nx", "-nh", "-batch"]
    for setting in _SETTINGS:
        argv += ["-iex", setting]
    argv += ["-ex", f"thread apply all backtrace {DEPTH}"]
    argv += ["-ex", r'printf "hangtop abort message: %s\n", *(char**)&__abort_msg + 4']
    try:
        done = tools.run(
            [*argv, f"--exec={executable}", f"--symbols={executable}", f"--core={core}"],
            SECONDS,
            threading.Event(),
        )
    except OSError as error:
        return Native(problem=f"gdb does not start: {error.strerror}")
    if done.timed_out or done.flooded:
        why = f"took more than {SECONDS:g} s" if done.timed_out else "wrote without end"
        return Native(problem=f"gdb {why} and was ended: native frames are missing")
    stacks = parse(done.out.decode("utf-8", "replace"))
    if not stacks.threads:
        errors = done.err.decode("utf-8", "replace").strip().splitlines()
        return Native(problem=f"gdb found no thread: {errors[-1][:300] if errors else 'no reason'}")
    return stacks


def parse(text: str) -> Native:
    """Parse the output of gdb."""
    threads: dict[int, list[Frame]] = {}
    message = None
    frames: list[Frame] | None = None
    for line in text.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            frames = threads.setdefault(int(thread[1]), [])
        elif (abort := _ABORT.match(line)) is not None:
            message = abort[1].strip() or None
        elif frames is not None and (frame := _FRAME.match(line)) is not None:
            frames.append(frame_of(frame[1]))
    return Native({tid: tuple(stack) for tid, stack in threads.items()}, message)


def frame_of(text: str) -> Frame:
    """Parse a frame of gdb's: `name (a=...) at file.c:12`, `name () from /lib/libx.so`, `?? ()`."""
    text = text[: 4 * MAX_TEXT]
    head, _, where = text.partition(" at ")
    place, line = _LINE.fullmatch(where), 0
    if place is not None:
        where, line = place[1], int(place[2])
    else:
        head, _, where = text.partition(" from ")
    name = _ARGUMENTS.sub("", head)
    return Frame(
        name=name[:MAX_TEXT],
        file=where[-MAX_TEXT:],
        short=where.rpartition("/")[2][:MAX_TEXT],
        line=min(line, 2**31 - 1),
        native=True,
    )
