"""Arguments of `hangtop logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_observing
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands


def add_logs(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop logs`."""
    parser = commands.add_parser(
        "logs",
        help="read the logs of a job: the first error, and who printed it",
        description="Read what ranks and launchers have printed, tell apart whose every line is, "
        "and say which error was first, which ones only follow from it, and what known lines of "
        "NCCL, torch, launchers and the kernel mean. Prefixes of torchrun, torch, srun --label, "
        "mpirun --tag-output, pdsh, kubectl, stern, Ray are understood, also inside one another; "
        "files of one rank are known by their names. Of files over 48 MiB the beginning and the "
        "end are read, and what is between is searched backwards for errors. Without FILE the logs "
        "of a job that is there are read, on all its nodes: the files that its ranks and launchers "
        "print to.",
        epilog="examples:\n"
        "  hangtop logs train.out                  the first error, and what follows from it\n"
        "  hangtop logs log-dir/                   all logs in a folder, as of torchrun --log-dir\n"
        "  hangtop logs 'slurm-4711_3.out' --rank 3\n"
        "  kubectl logs --prefix -l job=train | hangtop logs -\n"
        "  hangtop logs train.out --rank 0-3 --grep loss\n"
        "  hangtop logs log-dir/ --around 11:17:50\n"
        "  hangtop logs log-dir/ --follow\n"
        "  hangtop logs -w 'gpu[01-16]'            of the job that is on these nodes\n\n"
        "exit status:\n"
        "  0 no error found   10 an error, explained   11 an error, not explained\n"
        "  1 no line that was asked for   12 no log found   2 wrong usage",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "path", nargs="*", metavar="FILE", help="files, folders, or - for standard input"
    )
    parser.add_argument("--json", action="store_true", help="schema hangtop.logs/1")
    add_redaction(parser)
    parser.add_argument(
        "--all", action="store_true", help="read everything, however big the files are"
    )
    group = parser.add_argument_group("print the lines instead, each with its rank")
    group.add_argument(
        "--rank",
        nargs="+",
        metavar="RANKS",
        help="of these ranks: 3, or 0-3,8; local ranks with --node, or where lines tell no more",
    )
    group.add_argument("--node", metavar="NODE", help="of this node, as prefixes call it")
    group.add_argument(
        "--grep", metavar="PATTERN", help="in which this regular expression is, prefixes included"
    )
    group.add_argument(
        "--around",
        metavar="TIME",
        help="of 30 seconds before and after: 11:17:50 of the last day, or 2026-11-21 11:17:50",
    )
    group.add_argument(
        "-f", "--follow", action="store_true", help="as they come, until Ctrl-C; errors are told"
    )
    add_observing(parser)
