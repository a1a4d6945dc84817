"""Arguments of `hangtop numerics`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing
from hangtop.cli.arguments.run import MAX_FRAMES, batches, whole
from hangtop.cli.output.redactargs import add_redaction
from hangtop_hook.numericsfile import FRAMES

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_numerics(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop numerics`."""
    parser = commands.add_parser(
        "numerics",
        help="where the first inf or nan came from, in a run that looks for it",
        description="Say which rank saw the first inf or nan, in which module and batch, and show "
        "the smallest and largest absolute values of what was called before. The job must have "
        "been started with `hangtop run --detect-overflow`. Without PATH the job that is there "
        "is asked, on all its nodes.",
        epilog="examples:\n"
        "  hangtop run --detect-overflow --dir runs/7 -- torchrun --nproc-per-node 8 train.py\n"
        "  hangtop numerics                       of the job that is there\n"
        "  hangtop numerics runs/7                from its files, also when it has ended\n"
        "  hangtop numerics hang.hangtop          from a capture\n"
        "  hangtop numerics runs/7 --batch 3-5    batches that were traced (--trace-batches)\n\n"
        "exit status:\n"
        "  0 all is finite so far   10 an inf or nan was found\n"
        "  12 no job, or no file   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "path", nargs="*", type=Path, metavar="PATH", help="folder of a run, numerics file, capture"
    )
    parser.add_argument("--rank", type=whole, metavar="RANK", help="this rank only")
    parser.add_argument(
        "--batch",
        type=batches,
        default=(),
        metavar="LIST",
        help="all calls of these traced batches, from files",
    )
    parser.add_argument(
        "--calls",
        type=partial(whole, least=1, largest=MAX_FRAMES),
        default=FRAMES,
        metavar="N",
        help=f"calls that are shown before the first (default: {FRAMES})",
    )
    parser.add_argument("--json", action="store_true", help="schema hangtop.numerics-report/1")
    add_redaction(parser)
    add_observing(parser)
