"""The origin of a line, by the prefixes that launchers and tools put before the lines of ranks.

Known prefixes, also nested in one another:

* torchrun --tee: `[default0]:`, `[trainer1]:`, `[node-1:0]:` (--role "$(hostname -s):"), and
  templates with rank and local rank, `[default3/1]:` (torch/distributed/elastic/multiprocessing)
* torch's own hook for exceptions and its C++ log: `[rank3]: ` and `[rank3]:[W...`
* mpirun --tag-output: `[1,3]<stdout>:`, with --timestamp-output a date before it; Open MPI 4 and 5
* kubectl logs --prefix: `[pod/name/container] `, stern: `pod container `
* docker compose and docker service logs: `train-1  | `, kail: `ns/pod[container]: `, kubetail:
  `[pod-1] `, journalctl: `Nov 21 12:00:00 n1 train[42]: `; where nearly all lines begin like one
* times that kubectl --timestamps, stern -t, docker logs -t and CRI put before every line
* Ray: `(Worker pid=4711, ip=10.0.0.7) `
* srun --label: `3: `, mpiexec -prepend-rank of MPICH, -l of Intel MPI: `[3] `, pdsh: `node-1: `,
  and torchrun with a role of a node's digits, `[5:0]:` (--role "$(hostname -s | tr -dc 0-9):").
  Any text may begin like that, so these count only where nearly all lines of a file begin so; those
  in brackets only where they do not go up, as clocks and steps do. So do
  `[node-1:0]` and `[5:0]` without a colon, as logs look that were copied into reports: there has to
  be a 0, which is a local rank but no line of a module (`[trainer:98]`), or a traceback right
  behind.

The label furthest to the left was added last, and so cannot be text of a rank:
`n1: [head:0]:` is of node n1, and `[rank1]: [rank0]: ` is rank 1, which quotes rank 0.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from hangtop_core.logs.parsing.roles import Roles
from hangtop_core.model.file_log import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SAMPLE_LINES = 4000
SHARE = 0.8
"""Share of a file's lines that must begin with a label or a node for it to count as one."""
NESTED = 6
MAX_HEADS = 20_000
"""Maximum number of prefixes in the cache: a prefix with a time differs each second."""
MAX_ROLES = 2000

_DATE = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
_MPI = (
    rf"(?:{_DATE})?\[(?:[\w.@-]{{1,80}}@)?\d{{1,9}},\d{{1,9}}\]<std(?:out|err|diag)>:"
    rf"|{_DATE}<std(?:out|err)>:"
)
_CLOCK = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.%s(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?"
_NANO, _ANY = _CLOCK % r"\d{7,9}", _CLOCK % r"\d{1,9}"
"""Go prints nanoseconds, possibly without trailing zeros. Programs seldom do."""
_TIME = re.compile(rf"(?:{_ANY})|{_DATE}")
_POD = r"\[pod/[^\]\s/]{1,260}/[^\]\s]{1,260}\] "
_RAY = r"\((?:[^()=\n]{1,80} )?pid=\d{1,9}(?:, ip=[\d.]{7,15})?\) "
_ROLE = r"\[rank\d{1,7}\]:[ ]?|\[(?![\d.:]+\])[^\[\]\s]{1,120}?\d{1,7}(?:/\d{1,7})?\]:"
_SHORT = r"\[\d{1,6}:\d{1,4}\]:"
_BARE = r"\[(?=[\w-]*[A-Za-z])[\w-]{1,100}:\d{1,2}\](?!:)"
_SHORT_BARE = r"\[\d{1,6}:(?:0|[1-9]\d?)\](?!:)"
_OF_TRACEBACK = r'(?:\[rank\d{1,7}\]:|Traceback \(most recent|  File ")'
"""Text right behind a label of torchrun, and behind no clock, step or line of a module."""
_LABEL = r"[ ]{0,6}\d{1,7}: "
_BRACKETED = r"\[\d{1,7}\] "
_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,120}): ")
_TEE = re.compile(
    rf"(?:\S+: |{_POD})?\[(?![\d.:]+\])([^\[\]\s]{{1,120}}?)\d{{1,7}}(?:/\d{{1,7}})?\]:"
)
_STERN = re.compile(r"((?=[^ ]*-)[a-z0-9][a-z0-9.-]{0,252} [a-z0-9][a-z0-9-]{0,62}) ")
_TOOLS = (
    r"^[\w.@-]{1,250} {1,60}\| ",
    r"^[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}\[[a-z0-9-]{1,63}\]: ",
    r"^\[(?=[a-z0-9.-]*-)(?=[a-z0-9.-]*\d)[a-z][a-z0-9.-]{1,253}(?: [a-z0-9-]{1,63})?\] ",
    r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,253} [\w.@-]{1,100}\[\d{1,9}\]: ",
)
"""Prefixes of tools that print for several containers or hosts, at the beginning of a line."""
_TOOL_PARTS = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \S+ |[a-z0-9-]+/|\[)?(?P<node>[\w.@-]+)(?P<unit>(?: ?[\w.@[-]+)?)"
)
_NUMBER = re.compile(r"\d+")
_FIXED = rf"{_MPI}|{_POD}|{_RAY}|{_ROLE}|{_NANO}"

_FIXED_HEAD = re.compile(rf"(?:{_FIXED}){{0,{NESTED}}}").match

_PARTS = re.compile(
    rf"(?P<tool>{'|'.join(_TOOLS)})"
    rf"|(?P<mpi>{_MPI})|(?P<pod>{_POD})|(?P<ray>{_RAY})|(?P<role>{_ROLE}|{_SHORT}|{_BARE}|{_SHORT_BARE})"
    rf"|(?P<label>{_LABEL}|{_BRACKETED})"
    r"|(?P<host>[^\s:]+): "
    r"|(?P<stern>[a-z0-9.-]+ [a-z0-9-]+) "
)
_MPI_PARTS = re.compile(r"(?:\[[^\]]*?(\d+),(\d+)\])?<std(out|err|diag)>")
_ROLE_PARTS = re.compile(r"\[(.*?)(\d+)(?:/(\d+))?\]:?")
_RAY_PARTS = re.compile(r"pid=(\d+)(?:, ip=([\d.]+))?")
_NO_HOST = re.compile(
    r"(?i)(?:info|debug|warn(?:ing)?|err(?:or)?|fatal|critical|notice|trace|note|hint|[a-z]"
    r"|.*(?:error|exception|warning|interrupt)|https?|file|time|host|step|epoch|loss|rank\d*)"
)
_GLUED = re.compile(r"(?<=[^\s\]:\[(])(?=\[rank\d{1,7}\]:)")
"""The position of torch's prefix behind a progress line without an end."""
_QUOTE = re.compile(r"\[rank\d{1,7}\]: (?=\[rank)")
"""A line of torch's hook, which puts a blank behind its prefix, that begins with another prefix."""
_TAGS = re.compile(r"(\[\d{1,9},\d{1,9}\]<std(?:out|err)>:)")
"""mpirun tags everything it reads at once, which may be a part of a line."""
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\n\x07\x1b]{0,4000}(?:\x07|\x1b\\)")


class Prefixes:
    """Strip the prefixes off the lines of one file."""

    def __init__(self, sample: str = "") -> None:
        # A launcher writes one prefix per line, not one per turn of a progress bar.
        rows = sample.replace("\r\n", "\n").split("\n", SAMPLE_LINES)[:SAMPLE_LINES]
        lines = [row for row in rows if row.strip()]
        self.roles = Roles(lines)
        self.hosts = _hosts(lines)
        self.labels = _nearly_all(lines, _LABEL)
        self.time = ""
        """The time that a tool put before the last line."""
        self.head = ""
        """All prefixes of the last line."""
        self._timed = _TIME.search(sample) is not None
        kinds = _FIXED
        if re.search(_NANO, sample):
            kinds += f"|{_ANY}"
        pods = _pods(lines)
        if pods:
            kinds += "|(?:" + "|".join(map(re.escape, sorted(pods))) + ") "
        kinds += "".join(f"|{tool}" for tool in _TOOLS if _nearly_all(lines, tool))
        if _are_short(lines):
            kinds += f"|{_SHORT}"
        if _are_bare(lines):
            kinds += f"|{_BARE}"
        if _are_short_bare(lines):
            kinds += f"|{_SHORT_BARE}"
        if self.labels:
            kinds += f"|{_LABEL}"
        if _are_bracketed(lines):
            kinds += f"|{_BRACKETED}"
        if self.hosts:
            kinds += "|(?:" + "|".join(map(re.escape, sorted(self.hosts))) + "): "
        self._glued = _glued(lines)
        self._match = re.compile(rf"(?:{kinds}){{0,{NESTED}}}").match
        self._origins: dict[str, Origin] = {}

    def take(self, line: str) -> tuple[Origin, str]:
        """Return the origin of a line, and the line without its prefixes."""
        match = self._match(line)
        head = match[0] if match else ""
        quote = _QUOTE.search(head)
        if quote is not None:
            head = head[: quote.end()]
        self.head = key = head
        if self._timed:
            at = _TIME.search(head)
            self.time = at[0] if at is not None else ""
            key = _TIME.sub("", head) if at is not None else head
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= MAX_HEADS:
                self._origins.clear()
            origin = self._origins[key] = _origin(key, self.roles)
        return origin, line[len(head) :]

    def split(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the lines of a text as `split` does, each with the number of line ends before it.

        A prefix of torchrun within a line begins a new line: its --tee prints a progress bar
        without the end of a line, and then the prefix of the next line, possibly of another rank.
        """
        glued = self._glued
        for number, row in enumerate(text.replace("\r\n", "\n").split("\n")):
            if glued is not None and row.count("]:") > 1:
                for piece in glued.split(row):
                    for line in _pieces(piece, self._match):
                        yield number, line
            else:
                for line in _pieces(row, self._match):
                    yield number, line


def without_colours(text: str) -> str:
    """Return a text without terminal sequences and without zero bytes."""
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    if "\0" in text:
        text = text.replace("\0", "")
    return text


def split(text: str) -> Iterator[str]:
    """Yield the lines of a text; a carriage return and `[rank3]:` in the middle begin one, too."""
    for row in text.replace("\r\n", "\n").split("\n"):
        yield from _pieces(row, _FIXED_HEAD)


def _pieces(row: str, head: Callable[[str], re.Match[str] | None]) -> Iterable[str]:
    """Return the lines of a row; text behind a progress bar has the prefixes of the row, too."""
    if "]<std" in row:
        return [line for part in _by_tag(row) for line in _by_one(part, head)]
    return _by_one(row, head)


def _by_one(row: str, head: Callable[[str], re.Match[str] | None]) -> Iterable[str]:
    if "\r" not in row and ("[rank" not in row or row.startswith("[rank")):
        return (row,)
    match = head(row)
    before = match[0] if match else ""
    texts = row[len(before) :].split("\r")
    pieces = [piece for text in texts if text for piece in _GLUED.split(text)]
    return [before + piece for piece in pieces] or (before,)


def _by_tag(line: str) -> list[str]:
    """Return the lines of a row in which mpirun has joined pieces of one or several ranks."""
    first, *parts = _TAGS.split(line)
    if len(parts) <= 2:
        return [line]
    pieces: dict[str, list[str]] = {"": [first]} if first else {}
    for tag, text in zip(parts[::2], parts[1::2], strict=True):
        pieces.setdefault(tag, []).append(text)
    return [tag + "".join(texts) for tag, texts in pieces.items()]


def _origin(head: str, roles: Roles) -> Origin:
    """Parse a run of prefixes; those further right are nearer to the rank."""
    origin = Origin()
    at = 0
    while at < len(head):
        match = _PARTS.match(head, at)
        if match is None or not match[0]:
            break
        at = match.end()
        origin = origin._replace(**_fields(match.lastgroup or "", match[0], origin, roles))
    return origin


def _fields(kind: str, text: str, origin: Origin, roles: Roles) -> dict[str, Any]:
    if kind == "mpi":
        match = _MPI_PARTS.search(text)
        rank = match[2] if match else None
        std = f"std{match[3]}" if match else None
        return {"rank": int(rank) if rank else origin.rank, "std": std}
    if kind == "pod":
        return {"node": text[5:].partition("/")[0], "group": text.strip()}
    if kind == "stern":
        return {"node": text.partition(" ")[0], "group": text.strip()}
    if kind == "tool":
        tool = _TOOL_PARTS.match(text)
        return {"node": tool["node"], "group": tool["node"] + tool["unit"]} if tool else {}
    if kind == "ray":
        ray = _RAY_PARTS.search(text)
        return {"node": (ray[2] if ray else None) or origin.node, "group": text.strip()}
    if kind == "role":
        return _role(text, origin, roles)
    if kind == "label":
        return {"task": int(text.strip("[]: "))}
    return {"node": text[:-2]}


def _role(text: str, origin: Origin, roles: Roles) -> dict[str, Any]:
    match = _ROLE_PARTS.match(text)
    if match is None:
        return {}
    role, number, local = match[1], int(match[2]), match[3]
    if role == "rank" and local is None:
        return {"rank": number, "own": True, "label": origin.label if origin.own else origin.rank}
    if local is not None:
        return {"rank": number, "local": int(local), "group": role}
    # A role that ends in a colon is a node's name: --role "$(hostname -s):".
    if role.endswith(":") and len(role) > 1:
        return {"local": number, "node": origin.node or role[:-1], "group": role}
    split = roles.split(role, match[2])
    return {"local": split.local, "node": origin.node or split.node, "group": split.role}


def _hosts(lines: Iterable[str]) -> frozenset[str]:
    """Return pdsh's nodes: the words before a colon and a blank that begin nearly all lines."""
    words: Counter[str] = Counter()
    total = 0
    for line in lines:
        total += 1
        match = _HOST.match(line)
        if match and not match[1].isdigit() and not _NO_HOST.fullmatch(match[1]):
            words[match[1]] += 1
    often = {word: count for word, count in words.items() if count > 1 or total < 5}
    if total < 2 or sum(often.values()) < SHARE * total:
        return frozenset()
    return frozenset(often)


def _pods(lines: Sequence[str]) -> frozenset[str]:
    """Return the pods and containers that begin nearly all lines, as stern writes them."""
    pairs = [match[1] for match in map(_STERN.match, lines) if match is not None]
    often = {pair for pair, count in Counter(pairs).items() if count > 1}
    repeated = sum(pair in often for pair in pairs)
    return frozenset(often) if len(lines) > 2 and repeated >= SHARE * len(lines) else frozenset()


def _glued(lines: Sequence[str]) -> re.Pattern[str] | None:
    """Return a pattern of torchrun's prefixes within lines, if lines have such prefixes."""
    matches = (_TEE.match(line) for line in lines)
    roles = {match[1] for match in matches if match is not None} - {"rank"}
    if not roles or len(roles) > MAX_ROLES:
        return None
    alternatives = "|".join(map(re.escape, sorted(roles)))
    return re.compile(rf"(?<!\]:)(?<=\S)(?=\[(?:{alternatives})\d{{1,7}}(?:/\d{{1,7}})?\]:)")


def _are_short(lines: Sequence[str]) -> bool:
    """Whether lines begin with a node's digits and a rank; times would rise from line to line.

    In a log with torchrun's reports not nearly all lines do.
    """
    if _has_traceback(lines, _SHORT):
        return True
    heads = _numbers(lines, _SHORT)
    return len(heads) >= SHARE * len(lines) and heads != sorted(heads)


def _are_bare(lines: Sequence[str]) -> bool:
    """Whether lines begin with a node and a local rank, without a colon."""
    first = any(":0]" in line[:104] for line in lines)
    return _has_traceback(lines, _BARE) or (first and _nearly_all(lines, _BARE))


def _are_short_bare(lines: Sequence[str]) -> bool:
    """Whether lines begin with a node's digits and a local rank, without a colon; see `_are_short`.

    Local ranks begin at 0 without gaps, and no blank follows them: clocks have more numbers.
    """
    if _has_traceback(lines, _SHORT_BARE):
        return True
    heads = _numbers(lines, _SHORT_BARE)
    local = {head[1] for head in heads}
    dense = local == set(range(len(local)))
    return dense and heads != sorted(heads) and _nearly_all(lines, rf"{_SHORT_BARE}\S")


def _has_traceback(lines: Iterable[str], head: str) -> bool:
    """Whether a traceback begins or continues right behind a prefix."""
    match = re.compile(head + _OF_TRACEBACK).match
    return any(match(line) is not None for line in lines)


def _are_bracketed(lines: Sequence[str]) -> bool:
    """Whether lines begin with a rank, from the same set to the end; steps would rise."""
    heads = _numbers(lines, _BRACKETED)
    middle = len(heads) // 2
    first, second = set(heads[:middle]), set(heads[middle:])
    stay = len(first) > 1 and 2 * len(first & second) >= len(first | second)
    return stay and len(heads) >= SHARE * len(lines)


def _numbers(lines: Sequence[str], head: str) -> list[tuple[int, ...]]:
    """Return the numbers in the heads of lines that begin with a pattern."""
    matches = (re.match(head, line) for line in lines)
    return [tuple(map(int, _NUMBER.findall(match[0]))) for match in matches if match is not None]


def _nearly_all(lines: Sequence[str], head: str) -> bool:
    """Whether nearly all lines begin with a pattern."""
    count = sum(re.match(head, line) is not None for line in lines)
    return len(lines) >= 2 and count >= SHARE * len(lines)
