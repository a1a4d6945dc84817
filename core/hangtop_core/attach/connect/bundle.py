"""What a node needs and may not have: the probe, py-spy and pynvml, from this installation.

Nothing has to be installed on a node. The first thing sent over a new connection is the boot,
`hangtop_probe.wire.boot`; it answers what the node lacks, and only that is sent.
"""

from __future__ import annotations

import ast
import base64
import bz2
import functools
import io
import json
import os
import platform
import re
import tokenize
import zlib
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from msgspec import Struct

import hangtop_probe
from hangtop_core.attach.connect.launcher import Ending
from hangtop_core.text.clean import Text, clean
from hangtop_core.text.commands import Advice
from hangtop_probe.gpu import pynvml_path
from hangtop_probe.wire import boot, cachedir
from hangtop_probe.wire.relay import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangtop_probe.wire.server import Push

_QUOTABLE = {ord(sign): instead for sign, instead in zip("!$%^`", ".,/:[", strict=True)}
"""Signs of base85 that a shell or pdsh may read even within single quotes, and others for them."""
PUSHED = (
    "import base64,bz2,io,sys,zlib;"
    f"w=sys.argv[1].translate(dict({[(ord(new), old) for old, new in _QUOTABLE.items()]}));"
    "r=io.BytesIO(bz2.decompress(base64.b85decode(w)));"
    "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))"
)
"""What `boot.BOOT` is where nothing can be sent over stdin: all of it is in one argument.

bz2 makes of this source a fifth less than zlib, base85 a sixteenth less than base64, and an
argument is limited.
"""
PACKAGE = Path(hangtop_probe.__file__).parent


class BootMessage(Struct, frozen=True):
    """What the boot says; exactly one of `missing`, `done` and `error` is there."""

    python: Text = ""
    arch: Text = ""
    missing: list[str] | None = None
    """Pieces to send, in this order."""
    done: dict[str, Text | None] | None = None
    """Where each piece is used from: shared, cache or memory."""
    error: Text | None = None
    text: Text | None = None
    path: Text | None = None
    why: Text | None = None
    """Why something could not be kept on disk."""


@functools.cache
def opening(keep: bool = True) -> bytes:
    """Return the boot as a node's Python expects it: a length, then zlib.

    Without ``keep`` nothing is written to the node's disk, and there is no py-spy and no pynvml.
    """
    return _opening(keep, None)


def pushed(order: Push, keep: bool = True) -> str:
    """Return boot, probe and all it is to do as one word for `PUSHED`, in single quotes."""
    data = _opening(keep, order) + _block(cachedir.pack(_source(_pack(order))), level=0)
    word = base64.b85encode(bz2.compress(data)).decode("ascii").translate(_QUOTABLE)
    return f"'{word}'"


def unpushed(word: str) -> bytes:
    """Return what `pushed` has packed."""
    signs = {ord(new): old for old, new in _QUOTABLE.items()}
    return bz2.decompress(base64.b85decode(word.strip("'").translate(signs)))


def _opening(keep: bool, order: Push | None) -> bytes:
    source = _source(None if order is None else _pack(order))
    wanted: dict[str, object] = {
        "probe": {
            "hash": cachedir.packed_hash(source),
            "path": str(PACKAGE.parent),
        },
        "keep": keep,
    }
    py_spy = _py_spy() if keep else None
    if py_spy is not None:
        wanted["py-spy"] = {
            "hash": cachedir.file_hash(py_spy),
            "path": py_spy,
            "arch": platform.machine(),
        }
    pynvml = _pynvml() if keep else None
    if pynvml is not None:
        wanted["pynvml"] = {"hash": cachedir.file_hash(pynvml), "path": pynvml}
    if order is not None:
        wanted["push"] = order._asdict()
    code = _together(boot.PARTS, bare=order is not None)
    # JSON within a Python literal: data, whatever a path holds.
    call = f"sys.exit(main(json.loads({json.dumps(wanted)!r}), r))\n"
    return _block(f"{code}\n{call}".encode(), level=6 if order is None else 0)


def _together(names: Sequence[str], bare: bool = False) -> str:
    """Return modules that stand alone as one text."""
    sources = [(PACKAGE.parent / name).read_bytes() for name in names]
    return "\n".join(_alone(_bare(source) if bare else source) for source in sources)


def _alone(source: bytes) -> str:
    """Leave out the imports from the probe's other modules, which are a part of the same text."""
    lines = source.decode().split("\n")
    for found in ast.parse(source).body:
        if isinstance(found, ast.ImportFrom) and found.level:
            lines[found.lineno - 1 : found.end_lineno] = [""] * (
                (found.end_lineno or found.lineno) - found.lineno + 1
            )
    return "\n".join(lines)


def relay(nodes: Sequence[str]) -> bytes:
    """Return what goes before the boot where one command serves all these nodes."""
    code = _together(PARTS)
    call = f"r = start(r, json.loads({json.dumps(list(nodes))!r}))\n"
    boot_next = "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))\n"
    return _block(f"{code}\nimport zlib\n{call}{boot_next}".encode())


def pieces(names: Sequence[str]) -> Iterator[bytes]:
    """Yield those of the named pieces that exist; compressing py-spy takes about 0.3 s, once."""
    for name in names[:3]:
        if name == "probe":
            yield _probe()
        elif name == "py-spy" and (py_spy := _py_spy()) is not None:
            yield _packed(py_spy)
        elif name == "pynvml" and (pynvml := _pynvml()) is not None:
            yield _packed(pynvml)


def refusal(said: BootMessage) -> Ending:
    """Say what it means that the boot gave up."""
    if said.error == "old-python":
        reason = f"{clean(said.path or 'its python3', 200)} is Python {clean(said.python, 20)}"
        oldest = ".".join(map(str, boot.OLDEST))
        return Ending(
            "no-python",
            f"{reason}; the probe needs {oldest} or newer",
            retry=False,
            fix=Advice(
                "hangtop --python PATH, or --init 'COMMAND' that puts a newer python3 on PATH"
            ),
        )
    text = clean(said.text or said.error or "", 200)
    return Ending("unreachable", f"the probe could not be sent: {text}", retry=True)


@functools.cache
def _probe() -> bytes:
    return _block(cachedir.pack(_source()))


@functools.cache
def _packed(path: str) -> bytes:
    return _block(Path(path).read_bytes(), level=3)


def _block(data: bytes, level: int = 6) -> bytes:
    packed = zlib.compress(data, level)
    return b"%d\n" % len(packed) + packed


@functools.cache
def _source(asked: frozenset[str] | None = None) -> dict[str, bytes]:
    """Return the probe's modules; with ``asked`` what answers these requests, without texts."""
    found: dict[str, bytes] = cachedir.read_tree(str(PACKAGE))
    if asked is None:
        return found
    from hangtop_probe.probe import MODULES  # all of the probe: its text is sent without

    names: set[str] = set()
    more = [*_ALWAYS, *(MODULES[op] for op in asked)]
    while more:
        for name in _files(more.pop()):
            if name in found and name not in names:
                names.add(name)
                more += _imported(name, found[name])
    return {name: _bare(found[name]) for name in names}


def _files(module: str) -> Iterator[str]:
    """Yield the file that a module of the probe may be, and those of the packages it is in."""
    parts = module.split(".")[1:]
    yield "/".join(parts) + ".py"
    for length in range(len(parts) + 1):
        yield "/".join([*parts[:length], "__init__.py"])


_ALWAYS = ("hangtop_probe.__main__", "hangtop_probe.gpu.nvmlread")
"""What starts the probe, and what it runs by its file."""
_PACKS = tuple(
    frozenset(pack.split())
    for pack in (
        "",
        "descriptors holders log core numerics",
        "recorder",
        "check",
        "descriptors holders log core numerics recorder check",
    )
)
"""Requests of which any may be asked of one probe over pdsh, beside `watch`, `stacks` and `clean`.

A node that can keep what was sent keeps one probe for each of these, so they are few. The other
requests need a probe that can be told something.
"""


def _pack(order: Push) -> frozenset[str]:
    """Return the requests that a probe for ``order`` has to know."""
    asked = {message.get("op") for some in order.requests.values() for message in some}
    return next(pack for pack in _PACKS if asked & _PACKS[-1] <= pack)


def _imported(file: str, source: bytes) -> Iterator[str]:
    """Name the probe's modules that the one in ``file`` imports, and all else it imports of it."""
    package = ".".join([PACKAGE.name, *file.split("/")[:-1]])
    for node in _running(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = resolve_name("." * node.level + (node.module or ""), package)
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module except those that are for types only."""
    more = [tree]
    while more:
        node = more.pop()
        if not _is_for_types(node):
            yield node
            more += ast.iter_child_nodes(node)


def _is_for_types(one: ast.AST) -> TypeGuard[ast.If]:
    """Whether this is `if TYPE_CHECKING:`."""
    return isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"


def _bare(source: bytes) -> bytes:
    """Leave out comments, docstrings and what functions say of types: what runs stays as it was."""
    lines = source.split(b"\n")
    for first, start, last, end, instead in sorted(
        _unneeded(lines, ast.parse(source)), reverse=True
    ):
        before, after = lines[first - 1][:start], lines[last - 1][end:]
        lines[first - 1 : last] = [before + instead + after]
    return _TYPING.sub(_used, _narrow(b"\n".join(lines))).encode()


_TYPING = re.compile(r"^from typing import (?:\(\n(.*?)\n\)|([^\n(]+))\n", re.MULTILINE | re.DOTALL)


def _used(typing: re.Match[str]) -> str:
    """Return an import from `typing` of the names that are used although no types are left."""
    others = typing.string[: typing.start()] + typing.string[typing.end() :]
    names = re.findall(r"\w+", typing[1] or typing[2])
    used = ", ".join(name for name in names if re.search(rf"\b{name}\b", others))
    return f"from typing import {used}\n" if used else ""


def _narrow(code: bytes) -> str:
    """Leave out comments, blank lines, and blanks before what continues a line."""
    lines = code.decode().split("\n")
    kept = {}
    begins, end = True, 0
    for token in tokenize.tokenize(io.BytesIO(code).readline):
        row = token.start[0]
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][: token.start[1]].rstrip()
        elif token.type == tokenize.NEWLINE:
            begins = True
        elif token.type not in _BETWEEN:
            if row > end:
                kept[row] = begins
            kept.update((inside, True) for inside in range(max(row, end) + 1, token.end[0] + 1))
            begins, end = False, token.end[0]
    return "\n".join(
        lines[row - 1] if whole else lines[row - 1].lstrip(" ") for row, whole in kept.items()
    )


_BETWEEN = (tokenize.ENCODING, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def _unneeded(lines: list[bytes], tree: ast.AST) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield places that can be left out: first line and column, the last ones, what stands there
    instead."""
    for one in _running(tree):
        yield from _unneeded_statements(one)
        if isinstance(one, ast.arg) and one.annotation is not None:
            name = one.col_offset + len(one.arg.encode())
            yield one.lineno, name, *_end(one.annotation), b""
        elif isinstance(one, ast.FunctionDef) and one.returns is not None:
            told = one.returns
            arrow = lines[told.lineno - 1].rfind(b"->", 0, told.col_offset)
            if arrow >= 0:
                yield told.lineno, arrow, *_end(told), b""


def _unneeded_statements(parent: ast.AST) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield the texts that stand alone in a body, what is for types only, and types of names.

    A class keeps that its names have types, without which they were no fields of a NamedTuple.
    """
    in_class = isinstance(parent, ast.ClassDef)
    for body in (getattr(parent, name, ()) for name in ("body", "orelse", "finalbody")):
        for statement in body if isinstance(body, list) else ():
            if _is_text(statement) or _is_for_types(statement):
                instead = b"''" if all(map(_is_text, body)) else b""
                yield statement.lineno, statement.col_offset, *_end(statement), instead
            elif isinstance(statement, ast.AnnAssign) and (in_class or statement.value):
                kind = b":0" if in_class else b""
                yield *_end(statement.target), *_end(statement.annotation), kind


def _is_text(one: ast.AST) -> bool:
    return (
        isinstance(one, ast.Expr)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    )


def _end(one: ast.stmt | ast.expr) -> tuple[int, int]:
    return one.end_lineno or one.lineno, one.end_col_offset or 0


@functools.cache
def _py_spy() -> str | None:
    from hangtop_probe.node import node  # much of the probe

    found = node.find_py_spy()
    return os.path.realpath(found) if found is not None else None


@functools.cache
def _pynvml() -> str | None:
    entry = pynvml_path.find().entry
    return os.path.realpath(os.path.join(entry, "pynvml.py")) if entry is not None else None
