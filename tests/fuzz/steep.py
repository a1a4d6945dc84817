"""Which input costs more than in proportion to its size, with what C does: `python tests/fuzz/steep.py`.

`test_growth.py` counts lines of Python, which do not see a search through a list, a sort, or text that is
put together again and again. Here good input grows at each place of it, and by long words, until it takes
a while or is as large as it may be (`largest.SIZES`). Its processor time is compared with that of an
input of an eighth of it; what costs more than `MOST` times its part is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("core", "tui", "tests")]

import fuzz.files  # noqa: E402, F401
from fuzz.grow import places, words  # noqa: E402
from fuzz.largest import SIZES  # noqa: E402
from fuzz.target import TARGETS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fuzz.grow import Place

LONG_S = 0.15
"""Processor seconds after which an input is large enough."""
LARGEST = 2 << 20
"""Bytes likewise: making an input costs as much as reading it."""
STEP = 8
MOST = 2.0
"""Times its part of the cost; a linear decoder comes to 1.3 on a busy machine, a quadratic one to 8."""
ROUNDS = 2
"""The least of them counts."""
GIVE_UP_S = 60


class Cost(NamedTuple):
    """What one input takes."""

    size: int
    seconds: float


def costs(run: Callable[[bytes], object], place: Place, most: int) -> Iterator[Cost]:
    """Yield what input costs that grows at a place, until it is large or takes a while."""
    times = STEP
    while True:
        data = place.grown(times)
        cost = Cost(len(data), min(_seconds(run, data) for _ in range(ROUNDS)))
        yield cost
        if cost.seconds > LONG_S or cost.size * STEP > min(most, LARGEST):
            return
        times *= STEP


def _seconds(run: Callable[[bytes], object], data: bytes) -> float:
    """Processor time in a process of its own."""
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (GIVE_UP_S, GIVE_UP_S))
        begin = time.process_time()
        try:
            run(data)
        finally:
            os.write(here, json.dumps(time.process_time() - begin).encode())
            os._exit(0)
    os.close(here)
    answer = os.read(there, 100)
    os.close(there)
    os.waitpid(child, 0)
    return float(json.loads(answer)) if answer else float(GIVE_UP_S)


def steepness(all_costs: list[Cost]) -> float:
    """Return by how much the last step of an input costs more than its part."""
    if len(all_costs) < 3:
        return 0.0
    first, before, last = all_costs[0], *all_costs[-2:]
    rose, had = last.seconds - before.seconds, max(before.seconds - first.seconds, 0.004)
    return (rose / had) / ((last.size - before.size) / max(before.size - first.size, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Find inputs that cost more than their part.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="of these; default: of all")
    parser.add_argument("--all", action="store_true", help="print what is linear, too")
    arguments = parser.parse_args()
    for name in arguments.targets or TARGETS:
        target = TARGETS[name]
        for place in [*places(target), *words(target)]:
            every = list(costs(target.run, place, SIZES[name]))
            steep = steepness(every)
            if steep > MOST or arguments.all:
                shown = ", ".join(f"{one.size} B {one.seconds:.3f} s" for one in every)
                print(f"{name} {place.name} {steep:.1f}: {shown}", flush=True)
        print(f"{name} is done", flush=True)


if __name__ == "__main__":
    main()
