"""Arguments of `hangtop strace` and `hangtop files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, seconds
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands

MAX_SECONDS = 60.0
"""Longest trace in s; also enforced in `hangtop_core.tools.strace_files` and in the probe."""


def add_strace(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop strace`."""
    parser = commands.add_parser(
        "strace",
        help="trace the system calls of ranks for some seconds",
        description="Run strace on ranks for a bounded time, on whatever nodes they are, and print "
        "the calls of each thread folded: how often, how long in all, and on which file, pipe or "
        "socket, as it was at the time of the call, with the rank at its other end. What a thread "
        "was in at the end stands first. Every line is saved here, a file per thread. It slows "
        "ranks down while it lasts; afterwards it is checked that they run. Ctrl-C ends it early.",
        epilog="examples:\n"
        "  hangtop strace 2                        for 10 s\n"
        "  hangtop strace 0-3 --for 5 --filter network\n"
        "  hangtop strace 2 --lines | grep ENOENT  every line, as it comes\n"
        "  hangtop strace 2 -w 'gpu[01-16]'\n"
        "  hangtop strace --pid 4711               a program that is no rank, an engine\n\n"
        "exit status:\n"
        "  0 traced   1 some rank could not be traced   12 no such rank   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "rank",
        nargs="*",
        metavar="RANKS",
        help="which ranks: 2, or 0-3,8; none where --pid names a process",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        type=seconds,
        default=10.0,
        metavar="S",
        help=f"seconds to trace, at most {MAX_SECONDS:.0f} (default: 10)",
    )
    parser.add_argument(
        "--filter",
        choices=("all", "network", "file", "waits"),
        default="all",
        help="which calls are printed; all are traced and saved (default: all, with threads that "
        "only wait folded, which `waits` shows one by one)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--lines", action="store_true", help="strace's lines as they come, no table")
    form.add_argument(
        "--json", action="store_true", help="schema hangtop.strace/1: calls of each thread"
    )
    add_redaction(parser)
    add_observing(parser)


def add_files(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop files`."""
    parser = commands.add_parser(
        "files",
        help="what a rank has open, and who else has that open",
        description="List the open files, pipes and sockets of a rank: how far it is in each file "
        "and whether that moves within a second, what waits in its sockets, which server is behind "
        "a path, and whose the other ends are. With FD: who else on its node has that file, pipe "
        "or socket open, and whether it is a rank. Nothing is opened or looked up, and nobody is "
        "stopped.",
        epilog="examples:\n"
        "  hangtop files 2          all descriptors of rank 2\n"
        "  hangtop files 2 7        who else has what descriptor 7 of rank 2 leads to\n"
        "  hangtop files --pid 4711 a program that is no rank, an engine\n\n"
        "exit status:\n"
        "  0 listed   1 not readable   12 no such rank   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "rank",
        nargs="?",
        default="",
        metavar="RANK",
        help="a rank's number; none where --pid names a process",
    )
    parser.add_argument("fd", nargs="?", type=int, metavar="FD", help="one of its descriptors")
    parser.add_argument("--json", action="store_true", help="schema hangtop.files/1")
    add_redaction(parser)
    add_observing(parser)
