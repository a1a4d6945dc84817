"""Node set expressions, host files, and texts that are neither."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from hangtop_core.attach.ways import targets
from hangtop_core.attach.ways.targets import (
    MAX_HOSTFILE,
    MAX_NAMES,
    MAX_NODES,
    expand,
    read_hostfile,
    select,
)
from hangtop_core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def configure(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Let groups come from a command, as a site's groups.conf does."""
    folder.mkdir(exist_ok=True)
    (folder / "groups.conf").write_text(f"[Main]\ndefault: t\n[t]\nmap: {command}\n")
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(folder))


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group source that knows `@gpu` only."""
    configure(tmp_path, monkeypatch, 'test "$GROUP" = gpu && echo gpu[1-3] || true')


@pytest.mark.parametrize(
    ("expression", "nodes"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-4]!n[2-3]", ["n1", "n4"]),
        ("10.0.0.1,n1.site.org", ["10.0.0.1", "n1.site.org"]),
        ("n[1, 3 - 4]", ["n1", "n3", "n4"]),
        ("n[0-8/4]", ["n0", "n4", "n8"]),
        ("n1[8-10]", ["n18", "n19", "n110"]),
        ("n1[08-10]x,m2[5]", ["n108x", "n109x", "n110x", "m25"]),
        ("n1[8-12/2]", ["n18", "n110", "n112"]),
        ("n1[9-10]5", ["n195", "n1105"]),
        ("99999999[1-10]!99999999[1-9]", ["9999999910"]),
    ],
)
def test_node_sets(expression: str, nodes: list[str]) -> None:
    assert sorted(expand(expression)) == sorted(nodes)


@pytest.mark.parametrize(
    "expression",
    [
        "-oProxyCommand=touch /tmp/x",
        "a;reboot",
        "$(reboot)",
        "`id`",
        "a b|c",
        "n[1-",
        "alice@n1",
        "a\nb;c",
        "n\x1b[31m",
        "n[1-100000000]",
        f"n[1-{'9' * 5000}]",
        f"n[{'0' * 30}1-999999999]",
        "a[1-99]b[1-99]c[1-99]d[1-99]",
        "a[0-99_999_999]",
        "a[0-+99999999]",
        "a[0-99\u0663999999]",
        "a[0-9,0 - 99 999 999]",
        "9[90-99-99999999]",
        "n1[00-112]",
        "".join(f"a{n}[1-16000]," for n in range(999)),
        f"{'9' * 300_000}",
        f"{'a' * 300_000}",
        "--",
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_what_is_no_node_name_is_a_usage_error(expression: str) -> None:
    with pytest.raises(UsageError):
        expand(expression)


@pytest.mark.parametrize("expression", ["alice@n1", "n1,alice@n[2-3]"])
def test_a_user_before_a_node_is_told_to_be_an_option(expression: str) -> None:
    with pytest.raises(UsageError, match=r"'alice@n.*without a user") as caught:
        expand(expression)
    assert "-l USER" in str(caught.value.help)


@pytest.mark.usefixtures("groups")
def test_groups_are_those_of_the_site_and_an_unknown_one_is_said() -> None:
    assert expand("@gpu") == ("gpu1", "gpu2", "gpu3")
    assert expand("login,@gpu!gpu2") == ("gpu1", "gpu3", "login")
    for expression in ("@cpu", "gpu1,@cpu", "@gpu!@cpu"):
        with pytest.raises(UsageError, match="'@cpu' is not defined") as caught:
            expand(expression)
        assert "/etc/clustershell/groups.conf" in caught.value.help
    with pytest.raises(UsageError, match="group source 'rack' is not defined"):
        expand("@rack:3")


@pytest.mark.parametrize(
    "group",
    ["@g;touch {0}", "@g\ntouch {0}", "@g>{0}", "@g[1,2];>{0}", "n1,@t:g|tee {0}", "@$(touch {0})",
     "@`touch {0}`", "@g&>{0}", "@-x", "@t:-x", "@g x"],
)  # fmt: skip
def test_no_name_of_a_group_says_anything_to_a_shell(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's groups may come from commands, into which ClusterShell writes the name."""
    asked, made = tmp_path / "asked", tmp_path / "made"
    configure(tmp_path / "site", monkeypatch, f"echo $GROUP >> {asked}; echo n1")
    hosts = tmp_path / "hosts"
    hosts.write_text(group.format(made).replace("\n", " "))
    for use in (lambda: expand(group.format(made)), lambda: read_hostfile(hosts)):
        with contextlib.suppress(UsageError):  # of `@g x` a host file takes the first word
            use()
    assert not made.exists()
    assert not asked.exists() or asked.read_text() == "g\n"
    configure(tmp_path / "again", monkeypatch, f"echo $GROUP >> {asked}; echo n1")
    assert expand(" @g , n2 ") == ("n1", "n2")
    assert asked.read_text().endswith("g\n")


HOSTFILES = {
    "plain": ("n1\nn2\n", ("n1", "n2")),
    "hydra": ("n1:4 binding=user:0,1\nn2:8\n", ("n1", "n2")),
    "folded-slots": ("gpu[01-02]:8\ngpu03 slots = 8\n", ("gpu01", "gpu02", "gpu03")),
    "lsf": ("n1 8\nn2 8\n", ("n1", "n2")),
    "addresses": ("10.0.0.1:8\n10.0.0.2 slots=8\n", ("10.0.0.1", "10.0.0.2")),
    "open-mpi": ("n1 slots=8 max-slots=8\nn2 slots=8 # spare\n", ("n1", "n2")),
    "deepspeed": ("# workers\nworker-1 slots=4\n\nworker-2 slots=4\n", ("worker-1", "worker-2")),
    "repeated": ("n2\nn2\nn1\nn2\n", ("n2", "n1")),
    "folded": ("gpu[01-03]\r\nlogin\r\n", ("gpu01", "gpu02", "gpu03", "login")),
}


@pytest.mark.parametrize("form", HOSTFILES)
def test_host_files(form: str, tmp_path: Path) -> None:
    text, nodes = HOSTFILES[form]
    path = tmp_path / "hosts"
    path.write_text(text)
    assert read_hostfile(path) == nodes


def test_a_bad_host_file_says_where(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n1\n-oProxyCommand=x\n")
    with pytest.raises(UsageError, match=r"hosts:2: '-oProxyCommand=x' is no node name"):
        read_hostfile(path)
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="no host in it"):
        read_hostfile(path)
    with pytest.raises(UsageError, match="No such file"):
        read_hostfile(tmp_path / "other")


def test_a_file_that_is_larger_than_any_host_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n1\n#".ljust(MAX_HOSTFILE, "-"))
    assert read_hostfile(path) == ("n1",)
    path.write_text("n1\n#".ljust(MAX_HOSTFILE + 1, "-"))
    with pytest.raises(UsageError, match="has over 8 MiB: it is no host file"):
        read_hostfile(path)


def test_selecting_puts_it_together(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("n3\nn1\n")
    assert select(["n[1-2]", "n5"], ["n2,n5"], [path]) == ("n3", "n1")
    with pytest.raises(UsageError, match="all of them are excluded"):
        select(["n1"], ["n[1-9]"], [])


def test_a_set_that_comes_again_is_expanded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a scheduler writes a node for each of its slots."""
    expanded: list[str] = []

    def counted(expression: str, what: str) -> tuple[str, ...]:
        expanded.append(expression)
        return expand(expression, what)

    monkeypatch.setattr(targets, "expand", counted)
    hosts = tmp_path / "hosts"
    hosts.write_text("n[1-4]\n" * 40 + "n2\n" * 40 + f"a[1-{MAX_NODES - 4}]\n" * 40)
    assert len(read_hostfile(hosts)) == MAX_NODES
    assert expanded == ["n[1-4]", "n2", f"a[1-{MAX_NODES - 4}]"]


def test_names_of_all_sets_together_are_bounded(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"a[1-{MAX_NODES - n}]\n" for n in range(5)))
    with pytest.raises(UsageError, match=rf":5: more than {MAX_NAMES} names in all"):
        read_hostfile(hosts)
    hosts.write_text(f"a[1-{MAX_NODES}]\nb1\n")
    with pytest.raises(UsageError, match=rf":2: more than {MAX_NODES} nodes in all"):
        read_hostfile(hosts)
    hosts.write_text(f"a[1-{MAX_NODES}]\n")
    with pytest.raises(UsageError, match=f"more than {MAX_NODES} nodes in all"):
        select(["b1"], [], [hosts])
    assert select([], ["a[2-16384]"], [hosts]) == ("a1",)
