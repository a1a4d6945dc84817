"""Arguments of `hangtop run`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hangtop.cli.arguments import Formatter

if TYPE_CHECKING:
    from hangtop.cli.arguments import Commands


def add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    """Arguments of `hangtop run`."""
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
        "--no-signal", action="store_true", help="no stacks by SIGRTMIN+7: leave that signal alone"
    )
    parser.add_argument(
        "--sync-cuda",
        action="store_true",
        help="set CUDA_LAUNCH_BLOCKING=1: slow, but stacks show the call that hangs on the GPU",
    )
    parser.add_argument(
        "--print-env",
        action="store_true",
        help="start nothing: print what would be set, as export lines of a shell",
    )
    parser.add_argument("--json", action="store_true", help="with --print-env: for programs")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to start")
