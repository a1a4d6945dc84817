"""Arguments of `hangtop dump`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_file, add_observing
from hangtop.cli.output.redactargs import add_redaction
from hangtop.keys import pauses

if TYPE_CHECKING:
    from hangtop.cli.arguments.arguments import Commands


def add_dump(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop dump`."""
    parser = commands.add_parser(
        "dump",
        help="print the stacks of all ranks once",
        description="Take the stacks of all ranks once, without stopping them, and print them "
        "merged: what ranks have in common is printed once, the smallest group first.",
        epilog="examples:\n"
        "  hangtop dump                     merged, library frames folded\n"
        "  hangtop dump --each              one stack after the other\n"
        "  hangtop dump --each --locals     with the variables of each frame\n"
        "  hangtop dump --json > stacks.json\n"
        "  hangtop dump -w 'gpu[001-016]'   of a job on sixteen nodes\n"
        "  hangtop dump --job 4711 --via srun   of a Slurm job, where ssh is closed\n"
        "  hangtop dump -w 'gpu[001-016]' --via pdsh\n"
        "  hangtop dump -w pod-1 --command 'kubectl exec -i %h --'\n"
        "  hangtop dump -w @gpu -o 'trace-%N.out'\n\n"
        "Ctrl-C prints what has arrived by then, and says which nodes are missing.\n\n"
        "exit status:\n"
        "  0 stacks printed   12 no training job, or no rank yet\n"
        "  13 not a single stack, or no node answers\n"
        "  130 interrupted   2 wrong usage",
        formatter_class=Formatter,
    )
    add_file(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--each", action="store_true", help="every rank by itself")
    form.add_argument("--json", action="store_true", help="schema hangtop.dump/1")
    parser.add_argument(
        "--native",
        action="store_true",
        help=f"C frames, too: stops each process ({pauses.NATIVE}), one after the other",
    )
    parser.add_argument(
        "--locals", action="store_true", help="variables, secrets masked; not merged"
    )
    parser.add_argument(
        "--all-threads",
        action="store_true",
        help="all threads, where only the main thread would be printed",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to FILE; with %%N in its name to one file per node",
    )
    parser.add_argument(
        "--library",
        action=argparse.BooleanOptionalAction,
        help="show the frames of libraries, or fold them (default: shown with --native only)",
    )
    add_redaction(parser)
    add_observing(parser)
