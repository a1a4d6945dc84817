"""Arguments of `hangtop capture` and `hangtop open`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, add_screen, seconds
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_capture(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop capture`."""
    parser = commands.add_parser(
        "capture",
        help="write everything that can be observed into one file, without secrets",
        description="Observe a job as diagnose does, then take the stacks, descriptors, flight "
        "recorders and the last of the logs of every rank, and write all of it into one "
        "compressed file: to look through later with `hangtop open`, without the job and without "
        "the nodes, or to send to somebody. What looks like a secret is masked; how many places, "
        "and of which kind, stands in the file.",
        epilog="examples:\n"
        "  hangtop capture                           hangtop-JOB-TIME.hangtop in this folder\n"
        "  hangtop capture -o hang.hangtop --job 4711\n"
        "  hangtop capture --for 600                 with ten minutes of history\n"
        "  hangtop capture --redact-paths --redact-hosts\n"
        "                                            to send out of the house\n"
        "  hangtop open hang.hangtop                 look through it\n"
        "  hangtop capture hang.hangtop -o out.hangtop --redact-paths --redact-hosts\n"
        "                                            one that was taken before, to send it\n\n"
        "Ctrl-C writes what there is by then.\n\n"
        "exit status:\n"
        "  0 progressing, slow or idle   10 hung, explained   11 hung, not explained\n"
        "  12 no training job   13 nothing could be concluded, or no node answers\n"
        "  1 the file cannot be written   2 wrong usage\n"
        "  130 interrupted: what was known by then is written",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "capture",
        nargs="?",
        metavar="CAPTURE",
        help="write what is in this file to another one, with more taken out of it",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="a file that is not there yet (0600); - for standard output",
    )
    parser.add_argument(
        "--observe", type=seconds, default=5.0, metavar="S", help="seconds at least (default: 5)"
    )
    parser.add_argument(
        "--for",
        dest="history",
        type=seconds,
        default=0.0,
        metavar="S",
        help="go on for so many seconds, for the history",
    )
    parser.add_argument(
        "--locals", action="store_true", help="with the variables of every frame; secrets masked"
    )
    add_redaction(parser, "the file")
    parser.add_argument("--json", action="store_true", help="schema hangtop.captured/1")
    add_observing(parser)


def add_open(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop open`."""
    parser = commands.add_parser(
        "open",
        help="look through a capture: the same screens, offline",
        description="Open the terminal app on a capture. No node is contacted. `[` and `]` go "
        "through its history, `{` and `}` to its ends.",
        epilog="examples:\n"
        "  hangtop open hang.hangtop\n"
        "  hangtop diagnose hang.hangtop    the verdict, as text or --json\n"
        "  hangtop dump hang.hangtop        the stacks\n"
        "  hangtop flight hang.hangtop      what the flight recorders showed\n"
        "  hangtop logs hang.hangtop        the first error, from the ends of the logs\n\n"
        "exit status: 0   2 it is no capture, or cannot be opened",
        formatter_class=Formatter,
    )
    parser.add_argument("capture", metavar="CAPTURE", help="a file of `hangtop capture`")
    add_screen(parser)
