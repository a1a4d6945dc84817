"""Copied as `sitecustomize.py` into the directory that `hangtop run` puts first on PYTHONPATH.

Every Python imports it at start, including versions that the rest does not support, so all of them
must be able to compile it. A sitecustomize that would have run without it runs after it, and the
directory is removed from sys.path before the program sees it.
"""

import os
import sys


def _start(directory):
    try:
        import hangtop_hook

        hangtop_hook.start(os.path.dirname(directory))
    except Exception as error:
        sys.stderr.write("hangtop: the hook does not work here: %s\n" % (error,))


def _hand_on(directory):
    """Run the sitecustomize behind this one, as if it had been the first."""
    ours = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != directory]
    sys.path_importer_cache.pop(directory, None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize" and "sitecustomize" not in str(error):
            raise
    finally:
        # The import system expects the module that was just run under this name.
        sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    _directory = os.path.dirname(os.path.abspath(__file__))
    if sys.version_info >= (3, 8):
        _start(_directory)
    _hand_on(_directory)
