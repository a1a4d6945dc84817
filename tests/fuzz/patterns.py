"""Every pattern of the packages on text made for it: none takes much longer for a little more.

Text is made of what a pattern itself is made of: each character, class and word in it many times over,
with an end that does not fit. One that backtracks takes four times as long for twice as much.
`test_slow_patterns.py` looks at all of them so; `python tests/fuzz/patterns.py` does with all pairs,
too, which takes some minutes, and prints those that are slow.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from re import _constants as what  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = ("core/hangtop_core", "core/hangtop_probe", "core/hangtop_hook", "tui/hangtop")
NAMES = tuple(one.rpartition("/")[2] for one in PACKAGES)
WAYS = ("search", "match", "fullmatch")
SAMPLES = {
    what.CATEGORY_DIGIT: "7",
    what.CATEGORY_SPACE: " ",
    what.CATEGORY_WORD: "a",
    what.CATEGORY_NOT_DIGIT: "a",
    what.CATEGORY_NOT_SPACE: "a",
    what.CATEGORY_NOT_WORD: "-",
}
FIRST, LAST = 256, 4096
"""Characters of the first look, and of the one that counts: names and lines of others are cut there."""
QUICK_S = 0.0001
"""Seconds of the first look up to which a pattern is not looked at closer."""
MOST_UNITS, MOST_PAIRS = 16, 60
SLOW_S = 0.05


class Pattern(NamedTuple):
    """A pattern and how it is used."""

    where: str
    text: Any
    flags: int
    ways: tuple[str, ...]


class Slow(NamedTuple):
    """A pattern and the text it is slow on."""

    pattern: Pattern
    way: str
    unit: tuple[str, str]
    """What the text begins with, and what stands in it many times over."""
    seconds: float
    """For `LAST` characters."""
    growth: float
    """How much longer than half as many take."""


def patterns() -> list[Pattern]:
    """Return all of the packages: in a process that has imported none of them yet."""
    found: dict[tuple[Any, int], Pattern] = {}
    compile_ = re.compile

    def note(text: Any, flags: int = 0) -> Any:
        compiled = compile_(text, flags)
        frame = sys._getframe(1)
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] in NAMES:
            where = f"{name}:{frame.f_lineno}"
            key = (compiled.pattern, compiled.flags)
            found.setdefault(key, Pattern(where, compiled.pattern, compiled.flags, WAYS))
        return compiled

    for name in [
        one
        for one in sys.modules
        if one.partition(".")[0] in ("hangtop", "hangtop_core", "hangtop_probe", "hangtop_hook")
    ]:
        del sys.modules[name]
    re.compile = note  # type: ignore[assignment]
    try:
        for package in PACKAGES:
            for module in _modules(ROOT / package):
                importlib.import_module(module)
    finally:
        re.compile = compile_
    ways = _ways()
    for key, one in found.items():
        found[key] = one._replace(ways=ways[one.where] or ("search",))
    return [*found.values(), *_not_compiled(), *_titles()]


def _titles() -> Iterator[Pattern]:
    """Yield those of the table of launchers."""
    for one in importlib.import_module("hangtop_probe.ranks.launchers").TABLE:
        if one.title:
            yield Pattern("hangtop_probe.ranks.launchers:title", one.title, 0, ("match",))


def _not_compiled() -> Iterator[Pattern]:
    """Yield those that are written where they are used."""
    sources = {module: text for module, text in _sources().items() if ".demo" not in module}
    for module, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(
                    ast.Attribute(ast.Name("re"), used),
                    [ast.Constant(str() | bytes() as written), *_],
                ) if used != "compile":
                    way = used if used in WAYS else "search"
                    yield Pattern(f"{module}:{node.lineno}", written, 0, (way,))


def _modules(folder: Path) -> Iterator[str]:
    yield folder.name
    for one in pkgutil.walk_packages([str(folder)], folder.name + "."):
        if not one.name.endswith(("__main__", "activate")) and ".demo" not in one.name:
            yield one.name


_ASSIGNED = re.compile(r"(?m)^\s*(\w+)(?:: [^=\n]{1,80})? = re\.compile\(")
_USED = re.compile(r"\b(\w+)\.(search|match|fullmatch|findall|finditer|sub|split|subn)\b")


def _ways() -> Any:
    """By module and line, in which ways what is compiled there is used anywhere."""
    sources = _sources()
    used = defaultdict(set)
    for text in sources.values():
        for match in _USED.finditer(text):
            way = match[2] if match[2] in WAYS else "search"
            used[match[1]].add(way)
    found: Any = defaultdict(tuple)
    for module, text in sources.items():
        for match in _ASSIGNED.finditer(text):
            line = text.count("\n", 0, match.start(1)) + 1
            found[f"{module}:{line}"] = tuple(sorted(used[match[1]]))
    return found


def _sources() -> dict[str, str]:
    """Return the text of each module."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT / package.partition("/")[0]).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path.read_text("utf-8")
    return found


def units(pattern: Pattern) -> list[str]:
    """What a pattern may go on about: characters of its classes, its words."""
    found: dict[str, None] = {}
    _collect(_parser.parse(pattern.text, pattern.flags), found)
    return [one for one in found if one][:MOST_UNITS]


def _collect(parsed: Any, found: dict[str, None]) -> None:
    word = ""
    for op, value in parsed:
        if op is what.LITERAL:
            word += chr(value)
            continue
        if word:
            found[word] = found[word[0]] = found[word[-1]] = None
        word = ""
        if op is what.IN:
            _of_class(value, found)
        elif op is what.NOT_LITERAL:
            found["a" if value != 97 else "b"] = None
        elif op is what.ANY:
            found["a"] = None
        elif op in (what.MAX_REPEAT, what.MIN_REPEAT, what.POSSESSIVE_REPEAT):
            _collect(value[2], found)
        elif op is what.SUBPATTERN:
            _collect(value[3], found)
        elif op is what.BRANCH:
            for one in value[1]:
                _collect(one, found)
        elif op in (what.ASSERT, what.ASSERT_NOT):
            _collect(value[1], found)
        elif op is what.ATOMIC_GROUP:
            _collect(value, found)
    if word:
        found[word] = found[word[0]] = found[word[-1]] = None


def _of_class(items: Any, found: dict[str, None]) -> None:
    negated = items and items[0][0] is what.NEGATE
    if negated:
        barred = {chr(value) for op, value in items if op is what.LITERAL}
        found[next(c for c in "a 7-/=:," if c not in barred)] = None
        return
    for op, value in items[:6]:
        if op is what.LITERAL:
            found[chr(value)] = None
        elif op is what.RANGE:
            found[chr(value[0])] = None
        elif op is what.CATEGORY:
            found[SAMPLES[value]] = None


def texts(pattern: Pattern, most_pairs: int) -> Iterator[tuple[str, str]]:
    """Yield beginnings, and what is to stand after them many times over."""
    some = units(pattern)
    yield from (("", one) for one in some)
    pairs = itertools.permutations(some, 2)
    for first, second in itertools.islice(pairs, most_pairs):
        yield "", first + second
        yield first, second


def slow(pattern: Pattern, most_pairs: int = 0) -> Slow | None:
    """A slow text for a pattern, of those that take much more than twice as long for twice as much."""
    compiled = re.compile(pattern.text, pattern.flags)
    worst = None
    for way in pattern.ways:
        use = getattr(compiled, way)
        for unit in texts(pattern, most_pairs):
            before, size = 0.0, FIRST
            while size <= LAST:
                took = _seconds(use, pattern, unit, size)
                if took < QUICK_S * size / FIRST:
                    break
                if took > 0.1 or size == LAST:
                    growth = took / before if before else 9.0
                    whole = took * (LAST // size) ** 2
                    if growth > 2.8 and (worst is None or whole > worst.seconds):
                        worst = Slow(pattern, way, unit, whole, growth)
                    break
                before, size = took, size * 2
            if worst is not None and worst.seconds > SLOW_S:
                return worst
    return worst


def _seconds(use: Any, pattern: Pattern, unit: tuple[str, str], size: int) -> float:
    text: Any = unit[0] + unit[1] * (size // len(unit[1])) + "\x01"
    if isinstance(pattern.text, bytes):
        text = text.encode("latin-1", "replace")
    began = time.process_time()
    use(text)
    return time.process_time() - began


def main() -> None:
    """Print those that are slow, as they are found; with an argument only by single units."""
    sys.path[:0] = [str(ROOT / part) for part in ("core", "tui", "tests")]
    for pattern in patterns():
        one = slow(pattern, 0 if sys.argv[1:] else MOST_PAIRS)
        if one is not None and one.seconds > SLOW_S:
            text = f"{one.way} {pattern.where} {one.unit!r} {pattern.text!r}"
            print(f"{one.seconds * 1000:.0f} ms x{one.growth:.1f} {text}", flush=True)


if __name__ == "__main__":
    main()
