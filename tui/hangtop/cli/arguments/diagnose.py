"""Arguments of `hangtop diagnose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_file, add_observing, seconds
from hangtop.cli.output.redactargs import add_redaction
from hangtop.keys import pauses

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_diagnose(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop diagnose`."""
    parser = commands.add_parser(
        "diagnose",
        help="print who holds the job up, and why",
        description="Observe a job for some seconds and print the verdict. When nothing moves but "
        "too little time has passed to call that a hang, it goes on observing up to "
        "--hang-after seconds.",
        epilog="examples:\n"
        "  hangtop diagnose\n"
        "  hangtop diagnose --json | jq '.verdicts[0].culprits'\n"
        "  hangtop diagnose --observe 20 --hang-after 60 || send-a-message\n"
        "  hangtop diagnose -w 'gpu[01-16]' -x gpu07\n"
        "  hangtop diagnose --job 4711       of a Slurm job\n"
        "  hangtop diagnose hang.hangtop     of a capture\n"
        "  hangtop diagnose -o hang.hangtop  and keep what it was concluded from\n"
        "  hangtop diagnose --hostfile hosts.txt -l alice --python /opt/conda/bin/python3\n\n"
        "exit status:\n"
        "  0 progressing, slow or idle   10 hung, explained   11 hung, not explained\n"
        "  12 no training job   13 nothing could be concluded, or no node answers\n"
        "  2 wrong usage   130 interrupted: what was known by then",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "--observe", type=seconds, default=5.0, metavar="S", help="seconds at least (default: 5)"
    )
    add_file(parser)
    parser.add_argument("--json", action="store_true", help="schema hangtop.diagnosis/1")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="also write what it was concluded from to a capture; `hangtop capture` asks for more",
    )
    parser.add_argument(
        "--ras",
        nargs="?",
        const="safe",
        choices=("safe", "anyway"),
        help="if it hangs, ask NCCL's RAS once, too: its threads in all ranks then talk to one "
        "another, which ends jobs with some versions of NCCL; those are not asked but by "
        "--ras=anyway",
    )
    parser.add_argument(
        "--allow-pause",
        action="store_true",
        help="where a rule asks for the C frames of a suspect, take them: stops it once "
        f"({pauses.NATIVE}), and two ranks at most",
    )
    add_redaction(parser)
    add_observing(parser)
