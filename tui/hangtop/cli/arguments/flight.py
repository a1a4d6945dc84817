"""Arguments of `hangtop flight`: its own, and those of torchfrtrace."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, add_screen, count
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    from hangtop.cli.arguments.arguments import Commands


def add_flight(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop flight`."""
    parser = commands.add_parser(
        "flight",
        help="read flight recorders, of a running job or dumped: who holds the job up",
        description="Read the flight recorders of a job and print who holds it up and where every "
        "group is. Without a PATH: those of the running job, each rank by whatever way there is, "
        "and why not where there is none. With a PATH: dumps, pickle or JSON, of any version of "
        "torch and any backend; needs no torch, not every rank's file, and runs nothing that a "
        "file says. The arguments of torchfrtrace work.",
        epilog="examples:\n"
        "  hangtop flight /tmp/dumps                  a directory, one file per rank\n"
        "  hangtop flight                             the job that runs here; without one, dumps\n"
        "                                             where torch writes them\n"
        "  hangtop flight -w 'gpu[01-16]' --trigger   make the ranks write what they have\n"
        "  hangtop flight 'run7/*rank_*' --json\n"
        "  hangtop flight dumps --tui                 look through them on the Recorder screen\n"
        "  hangtop flight dumps -j --selected-ranks 0-3,8 --pg-filters default_pg\n\n"
        "exit status:\n"
        "  0 nothing in flight, or it moves on   10 hung, explained   11 hung, not explained\n"
        "  12 no job and no dump found   13 nothing could be read, or nothing has entries\n"
        "  130 interrupted: what was known by then   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "path", nargs="*", metavar="PATH", help="files, directories, or patterns in quotes"
    )
    parser.add_argument(
        "-p", "--prefix", help="what stands before the rank in file names (default: told from them)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-j",
        "--entries",
        "--just_print_entries",
        action="store_true",
        help="print the entries instead; ranks with the same one share a line",
    )
    form.add_argument(
        "--json", action="store_true", help="schema hangtop.diagnosis/1, with a part `flight`"
    )
    form.add_argument(
        "--tui", action="store_true", help="look through dumps on the Recorder screen"
    )
    add_screen(parser)
    _add_live(parser)
    _add_choice(parser)
    _add_compatible(parser)
    add_redaction(parser)
    add_observing(parser)


def _add_live(parser: argparse.ArgumentParser) -> None:
    """Add the options on what may be done to running ranks."""
    parser.add_argument(
        "--trigger",
        action="store_true",
        help="running ranks with torch's dump pipe: make them write a dump file now",
    )
    parser.add_argument(
        "--allow-inject",
        action="store_true",
        help="running ranks that nothing else reads: let gdb call torch in them, which stops each "
        "for about a second; never where a thread holds the GIL, is stopped or waits for a disk",
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options on what `-j` prints."""
    parser.add_argument(
        "--selected-ranks",
        nargs="+",
        metavar="RANKS",
        help="with -j: only these, as 0 3 or 0-3,8",
    )
    parser.add_argument(
        "--pg-filters", nargs="+", metavar="GROUP", help="with -j: only groups of this name or desc"
    )
    parser.add_argument(
        "--stacks", "--print_stack_trace", action="store_true", help="with -j: stacks, too"
    )


def _add_compatible(parser: argparse.ArgumentParser) -> None:
    """Add the other options of torchfrtrace."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the JSON document to FILE, too"
    )
    parser.add_argument(
        "--mismatch_cap", type=count, metavar="N", help="print at most so many verdicts"
    )
    parser.add_argument(
        "--transform-ft",
        action="store_true",
        help="torchft: default groups are numbered within a replica of --group-world-size ranks",
    )
    parser.add_argument("--group-world-size", type=count, metavar="N", help="see --transform-ft")
    # These have no effect: missing files are always allowed, and everything is printed.
    parser.add_argument("--allow-incomplete-ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true", help=argparse.SUPPRESS)
