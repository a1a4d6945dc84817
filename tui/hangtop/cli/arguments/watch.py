"""Arguments of `hangtop watch`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, count, seconds
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    from hangtop.cli.arguments.arguments import Commands

ON_HANG_LIMIT_S = 300.0
"""Limit in seconds for the command of --on-hang."""
KEEP = 20
"""Number of hang directories kept below --output."""
EPILOG = """\
examples:
  hangtop watch                               my jobs on this machine, until Ctrl-C
  hangtop watch --once || echo it hangs       until the first hang, or the job's end
  hangtop watch --output hangs --on-hang './tell-us --channel training'
  hangtop watch --until-exit --output hangs & in an sbatch script, before srun
  hangtop watch -w 'gpu[01-16]' --hang-after 300 --json >> hangs.jsonl
  hangtop watch --job 4711 --once --on-hang 'scancel 4711'
  hangtop watch --output hangs --redact-paths --redact-hosts

the command of --on-hang is run without a shell and finds in its environment:
  HANGTOP_CAUSE        missing-collective, or unknown
  HANGTOP_SUMMARY      the verdict in one sentence
  HANGTOP_RANKS        to blame: 2, or 0-3,8
  HANGTOP_VICTIMS      who waits for them
  HANGTOP_NODES        of those to blame: gpu[03,07]
  HANGTOP_JOB_NODES    of the job
  HANGTOP_JOB, HANGTOP_JOB_ID, HANGTOP_LAUNCHER, HANGTOP_WORLD_SIZE
  HANGTOP_CONFIDENCE   0 to 1; HANGTOP_HUNG_FOR: seconds
  HANGTOP_STATUS       10 explained, 11 not explained
  HANGTOP_DIRECTORY, HANGTOP_JSON, HANGTOP_TEXT, HANGTOP_STACKS,
  HANGTOP_CAPTURE   what --output wrote
  What is not known, or was not written, is empty. These are words of nodes
  and of programs: never paste them into a shell command without quotes.
  They are the real names, also with --redact-paths and --redact-hosts.

exit status:
  0 the job has ended, well or not (--once, --until-exit), or told to stop (SIGTERM, Ctrl-C)
  10 hung, explained   11 hung, not explained (--once; --until-exit: when it ended so)
  12 no training job within --wait-for-job seconds   13 no node answers within them
  2 wrong usage"""


def command(text: str) -> list[str]:
    """Split a command into words, as a shell would."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not words:
        raise argparse.ArgumentTypeError("there is no command in it")
    return words


def add_watch(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop watch`."""
    parser = commands.add_parser(
        "watch",
        help="wait until a job hangs, then say why, write it down, and run a command",
        description="Watch jobs without a screen, for as long as it takes. Waits for a job if "
        "there is none yet. When one hangs, prints the verdict, writes it below --output, and runs "
        "--on-hang; says when it moves again, and never tells the same hang twice. Nodes may go "
        "and come, and jobs may be restarted. As long as all is well it only reads /proc, and "
        "takes a stack now and then of what never rests.",
        epilog=EPILOG,
        formatter_class=Formatter,
    )
    group = parser.add_argument_group("when to end")
    group.add_argument("--once", action="store_true", help="after the first hang, or the job's end")
    group.add_argument(
        "--until-exit", action="store_true", help="when the job has ended, however often it hung"
    )
    group.add_argument(
        "--wait-for-job",
        type=seconds,
        metavar="S",
        help="when there is no job within so many seconds (default: wait for ever)",
    )
    group = parser.add_argument_group("when a job hangs")
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="write diagnosis.json, diagnosis.txt, stacks.txt and a capture (`hangtop open`) to a "
        "directory of its own in DIR",
    )
    group.add_argument(
        "--keep",
        type=count,
        default=KEEP,
        metavar="N",
        help=f"hangs kept there; the oldest are removed (default: {KEEP})",
    )
    group.add_argument(
        "--on-hang", type=command, metavar="COMMAND", help="run this once for every hang"
    )
    group.add_argument(
        "--on-hang-limit",
        type=seconds,
        default=ON_HANG_LIMIT_S,
        metavar="S",
        help=f"end it after so many seconds (default: {ON_HANG_LIMIT_S:.0f})",
    )
    group.add_argument(
        "--json",
        action="store_true",
        help="schema hangtop.watch/1, one line for each thing that is told",
    )
    add_redaction(parser, "what is printed and written")
    add_observing(parser)
