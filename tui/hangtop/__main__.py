"""`hangtop` and `python -m hangtop`, which report when memory is too small to load the rest."""

import os
import resource
import sys

CRAMPED = 64 << 20
"""Bytes of address space within which not even all modules can be loaded."""


def main() -> int:
    """Run the command line; return its exit status."""
    if not 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < CRAMPED:
        return _run()
    try:
        import logging

        logging.disable()  # hashlib logs each hash that it cannot load
        status = _run()
    except Exception:  # which exception depends on what was just loaded, down to SyntaxError
        print("hangtop: there is too little memory here (ulimit -v)", file=sys.stderr)
        status = 1
    if status == 1:
        sys.stdout.flush()
        os._exit(1)  # an orderly exit takes memory, too, and reports each error in it
    return status


def _run() -> int:
    from hangtop.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
