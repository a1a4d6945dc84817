"""Situations that were judged once, packed: captures in archives of one subject each.

python tests/replay/corpus.py FOLDER ARCHIVE   # pack the captures of a folder
"""

from __future__ import annotations

import gzip
import io
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "core")]

from hangtop_core.capture import Capture, Facts, Redaction, load, save  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

CORPUS = Path(__file__).parent / "corpus"
DICTIONARY = 64 << 20
"""Bytes that the packer looks back: most captures are like others that came long before."""


class Situation(NamedTuple):
    """One capture of an archive."""

    name: str
    """`unit/0123456789abcdef`, `accuracy/never-fits`."""
    capture: Capture


def situations(archive: Path) -> Iterator[Situation]:
    """Yield what an archive holds, in its order.

    Raises:
        BadCaptureError: one is no capture that this version reads.
    """
    subject = archive.name.partition(".")[0]
    with (
        tempfile.TemporaryDirectory(prefix="hangtop-replay-") as folder,
        tarfile.open(archive) as packed,
    ):
        path = Path(folder) / "situation.hangtop"
        for member in packed:
            content = packed.extractfile(member)
            if content is not None:
                path.write_bytes(gzip.compress(content.read(), compresslevel=0))
                yield Situation(f"{subject}/{member.name}", load(str(path)))


def pack(source: Path, archive: Path) -> int:
    """Pack the captures of a folder into an archive; returns how many.

    They are packed as text, together: each adds what differs from those before it. Folders and
    hosts get other names, as by `hangtop capture --redact-paths --redact-hosts`.
    """
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": DICTIONARY}]
    paths = sorted(source.glob("*.hangtop"))
    with (
        lzma.open(archive, "w", filters=filters) as file,
        tarfile.open(fileobj=file, mode="w") as packed,
        tempfile.TemporaryDirectory(prefix="hangtop-replay-") as folder,
    ):
        for path in paths:
            text = gzip.decompress(_redacted(path, Path(folder)).read_bytes())
            member = tarfile.TarInfo(path.stem)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text))
    return len(paths)


def _redacted(path: Path, folder: Path) -> Path:
    """Write the newest snapshot of a capture anew, without the names of its machine."""
    capture, copy = load(str(path)), folder / path.name
    header = capture.header
    facts = Facts(header.by, header.targets, header.job, header.hang_after)
    save(copy, [capture.newest], facts, Redaction(paths=True, hosts=True))
    return copy


def main() -> None:
    """Pack what the command line names."""
    folder, archive = map(Path, sys.argv[1:])
    print(f"{pack(folder, archive)} situations in {archive}")


if __name__ == "__main__":
    main()
