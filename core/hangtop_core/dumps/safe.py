"""Decoder of untrusted dumps; see `hangtop_probe.recorder.unpickle`."""

from __future__ import annotations

import msgspec

from hangtop_probe.recorder.unpickle import (
    ForeignError,
    RefusedError,
    TruncatedError,
    check_start,
    unpickle,
)


def decode(data: bytes) -> object:
    """Decode a pickle or JSON dump without ever executing any of it.

    Raises:
        ForeignError: neither of the two.
        TruncatedError: it ends too early.
        RefusedError: it asks for more than data.
    """
    check_start(data)
    return unpickle(data) if data[:1] == b"\x80" else _parse(data)


def _parse(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        # A cut within a string is reported as the line end behind it.
        if "truncated" in str(error) or not data.rstrip().endswith(b"}"):
            raise TruncatedError("ends too early") from error
        raise ForeignError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise RefusedError("refused: it is nested too deeply") from error
