"""Cores that are packed, by the real programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from hangtop_core.cores import elf, find, packed
from hangtop_core.cores.read import read
from hangtop_core.model.node.core_pattern import understand
from hangtop_probe.wire.tools import Tools
from support.cores.image import core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDINGS = {"zstd": "zst", "lz4": "lz4", "xz": "xz", "gzip": "gz"}


@pytest.fixture
def tools() -> Iterator[Tools]:
    tools = Tools()
    yield tools
    tools.close()


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where copies go, of which none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(packed.tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


def pack(data: bytes, path: Path, program: str = "gzip") -> str:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing")
    path.write_bytes(subprocess.run([program, "-c"], input=data, capture_output=True).stdout)
    return str(path)


@pytest.mark.parametrize("program", ENDINGS)
def test_a_packed_core_is_found_and_read(program: str, tmp_path: Path, tools: Tools) -> None:
    image = core() + bytes(3 * packed.PIECE) + b"end"
    path = pack(image, tmp_path / f"core.python.0.{ENDINGS[program]}", program)
    (tmp_path / "plain").write_bytes(image)
    systemd = understand("|/lib/systemd/systemd-coredump %P")
    place = type(systemd)(systemd.pattern, systemd.handler, str(tmp_path), name=systemd.name)
    assert set(find.present(place, ())) == {path, str(tmp_path / "plain")}
    assert set(find.in_directory(str(tmp_path))) == {path, str(tmp_path / "plain")}
    with packed.whole(path, tools) as copy, open(copy, "rb") as file:
        assert file.read() == image
    told = read(path, tools, with_native=False)
    assert (told.path, told.size) == (path, len(image))
    assert told.pid == elf.read(str(tmp_path / "plain")).pid


def test_a_file_that_is_removed_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("core.1", "core.2", "core.3"):
        (tmp_path / name).write_bytes(core())
    scandir = os.scandir

    @contextmanager
    def removing(directory: str) -> Iterator[list[os.DirEntry[str]]]:
        """In the middle of the listing, so that others follow whatever the order."""
        with scandir(directory) as entries:
            some = sorted(entries, key=lambda entry: entry.name)
        for entry in some:
            if entry.name == "core.2":
                os.unlink(entry.path)
        yield some

    monkeypatch.setattr(find.os, "scandir", removing)
    assert [os.path.basename(one) for one in find.in_directory(str(tmp_path))] == [
        "core.1",
        "core.3",
    ]


def test_what_is_not_packed_is_itself(tmp_path: Path, tools: Tools) -> None:
    (tmp_path / "core").write_bytes(core())
    with packed.whole(str(tmp_path / "core"), tools) as path:
        assert path == str(tmp_path / "core")


def test_what_is_there_of_a_cut_one_is_read(tmp_path: Path, tools: Tools) -> None:
    data = core() + os.urandom(4 << 20)
    with open(pack(data, tmp_path / "core.gz"), "r+b") as file:
        file.truncate(2 << 20)
    with packed.whole(str(tmp_path / "core.gz"), tools) as path, open(path, "rb") as file:
        there = file.read()
    assert data.startswith(there)
    assert len(there) > packed.PIECE


@pytest.mark.parametrize(
    ("data", "why"), [(b"hello", "holds no core file"), (b"\x7fEL", "damaged|no core")]
)
def test_what_holds_no_core_is_refused(data: bytes, why: str, tmp_path: Path, tools: Tools) -> None:
    path = pack(data, tmp_path / "core.gz")
    with pytest.raises(elf.NotACoreError, match=why):
        read(path, tools)
    (tmp_path / "core.gz").write_bytes(b"\x1f\x8b" + b"\xff" * 99)
    with pytest.raises(elf.NotACoreError, match="damaged"):
        read(path, tools)


def test_what_lacks_to_unpack_is_told(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(core() + os.urandom(2 << 20), tmp_path / "core.gz")
    monkeypatch.setattr(packed, "SPARED", 1 << 62)
    with pytest.raises(elf.NotACoreError, match="set TMPDIR"):
        read(path, tools)
    monkeypatch.setattr(packed.shutil, "which", lambda name: None)
    with pytest.raises(elf.NotACoreError, match="gzip is not here to unpack it"):
        read(path, tools)


def test_what_stands_for_too_much_is_refused_by_its_limit(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(core() + bytes(24 * packed.PIECE), tmp_path / "core.gz")
    with packed.whole(path, tools) as copy:
        assert os.stat(copy).st_size > 24 * packed.PIECE
    monkeypatch.setattr(packed, "MAX_RATIO", 8)
    with pytest.raises(elf.NotACoreError, match=r"more than 8.*MiB when it is unpacked, the limit"):
        read(path, tools)
    monkeypatch.setattr(packed, "MAX_RATIO", 10_000)
    monkeypatch.setattr(packed, "MAX_UNPACKED", 4 << 20)
    with pytest.raises(elf.NotACoreError, match=r"more than 4.*MiB when it is unpacked, the limit"):
        read(path, tools)
