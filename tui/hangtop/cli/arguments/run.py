"""Arguments of `hangtop run`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter
from hangtop_hook.numericsfile import FRAMES

if TYPE_CHECKING:
    from hangtop.cli.arguments.arguments import Commands

MAX_FRAMES = 10_000


def add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop run`."""
    parser = commands.add_parser(
        "run",
        help="start a job prepared for being looked into",
        usage="hangtop run [OPTIONS] -- COMMAND...",
        description="Start a training job by its usual command, so that it can be looked into when "
        "it hangs: torch's flight recorder is on and answers even while a rank hangs, dumps are "
        "written on a timeout, every rank has a log of its own, and its lines begin with "
        "[node:rank]. The training code stays as it is. Exit status, signals and Ctrl-C are those "
        "of the command.",
        epilog="examples:\n"
        "  hangtop run -- torchrun --nproc-per-node 8 train.py\n"
        "  hangtop run -- accelerate launch train.py\n"
        "  hangtop run --dir /shared/runs/7 -- srun python train.py\n"
        "  hangtop run -- mpirun -n 16 --hostfile hosts python train.py\n"
        "  hangtop run --sync-cuda -- python train.py    CUDA kernels one after the other\n"
        "  hangtop run --detect-overflow -- torchrun ...  where the first inf or nan comes from\n"
        "  hangtop run --print-env --dir /shared/runs/7  for sbatch scripts and Kubernetes\n\n"
        "When it hangs: `hangtop` in another terminal. Afterwards: `hangtop flight DIR/flight`.\n"
        "Nodes see the run's directory where it is on a shared file system (default: below\n"
        "~/.local/state/hangtop/runs); on others the job runs with the recorder on, and no more.",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="keep logs, dumps and stacks here (default: new)"
    )
    parser.add_argument(
        "--no-logs", action="store_true", help="leave the output of the ranks as it is"
    )
    parser.add_argument(
        "--no-signal",
        action="store_true",
        help="no stacks by SIGRTMIN+7, no prompt by SIGRTMIN+8: leave these signals alone",
    )
    parser.add_argument(
        "--sync-cuda",
        action="store_true",
        help="set CUDA_LAUNCH_BLOCKING=1: slow, but stacks show the call that hangs on the GPU",
    )
    parser.add_argument(
        "--hide-gpus",
        action="store_true",
        help="set CUDA_VISIBLE_DEVICES to nothing: what also runs on CPUs then fails where it is "
        "wrong, with a plain traceback",
    )
    parser.add_argument(
        "--print-env",
        action="store_true",
        help="start nothing: print what would be set, as export lines of a shell",
    )
    parser.add_argument(
        "--json", action="store_true", help="with --print-env: schema hangtop.run-env/1"
    )
    _add_numerics(parser)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to start")


def _add_numerics(parser: argparse.ArgumentParser) -> None:
    numerics = parser.add_argument_group(
        "inf and nan",
        "Find the module in which the first inf or nan appears, in activations, weights and "
        "gradients, with the smallest and largest absolute values of what was called before; "
        "`hangtop numerics` shows it. A batch is a call of the model; the first is 0.",
    )
    numerics.add_argument(
        "--detect-overflow", action="store_true", help="look for the first inf or nan"
    )
    numerics.add_argument(
        "--overflow",
        choices=("continue", "abort"),
        default="continue",
        help="what the rank does then: go on, or raise FloatingPointError (default: continue)",
    )
    numerics.add_argument(
        "--trace-batches",
        type=batches,
        default=(),
        metavar="LIST",
        help="write everything of these batches, as 1,3-5",
    )
    numerics.add_argument(
        "--abort-after-batch",
        type=whole,
        metavar="N",
        help="raise FloatingPointError once batch N is over",
    )
    numerics.add_argument(
        "--frames",
        type=partial(whole, least=1, largest=MAX_FRAMES),
        default=FRAMES,
        metavar="N",
        help=f"calls of modules that are kept (default: {FRAMES})",
    )


def batches(text: str) -> tuple[tuple[int, int], ...]:
    """Parse `1,3-5` to first and last batches."""
    pairs = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        pair = whole(first), whole(last if dash else first)
        if pair[0] > pair[1]:
            raise argparse.ArgumentTypeError(f"{part!r} ends before it begins")
        pairs.append(pair)
    return tuple(pairs)


def whole(text: str, least: int = 0, largest: int = 10**9) -> int:
    """Parse an integer within limits."""
    if not text.strip().isdecimal() or not least <= int(text) <= largest:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {largest}")
    return int(text)
