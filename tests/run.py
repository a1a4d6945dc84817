"""Run all tests; where few fail, run those once more by themselves, and say so.

Hundreds of tests wait for real jobs, connections and tools to get somewhere. On a machine that is
busy with other things one of them may fail for that. The second try is in a process of its own,
with all fixtures made anew; what has failed at first is named at the end, to be looked into.

    python tests/run.py [OPTION OF PYTEST ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
"""Where pytest notes what has failed (its cache plugin)."""
SOME_FAILED = 1
"""How pytest exits then (`pytest.ExitCode.TESTS_FAILED`)."""
MAX_FILES = 3
"""Where tests of more files fail, that is no accident."""


def main(options: list[str]) -> int:
    FAILED.unlink(missing_ok=True)
    status = pytest(options)
    if status != SOME_FAILED:
        return status
    failed = list(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len({name.partition("::")[0] for name in failed}) <= MAX_FILES:
        return status
    print(f"\n{len(failed)} failed, and run once more by themselves:", *failed, sep="\n  ")
    status = pytest(failed)
    print("\nfailed at first:", *failed, sep="\n  ")
    print("and at the second try, too" if status else "and passed at the second try", flush=True)
    return status


def pytest(arguments: list[str]) -> int:
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
