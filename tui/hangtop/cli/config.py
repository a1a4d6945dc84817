"""The user's defaults of options, from a file: `config.toml`.

Its keys are the long options, with underscores. Valid values are derived from the options
themselves, so there is no second list of them. Its table `keys` assigns other keys to actions.
"""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hangtop_core.errors import UsageError
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import spelt_or_why

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hangtop.keys.keymap import Keymap

WHERE = ("nodes", "hostfile", "job", "kube", "ray")
"""Target options: each on the command line overrides all of them in the file, and `exclude`."""
WAY = ("via", "command")
"""Transport options, likewise: a `command` in the file does not apply if the user asks for ssh."""
KEYS = "keys"
"""The table of the file that assigns keys to actions."""
MAX_FILE = 1 << 20
"""Largest size of the file in bytes."""
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a table",
}


def config_path() -> Path:
    """Return the path of the file: `$XDG_CONFIG_HOME/hangtop/config.toml`, or below ~/.config."""
    import platformdirs

    return platformdirs.user_config_path("hangtop") / "config.toml"


def read(path: Path, options: Mapping[str, argparse.Action]) -> dict[str, Any]:
    """Read and check the file; return no options when it does not exist.

    Args:
        path: path of the file.
        options: the keys it may hold, each with the option that its values must fit.

    Raises:
        UsageError: the file cannot be read, or a key or value is invalid; names both.
    """
    values = {}
    for key, value in _load(path).items():
        if key == KEYS:
            continue
        if key not in options:
            raise _unknown(path, key, options)
        try:
            values[key] = _value(options[key], value, path.parent)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise UsageError(f"{path}: {key}: {clean(str(error), 200)}") from error
    return values


def keymap(path: Path) -> Keymap:
    """Return the keys of the app, with the table `keys` of the file applied.

    Raises:
        UsageError: it cannot be read, or is invalid; names file and action.
    """
    from hangtop.keys.actions import key_from
    from hangtop.keys.keymap import Keymap

    table = _load(path).get(KEYS, {})
    own = {}
    try:
        for name, keys in _check(table, dict).items():
            listed = keys if isinstance(keys, list) else [keys]
            own[name] = tuple(key_from(_check(key, str)) for key in listed if key != "")
        return Keymap(own)
    except ValueError as error:
        raise UsageError(
            f"{path}: {KEYS}: {clean(str(error), 200)}",
            "`hangtop config --default` lists every action with its keys.",
        ) from error


def _load(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        # Non-blocking: opening a pipe would wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) and str(path.resolve()) != os.devnull:
                raise UsageError(f"{path}: it is no file, but {_kind(status.st_mode)}")
            _check_owner(path, status)
            data = file.read(MAX_FILE + 1)
            if len(data) > MAX_FILE:
                raise ValueError(f"has over {MAX_FILE >> 20} MiB")
            return tomllib.loads(data.decode())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: {clean(str(error), 200)}", "It is TOML: https://toml.io"
        ) from error


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe or socket" if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else "a device"


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Refuse a file that another user could have written: `command` and `init` are executed."""
    is_writable = status.st_mode & 0o022 and stat.S_ISREG(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{path}: it belongs to user id {status.st_uid}, not to you or root")
    if is_writable:
        raise UsageError(
            f"{path}: others can write to it", spelt_or_why(("chmod", "go-w", str(path)))
        )


def defaults(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the file that the command line does not override."""
    left = {key: value for key, value in file.items() if key not in given}
    for group, also in ((WHERE, ("exclude",)), (WAY, ())):
        if any(key in given for key in group):
            for key in (*group, *also):
                left.pop(key, None)
    return left


def _unknown(path: Path, key: str, options: Mapping[str, object]) -> UsageError:
    import difflib

    near = difflib.get_close_matches(key.replace("-", "_"), options, 1)
    hint = f"Did you mean {near[0]}?\n" if near else ""
    return UsageError(
        f"{path}: {clean(key, 80)!r} is no option that a file can set",
        f"{hint}These are: {', '.join(options)}.",
    )


def _value(option: argparse.Action, value: object, folder: Path) -> Any:
    """Convert a value of the file to what the option would give on the command line."""
    if option.nargs == 0:
        return _check(value, bool)
    if isinstance(option, argparse._AppendAction):
        values = value if isinstance(value, list) else [value]
        return [_converted(option, element, folder) for element in values]
    return _converted(option, value, folder)


def _converted(option: argparse.Action, value: object, folder: Path) -> Any:
    kind = option.type
    if kind is Path:
        try:
            return folder / Path(_check(value, str)).expanduser()
        except RuntimeError as error:
            raise ValueError(str(error)) from None
    if kind is None:
        text = _check(value, str)
        if option.choices is not None and text not in option.choices:
            raise ValueError(f"{text!r} is none of {', '.join(option.choices)}")
        return text
    # The other options parse numbers, and check the range themselves.
    number = _check(value, float)
    return kind(str(number)) if callable(kind) else number


def _check(value: object, kind: type) -> Any:
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r} is not {KINDS[kind]}")
    return value
