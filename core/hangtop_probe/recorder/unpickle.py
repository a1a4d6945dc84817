"""Opening a dump that may have been written by anybody.

A flight-recorder pickle holds dictionaries, lists, tuples, text and numbers, and names no class or
function at all. So every such name is refused, which leaves nothing that could run. What is left
is spending memory or time: a few bytes can claim a memo of gigabytes, build text that doubles at
every step, or make a key whose hash takes for ever. No check of the bytes beforehand is both cheap
and complete, so files are read in a process of their own (`recorderread`), which has limits.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


class RefusedError(Exception):
    """The file asks for something a dump never needs."""


class TruncatedError(Exception):
    """The file ends too early."""


class ForeignError(Exception):
    """The file is no dump."""


class _Unpickler(pickle.Unpickler):
    """The C unpickler, without any way to reach a class, a function or an outside object."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        """Refuse: a dump names nothing."""
        raise RefusedError(f"refused: it asks for {module}.{name}, which no dump does")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        """Refuse: a dump refers to nothing outside."""
        raise RefusedError("refused: it refers to an object outside of it, which no dump does")


def check_start(data: bytes) -> None:
    """Look at the first bytes of a dump, before all of it is read.

    Raises:
        ForeignError: neither a pickle nor JSON starts like this.
    """
    if data[:1] != b"\x80" and data[:64].lstrip()[:1] != b"{":
        raise ForeignError("is neither a pickle nor JSON")


def unpickle(data: bytes) -> object:
    """Decode a pickle without ever running anything of it.

    Raises:
        ForeignError: it is none.
        TruncatedError: it ends too early.
        RefusedError: it asks for more than data.
    """
    try:
        # The unpickler reads ahead only from a stream that can be peeked into: twice as fast.
        return _Unpickler(io.BufferedReader(io.BytesIO(data), 1 << 18)).load()
    except EOFError as error:
        raise TruncatedError("ends too early") from error
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError,
            OverflowError, UnicodeDecodeError, RecursionError) as error:  # fmt: skip
        # The unpickler raises any of these on bytes that no pickler wrote.
        if "truncated" in str(error) or "Ran out of input" in str(error):
            raise TruncatedError("ends too early") from error
        raise ForeignError(f"is no whole pickle: {error}") from error
