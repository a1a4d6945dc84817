"""Open cores: headers, the right executable, stacks by pystack, py-spy and gdb, explanations."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from hangtop_core.cores import elf, native, packed, python
from hangtop_core.cores.explain import Explanation, explain, signal_text
from hangtop_core.cores.threads import CoreThread, together
from hangtop_core.text.clean import clean, plural, size
from hangtop_core.text.launchers import LOCAL_RANKS, RANKS, WORLD_SIZES, number_in
from hangtop_probe.ranks.learned import WRAP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hangtop_core.cores.elf import Header
    from hangtop_probe.wire.tools import Tools

_NODES = ("SLURMD_NODENAME", "HOSTNAME", "HOST")
_WORKER = "pt_data_worker"


class Core(Struct, frozen=True):
    """The content of a core."""

    path: str
    size: int
    modified: float
    pid: int
    command: str
    signal: int
    how: str
    """The signal in words."""
    threads: tuple[CoreThread, ...] = ()
    """The thread that got the signal comes first."""
    explanations: tuple[Explanation, ...] = ()
    problems: tuple[str, ...] = ()
    """Parts that could not be read, with the reason."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    node: str | None = None
    role: str = "rank"
    """Or "dataloader-worker", "process"; "unknown" if the core has no environment."""
    executable: str | None = None
    read_by: str | None = None
    """The reader of its Python frames."""
    uid: int | None = None


def read(
    path: str, tools: Tools, executable: str | None = None, *, with_native: bool = True
) -> Core:
    """Read a core.

    Args:
        path: the core, which may be packed.
        tools: runs pystack, py-spy and gdb.
        executable: the crashed program; by default the one that the core names.
        with_native: native frames, too, which take gdb some seconds.

    Raises:
        NotACoreError: it is no core, its headers are incomplete, or it cannot be unpacked.
        OSError: it cannot be opened.
    """
    path = os.path.abspath(path)
    with packed.whole(path, tools) as unpacked:
        core = _read(unpacked, tools, executable, with_native)
    return msgspec.structs.replace(core, path=path, modified=os.stat(path).st_mtime)


def _read(path: str, tools: Tools, executable: str | None, with_native: bool) -> Core:
    header = elf.read(path)
    chosen = executable or header.executable or ""
    mismatch = _other_machine(header)
    if mismatch is None:
        unlike = _wrong_executable(header, chosen, given=executable is not None)
        by_native, by_python = _stacks(header, tools, chosen, with_native)
    else:
        unlike, by_native, by_python = [mismatch], native.Native(), python.Python()
    problems = [*_cut(header), *unlike, *by_python.problems]
    problems += [by_native.problem] if by_native.problem else []
    threads = _readable(together(header, by_native, by_python))
    explanations = explain(header, threads, by_native.message)
    if with_native and by_python.has_native and [e.code for e in explanations] == ["aborted"]:
        by_gdb = _explained_by_gdb(header, tools, chosen)
        explanations = explanations if by_gdb is None else by_gdb
    environment = header.environment
    rank = _rank(environment, threads)
    return Core(
        path=path,
        size=header.size,
        modified=header.modified,
        pid=header.pid,
        command=" ".join(header.arguments)[:2000] or header.command,
        signal=header.signal.number,
        how=signal_text(header.signal),
        threads=threads,
        explanations=explanations,
        problems=tuple(clean(problem, 400) for problem in problems),
        rank=rank,
        local_rank=number_in(environment, LOCAL_RANKS),
        world_size=number_in(environment, WORLD_SIZES),
        node=next((environment[name] for name in _NODES if environment.get(name)), None),
        role=_role(header, rank),
        executable=chosen or None,
        read_by=by_python.by,
        uid=header.uid,
    )


def _stacks(
    header: Header, tools: Tools, chosen: str, with_native: bool
) -> tuple[native.Native, python.Python]:
    """Read stacks by the kind of executable; empty if that is not on this machine."""
    by_native, by_python = native.Native(), python.Python()
    if not os.path.isfile(chosen):
        return by_native, by_python
    if _may_run_python(header, chosen):
        by_python = python.read(tools, header.path, chosen, with_native=with_native)
    if not by_python.threads or (with_native and not by_python.has_native):
        by_native = native.read(tools, header.path, chosen)
    return by_native, by_python


def _explained_by_gdb(header: Header, tools: Tools, chosen: str) -> tuple[Explanation, ...] | None:
    """Explain a core by gdb's stacks; None if it reads none.

    pystack names the caller of a function that does not return by the function behind it; gdb does
    not, and finds glibc's message.
    """
    by_gdb = native.read(tools, header.path, chosen)
    if not by_gdb.threads:
        return None
    return explain(header, together(header, by_gdb, python.Python()), by_gdb.message)


def spawned(threads: Sequence[CoreThread]) -> int | None:
    """Return the index of a child of mp.spawn, which its environment does not contain."""
    for thread in threads:
        for frame, values in zip(thread.frames, thread.locals, strict=False):
            if frame.name == WRAP[0] and frame.file.endswith(WRAP[1]):
                return number_in({value.name: value.value for value in values}, ("i",))
    return None


def _rank(environment: Mapping[str, str], threads: Sequence[CoreThread]) -> int | None:
    rank = number_in(environment, RANKS)
    return spawned(threads) if rank is None else rank


def _readable(threads: tuple[CoreThread, ...]) -> tuple[CoreThread, ...]:
    """Return the threads, none if no stack has a name.

    gdb prints `??` if the memory of a stack is missing.
    """
    has_names = any(frame.name != "??" for thread in threads for frame in thread.frames)
    return threads if has_names else ()


def _cut(header: Header) -> list[str]:
    """Return that the end of the core is missing, how much, and the possible cause."""
    if not header.cut:
        return []
    present = f"{size(header.size)} of {size(header.wanted)} are there"
    try:
        disk = os.statvfs(header.path)
        free = disk.f_bavail * disk.f_frsize
    except OSError:
        free = None
    full = free is not None and free < header.wanted - header.size
    why = "its disk is full" if full else "ulimit -c was too small, the disk was full then"
    return [
        f"the core is cut: {present} ({why}, or it is still being written); what is missing is "
        "memory, mostly stacks of threads and the interpreter's own"
    ]


def _wrong_executable(header: Header, chosen: str, *, given: bool) -> list[str]:
    """Return problems of an executable that is missing or has changed."""
    if not chosen:
        return ["the core does not say what crashed: name the executable after the core"]
    if not os.path.isfile(chosen):
        return [
            f"{clean(chosen, 200)} is not on this machine: read the core on the node, or in the "
            "container, where it crashed, or name the executable after the core"
        ]
    names = (header.executable, chosen)
    start = next(
        (mapped.start for mapped in header.mapped if mapped.path in names and mapped.offset == 0),
        None,
    )
    if start is None and not given:
        return []
    problems = []
    try:
        before = elf.first_page(header.path, start) if start is not None else b""
        with open(chosen, "rb") as file:
            now = file.read(len(before))
        if before[elf.FILE_HEADER :] != now[elf.FILE_HEADER :]:
            problems.append(_another(header, chosen))
    except (OSError, elf.NotACoreError) as error:
        problems.append(f"{clean(chosen, 200)} cannot be compared: {error}")
    lost = {
        mapped.path
        for mapped in header.mapped
        if ".so" in os.path.basename(mapped.path) and not os.path.exists(mapped.path)
    }
    if lost:
        problems.append(
            f"{plural(len(lost), 'library', 'libraries')} that it used are not on this machine, as "
            f"{clean(min(lost), 160)}: their frames have no names; read it where it crashed"
        )
    return problems


def _another(header: Header, chosen: str) -> str:
    name = clean(chosen, 200)
    if header.executable in (None, chosen):
        return f"{name} has changed since, so names of functions may be wrong"
    return (
        f"{name} is not what crashed, which was {clean(header.executable, 200)}: stacks may be "
        "wrong or missing"
    )


def _other_machine(header: Header) -> str | None:
    """Return that no program here can read the stacks of this core; None if one can."""
    theirs, ours = elf.MACHINES.get(header.machine), platform.machine()
    if theirs == ours or (theirs is None and ours not in elf.MACHINES.values()):
        return None
    return (
        f"it crashed on a machine of another kind ({theirs or f'e_machine {header.machine}'}, this "
        f"one is {ours}): read its stacks on one like that"
    )


def _may_run_python(header: Header, executable: str) -> bool:
    """Whether it may be a Python process: by its name, or by a Python library."""
    names = {os.path.basename(file.path) for file in header.mapped}
    names.add(os.path.basename(executable))
    return any("python" in name for name in names) or not header.mapped


def _role(header: Header, rank: int | None) -> str:
    if header.comm == _WORKER:
        return "dataloader-worker"
    if rank is None:
        return "process" if header.environment else "unknown"
    return "rank"
