"""Filter for the content of a capture before anything else sees it: a stranger may have written it.

One pass over the plain data of each line. Text is cleaned like text from a node. Node names must
have the form of live targets. The ways by which hangtop reached a node are dropped, and the file's
advice is shown as the file's own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hangtop_core.capture.changes import Damaged
from hangtop_core.text import fixes
from hangtop_core.text.addresses import is_name
from hangtop_core.text.clean import SAYS, clean, is_plain

_QUICK = re.compile(rb'(?:[ -\[\]-~]++|\\["\\/])*+\n?')
_LOOKED_AT = re.compile(rb'"(?:base|earlier|verdict|node|nodes|output|shell|options|fix|denied)"')
_NODES = re.compile(rb'"node":"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}"')


def is_harmless(line: bytes) -> bool:
    """Whether a line holds plain characters only, and no field with a rule of its own.

    Most lines of a large capture do: checking their bytes costs next to nothing.
    """
    return _QUICK.fullmatch(line) is not None and not _LOOKED_AT.search(_NODES.sub(b"", line))


def harmless(raw: Any) -> Any:
    """Return plain data that may be decoded into the types of the model.

    Raises:
        Damaged: a node's name is invalid.
    """
    is_verdict = isinstance(raw, dict) and "verdict" in raw
    return _data(raw, _VERDICT if is_verdict else _RULES)


_Rules = Mapping[str, Callable[[Any], Any]]


def _data(raw: Any, rules: _Rules) -> Any:
    if isinstance(raw, str):
        return one_line(raw)
    if isinstance(raw, list):
        return [_data(item, rules) for item in raw]
    if isinstance(raw, dict):
        return {one_line(key): _field(key, value, rules) for key, value in raw.items()}
    return raw


def _field(key: str, value: Any, rules: _Rules) -> Any:
    rule = rules.get(key)
    return _data(value, rules) if rule is None else rule(value)


def one_line(text: str) -> str:
    """Return a text as one line that a terminal shows verbatim."""
    return text if is_plain(text) else clean(text, len(text))


def lines(text: Any) -> Any:
    """Return a text of several lines, each of them cleaned."""
    return "\n".join(map(one_line, text.split("\n"))) if isinstance(text, str) else _data(text, {})


def node_name(name: Any) -> Any:
    """Return a name that may be a node's.

    Raises:
        Damaged: it is invalid.
    """
    if isinstance(name, str) and name and not is_name(name):
        raise Damaged(f"{clean(name, 80)!r} is no node name")
    return _data(name, {})


def _node(raw: Any) -> Any:
    """Return a node, or the name of one."""
    return _with_name(raw) if isinstance(raw, dict) else node_name(raw)


def _nodes(raw: Any) -> Any:
    """Return names of nodes, nodes, or the differences between the nodes of two snapshots."""
    if isinstance(raw, list):
        return [_node(item) for item in raw]
    if isinstance(raw, dict):
        return {one_line(key): _changed_nodes(value) for key, value in raw.items()}
    return raw


def _changed_nodes(raw: Any) -> Any:
    """Return nodes by their place; leave an order of places unchanged."""
    if isinstance(raw, dict):
        return {one_line(key): _node(value) for key, value in raw.items()}
    return _data(raw, {})


def _with_name(node: dict[str, Any]) -> Any:
    node_name(node.get("name"))
    return _data(node, _RULES)


def quoted(text: Any) -> Any:
    """Return the file's advice or conclusion, marked as its own words."""
    text = _data(text, {})
    is_said = not isinstance(text, str) or not text or text.startswith(SAYS)
    return text if is_said else SAYS + text


def _verdict_text(text: Any) -> Any:
    """Return a verdict as text, which has several lines."""
    text = lines(text)
    return text if not isinstance(text, str) or text.startswith(SAYS) else f"{SAYS}\n{text}"


def _steps(steps: Any) -> Any:
    return [quoted(step) for step in steps] if isinstance(steps, list) else _data(steps, {})


def _fix(text: Any) -> Any:
    """Return a fix: one of hangtop's own sentences, or the file's words."""
    text = _data(text, {})
    return text if isinstance(text, str) and fixes.is_ours(text) else quoted(text)


def _denied(text: Any) -> Any:
    """Return why a process cannot be read, with the fix behind a semicolon (`fixes.denied`)."""
    why, semicolon, fix = text.partition("; ") if isinstance(text, str) else (text, "", "")
    return f"{_data(why, {})}; {_fix(fix)}" if semicolon else _data(why, {})


def _diagnosis(raw: Any) -> Any:
    return _data(raw, _DIAGNOSIS)


def _nothing(value: Any) -> Any:
    """Return the empty value for a dropped field."""
    return "" if isinstance(value, str) else () if isinstance(value, list) else None


def _output(raw: Any) -> Any:
    """Return log files; their text is cleaned when it is shown, like that of a live file."""
    return _data(raw, _OUTPUT)


def _log(raw: Any) -> Any:
    """Return a parsed log, in which a text may have several lines."""
    if isinstance(raw, list):
        return [_log(item) for item in raw]
    if isinstance(raw, dict):
        return {one_line(key): _log(value) for key, value in raw.items()}
    return lines(raw)


_RULES: _Rules = {
    "env": lambda raw: _data(raw, {}),
    "node": _node,
    "nodes": _nodes,
    "output": _output,
    "outputs": _output,
    "shell": _nothing,
    "options": _nothing,
    "fix": _fix,
    "denied": _denied,
    "diagnosis": _diagnosis,
    "diagnoses": _diagnosis,
}
_VERDICT: _Rules = {"diagnosis": _diagnosis, "text": _verdict_text}
_OUTPUT: _Rules = {"node": _node, "text": lambda text: text, "log": _log}
_DIAGNOSIS: _Rules = {
    "node": _node,
    "nodes": _nodes,
    "summary": quoted,
    "next_steps": _steps,
    "commands": _nothing,
    "command": _nothing,
    "fix": quoted,
    "told": quoted,
    "by": quoted,
}
