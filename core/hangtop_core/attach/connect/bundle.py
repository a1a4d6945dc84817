"""Components that a node may need: the probe, py-spy and pynvml, from this installation.

Nothing has to be installed on a node. The first data sent over a new connection are the boot,
`hangtop_probe.wire.boot`; it answers which components are missing on the node, and only those are
sent.
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
"""Characters of base85 that a shell or pdsh may interpret even within single quotes, and their
substitutes."""
PUSHED = (
    "import base64,bz2,io,sys,zlib;"
    f"w=sys.argv[1].translate(dict({[(ord(new), old) for old, new in _QUOTABLE.items()]}));"
    "r=io.BytesIO(bz2.decompress(base64.b85decode(w)));"
    "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))"
)
"""The form of `boot.BOOT` where nothing can be sent over stdin: all of it is in one argument.

The length of an argument is limited: bz2 makes this source a fifth smaller than zlib does, base85 a
sixteenth smaller than base64.
"""
PACKAGE = Path(hangtop_probe.__file__).parent


class BootMessage(Struct, frozen=True):
    """A message of the boot; exactly one of `missing`, `done` and `error` is set."""

    python: Text = ""
    arch: Text = ""
    missing: list[str] | None = None
    """Components to send, in this order."""
    done: dict[str, Text | None] | None = None
    """Where each component is used from: shared, cache or memory."""
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
    """Return boot, probe and all its orders as one word for `PUSHED`, in single quotes."""
    data = _opening(keep, order) + _block(cachedir.pack(_source(_pack(order))), level=0)
    word = base64.b85encode(bz2.compress(data)).decode("ascii").translate(_QUOTABLE)
    return f"'{word}'"


def unpushed(word: str) -> bytes:
    """Return the data that `pushed` has packed."""
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
    """Remove the imports of the probe's other modules, which are part of the same text."""
    lines = source.decode().split("\n")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom) and statement.level:
            lines[statement.lineno - 1 : statement.end_lineno] = [""] * (
                (statement.end_lineno or statement.lineno) - statement.lineno + 1
            )
    return "\n".join(lines)


def relay(nodes: Sequence[str]) -> bytes:
    """Return the code before the boot where one command serves all these nodes."""
    code = _together(PARTS)
    call = f"r = start(r, json.loads({json.dumps(list(nodes))!r}))\n"
    boot_next = "exec(compile(zlib.decompress(r.read(int(r.readline()))),'hangtop','exec'))\n"
    return _block(f"{code}\nimport zlib\n{call}{boot_next}".encode())


def pieces(names: Sequence[str]) -> Iterator[bytes]:
    """Yield the named components that exist; compressing py-spy takes about 0.3 s, once."""
    for name in names[:3]:
        if name == "probe":
            yield _probe()
        elif name == "py-spy" and (py_spy := _py_spy()) is not None:
            yield _packed(py_spy)
        elif name == "pynvml" and (pynvml := _pynvml()) is not None:
            yield _packed(pynvml)


def refusal(message: BootMessage) -> Ending:
    """Return the meaning of a boot that gave up."""
    if message.error == "old-python":
        reason = (
            f"{clean(message.path or 'its python3', 200)} is Python {clean(message.python, 20)}"
        )
        oldest = ".".join(map(str, boot.OLDEST))
        return Ending(
            "no-python",
            f"{reason}; the probe needs {oldest} or newer",
            retry=False,
            fix=Advice(
                "hangtop --python PATH, or --init 'COMMAND' that puts a newer python3 on PATH"
            ),
        )
    text = clean(message.text or message.error or "", 200)
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
    """Return the probe's modules; with ``asked`` only those for these requests, without texts."""
    sources: dict[str, bytes] = cachedir.read_tree(str(PACKAGE))
    if asked is None:
        return sources
    from hangtop_probe.probe import MODULES  # the whole probe: its text is sent without it

    names: set[str] = set()
    more = [*_ALWAYS, *(MODULES[op] for op in asked)]
    while more:
        for name in _files(more.pop()):
            if name in sources and name not in names:
                names.add(name)
                more += _imported(name, sources[name])
    return {name: _bare(sources[name]) for name in names}


def _files(module: str) -> Iterator[str]:
    """Yield the possible file of a module of the probe, and those of the packages it is in."""
    parts = module.split(".")[1:]
    yield "/".join(parts) + ".py"
    for length in range(len(parts) + 1):
        yield "/".join([*parts[:length], "__init__.py"])


_ALWAYS = ("hangtop_probe.__main__", "hangtop_probe.gpu.nvmlread")
"""The modules that start the probe, and that it runs by file name."""
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
"""Sets of requests that one probe over pdsh may get, beside `watch`, `stacks` and `clean`.

A node that can keep components keeps one probe for each set, so there are few. The other requests
need a probe with an input.
"""


def _pack(order: Push) -> frozenset[str]:
    """Return the set of requests that a probe for ``order`` must support."""
    asked = {message.get("op") for messages in order.requests.values() for message in messages}
    return next(pack for pack in _PACKS if asked & _PACKS[-1] <= pack)


def _imported(file: str, source: bytes) -> Iterator[str]:
    """Yield the modules of the probe that ``file`` imports, and all other names from them."""
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


def _is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    """Return whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _bare(source: bytes) -> bytes:
    """Remove comments, docstrings and annotations of functions, but no code that runs."""
    lines = source.split(b"\n")
    for first, start, last, end, instead in sorted(
        _unneeded(lines, ast.parse(source)), reverse=True
    ):
        before, after = lines[first - 1][:start], lines[last - 1][end:]
        lines[first - 1 : last] = [before + instead + after]
    return _TYPING.sub(_used, _narrow(b"\n".join(lines))).encode()


_TYPING = re.compile(r"^from typing import (?:\(\n(.*?)\n\)|([^\n(]+))\n", re.MULTILINE | re.DOTALL)


def _used(typing: re.Match[str]) -> str:
    """Return an import from `typing` of the names that are still used without annotations."""
    code = typing.string[: typing.start()] + typing.string[typing.end() :]
    names = re.findall(r"\w+", typing[1] or typing[2])
    used = ", ".join(name for name in names if re.search(rf"\b{name}\b", code))
    return f"from typing import {used}\n" if used else ""


def _narrow(code: bytes) -> str:
    """Remove comments, blank lines, and indentation of continuation lines."""
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
    """Yield removable places: first line and column, last ones, and the replacement."""
    for node in _running(tree):
        yield from _unneeded_statements(node)
        if isinstance(node, ast.arg) and node.annotation is not None:
            name = node.col_offset + len(node.arg.encode())
            yield node.lineno, name, *_end(node.annotation), b""
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            returned = node.returns
            arrow = lines[returned.lineno - 1].rfind(b"->", 0, returned.col_offset)
            if arrow >= 0:
                yield returned.lineno, arrow, *_end(returned), b""


def _unneeded_statements(parent: ast.AST) -> Iterator[tuple[int, int, int, int, bytes]]:
    """Yield bare texts in a body, statements for types only, and types of names.

    A class keeps annotations, without which its names would be no fields of a NamedTuple.
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


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _end(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


@functools.cache
def _py_spy() -> str | None:
    from hangtop_probe.node import node  # much of the probe

    path = node.find_py_spy()
    return os.path.realpath(path) if path is not None else None


@functools.cache
def _pynvml() -> str | None:
    entry = pynvml_path.find().entry
    return os.path.realpath(os.path.join(entry, "pynvml.py")) if entry is not None else None
