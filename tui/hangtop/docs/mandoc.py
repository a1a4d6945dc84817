"""docs/hangtop.1, the man page, made from the options themselves.

`python -m hangtop.docs.mandoc > docs/hangtop.1` writes it; a test checks that it is current.
Options that most commands share are described once. The wheel installs it to share/man.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import add_observing, add_screen
from hangtop.cli.main import DESCRIPTION, EXAMPLES, build_parser
from hangtop_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONFIG = "~/.config/hangtop/config.toml"
FILES = {
    CONFIG: "defaults for options, and keys of the app; `hangtop config --default` prints one "
    "with everything in it",
    "~/.cache/hangtop/": "on each node: the probe and py-spy, by content; `hangtop doctor --clean` "
    "removes it",
    "~/.local/state/hangtop/": "what you saved, and the directories of `hangtop run`",
}
ENVIRONMENT = {
    "XDG_CONFIG_HOME, XDG_CACHE_HOME, XDG_STATE_HOME": "other places for these",
    "PAGER": "what v opens in the app; less -S where it is not set",
    "VISUAL, EDITOR": "what V opens in the app, the first that is set; else vi",
    "SHELL": "what ! starts in the app, on this machine",
    "CLUSTERSHELL_CFGDIR": "where a groups.conf of ClusterShell is, besides the usual places",
    "SLURM_JOB_ID, SLURM_ARRAY_JOB_ID, SLURM_ARRAY_TASK_ID": "inside of a Slurm job: the job that "
    "is looked at when nothing else is said",
    "PDSH_SSH_ARGS_APPEND": "options for the ssh of pdsh; those of hangtop come after them",
    "TORCH_FR_DUMP_TEMP_FILE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "where torch writes dumps of "
    "recorders, and so where `hangtop flight` looks for them when no place is named",
    "HANGTOP_RUN_DIR": "set in jobs of `hangtop run`; another one in them starts its command as it "
    "is",
    "TMPDIR": "where a compressed core file is unpacked",
    "TMUX, STY": "inside of tmux or screen: copies go to the terminal by way of these",
    "TERM": "where it is dumb: no screens and no colours",
    "NO_COLOR": "no colours",
}


def document() -> str:
    """Return the whole page, in the man macros of groff."""
    parser = build_parser()
    names = {option.dest for option in _shared()}
    lines = [
        f'.TH HANGTOP 1 "" "hangtop {__version__}" "User Commands"',
        ".SH NAME",
        r"hangtop \- find the rank that hangs a distributed PyTorch job",
        ".SH SYNOPSIS",
        r".B hangtop",
        r"[\fIOPTION\fR]...",
        ".br",
        r".B hangtop",
        r"\fICOMMAND\fR [\fIOPTION\fR]...",
        ".SH DESCRIPTION",
        *_paragraphs(DESCRIPTION),
        ".SH OPTIONS",
        "These go with every command that looks at a job.",
    ]
    for group in parser._action_groups:
        options = [candidate for candidate in group._group_actions if _is_documented(candidate)]
        if options:
            lines += [f".SS {_text(str(group.title))}", *_options(options)]
    lines.append(".SH COMMANDS")
    for name, command in _commands(parser):
        lines += [f".SS hangtop {_text(name)}", *_paragraphs(command.description or "")]
        own = [
            candidate
            for candidate in command._actions
            if _is_documented(candidate) and candidate.dest not in names
        ]
        lines += _options(own)
        if command.epilog:
            lines += _verbatim(command.epilog)
    lines += [".SH FILES", *_entries(FILES), ".SH ENVIRONMENT", *_entries(ENVIRONMENT)]
    lines += [".SH EXAMPLES AND EXIT STATUS", *_verbatim(EXAMPLES.format(config=CONFIG))]
    return "\n".join(lines) + "\n"


def _shared() -> Iterable[argparse.Action]:
    parser = argparse.ArgumentParser()
    add_observing(parser)
    add_screen(parser)
    return parser._actions


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _is_documented(action: argparse.Action) -> bool:
    kind = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    return not kind and action.help is not argparse.SUPPRESS


def _options(options: Iterable[argparse.Action]) -> Iterator[str]:
    for action in options:
        value = _value(action)
        if action.option_strings:
            names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
            head = f"{names} {value}" if value else names
        else:
            head = value or rf"\fI{_text(action.dest)}\fR"
        yield from (".TP", head, *_paragraphs((action.help or "").replace("%%", "%")))


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        return "|".join(rf"\fB{_text(str(choice))}\fR" for choice in action.choices)
    name = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    more = "..." if action.nargs in ("+", "*", argparse.REMAINDER) else ""
    return rf"\fI{_text(str(name))}\fR{more}"


def _entries(table: dict[str, str]) -> Iterator[str]:
    for name, description in table.items():
        yield from (".TP", rf"\fB{_text(name)}\fR", _text(description))


def _paragraphs(text: str) -> Iterator[str]:
    for index, part in enumerate(text.split("\n\n")):
        if index:
            yield ".PP"
        yield _text(" ".join(part.split()))


def _verbatim(text: str) -> Iterator[str]:
    yield from (".PP", ".nf", *map(_text, text.splitlines()), ".fi")


def _text(text: str) -> str:
    """Return a text, escaped for groff."""
    plain = (
        text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("^", r"\(ha")
    )
    plain = plain.replace("`", r"\(ga").replace("~", r"\(ti")
    return rf"\&{plain}" if plain.startswith(".") else plain


if __name__ == "__main__":
    sys.stdout.write(document())
