"""The names of modules: their paths below the root of the program's model, without wrappers."""

from __future__ import annotations

import weakref
from typing import Any, Dict, NamedTuple, Optional, Set, Tuple

_INNER = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
"""Classes that wrap a module, and their attribute for it: torch 2.13, DeepSpeed 0.15."""


class Name(NamedTuple):
    """The name of a module, empty for the root, and the classes of module and root."""

    module: str
    kind: str
    root: str


class Names:
    """Names of modules and parameters, updated when a module without a name is called."""

    def __init__(self) -> None:
        self._modules: Dict[int, Tuple[Any, Name]] = {}
        self._parameters: Dict[int, Tuple[Any, Name, str]] = {}

    def of(self, module: Any, root: Any) -> Optional[Name]:
        """Return the name of a called module, below ``root``, the outermost one.

        None for the graph of a compiler, which stands for modules that have names.
        """
        named = self._look(module)
        if named is None:
            self._walk(root, "", class_of(unwrapped(root)), set())
            named = self._look(module)
        if named is None and type(module).__name__.startswith("GraphModule"):
            return None
        if named is None:  # created on the fly, and belongs to no module
            named = Name("", class_of(module), class_of(unwrapped(root)))
        return named

    def of_parameter(self, parameter: Any) -> Tuple[Optional[Name], str]:
        """Return the owner of a parameter and its name there; None where the owner is unknown."""
        entry = self._parameters.get(id(parameter))
        if entry is None or entry[0]() is not parameter:
            return None, "parameter"
        return entry[1], entry[2]

    def _look(self, module: Any) -> Optional[Name]:
        entry = self._modules.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def _walk(self, module: Any, name: str, root: str, visited: Set[int]) -> None:
        """Name everything below; a module that occurs twice goes by its first name."""
        if id(module) in visited:
            return
        visited.add(id(module))
        mine = Name(name, class_of(module), root)
        self._modules[id(module)] = weakref.ref(module), mine
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                self._parameters[id(parameter)] = weakref.ref(parameter), mine, key
        inner = _INNER.get(type(module).__name__)
        for key, child in list(module._modules.items()):
            if child is not None:
                below = name if key == inner else "%s.%s" % (name, key) if name else key
                self._walk(child, below, root, visited)


def unwrapped(module: Any) -> Any:
    """Return the module inside wrappers."""
    while type(module).__name__ in _INNER:
        inner = module._modules.get(_INNER[type(module).__name__])
        if inner is None:
            break
        module = inner
    return module


def class_of(module: Any) -> str:
    """Return the name of a module's class; `fully_shard` makes FSDPLinear of Linear."""
    kind = type(module)
    if any(base.__name__ == "FSDPModule" for base in kind.__bases__):
        kind = kind.__bases__[-1]
    return kind.__name__
