"""A boot started by hand, as ssh would start it on a node, and asked like a node."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

from hangtop_core.attach.connect import bundle
from hangtop_probe.wire import boot, cachedir, wire
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Piped:
    """A process that is spoken to over its pipes."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environ)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self) -> bytes:
        """The next line that it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()


class Booted(Piped):
    """A boot started by hand, as ssh would, with a cache directory of its own."""

    def __init__(self, cache: Path, first: bytes | None = None, python: str = sys.executable):
        argv = [python, "-I", "-S", "-u", "-c", boot.BOOT]
        super().__init__(argv, {**os.environ, "XDG_CACHE_HOME": str(cache)})
        self.reader = wire.Reader()
        self.send(first if first is not None else bundle.opening())

    def message(self) -> dict[str, Any]:
        while True:
            message = self.reader.feed(self.line().rstrip(b"\n"))
            if message is not None:
                return message

    def supply(self, missing: Sequence[str]) -> None:
        for piece in bundle.pieces(missing):
            self.send(piece)

    def end(self) -> int:
        self.process.communicate(timeout=PATIENCE)
        return self.process.returncode


def hide_the_shared_paths(opening: bytes) -> bytes:
    """Return the opening for a node on which the head's paths do not exist."""
    source = zlib.decompress(opening.partition(b"\n")[2]).decode()
    paths = {str(bundle.PACKAGE.parent), str(bundle._py_spy()), str(bundle._pynvml())}
    for path in paths:
        source = source.replace(path, "/nowhere")
    packed = zlib.compress(source.encode())
    return b"%d\n" % len(packed) + packed


def not_to_be_shared() -> str | None:
    """Why a node that sees this installation does not use it; None where it does."""
    try:
        for path in (str(bundle.PACKAGE), bundle._py_spy() or ""):
            real = os.path.realpath(path)
            cachedir.check_trusted(os.path.dirname(real), real)
    except (OSError, cachedir.Unusable) as error:
        return f"hangtop lies where a node takes nothing from: {error}"
    return None
