"""Fuzz decoders for as long as one likes, guided by coverage: `make fuzz`.

One process for each target, one after the other: `run.py SECONDS [TARGET ...]`. What atheris finds
interesting is kept in `.fuzz/TARGET` and begun with the next time; what fails is written to
`cases/TARGET`, where the ordinary tests run it ever after.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_INPUT = 1 << 14
"""Bytes."""
ONE_S = 10
"""Seconds of a single input, after which it counts as a fault."""
MEMORY_MB = 2048


def main() -> int:
    """Run some targets, or all; returns whether any failed."""
    seconds, names = int(sys.argv[1]), sys.argv[2:]
    if seconds < 0:
        _fuzz(names[0], names[1:])
    sys.path[:0] = [str(ROOT / part) for part in ("core", "tui", "tests")]
    import fuzz.files  # noqa: F401
    from fuzz.target import TARGETS

    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        print(f"no target {' '.join(unknown)}; there are: {' '.join(TARGETS)}", file=sys.stderr)
        return 2
    return max([_run(name, seconds) for name in names or TARGETS])


def _run(name: str, seconds: int) -> int:
    corpus = ROOT / ".fuzz" / name
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as found:
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={MAX_INPUT}",
            f"-timeout={ONE_S}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-artifact_prefix={found}/",
            "-print_final_stats=1",
            str(corpus),
        ]
        argv = [sys.executable, __file__, "-1", name, *options]
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", check=False
        )
        cases = Path(__file__).parent / "cases" / name
        for path in Path(found).iterdir() if done.returncode else ():
            cases.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, cases)
    runs = re.search(r"number_of_executed_units: +(\d+)", done.stdout)
    told = f"{runs[1]} inputs" if runs else "it did not start"
    print(f"{name:<24} {told:<20} {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stdout[-4000:])
    return min(abs(done.returncode), 1)


def _fuzz(name: str, options: list[str]) -> None:
    """Be the process of one target; does not return."""
    import atheris

    sys.path[:0] = [str(ROOT / part) for part in ("core", "tui", "tests")]
    with atheris.instrument_imports(
        include=["hangtop", "hangtop_core", "hangtop_hook", "hangtop_probe"]
    ):
        import fuzz.files  # noqa: F401
    from fuzz.change import changed
    from fuzz.target import TARGETS

    target = TARGETS[name]
    for seed in target.seeds():
        (Path(options[-1]) / hashlib.sha1(seed).hexdigest()).write_bytes(seed)

    def change(data: bytes, most: int, seed: int) -> bytes:
        """As a stranger would, or as libFuzzer does."""
        rng = random.Random(seed)
        if rng.random() < 0.4:
            return bytes(atheris.Mutate(data, most))
        numbers = [tuple(rng.getrandbits(24) for _ in range(3)) for _ in range(rng.randint(1, 4))]
        return changed(data, numbers)[:most]  # type: ignore[arg-type]

    atheris.Setup([sys.argv[0], *options], target.run, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
