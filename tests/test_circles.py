"""No two modules import one another, directly or by way of others; imports for types count, too."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("core/hangtop_core", "core/hangtop_probe", "core/hangtop_hook", "tui/hangtop")


def modules() -> dict[str, Path]:
    """Return all modules by their dotted names."""
    files = [(ROOT / tree, path) for tree in TREES for path in (ROOT / tree).rglob("*.py")]
    dotted = {".".join(p.relative_to(tree.parent).with_suffix("").parts): p for tree, p in files}
    return {name.removesuffix(".__init__"): path for name, path in dotted.items()}


def imported(name: str, path: Path, every: dict[str, Path]) -> set[str]:
    """Return which of the modules one imports, wherever the import stands in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            dotted = [f"{base}.{one.name}" for one in node.names]
            found.update(one if one in every else base for one in dotted)
    return found & every.keys() - {name}


def in_circles() -> set[str]:
    """Return the modules that reach themselves: what is left when ends are taken away both ways."""
    every = modules()
    edges = {name: imported(name, path, every) for name, path in every.items()}
    while True:
        wanted = {other for others in edges.values() for other in others}
        ends = {name for name in edges if not edges[name] or name not in wanted}
        if not ends:
            break
        edges = {name: others - ends for name, others in edges.items() if name not in ends}
    return {name for name in edges if name in reached_from(name, edges)}


def reached_from(start: str, edges: dict[str, set[str]]) -> set[str]:
    """Return all that a module imports by way of others."""
    seen: set[str] = set()
    more = [start]
    while more:
        new = edges[more.pop()] - seen
        seen |= new
        more += new
    return seen


def test_no_circle_of_imports() -> None:
    circular = {name for name in in_circles() if not name.startswith("hangtop_core.analysis.")}
    assert circular == set()
