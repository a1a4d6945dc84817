"""The node options of this command line, as the arguments of another hangtop command."""

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
    """Return the words that run ``command`` on the nodes of these (complete) arguments.

    The command reads the config file again, so every option of the command line is included, even
    defaults: they may override something in the file.
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
