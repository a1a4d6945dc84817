"""Framing between head and probe: JSON messages, one a line, each line with a magic prefix.

Every engine hangtop stands on is line-based (ClusterShell, srun, pdsh), so the frame is a
line. Lines without the prefix are a login banner or noise: the reader returns them apart and never
mistakes them for a message.

A message whose JSON is long travels as ``{"z": base64(zlib(json))}``; one that is still
longer than a line may be is cut into parts ``{"m": number, "part": i, "of": n, "crc": crc32,
"z": piece}`` that the reader joins again.

Standard library only, Python 3.8 or later: this module runs on both ends.
"""

import base64
import binascii
import json
import zlib
from typing import Any, Dict, List, Optional, Tuple

PROTOCOL = 1
MAGIC = b"\x1eHT1 "
MAX_LINE = 256 * 1024
"""Bytes of one line, prefix and newline included."""
MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message's JSON after decompression; more is refused, never allocated."""
MAX_VALUES = 1_000_000
"""Values in one message. `[]` takes 3 bytes on the wire and 64 here; the largest of honest nodes,
250 processes with 200 threads each, sends 400,000."""
COMPRESS_FROM = 1024
MAX_PARTIAL = 8
"""Cut messages that may be open at once."""
MAX_PARTS = 100_000
"""Parts of one cut message; lines may be as short as `SHORT_LINE`."""
SHORT_LINE = 900
"""Bytes of one line where a broadcast srun puts a label before each: it cuts lines at 1,024."""

_PART_COST = 200
_MAX_HELD = 2 * MAX_MESSAGE
"""Bytes of parts that may wait for the rest of their messages, and what each costs besides."""

Message = Dict[str, Any]


class WireError(ValueError):
    """A line has the prefix but does not hold a message of this protocol."""


def encode(message: Message, number: int = 0, max_line: int = MAX_LINE) -> List[bytes]:
    """Return the lines (with newline) that carry ``message``.

    ``number`` identifies cut messages that are under way at the same time. Raises ValueError for
    values that JSON cannot express, such as NaN.
    """
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    if len(body) < min(COMPRESS_FROM, max_line - len(MAGIC) - 1):
        return [MAGIC + body + b"\n"]
    packed = base64.b64encode(zlib.compress(body, 1))
    room = max_line - 100
    if len(packed) <= room:
        return [MAGIC + b'{"z":"' + packed + b'"}\n']
    pieces = [packed[i : i + room] for i in range(0, len(packed), room)]
    return [
        MAGIC
        + b'{"m":%d,"part":%d,"of":%d,"crc":%d,"z":"' % (number, i, len(pieces), zlib.crc32(piece))
        + piece
        + b'"}\n'
        for i, piece in enumerate(pieces)
    ]


class Reader:
    """Turns lines into messages and noise.

    Lines without the prefix are counted in ``noise_lines`` and the last few kept in
    ``noise``; ``noise_run`` is how many bytes of them came in a row, until now. Lines with the
    prefix that cannot be read raise `WireError`.
    """

    def __init__(self, keep_noise: int = 20) -> None:
        self.noise_lines = 0
        self.noise_run = 0
        self.noise = []  # type: List[bytes]
        self._keep_noise = keep_noise
        self._open = {}  # type: Dict[int, _Cut]

    def feed(self, line: bytes) -> Optional[Message]:
        """Take one line without its newline; return the message it completes, if any."""
        at = line.find(MAGIC)
        self.noise_run = 0 if at >= 0 else self.noise_run + len(line) + 1
        if at < 0:
            if line.strip():
                self._add_noise(line)
            return None
        if at > 0:
            self._add_noise(line[:at])
        if len(line) - at > MAX_LINE:
            raise WireError("line of %d bytes" % len(line))
        return self._message(self.loads(line[at + len(MAGIC) :]))

    def loads(self, data: bytes) -> Message:
        """Return the object that ``data`` is; WireError where it is none, or too large."""
        return _loads(data)

    def _add_noise(self, line: bytes) -> None:
        self.noise_lines += 1
        self.noise.append(line[:400])
        del self.noise[: -self._keep_noise]

    def _message(self, outer: Message) -> Optional[Message]:
        packed = outer.get("z")
        if packed is None:
            return outer
        if not isinstance(packed, str):
            raise WireError("z is not text")
        if "of" in outer:
            whole = self._join(outer, packed)
            if whole is None:
                return None
            packed = whole
        return self.loads(_inflate(packed))

    def _join(self, outer: Message, piece: str) -> Optional[str]:
        number, part, of, crc = (_int(outer, k) for k in ("m", "part", "of", "crc"))
        if not 0 <= part < of <= MAX_PARTS:
            raise WireError("part %d of %d" % (part, of))
        if zlib.crc32(piece.encode("ascii", "replace")) != crc:
            self._open.pop(number, None)
            raise WireError("part %d of message %d is damaged" % (part, number))
        cut = self._open.setdefault(number, _Cut(of))
        if cut.of != of:
            del self._open[number]
            raise WireError("message %d changed its length" % number)
        cut.pieces[part] = piece
        cut.size += len(piece)
        if sum(one.size + _PART_COST * len(one.pieces) for one in self._open.values()) > _MAX_HELD:
            self._open.clear()
            raise WireError("message over %d bytes" % MAX_MESSAGE)
        while len(self._open) > MAX_PARTIAL:
            del self._open[next(iter(self._open))]
        if len(cut.pieces) < of:
            return None
        self._open.pop(number, None)
        return "".join(cut.pieces[i] for i in range(of))


class _Cut:
    """The parts of one cut message that have come."""

    def __init__(self, of: int) -> None:
        self.of = of
        self.pieces = {}  # type: Dict[int, str]
        self.size = 0


def _int(outer: Message, key: str) -> int:
    value = outer.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WireError("%s is not a number" % key)
    return value


def _inflate(packed: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(base64.b64decode(packed, validate=True), MAX_MESSAGE)
    except (zlib.error, binascii.Error, ValueError) as error:
        raise WireError("damaged body: %s" % error) from error
    if inflater.unconsumed_tail:
        raise WireError("message over %d bytes" % MAX_MESSAGE)
    if not inflater.eof:
        raise WireError("cut body")
    return body


def _refuse(constant: str) -> None:
    raise WireError("%s is no number" % constant)


def _loads(data: bytes) -> Message:
    if len(data) > MAX_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise WireError("more than %d values" % MAX_VALUES)
    try:
        # ASCII, as `encode` writes it: one wide character would make the text four times as large.
        message = json.loads(data.decode("ascii"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise WireError("not JSON: %s" % error) from error
    if not isinstance(message, dict):
        raise WireError("not an object")
    return message


def split_lines(buffer: bytes) -> Tuple[List[bytes], bytes]:
    """Cut ``buffer`` into whole lines without newline, and the rest."""
    *lines, rest = buffer.split(b"\n")
    return lines, rest
