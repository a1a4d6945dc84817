"""From what is known of a node to its ladder; here the rungs up to the probe.

Pure: everything is in `check.Examined`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangtop_core.analysis.ladder import node
from hangtop_core.analysis.ladder.rung import Ladder, Rung, missing, ok, skipped, unreached
from hangtop_core.text.clean import clean
from hangtop_core.text.commands import Command, shown

if TYPE_CHECKING:
    from hangtop_core.model.node.check import Examined, Way

TO_THE_PROBE = ("resolve", "reach", "login", "python", "probe")
_SOURCES = {
    "installed": "runs from where hangtop is installed",
    "shared": "runs from a shared file system, nothing is sent",
    "cache": "runs from its cache",
    "memory": "runs from memory, sent at every connection",
}


def climb(seen: Examined) -> Ladder:
    """Return the ladder of a node."""
    rungs = [*_to_the_probe(seen)]
    check = seen.check
    if check is None:
        rungs += [unreached(name) for name in node.NAMES]
    else:
        rungs += node.rungs(seen, check)
    return Ladder(seen.node.name, tuple(rungs))


def _to_the_probe(seen: Examined) -> list[Rung]:
    """Each rung once; those after the first that fails are not reached."""
    rungs: list[Rung] = []
    for name in TO_THE_PROBE:
        if any(rung.state == "missing" for rung in rungs):
            rungs.append(unreached(name))
        else:
            rungs.append(_RUNGS[name](seen))
    return rungs


def _logged_in(seen: Examined) -> bool:
    """Whether something of ours ran there: its boot or its probe gave the Python's version."""
    return seen.node.python is not None or seen.node.state in ("no-python", "incompatible", "lost")


def _reason(seen: Examined) -> str:
    """Why the connection failed, without what will be tried next."""
    return clean(seen.node.cause or f"no answer yet ({seen.node.state})")


def _failed(name: str, seen: Examined) -> Rung:
    return missing(name, _reason(seen), clean(seen.node.fix) if seen.node.fix else None)


def _elsewise(seen: Examined) -> str:
    return "this machine" if seen.here else f"reached by {clean(seen.node.via or 'a command', 200)}"


def _resolve(seen: Examined) -> Rung:
    way = seen.way
    if way is None:
        return skipped("resolve", _elsewise(seen))
    if way.through is not None:
        return skipped("resolve", f"behind {clean(way.through, 100)}, which does that")
    if way.addresses:
        return ok("resolve", "its name has an address", ", ".join(way.addresses[:4]))
    text = f"its name cannot be resolved: {way.unresolved or 'no address'}"
    if _logged_in(seen):
        return ok("resolve", f"only for ssh: here {text}")
    look = Command("", ("getent", "hosts", way.host), "check the name, here and in ~/.ssh/config")
    return missing("resolve", text, shown(look).text)


def _reach(seen: Examined) -> Rung:
    way = seen.way
    if way is None:
        return skipped("reach", _elsewise(seen))
    if way.through is not None:
        return skipped("reach", f"behind {clean(way.through, 100)}: the login tells")
    if way.took is not None:
        return ok("reach", f"port {way.port} takes connections", f"in {way.took * 1000:.0f} ms")
    text = f"port {way.port}: {way.refused or 'not tried'}"
    if _logged_in(seen):
        return ok("reach", f"only for ssh: a plain connection from here fails, {text}")
    return missing("reach", text, _reach_fix(seen, way))


def _reach_fix(seen: Examined, way: Way) -> str:
    if way.refused is not None and "refused" in way.refused.lower():
        return f"check that sshd runs on {seen.node.name}, on port {way.port}"
    return f"check power, network and firewall: ping {way.host}"


def _login(seen: Examined) -> Rung:
    if _logged_in(seen):
        if seen.here:
            return skipped("login", "this machine")
        user = seen.node.user
        return ok("login", "accepted", f"as {clean(user, 60)}" if user else None)
    if seen.here:
        return skipped("login", "this machine")
    return _failed("login", seen)


def _python(seen: Examined) -> Rung:
    known = seen.node
    if known.state == "no-python":
        return _failed("python", seen)
    if known.python is None and seen.here:
        return _failed("python", seen)
    path = clean(seen.check.python.path, 200) if seen.check is not None else None
    return ok("python", f"Python {clean(known.python or '?', 40)}", path)


def _probe(seen: Examined) -> Rung:
    if seen.check is not None:
        source = seen.check.source
        was = "sent just now" if "probe" in source.sent else "was there"
        text = _SOURCES.get(source.probe or "", "it runs")
        return ok("probe", text, was if source.probe == "cache" else None)
    if seen.failed is not None:
        return missing("probe", clean(seen.failed), "try again: hangtop doctor")
    return _failed("probe", seen)


_RUNGS = {
    "resolve": _resolve,
    "reach": _reach,
    "login": _login,
    "python": _python,
    "probe": _probe,
}
