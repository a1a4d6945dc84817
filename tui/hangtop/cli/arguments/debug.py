"""Arguments of `hangtop debug`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing, rank

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_debug(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop debug`."""
    parser = commands.add_parser(
        "debug",
        help="a pdb prompt in a rank that runs",
        description="Open a pdb prompt in a rank that runs: where its main thread is now, with "
        "its variables. The rank stands still meanwhile, and the timeouts of the ranks that wait "
        "for it run on; c, q, Ctrl-C and the end of hangtop let it go on. For ranks started by "
        "`hangtop run`, and for all of Python 3.14 and later, by a unix socket that only you can "
        "use. A rank whose main thread is blocked in C (a "
        "collective, cudaStreamSynchronize) does not come back to the interpreter: that is said "
        "after 3 s, nothing was stopped, and the native stack is what helps.",
        epilog="examples:\n"
        "  hangtop run -- torchrun --nproc-per-node 8 train.py\n"
        "  hangtop debug 3                      rank 3 of the job that runs here\n"
        "  hangtop debug 12 -w 'gpu[01-16]'     on whichever node it is\n"
        "  hangtop debug --pid 4711\n\n"
        "exit status:\n"
        "  0 the prompt was left, the rank goes on   1 no prompt could be had\n"
        "  12 no such rank   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument("rank", nargs="?", type=rank, metavar="RANK", help="its number")
    add_observing(parser)
