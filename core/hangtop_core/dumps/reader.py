"""A process that reads dumps, which confines the effects of a hostile file.

Started by `pool` as `python -c 'from hangtop_core.dumps.reader import main; main()'`; speaks `wire`
over its stdin and stdout. Limits: a file's size, the memory a file may take (a multiple of its
size), and time, which the parent watches.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time

from hangtop_core.dumps import wire
from hangtop_core.dumps.safe import decode
from hangtop_core.model.recorder.columns import trace_of
from hangtop_probe.recorder.columns import reduce
from hangtop_probe.recorder.recorderread import BASE_MEMORY, PER_BYTE, address_space, limit
from hangtop_probe.recorder.unpickle import ForeignError, RefusedError, TruncatedError, check_start

MAX_FILE = 256 << 20
"""Bytes; a dump of 2,000 entries with stacks has about 350 KB."""
MAX_CPU_S = 120
"""Seconds for one file if the parent is gone; otherwise the parent watches the clock."""

TOO_MUCH = "it takes far more memory than its size explains"
TOO_LITTLE = "this shell allows too little memory to read it (ulimit -v)"


def main() -> None:
    """Answer requests until stdin ends."""
    gc.disable()
    limit(resource.RLIMIT_CORE, 0)
    start = address_space()
    _send(wire.Answer())  # ready: from now on a file's time counts
    while (body := wire.receive(sys.stdin.buffer)) is not None:
        ask = wire.ASK.decode(body)
        _send(answer(ask, start))


def _send(message: wire.Answer) -> None:
    sys.stdout.buffer.write(wire.frame(message))
    sys.stdout.buffer.flush()


def answer(ask: wire.Ask, base: int = 0) -> wire.Answer:
    """Read one file; never raises for its content."""
    path, enough = os.fsdecode(ask.path), True
    try:
        size = os.stat(path).st_size
        if size > MAX_FILE:
            return wire.Answer("too-large", f"has {size >> 20} MiB; the limit is {MAX_FILE >> 20}")
        if base:
            used = time.process_time()
            enough = limit(resource.RLIMIT_AS, base + BASE_MEMORY + PER_BYTE * size)
            limit(resource.RLIMIT_CPU, int(used) + MAX_CPU_S)
        with open(path, "rb") as file:
            data = file.read(64)
            check_start(data)
            data += file.read(MAX_FILE)
        # Without its path, which need not be UTF-8: the parent knows it.
        return wire.pack(trace_of(reduce(decode(data)), ask.rank, ""))
    except OSError as error:
        return wire.Answer("unreadable", error.strerror or str(error))
    except TruncatedError as error:
        return wire.Answer("truncated", str(error))
    except RefusedError as error:
        return wire.Answer("refused", str(error))
    except MemoryError:
        return wire.Answer("refused", f"refused: {TOO_MUCH if enough else TOO_LITTLE}")
    except RecursionError:
        return wire.Answer("refused", "refused: it is nested too deeply")
    except (ForeignError, ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        return wire.Answer("foreign", str(error)[:300])
