"""Groups are those of the site and of the user, never those of ClusterShell's example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.ways import node_groups as nodegroups
from hangtop_core.attach.ways.targets import expand, select
from hangtop_core.errors import UsageError
from hangtop_core.text import node_sets
from support.growth import MOST, growth

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = """\
# NOTE: This is a simple group configuration example file
[Main]
default: local
confdir: $CFGDIR/groups.conf.d
autodir: $CFGDIR/groups.d
[local]
map: f=$CFGDIR/groups.d/local.cfg; sed -n 's/^$GROUP:\\(.*\\)/\\1/p' $f
all: f=$CFGDIR/groups.d/local.cfg; sed -n 's/^all:\\(.*\\)/\\1/p' $f
list: f=$CFGDIR/groups.d/local.cfg; sed -n 's/^\\([0-9A-Za-z_-]*\\):.*/\\1/p' $f
"""
OWN = """\
[Main]
default: own
autodir: $CFGDIR/groups.d
[own]
map: sed -n 's/^$GROUP: *//p' $CFGDIR/list
all: echo gpu[1-3],login
list: sed -n 's/:.*//p' $CFGDIR/list
[broken]
map: exit 3
"""
LIST = "gpu: gpu[1-3]\nnested: @gpu,@typo\ndrained:\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any group of its own; the example is below the Python prefix."""
    prefix, folder = tmp_path / "prefix", tmp_path / "home"
    put_example(prefix / "etc/clustershell")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(nodegroups, "SITE", str(tmp_path / "etc/clustershell"))
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "CLUSTERSHELL_CFGDIR"):
        monkeypatch.delenv(name, raising=False)
    return folder


def put_example(folder: Path) -> Path:
    (folder / "groups.d").mkdir(parents=True)
    (folder / "groups.conf").write_text(EXAMPLE)
    (folder / "groups.d/local.cfg").write_text(f"# sample\n#\n{nodegroups.EXAMPLE}\n")
    return folder


def put_own(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "groups.conf").write_text(OWN)
    (folder / "list").write_text(LIST)
    return folder


def refusal(expression: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        expand(expression)
    return caught.value


FROM_GROUPS = [
    "@all",
    "@gpu",
    "*",
    "@*",
    "@local:gpu",
    "@local:*",
    "@@",
    "@@local",
    "example*",
    "n1,@gpu",
    "n1!@gpu",
    "n1&@gpu",
    "n1^@gpu",
    "example[4-6]*",
    "@gpu[1-2]",
]


@pytest.mark.parametrize("expression", FROM_GROUPS)
@pytest.mark.parametrize("place", ["", ".local/etc", ".config", "../etc"])
def test_the_example_of_clustershell_names_no_nodes(
    expression: str, place: str, home: Path
) -> None:
    """`pip install --user` puts it where the user's own would be, distributions below /etc."""
    if place:
        put_example(home / place / "clustershell")
    error = refusal(expression)
    assert "is not defined" in str(error) or "no groups are configured" in str(error)
    for path in nodegroups.config_files():
        assert str(path) in error.help
    if place:
        assert "the example of ClusterShell" in error.help


PLACES = [
    "etc/clustershell", "home/.local/etc/clustershell", "home/.config/clustershell",
    "xdg/clustershell", "named",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_those_of_the_site_and_the_user_count(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_own(tmp_path / place)
    if place == "named":
        monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(tmp_path / place))
    if place.startswith("xdg"):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert expand("@gpu") == ("gpu1", "gpu2", "gpu3")
    assert select(["*"], ["gpu[2,3]*"], []) == ("gpu1", "login")


def test_an_example_of_the_user_does_not_hide_what_the_site_defines(
    home: Path, tmp_path: Path
) -> None:
    put_own(tmp_path / "etc/clustershell")
    put_example(home / ".local/etc/clustershell")
    assert expand("@own:gpu,@gpu") == ("gpu1", "gpu2", "gpu3")


def test_what_was_added_to_an_example_counts_without_it(home: Path) -> None:
    folder = put_example(home / ".config/clustershell")
    (folder / "groups.d/racks.yaml").write_text("racks:\n  r1: n[1-2]\n")
    assert expand("@racks:r1") == ("n1", "n2")
    assert "'@gpu' is not defined" in str(refusal("@gpu"))
    (folder / "groups.d/local.cfg").write_text("gpu: n[8-9]\n")
    nodegroups.configured.cache_clear()
    assert expand("@gpu") == ("n8", "n9")


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("@cpu", "group '@cpu' is not defined"),
        ("@gpu,@own:cpu", "group '@own:cpu' is not defined"),
        ("@gpu!@cpu", "group '@cpu' is not defined"),
        ("@nested", "group '@typo' is not defined"),
        ("@gp?", "group '@gp\\?' is not defined"),
        ("@racks:r[1,3]", "group '@racks:r3' is not defined"),
        ("@rack:r1", "group source 'rack' is not defined"),
        ("@@rack", "group source 'rack' is not defined"),
        ("@@broken", "group source 'broken' has no command 'list'"),
        ("@broken:x", "this command of your groups failed: exit 3"),
        ("gpu1,node*", r"no node of your groups matches 'node\*'"),
    ],
)
def test_what_is_not_defined_is_an_error(expression: str, wrong: str, home: Path) -> None:
    folder = put_own(home / ".config/clustershell")
    (folder / "groups.d").mkdir()
    (folder / "groups.d/racks.yaml").write_text("racks:\n  r1: n[1-2]\n  r2: n3\n")
    with pytest.raises(UsageError, match=wrong) as caught:
        select(["gpu9"], [expression], []) if expression.startswith("@") else expand(expression)
    assert str(folder / "groups.conf") in caught.value.help
    assert expand("@racks:r[1-2]") == ("n1", "n2", "n3")


def test_a_defined_group_may_be_empty_and_a_pattern_may_take_nothing_away(home: Path) -> None:
    put_own(home / ".config/clustershell")
    assert select(["gpu[1-2]"], ["@drained"], []) == ("gpu1", "gpu2")
    assert expand("gpu1!node*") == ("gpu1",)


def put_source(home: Path, answer: str) -> Path:
    """A source whose every group is what a command prints."""
    folder = home / ".config/clustershell"
    folder.mkdir(parents=True)
    text = f"[Main]\ndefault: own\n[own]\nmap: {answer}\nall: {answer}\n"
    (folder / "groups.conf").write_text(text)
    return folder / "groups.conf"


BAD_ANSWERS = [
    ("sleep 30 & sleep 30", "did not end within 0.3 s: sleep 30"),
    ("yes n1", "printed over 1 MiB: yes n1"),
    ("echo no route >&2; exit 4", "failed: echo no route >&2; exit 4: no route"),
    ("echo n[1-99999999]", "has more than 32,768 nodes"),
    ("echo a[1-999]b[1-999]", "has more than 32,768 nodes"),
    ("echo n[1-16400]", "more than 16384 nodes"),
    ("echo @own:x", "your groups contain one another"),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("answer", "wrong"), BAD_ANSWERS)
def test_a_source_that_hangs_or_says_too_much_is_an_error(
    answer: str, wrong: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in answer:
        monkeypatch.setattr(nodegroups, "ANSWER_S", 0.3)
    path = put_source(home, answer)
    for expression in ("@x", "*") if "@" not in answer else ("@x",):
        error = refusal(expression)
        assert wrong in str(error)
        assert "16384" in wrong or f"{path}: read" in error.help


def test_a_group_of_many_names_with_several_numbers_costs_in_proportion(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_source(home, "cat $CFGDIR/names")
    monkeypatch.setattr(node_sets, "MAX_MERGED", 8)

    def work(count: int) -> Callable[[], object]:
        nodegroups.configured.cache_clear()
        names = [f"ip-10-{n % 7}-{n * 7 % 251}-{n * 11 % 241}" for n in range(count)]
        path.with_name("names").write_text(",".join(names))
        assert set(expand("@x")) == set(names)
        return lambda: expand("@x!ip-10-0-0-0")

    assert growth(work, 40) < MOST


@pytest.mark.parametrize(
    "content", [b"garbage", b"[Main]\ndefault: 100%", b"\xff\xfe", b"[a]\nx: y"]
)
def test_groups_that_cannot_be_read_are_an_error(content: bytes, home: Path) -> None:
    folder = home / ".config/clustershell"
    folder.mkdir(parents=True)
    (folder / "groups.conf").write_bytes(content)
    assert str(folder / "groups.conf") in refusal("@gpu").help
    assert expand("gpu1") == ("gpu1",)


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_the_file_is_not_waited_for(home: Path) -> None:
    folder = home / ".config/clustershell"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "groups.conf")
    assert f"{folder / 'groups.conf'}: not a file" in refusal("@gpu").help


def test_no_file_of_the_present_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file has commands: where the variables are empty or relative, it is not the user's."""
    put_own(tmp_path / "clustershell")
    monkeypatch.chdir(tmp_path)
    for value in ("", "."):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        monkeypatch.setenv("CLUSTERSHELL_CFGDIR", "")
        assert "'@gpu' is not defined" in str(refusal("@gpu"))


def test_defaults_of_clustershell_change_nothing_and_break_nothing(tmp_path: Path) -> None:
    code = "from hangtop_core.text.node_sets import fold; "
    code += "print(fold(['r1n1', 'r1n2', 'r2n1', 'r2n2']))"
    environ = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path),
               "PYTHONPATH": str(Path(node_sets.__file__).parents[2])}  # fmt: skip
    for text in ("garbage", "[nodeset]\nfold_axis: 1\n"):
        (tmp_path / "defaults.conf").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("r[1-2]n[1-2]\n", "")
