"""The options of this command line that say which nodes, spelt for another command of hangtop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_REPEATED = ("nodes", "exclude", "hostfile")
_VALUES = ("job", "kube", "ray", "via", "command")
_LOGIN = ("user", "python", "init", "fanout", "connect_timeout")
_FLAGS = ("sudo", "fast_kex")


def again(arguments: argparse.Namespace, command: str) -> tuple[str, ...]:
    """Return what runs ``command`` on the nodes of these (complete) arguments.

    What the config file says the command reads there by itself, so all that was given is said,
    even what is the default: it may take back something in the file.
    """
    words = [sys.executable, "-m", "hangtop", command]
    given = {key: value for key, value in vars(arguments).items() if key in arguments.given}
    for key in _REPEATED:
        words += [f"{_option(key)}={value}" for value in given.get(key, ())]
    words += [f"{_option(key)}={given[key]}" for key in (*_VALUES, *_LOGIN) if key in given]
    words += [_option(key if given[key] else f"no_{key}") for key in _FLAGS if key in given]
    return tuple(words)


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")
