"""`hangtop config`: the path of the config file, its values, and a template with every option."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from hangtop.cli import config
from hangtop.cli.arguments.arguments import DEFAULTS, in_file
from hangtop.keys.actions import GROUPS, key_name
from hangtop.keys.keymap import ACTIONS, Keymap
from hangtop_core.diagnosis import to_json
from hangtop_core.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

INSTEAD = {
    "nodes": ["gpu[01-16]"],
    "exclude": ["gpu07"],
    "hostfile": ["/job/hostfile"],
    "job": "4711",
    "command": "kubectl exec -i %h --",
    "kube": "team-a/train",
    "ray": "auto",
    "user": "alice",
    "init": "module load python",
    "sample_every": 5.0,
}
"""Example values where the default is empty."""


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for.

    Raises:
        UsageError: the file cannot be used.
    """
    path = config.config_path()
    if arguments.path:
        print(path)
    elif arguments.default:
        print(document(), end="")
    else:
        options, keymap = config.read(path, in_file()), config.keymap(path)
        own = _own_keys(keymap)
        if arguments.json:
            print(to_json(as_data(path, options, keymap)).decode())
        elif not path.exists():
            print(f"# {path}: there is none; `hangtop config --default` prints one")
        elif not options and not own:
            print(f"# {path}: sets nothing")
        else:
            print(f"# {path}")
            for key, value in options.items():
                print(f"{key} = {_toml(value)}")
            if own:
                print("\n[keys]")
            for name, keys in own.items():
                print(f"{name} = {_toml([key_name(key) for key in keys])}")
    return 0


def as_data(path: Path, options: Mapping[str, Any], keymap: Keymap) -> dict[str, Any]:
    """Return what the file sets, and everything it could set (schema `hangtop.config/1`)."""
    return {
        "schema": "hangtop.config/1",
        "hangtop": __version__,
        "path": str(path),
        "exists": path.exists(),
        "options": {
            name: {
                "help": (option.help or "").replace("%%", "%"),
                "default": DEFAULTS[name],
                "value": _plain(options.get(name, DEFAULTS[name])),
                "set": name in options,
            }
            for name, option in in_file().items()
        },
        "keys": {
            new.id: {
                "help": new.help,
                "group": new.group,
                "screens": new.screens,
                "default": [key_name(key) for key in old.keys],
                "value": [key_name(key) for key in new.keys],
                "set": new.keys != old.keys,
            }
            for new, old in zip(keymap.actions, ACTIONS, strict=True)
        },
    }


def document() -> str:
    """Return a config file with every option and every key, each commented out with its default."""
    lines = [
        "# Defaults for hangtop's options, and its keys. What is given on the command line wins.",
        "# Take away the # of what you change.",
    ]
    for name, option in in_file().items():
        description = (option.help or "").replace("%%", "%")
        lines += ["", *textwrap.wrap(description, 96, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"#{name} = {_toml(_value(name))}")
    lines += [
        "",
        "# Keys of the app, by action: one, or a list; [] for none. A key that is given here is",
        "# taken away from what it did before. Written as `?` shows them: q, ?, Ctrl-r, F5, PgUp.",
        "[keys]",
    ]
    for group in GROUPS:
        lines += ["", f"# {group}"]
        for action in (candidate for candidate in ACTIONS if candidate.group == group):
            where = f" ({', '.join(action.screens)})" if action.screens else ""
            description = f"{action.help}{where}"
            lines += textwrap.wrap(description, 96, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"#{action.id} = {_toml([key_name(key) for key in action.keys])}")
    return "\n".join(lines) + "\n"


def _value(name: str) -> Any:
    default = DEFAULTS[name]
    return INSTEAD[name] if default in (None, []) else default


def _plain(value: Any) -> Any:
    return [str(element) for element in value] if isinstance(value, list) else value


def _own_keys(keymap: Keymap) -> dict[str, tuple[str, ...]]:
    pairs = zip(keymap.actions, ACTIONS, strict=True)
    return {new.id: new.keys for new, old in pairs if new.keys != old.keys}


def _toml(value: Any) -> str:
    """Return a value in TOML; texts as basic strings, which are JSON's except for `\\/`."""
    import json

    if isinstance(value, list):
        return f"[{', '.join(_toml(element) for element in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value).removesuffix(".0")
    return json.dumps(str(value), ensure_ascii=False)
