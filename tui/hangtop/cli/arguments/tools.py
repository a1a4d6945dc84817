"""Arguments of `hangtop doctor`, `hangtop config` and `hangtop completion`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop.cli.arguments.arguments import Formatter, add_targets
from hangtop.cli.output.redactargs import add_redaction

if TYPE_CHECKING:
    import argparse

    from hangtop.cli.arguments.arguments import Commands

SHELLS = ("bash", "zsh", "fish", "tcsh")


def add_doctor(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="say what hangtop can see on each node, and how to let it see more",
        description="Try on each node, or on this machine, whatever hangtop needs: reaching it, "
        "Python, the probe, ptrace, py-spy, strace, gdb, the GPU driver, flight recorders and the "
        "clock. Nodes with the same result are told together, every fault with its fix. Ptrace and "
        "py-spy are tried on a process of hangtop's own, never on a rank.",
        epilog="examples:\n"
        "  hangtop doctor                     this machine\n"
        "  hangtop doctor -w 'gpu[001-016]'   sixteen nodes\n"
        "  hangtop doctor -w @gpu --json | jq '.nodes[] | select(.ok | not).node'\n"
        "  hangtop doctor -w @gpu --clean     remove what hangtop keeps there\n\n"
        "exit status:\n"
        "  0 all that matters is there   3 some node answers, but hides its ranks\n"
        "  4 some node cannot be observed at all   2 wrong usage\n"
        "  of --clean: 0 nothing is left   3 something is left   4 some node was not reached",
        formatter_class=Formatter,
    )
    parser.add_argument(
        "--clean", action="store_true", help="remove hangtop's cache of this user on the nodes"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="schema hangtop.doctor/1; with --clean hangtop.doctor.clean/1",
    )
    add_redaction(parser)
    add_targets(parser)


def add_config(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop config`."""
    parser = commands.add_parser(
        "config",
        help="print the config file that is in force, or one with every setting",
        description="Say where the config file is and what it sets, or print one that has every "
        "option and every key of the app with its default, ready to be changed.",
        epilog="examples:\n"
        "  hangtop config                   the file in force, checked\n"
        "  hangtop config --default > FILE  every setting with its default, commented out\n"
        '  $EDITOR "$(hangtop config --path)"\n\n'
        "exit status: 0 it can be used, or there is none   2 it cannot, and why",
        formatter_class=Formatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--default", action="store_true", help="print every setting")
    what.add_argument("--path", action="store_true", help="print where the file is looked for")
    what.add_argument(
        "--json",
        action="store_true",
        help="schema hangtop.config/1: every option and key, its default and what it is now",
    )


def add_completion(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the arguments of `hangtop completion`."""
    parser = commands.add_parser(
        "completion",
        help="print a script that lets your shell complete hangtop's options",
        description="Print the completion script of a shell. It is made from the options "
        "themselves and starts no Python when you press Tab.",
        epilog="examples:\n"
        '  eval "$(hangtop completion bash)"       in ~/.bashrc\n'
        "  hangtop completion bash > ~/.local/share/bash-completion/completions/hangtop\n"
        '  eval "$(hangtop completion zsh)"        in ~/.zshrc, below compinit\n'
        "  hangtop completion fish > ~/.config/fish/completions/hangtop.fish",
        formatter_class=Formatter,
    )
    parser.add_argument("shell", choices=SHELLS, help=", ".join(SHELLS))
