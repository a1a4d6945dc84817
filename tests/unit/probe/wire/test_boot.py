"""The boot by itself: what it accepts, where it keeps it, and what it refuses."""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import platform
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.attach.connect import bundle
from hangtop_probe.gpu import pynvml_path
from hangtop_probe.wire import boot, cachedir, pieces, wire
from support.booted import Booted, hide_the_shared_paths


def test_it_frames_as_the_wire_does() -> None:
    assert boot.MAGIC == wire.MAGIC


def test_a_python_too_old_for_the_probe_can_still_read_it() -> None:
    source = zlib.decompress(bundle.opening().partition(b"\n")[2]).decode()
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__ import annotations" not in source


def test_it_imports_nothing_of_ours_before_it_is_done() -> None:
    tree = ast.parse(zlib.decompress(bundle.opening().partition(b"\n")[2]))
    names = [
        alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names
    ]
    names += [node.module or "." for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


NAMES = st.text("abc_./", min_size=1, max_size=8).filter(
    lambda name: not {"", ".", ".."}.intersection(name.split("/"))
)


@given(st.dictionaries(NAMES, st.binary(max_size=50), max_size=6))
def test_what_is_packed_is_unpacked(files: dict[str, bytes]) -> None:
    assert cachedir.unpack(cachedir.pack(files)) == files


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a//b", "a/", "", "..", "."])
def test_no_file_leaves_its_directory(name: str) -> None:
    with pytest.raises(ValueError, match="bad file name"):
        cachedir.unpack(cachedir.pack({name: b""}))


PACKED = {
    "__init__.py": b"",
    "sub/__init__.py": b"from . import one",
    "sub/one.py": b"from ..two import two",
    "two.py": b"two = 2",
}


@pytest.mark.parametrize("kept", [True, False])
def test_packages_in_the_probe_are_imported_from_wherever_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    tmp_path.chmod(0o700)
    probe = pieces.Probe({"hash": cachedir.packed_hash(PACKED), "path": "/nowhere"})
    probe.package = f"packed_{kept}"
    probe.take(cachedir.pack(PACKED), str(tmp_path) if kept else None)
    assert probe.where == ("cache" if kept else "memory")
    assert importlib.import_module(f"{probe.package}.sub").one.two == 2
    assert bool(list(tmp_path.rglob("one.py"))) == kept


def test_a_package_in_the_probe_that_others_can_change_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    probe = pieces.Probe({"hash": cachedir.packed_hash(PACKED), "path": str(tmp_path)})
    cachedir.keep(str(tmp_path), probe.package, PACKED, 0o600)
    (tmp_path / probe.package / "sub").chmod(0o777)
    assert not probe.find(None)
    (tmp_path / probe.package / "sub").chmod(0o700)
    (tmp_path / probe.package / "sub/one.py").chmod(0o666)
    assert not probe.find(None)


@given(st.dictionaries(NAMES, st.binary(max_size=9), min_size=1, max_size=4), st.data())
def test_the_hash_covers_names_and_contents(files: dict[str, bytes], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(files)))
    changed = {**files, name: files[name] + b"x"}
    renamed = {("z" + key if key == name else key): value for key, value in files.items()}
    assert len({cachedir.packed_hash(one) for one in (files, changed, renamed)}) == 3


def test_it_receives_what_is_missing_and_becomes_the_probe(tmp_path: Path) -> None:
    first = hide_the_shared_paths(bundle.opening())
    tmp_path.chmod(0o700)
    cold = Booted(tmp_path, first)
    said = cold.message()["boot"]
    assert said["missing"] == ["probe", "py-spy"]
    cold.supply(said["missing"])
    assert cold.message()["boot"]["done"] == {"probe": "cache", "py-spy": "cache", "pynvml": None}
    hello = cold.message()["hello"]
    assert hello["protocol"]
    assert hello["capabilities"]["py-spy"]["path"].startswith(str(tmp_path))
    assert cold.end() == 0
    warm = Booted(tmp_path, first)
    assert warm.message()["boot"]["missing"] == []
    assert warm.end() == 0


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file where the loader would find NVML; there is none on machines that run this."""
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


ASK = "import sys; sys.path.append(sys.argv[1]); import pynvml; print(pynvml.__file__)"


def imported(entry: str) -> str:
    argv = [sys.executable, "-I", "-S", "-B", "-c", ASK, entry]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.usefixtures("nvml")
def test_pynvml_is_sent_once_where_there_is_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(0o700)
    first = hide_the_shared_paths(bundle.opening())
    cold = Booted(cache, first)
    said = cold.message()["boot"]
    assert said["missing"] == ["probe", "py-spy", "pynvml"]
    cold.supply(said["missing"])
    assert cold.message()["boot"]["done"]["pynvml"] == "cache"
    assert cold.end() == 0
    warm = Booted(cache, first)
    assert warm.message()["boot"]["missing"] == []
    assert warm.end() == 0

    (kept,) = cache.rglob("pynvml.py")
    assert kept.read_bytes() == Path(str(bundle._pynvml())).read_bytes()
    digest = cachedir.file_hash(str(kept))
    told = {"pynvml": {"entry": str(kept.parent), "hash": digest, "why": None}}
    monkeypatch.setenv("HANGTOP_BOOT", json.dumps(told))
    assert pynvml_path.find() == (str(kept.parent), None)
    assert imported(str(kept.parent)) == str(kept)
    kept.parent.chmod(0o777)
    assert "others can write" in str(pynvml_path.find().why)
    kept.parent.chmod(0o700)
    kept.write_bytes(b"print('mine')")
    assert "is not what was sent" in str(pynvml_path.find().why)
    changed = Booted(cache, first)
    assert changed.message()["boot"]["missing"] == ["pynvml"]
    changed.end()


def test_pynvml_is_imported_from_memory_where_nothing_can_be_kept(nvml: Path) -> None:
    path = bundle._pynvml()
    assert path is not None
    piece = pieces.Pynvml({"hash": cachedir.file_hash(path), "path": "/nowhere/pynvml.py"})
    assert not piece.find(None)
    assert piece.take(Path(path).read_bytes(), None) == "no cache directory"
    assert (piece.where, piece.why) == ("memory", None)
    assert imported(str(piece.entry)) == f"{piece.entry}/pynvml.py"
    (nvml / "libnvidia-ml.so.1").unlink()
    assert piece.find(None), "it is not asked for"
    assert piece.why == "no libnvidia-ml.so.1 on this node"


def test_damage_on_the_way_is_noticed_and_nothing_is_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    booted = Booted(tmp_path, hide_the_shared_paths(bundle.opening()))
    booted.message()
    wrong = zlib.compress(cachedir.pack({"__init__.py": b"", "__main__.py": b"print('mine')"}))
    booted.send(b"%d\n" % len(wrong) + wrong)
    said = booted.message()["boot"]
    assert (said["error"], said["text"]) == ("damaged", "the probe's source arrived damaged")
    assert booted.end() == 4
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_it_ends_with_the_head(tmp_path: Path) -> None:
    booted = Booted(tmp_path, hide_the_shared_paths(bundle.opening()))
    booted.message()
    assert booted.end() == 4


def test_a_directory_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(cachedir.Unusable, match="can be written by others"):
        cachedir.cache_base()
    tmp_path.chmod(0o700)
    base = Path(cachedir.cache_base())
    assert base.stat().st_mode & 0o777 == 0o700
    base.rmdir()
    base.symlink_to("/tmp")
    with pytest.raises(cachedir.Unusable, match="no directory"):
        cachedir.cache_base()


def test_without_keeping_nothing_is_written_and_py_spy_not_asked_for(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    booted = Booted(tmp_path, hide_the_shared_paths(bundle.opening(keep=False)))
    said = booted.message()["boot"]
    assert said["missing"] == ["probe"]
    booted.supply(said["missing"])
    assert booted.message()["boot"]["done"] == {"probe": "memory"}
    assert booted.message()["hello"]["protocol"]
    assert booted.end() == 0
    assert list(tmp_path.iterdir()) == []


def test_on_another_architecture_py_spy_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the decision: the other architecture is that of the py-spy, which is not here."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(platform, "machine", lambda: "riscv128")
    bundle.opening.cache_clear()
    first = hide_the_shared_paths(bundle.opening())
    bundle.opening.cache_clear()
    booted = Booted(tmp_path, first, python=os.path.realpath(sys.executable))
    said = booted.message()["boot"]
    assert said["missing"] == ["probe"]
    booted.supply(said["missing"])
    assert booted.message()["boot"]["done"] == {"probe": "cache", "py-spy": None, "pynvml": None}
    fact = booted.message()["hello"]["capabilities"]["py-spy"]
    assert booted.end() == 0
    if not fact["ok"]:  # unless this Python has one beside it
        assert "and the py-spy at hand is for riscv128" in fact["why"]


def test_a_home_that_is_read_only_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/sys/hangtop")  # where nobody makes directories
    with pytest.raises(cachedir.Unusable, match="/proc/sys/hangtop"):
        cachedir.cache_base()


def test_why_nothing_can_be_kept_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "hangtop").write_text("somebody's")
    booted = Booted(tmp_path, hide_the_shared_paths(bundle.opening()))
    missing = booted.message()["boot"]["missing"]
    assert "probe" in missing
    booted.supply(missing)
    said = booted.message()["boot"]
    assert said["done"]["probe"] == "memory"
    assert said["why"] == f"{tmp_path}/hangtop is no directory"
    assert booted.end() == 0


def test_a_python_that_knows_no_files_in_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    block = b"a program"
    digest = hashlib.sha256(block).hexdigest()
    wanted = {"hash": digest, "path": "/nowhere", "arch": platform.machine()}
    for piece in (pieces.PySpy(wanted), pieces.Pynvml(wanted)):
        assert piece.take(block, None) == "no cache directory"
        assert piece.where is None
        assert str(piece.why).startswith("no cache directory; and no memory file can be had: ")
