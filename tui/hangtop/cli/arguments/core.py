"""Arguments of `hangtop core`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, rank
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_core(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop core`."""
    parser = commands.add_parser(
        "core",
        help="why a rank crashed: stacks out of its core file",
        description="Read core files: how the process ended and what is known about why, whose "
        "rank it was, and the stacks of its threads, Python and native frames together, drawn as "
        "`hangtop dump` draws live ones; the thread that got the signal comes first. Several "
        "cores are merged. Without CORE: the newest one where this machine puts cores "
        "(/proc/sys/kernel/core_pattern); relative patterns are looked up in this directory and "
        "in those of your Python processes. Needs gdb for native frames, and pystack "
        "(pip install 'hangtop[core-files]') or py-spy for Python frames.",
        epilog="examples:\n"
        "  hangtop core                         the newest core on this machine\n"
        "  hangtop core core.4711               why it crashed, and where\n"
        "  hangtop core core.4711 bin/python3   where its executable has moved\n"
        "  hangtop core run7/                   all cores in a directory, merged\n"
        "  hangtop core core.* --each --all-threads\n"
        "  hangtop core --take --rank 3         take a core of a rank that runs; asks first, and\n"
        "                                       stops the rank until it is written\n\n"
        "exit status:\n"
        "  0 stacks printed, or a core taken   12 no core found, or no such rank\n"
        "  13 not a single stack could be read   1 no core could be taken   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "path", nargs="*", metavar="CORE", help="core files, directories of them, an executable"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--each", action="store_true", help="every core by itself")
    form.add_argument(
        "--json",
        action="store_true",
        help="schema hangtop.core/1; with --take hangtop.core-taken/1",
    )
    add_redaction(parser)
    parser.add_argument(
        "--all-threads", action="store_true", help="threads without Python frames, too"
    )
    parser.add_argument("--locals", action="store_true", help="with the variables of each frame")
    parser.add_argument(
        "--library", action="store_true", help="merged: show library frames instead of folding them"
    )
    parser.add_argument(
        "--no-native", action="store_true", help="without native frames, which take gdb seconds"
    )
    group = parser.add_argument_group("take a core of a rank that runs")
    group.add_argument(
        "--take",
        action="store_true",
        help="stop the rank, write its memory to a file on its node by gcore, let it go on; says "
        "where that is, and so does not go with --redact-paths and --redact-hosts",
    )
    group.add_argument("--rank", type=rank, metavar="RANK", help="which one (or --pid PID)")
    group.add_argument(
        "--to", type=Path, metavar="DIR", help="on its node (default: the rank's own directory)"
    )
    group.add_argument("--yes", action="store_true", help="do not ask first")
    add_observing(parser)
