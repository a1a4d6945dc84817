"""Start of a program by the C library's posix_spawn, while other threads go on.

`os.posix_spawn` and `subprocess` hold Python's lock until the program is executed. In that half a
millisecond no thread reads messages: with a thousand nodes, a third of the start.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LIBC = ctypes.CDLL(None)
_SETSIGDEF, _SETSID = 0x04, 0x80
"""POSIX_SPAWN_SETSIGDEF and POSIX_SPAWN_SETSID in <spawn.h> of glibc and of musl."""
_STRUCT_BYTES = 1024
"""Bytes for one of the opaque structures; the largest has 336."""
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and that programs expect at their default."""


def spawn(argv: Sequence[str], streams: Sequence[int], closed: Iterable[int]) -> int:
    """Start ``argv`` in a session of its own and return its process id.

    Its descriptors 0, 1, ... are ``streams``, whose numbers must be above those; besides, it
    inherits all descriptors that executing a program does not close, except ``closed``.

    Raises:
        OSError: it cannot be started, or a word has a zero byte in it.
    """
    words, environ = [os.fsencode(word) for word in argv], os.environb.copy()
    if any(b"\0" in word for word in words):
        raise OSError(errno.EINVAL, "a zero byte in an argument")
    actions, pid = ctypes.create_string_buffer(_STRUCT_BYTES), ctypes.c_int()
    _check(_LIBC.posix_spawn_file_actions_init(actions))
    try:
        for to, fd in enumerate(streams):
            _check(_LIBC.posix_spawn_file_actions_adddup2(actions, fd, to))
        for fd in closed:
            if _LIBC.posix_spawn_file_actions_addclose(actions, fd):
                os.set_inheritable(fd, False)  # it accepts no number beyond `ulimit -n`
        # A copy of the environment: another thread may be growing the C library's own.
        variables = _texts([b"%b=%b" % variable for variable in environ.items()])
        _check(
            _LIBC.posix_spawnp(
                ctypes.byref(pid), words[0], actions, _attributes(), _texts(words), variables
            )
        )
    finally:
        _LIBC.posix_spawn_file_actions_destroy(actions)
    return pid.value


@cache
def _attributes() -> ctypes.Array[ctypes.c_char]:
    attributes = ctypes.create_string_buffer(_STRUCT_BYTES)
    signals = ctypes.create_string_buffer(_STRUCT_BYTES)
    _check(_LIBC.posix_spawnattr_init(attributes))
    _LIBC.sigemptyset(signals)
    for number in _IGNORED:
        _LIBC.sigaddset(signals, int(number))
    _check(_LIBC.posix_spawnattr_setsigdefault(attributes, signals))
    _check(_LIBC.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSID)))
    return attributes


def _texts(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*texts)


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))
