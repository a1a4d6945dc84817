"""The nodes of a Ray cluster, as Ray's dashboard knows them: by `ray list nodes`, or by HTTP.

Ray is never imported here: the command is the user's own, with its settings and tokens. Without it,
the dashboard itself is asked for the same data (its state API).
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from hangtop_core.attach.ways import subprocesses
from hangtop_core.attach.ways.targets import MAX_NODES, check_name
from hangtop_core.errors import UsageError
from hangtop_core.text import node_sets as nodesets
from hangtop_core.text.clean import clean, plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

T = TypeVar("T")

AUTO = "auto"
"""Value for the address: the Ray that `ray` finds from here, by RAY_ADDRESS or on this machine."""
PATIENCE_S = 60.0
"""`ray` itself waits for half a minute for an address without an answer."""
MAX_OUTPUT = 16 * 1024 * 1024
MOST = 10_000
"""Maximum nodes that Ray lists."""
_ADDRESS = re.compile(r"(https?://)?[A-Za-z0-9_\[][A-Za-z0-9_.:%\[\]-]{0,250}:\d{1,5}/?")
_FAILURES = (
    (
        r"Could not find any running Ray instance",
        "no Ray runs on this machine",
        "Name its address: --ray HEAD:6379, or that of its dashboard: --ray http://HEAD:8265",
    ),
    (
        r"Timed out while waiting for GCS|failed to connect to GCS",
        "no Ray answers at that address",
        "`ray status --address HEAD:6379` has to work.",
    ),
    (
        r"(?i)unauthori[sz]ed|authentication|token",
        "Ray does not accept your login",
        "Set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, as for any `ray` command.",
    ),
    (
        r"Failed to (?:make request|connect to API server)",
        "Ray's dashboard does not answer",
        "It takes `pip install 'ray[default]'` on the head; or name the nodes: -w NODES",
    ),
)


class RayNode(Struct):
    """One node, alive or dead."""

    node_ip: str
    state: str = ""


class _Result(Struct):
    result: list[RayNode]


class _Data(Struct):
    result: _Result


class _Answer(Struct):
    data: _Data


class RayNodes(NamedTuple):
    """The live nodes of a cluster, and a notice about the others."""

    names: tuple[str, ...]
    notice: str


def ask(address: str) -> RayNodes:
    """Return the nodes of the cluster at ``HOST:PORT`` or ``http://HOST:PORT``, or of `AUTO`.

    Raises:
        UsageError: there is no cluster, or it cannot be asked.
    """
    if address != AUTO and not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"--ray: {clean(address, 80)!r} is no address",
            "For example: --ray, --ray HEAD:6379, --ray http://HEAD:8265",
        )
    listed = _listed(address)
    alive = dict.fromkeys(
        check_name(node.node_ip, "ray list nodes") for node in listed if node.state == "ALIVE"
    )
    if not alive:
        raise UsageError("this Ray has no node that is alive", "`ray list nodes` lists them.")
    if len(alive) > MAX_NODES:
        raise UsageError(f"--ray: {len(alive)} nodes, {MAX_NODES} at most")
    return RayNodes(tuple(alive), _notice(alive, listed))


def _notice(alive: Collection[str], listed: Iterable[RayNode]) -> str:
    """Return which nodes are observed, and which have died and not come back."""
    dead = {node.node_ip for node in listed if node.state != "ALIVE"} - set(alive)
    text = f"looking at the {plural(len(alive), 'node')} of Ray"
    return f"{text}; dead: {clean(nodesets.fold(dead), 200)}" if dead else text


def _listed(address: str) -> list[RayNode]:
    words = [] if address == AUTO else [f"--address={address}"]
    argv = ["ray", "list", "nodes", "--format=json", f"--limit={MOST}", *words]
    try:
        done = subprocesses.run(argv, PATIENCE_S, MAX_OUTPUT, os.environ)
    except FileNotFoundError:
        return _by_http(address)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"Ray does not answer: `ray list nodes` took more than {PATIENCE_S:.0f} s",
            "Name the nodes: -w NODES",
        ) from None
    except subprocesses.TooMuchOutputError:
        raise UsageError(f"`ray list nodes` printed more than {MAX_OUTPUT >> 20} MiB") from None
    except OSError as error:
        raise UsageError(f"`ray` cannot be run: {error.strerror}") from error
    if done.code:
        raise _failure(done.err)
    # Log output comes before it, on lines of its own.
    return _decoded(done.out[max(done.out.find("[{"), 0) :], list[RayNode])


def _by_http(address: str) -> list[RayNode]:
    """Return the nodes from the dashboard, which `ray list nodes` asks too."""
    if not address.startswith("http"):
        raise UsageError(
            "--ray needs the `ray` command, and there is none on this machine",
            "Activate its environment, or name the dashboard: --ray http://HEAD:8265",
        )
    import urllib.request  # slow to import, and seldom needed
    from http.client import HTTPException

    url = f"{address.rstrip('/')}/api/v0/nodes?limit={MOST}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - http only
            text = answer.read(MAX_OUTPUT + 1)
    except (OSError, ValueError, HTTPException) as error:
        why = clean(str(getattr(error, "reason", error)), 120)
        help_text = "Name the nodes: -w NODES"
        raise UsageError(f"Ray's dashboard does not answer: {why}", help_text) from error
    return _decoded(text, _Answer).data.result.result


def _decoded(text: str | bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = clean(str(error), 120)
        raise UsageError(f"what Ray prints of its nodes cannot be read: {why}") from error


def _failure(printed: str) -> UsageError:
    last = clean(printed.strip().rpartition("\n")[2], 200)
    for pattern, text, fix in _FAILURES:
        if re.search(pattern, printed):
            return UsageError(text, fix)
    return UsageError(f"`ray list nodes` failed: {last}", "Name the nodes: -w NODES")
