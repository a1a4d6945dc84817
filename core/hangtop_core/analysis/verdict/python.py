"""Causes in the Python code of one rank: prompts, children, services, loops, shutting down."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hangtop_core.analysis.dictionary import EDITOR
from hangtop_core.analysis.reading import DISTRIBUTED_BREAKPOINT
from hangtop_core.analysis.verdict.base import ALWAYS, Hit, Rule, Subject
from hangtop_core.analysis.verdict.descriptors import descriptor, name_descriptor, peer
from hangtop_core.analysis.verdict.doing import does, waits_back
from hangtop_core.analysis.verdict.endings import awaited
from hangtop_core.analysis.verdict.evidence import (
    SHOWN,
    alike,
    common_facts,
    fact,
    is_are,
    sentence,
    several,
    who,
)
from hangtop_core.analysis.verdict.logs import error_text
from hangtop_core.analysis.verdict.naming import name_process
from hangtop_core.analysis.verdict.needs import More
from hangtop_core.analysis.verdict.raised import also
from hangtop_core.analysis.verdict.steps import on, sockets_step, strace_step, tails
from hangtop_core.analysis.verdict.storehost import open_sockets
from hangtop_core.places import host_of
from hangtop_core.text import clean

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from hangtop_core.analysis.verdict.case import Case
    from hangtop_core.analysis.verdict.steps import Step
    from hangtop_core.descriptors import Descriptor, Socket
    from hangtop_core.diagnosis import Evidence

WAITS_FOR_ENDS = frozenset({"_shutdown", "_exit_function", "_python_exit"})
"""What Python calls at the end of a program, and waits in for threads and children."""
WAITED_S = 2.0
"""Seconds for which others have waited for who compiles, of which it is worth to speak: where each
step compiles anew, each of them is short."""


_COMPILERS = frozenset(
    {"ptxas", "cicc", "cc1plus", "cc1", "gcc", "g++", "ninja", "nvcc", "clang", "clang++", "c++"}
)
_SENDS = frozenset({"sendto", "sendmsg", "write", "writev", "sendfile"})
_SENDING = re.compile(r"^(?:\w+\.)*(?:send\w*|write)\(|\.send\w*\(")
"""A function, or a line, that sends: with a timeout it waits in poll until it can."""


def _prompt(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    prompting = [s for s in left if s.activity.kind == "prompt"]
    for group in alike(prompting, lambda s: (s.activity.text, s.activity.site)):
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                several(group[0].activity.text, group),
                f"at {group[0].activity.at}",
                case.since(group[0]),
            ),
            evidence=(*_inputs(group), *common_facts(case, group)),
            steps=(*_answering(group[0]), *_taking_out(group[0])),
        )


def _inputs(group: Sequence[Subject]) -> Iterator[Evidence]:
    for subject in group[:SHOWN]:
        read = descriptor(subject)
        if read is not None:
            yield fact("process", subject.number, f"it reads {name_descriptor(read)}")


def _answering(subject: Subject) -> Iterator[Step]:
    """Where somebody could answer the prompt, if anywhere."""
    read = descriptor(subject)
    if subject.activity.text == EDITOR:
        yield "attach from the editor (its launch.json tells host and port), and let it go on"
    elif read is None:
        yield on(subject, f"ls -l /proc/{subject.pid}/fd/0")
    elif read.kind == "tty":
        go_on = "c goes on; up goes to your own frame"
        yield f"answer it in the terminal {clean(read.target, 60)} of {subject.rank.node}: {go_on}"
    else:
        what = clean(read.target, 80)
        yield f"nobody can answer it by hand: it reads {what}, which is no terminal"


def _taking_out(subject: Subject) -> Iterator[Step]:
    at = subject.activity.at
    if subject.activity.text == DISTRIBUTED_BREAKPOINT:
        yield (
            f"or take it out at {at}. The other ranks wait in its barrier until their time-outs, "
            "which newer versions of torch set to an hour there"
        )
    else:
        yield f"or take it out at {at}; torch.distributed.breakpoint(rank) lets other ranks wait"


def _output(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    for subject in left:
        if subject.activity.kind != "output":
            continue
        pipe = descriptor(subject)
        holders = pipe.holders if pipe is not None else ()
        # Who only reads comes before those that opened it both ways, as a FIFO can be.
        readers = [h for h in holders if h.how == "reads"]
        readers = readers or [h for h in holders if h.how.startswith("reads") and h.state == "T"]
        told = ", ".join(
            f"its reader is pid {h.pid} ({h.comm}), state {h.state}{_which(case, subject, h.pid)}"
            for h in readers
        )
        yield Hit(
            subjects=(subject,),
            summary=sentence(
                case,
                f"{who([subject])} {subject.activity.text} at {subject.activity.at}",
                f"{case.since(subject)}: the pipe is full".lstrip(": "),
                f"and {told}" if told else "",
            ),
            evidence=(
                *([fact("process", subject.number, name_descriptor(pipe))] if pipe else []),
                *common_facts(case, [subject]),
            ),
            steps=(
                *(
                    on(subject, f"cat /proc/{h.pid}/status | grep State; kill -CONT {h.pid}")
                    for h in readers[:1]
                ),
                on(subject, f"ls -l /proc/{subject.pid}/fd/{pipe.fd if pipe else 1}"),
                *(
                    ("read while it is written: communicate(), or a thread for each",)
                    if any(
                        waits_back(subject, child)
                        for child in subject.rank.children
                        if any(h.pid == child.pid for h in readers)
                    )
                    else ()
                ),
            ),
        )


def _which(case: Case, subject: Subject, pid: int) -> str:
    """`, which is itself blocked in sending`, of a child that reads what a rank writes."""
    child = next((c for c in subject.rank.children if c.pid == pid), None)
    text = does(case, subject, child) if child is not None and child.state[:1] != "T" else ""
    return f", which {text}" if text else ""


def _remote(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    remote = [s for s in left if s.activity.kind == "remote"]
    groups: list[tuple[Subject, ...]] = [(s,) for s in remote if _listens(s) is None]
    for group in alike((s for s in remote if _listens(s)), lambda s: s.activity.site):
        yield _accepting(case, group)
    polling = [s for s in left if s.activity.kind == "waiting" and s.activity.family == "poll"]
    # One table tells for all that are in the same line: those of others are not asked for.
    groups += alike(polling, lambda s: s.activity.site)
    hosts = {address for node in case.seen_nodes for address in node.addresses} if groups else ()
    for group in groups:
        subject, one = group[0], descriptor(group[0])
        if one is None or one.socket is None:
            guesses = ((s, _guess(case, s, hosts)) for s in group)
            subject, one = next((g for g in guesses if g[1] is not None), (subject, one))
        if one is None and subject.activity.kind != "remote":
            continue
        other = peer(case, subject, one) if one is not None else None
        told = "a name server (DNS)" if subject.activity.op == "getaddrinfo" else "a network peer"
        if one is not None and one.socket is not None:
            told = f"{one.socket.remote} (fd {one.fd}, {one.socket.state})"
            if other is not None and other.rank is not None:
                told += f" = {other.text}"
            elif other is not None and other.pid is not None:
                told += f", pid {other.pid} ({other.label}) on {other.node}"
            elif other is not None:
                told += f", {other.text}"
            told += _silence(subject, one.socket)
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                f"{who(group)} {is_are(group, 'waits', 'wait')} at {subject.activity.at} for "
                f"{told}",
                case.since(subject),
            ),
            evidence=(
                *([fact("network", subject.number, name_descriptor(one, other))] if one else []),
                *common_facts(case, group),
            ),
            steps=(
                sockets_step(subject, subject.pid),
                "give the request a timeout, or run offline (HF_HUB_OFFLINE=1, WANDB_MODE=offline)",
            ),
            confidence=None if subject.activity.kind == "remote" else 0.8,
        )


def _listens(subject: Subject) -> Descriptor | None:
    """The socket on which it waits for somebody to connect."""
    one = descriptor(subject)
    return one if one is not None and one.socket and one.socket.state == "LISTEN" else None


def _accepting(case: Case, group: Sequence[Subject]) -> Hit:
    some = [(s, one) for s in group[:SHOWN] if (one := _listens(s)) and one.socket]
    told = ", ".join(
        f"{f'rank {s.number} ' if len(group) > 1 else ''}at {one.socket.local} (fd {one.fd})"
        for s, one in some
        if one.socket
    )
    return Hit(
        subjects=tuple(group),
        summary=sentence(
            case,
            f"{who(group)} {is_are(group, 'waits', 'wait')} at {group[0].activity.at} for somebody "
            f"to connect, {told}, and nobody does",
            case.since(group[0]),
        ),
        evidence=(
            *(fact("network", s.number, name_descriptor(one)) for s, one in some),
            *common_facts(case, group),
        ),
        steps=(
            "look who is to connect to it, to which address, and whether that was started"
            if len(group) == 1
            else "look which of them is to connect to the others: all wait for somebody to do so",
            sockets_step(group[0], group[0].pid),
        ),
    )


def _silence(subject: Subject, socket: Socket) -> str:
    """How the other end keeps a subject waiting, as far as the socket tells."""
    if socket.state == "SYN_SENT":
        return ", which does not answer its attempts to connect"
    if socket.state == "CLOSE_WAIT":
        return ", which has closed the connection"
    main, top = subject.activity.main, subject.activity.top
    sends = main is not None and main.syscall in _SENDS
    if sends or (top is not None and _SENDING.search(f"{top.name}( {top.source}")):
        return ", which takes no more of what is sent" if socket.send_queue else ""
    return "" if socket.recv_queue else ", which sends nothing"


def _guess(case: Case, subject: Subject, hosts: Container[str]) -> Descriptor | None:
    """The one connection that leads neither to the store nor to a process or node of the job."""
    open_ = [
        one
        for one in open_sockets(subject)
        if one.socket is not None
        and one.socket.state in ("ESTABLISHED", "SYN_SENT")
        and not subject.rank.process.meets_at(one.socket.remote)
        and not case.owners.has(subject.rank.node, one.socket.peer_pid)
        and (one.socket.peer_pid is not None or host_of(one.socket.remote) not in hosts)
    ]
    return open_[0] if len(open_) == 1 else None


def _waits_for_compiler(subject: Subject) -> bool:
    """Whether it waits for a compiler that it has started, or what it has started."""
    children = subject.rank.children if subject.activity.kind == "child" else ()
    return any(c.comm in _COMPILERS and not c.ended for c in children)


def _compiling(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    at_work = [s for s in left if s.activity.kind == "compiling" or _waits_for_compiler(s)]
    if case.progress.state == "progressing" and case.waited_s < WAITED_S:
        return
    for group in alike(at_work, lambda s: s.activity.op):
        busy = [c for s in group for c in s.rank.children if c.comm in _COMPILERS]
        told = f": {name_process(busy[0])}" if busy else ""
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                is_are(group, "is", "are"),
                f"compiling at {group[0].activity.at} {case.since(group[0])}".rstrip() + told,
            ),
            evidence=common_facts(case, group),
            steps=(
                "wait, or compile before training; keep the cache on a local disk "
                "(TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR)",
            ),
        )


def _teardown(case: Case, left: Sequence[Subject]) -> Iterator[Hit]:
    leaving = [s for s in left if s.activity.kind == "teardown"]
    for group in alike(leaving, lambda s: (s.activity.text, s.activity.op)):
        ends = awaited(case, group[0]) if group[0].activity.op in WAITS_FOR_ENDS else ""
        ends = f"({ends})" if ends and len(group) == 1 else ""
        left_by = also(case, group)
        error = error_text(case, group[0].number) if len(group) == 1 and not left_by else ""
        yield Hit(
            subjects=group,
            summary=sentence(
                case,
                who(group),
                several(group[0].activity.text, group),
                case.since(group[0]),
                f"{ends}; it has printed {error}" if error else ends,
                f"({left_by[0].lower()}{left_by[1:]})" if left_by else "",
            ),
            evidence=common_facts(case, group),
            steps=(
                "read the first traceback in its log: it may be leaving after an error",
                *(on(group[0], text) for text in tails(group[0].rank)),
                on(group[0], f"hangtop dump --pid {group[0].pid} --each"),
                strace_step(group[0], group[0].pid),
            ),
            confidence=None if case.waiters else 0.6,
            # Who waits for threads or children of its own is not in C code that would tell.
            needs=TEARDOWN.needs[:1] if group[0].activity.op in WAITS_FOR_ENDS else None,
        )


PROMPT = Rule(
    cause="debugger-prompt",
    title="A rank sits at a prompt",
    seen="pdb, bdb or a command loop in the stack, or a read of its own stdin.",
    excluded="None.",
    confidence=0.95,
    next_steps=("Answer it in its terminal", "Remove the breakpoint"),
    find=_prompt,
    decisive=True,
    needs=(More("descriptors", "from where it reads, that is who could answer"),),
)
OUTPUT = Rule(
    cause="output-pipe-full",
    title="A rank is blocked writing its output",
    seen="The main thread sleeps in write to stdout, stderr or another pipe (pipe_write).",
    excluded="The descriptor is a file: `io-wait`.",
    confidence=0.95,
    next_steps=("Look at the reader of the pipe: it may be stopped or stuck",),
    find=_output,
    needs=(More("descriptors", "who reads the pipe, and whether that one is stopped"),),
)
REMOTE = Rule(
    cause="remote-service-wait",
    title="A rank waits for a remote service",
    seen="A network library, or a blocking read of a socket, in the stack of one rank; or it waits "
    "in poll, and one of its connections leads to nothing of the job (confidence 0.80); or it "
    "waits in accept for somebody to connect.",
    excluded="The socket leads to the store; most ranks are on the same line.",
    confidence=0.88,
    next_steps=("Look at the connection", "Give the request a timeout"),
    find=_remote,
    needs=(More("descriptors", "to whom the connection leads that it waits on"),),
)
COMPILING = Rule(
    cause="compiling",
    title="A rank is compiling",
    seen="torch.compile, Triton or a C++ extension build in the stack; or it waits for a program "
    "that it started, and a compiler is among those.",
    excluded="It waits for a lock file: `file-lock`.",
    confidence=0.8,
    next_steps=("Wait, or compile before training",),
    find=_compiling,
    states=ALWAYS,
    complete="its stack and its children say what is compiled and by whom; how long it takes, "
    "nothing",
)
TEARDOWN = Rule(
    cause="teardown",
    title="A rank is shutting down",
    seen="destroy_process_group or interpreter shutdown in the stack; or a function that was "
    "registered with atexit waits: nothing of the program is below it.",
    excluded="None.",
    confidence=0.8,
    next_steps=("Read the first traceback in its log",),
    find=_teardown,
    needs=(
        More("logs", "after which error it leaves"),
        More("native stacks", "which C function it waits in"),
    ),
)
