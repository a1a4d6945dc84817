"""All figures of docs/performance.md, in the order of its tables, as Markdown.

    python benchmarks/all.py [NAME ...] [--list]

Runs the other benchmarks one after the other, each in a process of its own, and puts the lines they
print into one table; other tables follow as they are. About twenty minutes on a machine with
nothing else to do, which is the only kind whose waits mean anything. NAMEs are those of `--list`;
`attach` and `srun`, which need root, sshd and Slurm, and take longer, only run when they are named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import figures

HERE = Path(__file__).parent
LIMIT_S = 900.0


class Part(NamedTuple):
    """One benchmark, and how it is called."""

    name: str
    command: str
    goals: bool = True
    """Whether it prints lines of the table of goals; else a table of its own."""
    always: bool = True


PARTS = (
    Part("table", "table.py"),
    Part("merge", "merge.py 8192"),
    Part("history", "history.py"),
    Part("small", "terminal.py 16"),
    Part("large", "terminal.py 1024"),
    Part("probe", "watch.py 8 --threads 100 --seconds 60 --parts 2"),
    Part("pause", "pause.py"),
    Part("harm", "harm.py", goals=False),
    Part("growth", "growth.py", goals=False),
    Part("fleet", "fleet.py --seconds 15", goals=False),
    Part("attach", "attach.py", goals=False, always=False),
    Part("srun", "srun.py", goals=False, always=False),
)


def run(part: Part) -> list[str]:
    """What a benchmark prints; what went wrong is said instead."""
    argv = [sys.executable, *part.command.split()]
    argv[1] = str(HERE / argv[1])
    folders = (str(HERE.parent / one) for one in ("core", "tui", "tests", "benchmarks"))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    began = time.monotonic()
    print(f"{part.command} ...", end="", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"`{part.command}` took over {LIMIT_S:.0f} s"]
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return [f"`{part.command}` failed: {' '.join(last)}"]
    return done.stdout.splitlines()


def is_row(line: str) -> bool:
    """Whether a line is one of the table of goals."""
    return line.startswith("| ") and line not in figures.HEAD


def main() -> None:
    """Run what was named, or all that runs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="one of --list")
    parser.add_argument(
        "--list", action="store_true", help="names, and the commands they stand for"
    )
    options = parser.parse_args()
    if unknown := {*options.names} - {one.name for one in PARTS}:
        parser.error(f"there is no {', '.join(unknown)}; see --list")
    if options.list:
        for one in PARTS:
            print(f"{one.name:8} {one.command}")
        return
    chosen = [
        one for one in PARTS if one.name in options.names or (not options.names and one.always)
    ]
    began = os.getloadavg()
    goals = [one for one in chosen if one.goals]
    if goals:
        print("| what | goal | measured | peer, same run | command |\n|---|---|---|---|---|")
    for part in goals:
        for line in run(part):
            if is_row(line):
                print(f"{line} `{part.command}` |", flush=True)
            elif "`" in line:
                print(f"| {line} | | | | |", flush=True)
    for part in chosen:
        if not part.goals:
            print(f"\n`{part.command}`:\n")
            print("\n".join(run(part)), flush=True)
    print(f"\nLoad {began[0]:.1f} before;", end="")
    figures.load()


if __name__ == "__main__":
    main()
