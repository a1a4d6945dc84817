"""Acting when the program imports a module of torch, and when it joins a process group.

A finder that is first on sys.meta_path waits for one module name; any other import costs it a
comparison. It never imports anything, and is removed once the module is imported.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

MODULE = "torch.distributed.distributed_c10d"
FUNCTION = "init_process_group"
DESTROY = "destroy_process_group"


class Finder:
    """Finds one module, as the finders behind it do, and acts before and after it is run."""

    def __init__(self, name: str, before: Callable[[], None], after: Callable[[Any], None]) -> None:
        self.name = name
        self.before = before
        self.after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Implement the import protocol; return None for all but the awaited module."""
        if name != self.name:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._surround(spec)
                return spec
        return None

    def _surround(self, spec: Any) -> None:
        from .failures import attempt

        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            attempt("before " + self.name, self.before)
            run(module)
            attempt("after " + self.name, self.after, module)

        attempt("importing", setattr, spec.loader, "exec_module", exec_module)


def when_imported(
    name: str, after: Callable[[Any], None], before: Callable[[], None] = lambda: None
) -> None:
    """Call ``after`` with a module once it is imported, and ``before`` ahead of its import."""
    if name in sys.modules:
        after(sys.modules[name])
    else:
        sys.meta_path.insert(0, Finder(name, before, after))


def wait_for_torch(directory: str) -> None:
    """Act when MODULE is imported; at once if it already is."""
    when_imported(MODULE, lambda module: wrap(module, directory), lambda: set_names(directory))


def set_names(directory: str) -> None:
    """Set the recorder's variables by the names of the torch that is being imported.

    torch reads them when a process group is made. Children of launchers inherit them.
    """
    from . import names

    version = getattr(sys.modules.get("torch.version"), "__version__", "")
    flight = os.path.join(directory, "flight")
    where = directory if os.path.isdir(flight) and os.access(flight, os.W_OK) else None
    os.environ.update(names.variables(names.version_of(version), os.environ, where))


def wrap(module: Any, directory: str) -> None:
    """Wrap init_process_group to start the worker server first, and otherwise unchanged.

    Where process groups are destroyed, record them before.
    """
    function: Optional[Callable[..., Any]] = getattr(module, FUNCTION, None)
    if function is None or hasattr(function, "hangtop_run"):
        return

    import functools

    @functools.wraps(function)
    def init_process_group(*arguments: Any, **named: Any) -> Any:
        from . import server
        from .failures import attempt

        attempt("worker server", server.start, directory)
        result = function(*arguments, **named)
        attempt("process group", joined, module, directory)
        return result

    init_process_group.hangtop_run = directory  # type: ignore[attr-defined]
    setattr(module, FUNCTION, init_process_group)
    _wrap_destroy(module)


def _wrap_destroy(module: Any) -> None:
    function: Optional[Callable[..., Any]] = getattr(module, DESTROY, None)
    if function is None:
        return

    import functools

    @functools.wraps(function)
    def destroy_process_group(*arguments: Any, **named: Any) -> Any:
        from . import recorder
        from .failures import attempt

        attempt("recorder", recorder.before_destroy)
        return function(*arguments, **named)

    setattr(module, DESTROY, destroy_process_group)


def joined(module: Any, directory: str) -> None:
    """Record the number of a rank that no variable contains, as with torch.multiprocessing."""
    from . import processes, recorder
    from .rank import become_rank

    recorder.keep(module, directory)
    os.environ["HANGTOP_RANK"] = str(module.get_rank())
    if processes.RANK_PID not in os.environ:
        become_rank(directory, int(module.get_rank()))
