"""`hangtop completion SHELL`: the script for completing commands, options and values."""

from __future__ import annotations

import argparse

FILES = ("FILE", "PATH", "CAPTURE", "CORE", "EXE")
FOLDERS = ("DIR",)
"""Names of values in `--help` that are files or directories."""


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from hangtop.cli.main import build_parser

    parser = build_parser()
    _prepare(parser)
    print(shtab.complete(parser, arguments.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser) -> None:
    """Complete files and names of demos, and give each command a description of one line."""
    import shtab

    from hangtop.demo.gallery import BY_NAME

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for entry in action._choices_actions:
                # Shells list it beside the name, where the full description is too long.
                action.choices[entry.dest].description = entry.help
            for command in action.choices.values():
                _prepare(command)
        elif action.dest == "scenario":
            action.choices = list(BY_NAME)  # only here: the command itself points to --list
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
