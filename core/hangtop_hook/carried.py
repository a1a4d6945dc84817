"""Modules of this package in a text, for a Python that cannot import them.

A rank that was not started by `hangtop run` does not have this package, and neither may its node.
So `hangtop debug` carries the modules of a prompt: `program` makes a text of modules that runs in
any Python from 3.14 on. They are known as `_hangtop_debug` there: a program's own `hangtop_hook`
stays its own.
"""

from __future__ import annotations

from typing import Dict, Sequence

PACKAGE = "_hangtop_debug"
ASKER = ("__init__", "carried", "failures", "permit", "server", "prompt", "terminal")
"""Modules of the prompt's client, each after what it imports."""
ASKED = ("__init__", "failures", "permit", "prompt", "pdbsocket")
"""Modules of the rank itself."""
SOURCES: Dict[str, str] = {}
"""Sources that the client was carried with, including those for the rank."""
_LOADER = """\
import sys, types
def load(package, names, sources):
    if package in sys.modules:
        return
    for name in names:
        full = package if name == '__init__' else package + '.' + name
        module = sys.modules[full] = types.ModuleType(full)
        module.__package__, module.__file__ = package, '/hangtop_hook/' + name + '.py'
        if name == '__init__':
            module.__path__ = []
        else:
            setattr(sys.modules[package], name, module)
        exec(compile(sources[name], module.__file__, 'exec'), module.__dict__)
"""
_HEAD = """\
import os, contextlib
path = %r
os.unlink(path)
if os.path.exists(%r):
%selse:
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))
"""


def program(names: Sequence[str], sources: Dict[str, str], then: str) -> str:
    """Return a program with the modules ``names``, followed by the lines ``then``.

    ``then`` finds the package as `package`, and all sources as `sources`.
    """
    call = "package, sources = %r, %r\nload(package, %r, sources)\n" % (PACKAGE, sources, names)
    return _LOADER + call + then


def for_rank(path: str, place: str) -> str:
    """Return the program for Python's remote debugging of a rank (PEP 768, `sys.remote_exec`).

    Args:
        path: where this program lies; it removes itself when the rank runs it.
        place: the socket at which the client waits for a prompt, or did.
    """
    wanted = {name: SOURCES[name] for name in ASKED}
    then = "sys.modules[package].prompt.answer(0, sys._getframe(1))\n"
    return _HEAD % (path, place, _indented(program(ASKED, wanted, then)))


def _indented(text: str) -> str:
    return "".join("    %s\n" % line for line in text.splitlines())
