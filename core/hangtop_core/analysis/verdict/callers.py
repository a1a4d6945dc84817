"""The calls of the user's code that led a rank to where it waits, and what they stand in."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from hangtop_core.model.frames import is_library, plain_name, where
from hangtop_core.text.clean import plural

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from hangtop_core.analysis.verdict.base import Subject
    from hangtop_core.model.snapshot import Frame

_LOOP = re.compile(r"(async\s+)?for\b|while\b")
_OF_RANK = re.compile(
    r"(?<!lora_)(?<!low_)(?<!matrix_)rank(?!ing|er|ed|_loss)"
    r"|is_(?:\w+_)?(?:main|master|chief|coordinator|leader|primary|root)"
    r"|\b(?:main|master|leader)\b|(?:main|master)_process|process_index|process_zero|global_zero"
    r"|procid",
    re.IGNORECASE,
)
"""Names by which programs ask which rank they are: torch, Lightning, Accelerate, transformers."""
_ANY_RANK = re.compile(
    r"\b\w{0,40}rank\w{0,40}(?:\(\))?\s{0,9}"
    r"(?:(?:[!=]=|is not|is|>=?|<)\s{0,9}(?:-1|None)\b|>=\s{0,9}0\b)",
    re.IGNORECASE,
)
"""What asks whether there are ranks at all. Bounded, for whatever a node may say."""
_ON_ONE = re.compile(
    r"@(?!.*broadcast).*(?:rank_?(?:zero|0)|(?:main|master|process)_only|only_(?:on|main|master|rank)"
    r"|on_\w*process)",
    re.IGNORECASE,
)
"""Decorators by which a function runs on one rank: of Lightning, Accelerate, mmengine."""
_LEAVES = re.compile(r":\s*(?:return|continue|break)\b.*")
HANDLERS = 3
"""Signal handlers within one another that are named."""
_HEAD = ("def ", "async def ")
PAST, AT, _MADE = "past: ", "at: ", "made: "
_NOT_AROUND = (PAST, AT, _MADE, "@", *_HEAD)
"""How what is no condition around a line begins, as the probe writes it
(hangtop_probe/stacks/sources.py): one that others left at, a line, what has started what it waits
for, a decorator, the head of what handles signals."""
FLAG = "  # "
"""Before what the program has that keeps the rank: `if verbose:  # verbose = rank == 0`."""
_NAME = re.compile(r"(?:(?:el)?if .*?: )?((?:\w+\.)*\w+)\s*=")
"""Of what keeps it, also where that is in the block of a condition: `if main: log = Log()`."""
_MAX_LINE = 200
"""Of more characters one may be nested deeper than Python can follow."""
_BRANCH = re.compile(r"^(?:el(?=if\b)|else:\s*)")
"""What makes a line no Python of its own: the rest is."""
Block = tuple[int, str]


def stack_key(subject: Subject) -> str:
    """Key of the stack of a subject's main thread; empty where there is none."""
    sample = subject.rank.sample
    return sample.threads[0].stack if sample is not None and sample.threads else ""


def stack_of(stacks: Mapping[str, tuple[Frame, ...]], subject: Subject) -> tuple[Frame, ...]:
    """Frames of a subject's main thread, innermost first."""
    return stacks.get(stack_key(subject), ())


def calls(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """The user's own frames of a stack, innermost first."""
    return tuple(frame for frame in stack if not is_library(frame))


def parting(one: Sequence[Frame], other: Sequence[Frame]) -> int | None:
    """How many outermost frames two stacks share before they are at two lines of one function.

    None where they part in two functions, or nowhere.
    """
    for depth, (left, right) in enumerate(zip(reversed(one), reversed(other), strict=False)):
        if (left.file, left.name) != (right.file, right.name):
            return None
        if left.line != right.line:
            return depth
    return None


def parted(one: Sequence[Frame], other: Sequence[Frame]) -> tuple[Frame, Frame] | None:
    """Where two stacks are in the function in which they part; None as for `parting`."""
    depth = parting(one, other)
    return None if depth is None else (one[-1 - depth], other[-1 - depth])


def in_turn(one: Sequence[Frame], other: Sequence[Frame]) -> int | None:
    """How many outermost frames are around a line in which two stacks part, `end(train(x))`: one
    is in the call of an argument, which is over before that begins which the other one is in.

    None where they part otherwise, and where that line is not known.
    """
    shared = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if (left.file, left.name, left.line) != (right.file, right.name, right.line):
            break
        shared += 1
    while shared and is_library(one[-shared]):
        shared -= 1
    text = one[-shared].source or other[-shared].source if shared else None
    first, then = (_begun(some[: len(some) - shared]) for some in (one, other))
    return shared - 1 if text and first and then and _argument(text, first, then) else None


def _begun(callees: Sequence[Frame]) -> str:
    """The function that a line has called itself, perhaps within a decorator of torch."""
    for frame in reversed(callees):
        if not is_library(frame):
            return plain_name(frame.name)
        if not frame.file.endswith("/_contextlib.py"):
            break
    return ""


@lru_cache(maxsize=1000)
def _argument(text: str, inner: str, outer: str) -> bool:
    """Whether a line calls one function for an argument of the only call of another one."""
    calls_ = [part for part in parts_of(text) if isinstance(part, ast.Call)]
    named = [ast.unparse(one.func).rpartition(".")[2] for one in calls_]
    if named.count(outer) != 1 or inner == outer:
        return False
    within = list(ast.walk(calls_[named.index(outer)]))
    return named.count(inner) > 0 and all(
        one in within for one, name in zip(calls_, named, strict=True) if name == inner
    )


def parts_of(text: str) -> list[ast.AST]:
    """All parts of a line, also of one that only begins a block; none where it is no Python."""
    text = _BRANCH.sub("", text.strip())
    if "\\" in text or len(text) > _MAX_LINE:
        return []  # Python would warn of a backslash that means nothing
    for whole in (text, f"{text} pass"):
        try:
            return list(ast.walk(ast.parse(whole)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return []


def by_callers(
    stacks: Mapping[str, tuple[Frame, ...]], members: Sequence[Subject]
) -> dict[str, list[Subject]]:
    """Subjects at one call by the callers in which they differ: `, called from train.py:7 (fit)`.

    One entry without a text where all came the same way.
    """
    alike: dict[str, list[Subject]] = {}
    for subject in members:
        alike.setdefault(stack_key(subject), []).append(subject)
    if len(alike) == 1:
        return {"": list(members)}
    ways: dict[tuple[Frame, ...], list[Subject]] = {}
    for some in alike.values():
        ways.setdefault(calls(stack_of(stacks, some[0])), []).extend(some)
    if len(ways) == 1 or () in ways:
        return {"": list(members)}
    shared = 0
    while len({way[shared : shared + 1] for way in ways}) == 1:
        shared += 1
    found: dict[str, list[Subject]] = {}
    for way, some in ways.items():
        caller = f", called from {where(way[shared])}" if shared < len(way) else ""
        found.setdefault(caller, []).extend(some)
    return found


def loops(frame: Frame) -> tuple[Block, ...] | None:
    """The loops around a frame in its function, outermost first; None where nobody knows."""
    if frame.within is None:
        return None
    return tuple(block for block in frame.within if _LOOP.match(block[1]))


def conditions(frame: Frame) -> tuple[Block, ...]:
    """The conditions around a frame in its function, outermost first."""
    return tuple(
        block
        for block in frame.within or ()
        if not _LOOP.match(block[1]) and not block[1].startswith(_NOT_AROUND)
    )


def guards(frame: Frame) -> tuple[Block, ...]:
    """What would have turned it back before where it is: `past: if not ready: return`."""
    return tuple(block for block in frame.within or () if block[1].startswith(PAST))


def started(frame: Frame) -> Block | None:
    """The line that starts the sends and receives on which a frame waits: `x = isend(y)`."""
    found = (block for block in frame.within or () if block[1].startswith(_MADE))
    return next(((line, text.removeprefix(_MADE)) for line, text in found), None)


def rank_conditions(frame: Frame, called: Container[str] = ()) -> tuple[Block, ...]:
    """Those of them that ask for the rank; also those at which others turn back before.

    That is `if rank != 0: return` above it, `rank == 0 and save()` where what that calls has one of
    the names given, a decorator that names the rank, and `with x.main_process_first():`.
    """
    found = [*conditions(frame)]
    for block in frame.within or ():
        text = block[1]
        depends = text.startswith(AT) and _depends(text.removeprefix(AT), called)
        if depends or text.startswith(("@", PAST)):
            found.append(block)
    found += [one for one in frame.beside or () if "process_first" in one[1]]
    found.sort()
    return tuple(block for block in found if _asks(block[1]))


def _asks(text: str) -> bool:
    """Whether a condition, and not what it returns, asks which rank it is."""
    if text.startswith("@"):
        return _ON_ONE.match(text) is not None
    text, _, flag = text.partition(FLAG)
    if text.startswith(PAST):
        text = _LEAVES.sub("", text.removeprefix(PAST))
    name = _NAME.match(flag)
    if name is not None and re.search(rf"\b{re.escape(name[1])}\b", text):
        return True
    return _OF_RANK.search(_ANY_RANK.sub("", text)) is not None


def _depends(text: str, called: Container[str]) -> bool:
    """Whether a line calls one of these only if something in it that asks for the rank is so."""
    text, mark, flag = text.partition(FLAG)
    for one in parts_of(text):
        if isinstance(one, ast.BoolOp):
            asked, then = one.values[:-1], one.values[1:]
        elif isinstance(one, ast.IfExp):
            asked, then = [one.test], [one.body, one.orelse]
        else:
            continue
        if any(_asks(ast.unparse(some) + mark + flag) for some in asked) and any(
            isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in called
            for some in then
            for call in ast.walk(some)
        ):
            return True
    return False


def worded(text: str) -> str:
    """A condition in a sentence: under `if rank == 0:`, or under the `else` of it."""
    text, _, flag = text.partition(FLAG)
    kept = f" with `{flag}`" if flag else ""
    for start, how in ((PAST, "past"), (AT, "in")):
        if text.startswith(start):
            return f"{how} `{text.removeprefix(start)}`{kept}"
    before, other, condition = text.rpartition("else: ")
    if other and not before:
        return f"under the `else` of `{condition}`{kept}"
    return f"under `{text}`{kept}"


def handles_signals(frame: Frame) -> bool:
    """Whether a function handles signals, as the names of what it gets tell."""
    return any(text.startswith(_HEAD) for _, text in frame.within or ())


def in_handler(stack: Sequence[Frame]) -> str:
    """`in a signal handler, train.py:9 (warned), which came at ...`; empty where it is in none.

    Nobody has called one: it comes between two lines of what is below it, be that another one.
    """
    told = []
    for depth, frame in enumerate(stack):
        if handles_signals(frame):
            below = next((one for one in stack[depth + 1 :] if not one.native), None)
            came = f", which came at {where(below)}" if below is not None else ""
            told.append(f"{where(frame)}{came}")
    if len(told) > HANDLERS:
        more = f"{plural(len(told) - HANDLERS, 'more', 'more')} between them"
        told = [*told[: HANDLERS - 1], f"{told[-1]} ({more})"]
    before = ", within one that had come before, "
    return f"most likely in a signal handler, {before.join(told)}" if told else ""


def line_of(frame: Frame, block: Block) -> str:
    """`train.py:56`, where a block of a frame begins."""
    return f"{frame.short or frame.file}:{block[0]}"


def block_at(frame: Frame, block: Block) -> str:
    """`train.py:56 (`for x in loader:`)`, the block of a frame."""
    return f"{line_of(frame, block)} (`{block[1]}`)"
