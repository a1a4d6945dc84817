"""What the pages say of files, modules and commands: they exist, and links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from pathlib import Path

import pytest

from hangtop.cli.main import build_parser
from hangtop.docs.jsondoc import anchor
from hangtop_core.errors import HangtopError

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SOURCES = (ROOT, ROOT / "core", ROOT / "tui", ROOT / "core/hangtop_core", ROOT / "tui/hangtop")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|sh|toml|json))`")
_MODULE = re.compile(r"`(hangtop(?:_core|_probe|_hook)?(?:\.[a-z_0-9]+)+)`")
_BLOCK = re.compile(r"^```(?:sh|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text(page: Path) -> str:
    return page.read_text("utf-8")


def headings(page: Path) -> set[str]:
    """Anchors, as GitHub makes them: two spaces would be two dashes."""
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {anchor(title.replace(" ", "-")) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, place in _LINK.findall(text(page)):
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), target
        if place and found.suffix == ".md":
            assert place in headings(found), f"{target}#{place}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it tells of what was there
    for path in _PATH.findall(text(page)):
        assert any((base / path).exists() for base in SOURCES), path
    for module in _MODULE.findall(text(page)):
        assert exists(module), module


def exists(dotted: str) -> bool:
    """Whether it is a module or package, or something that one defines."""
    parts = dotted.split(".")
    for base in (ROOT / "core", ROOT / "tui"):
        for length in (len(parts), len(parts) - 1):
            place = base.joinpath(*parts[:length])
            rest = parts[length:]
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.exists() and (not rest or re.search(rf"\b{rest[0]}\b", text(file))):
                    return True
    return False


def test_the_internals_name_only_modules_that_there_are() -> None:
    page = text(ROOT / "docs/internals.md")
    known = {one.parent.name for one in (ROOT / "core/hangtop_core").glob("*/__init__.py")}
    known |= {one.parent.name for one in (ROOT / "tui/hangtop").glob("*/__init__.py")}
    for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", page):
        first = name.partition(".")[0]
        if first in known and not name.endswith(".py"):
            assert exists(f"hangtop_core.{name}") or exists(f"hangtop.{name}"), name
    for name in re.findall(r"`([a-z_0-9]+\.py)`", page):
        assert list(ROOT.glob(f"core/**/{name}")) + list(ROOT.glob(f"tui/**/{name}")), name


def test_every_page_is_found_from_the_index() -> None:
    linked = {target for target, _ in _LINK.findall(text(ROOT / "docs/README.md"))}
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"}
    assert pages - linked == set()


def commands(page: Path) -> list[str]:
    """Commands of blocks, as a shell reads the lines when they are pasted; and those in prose."""
    found = []
    for block in _BLOCK.findall(text(page)):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"^(?:\$ |eval \"\$\(|[A-Z_]+=\S+ )", "", line.strip())
            if re.match(r"hangtop(?: |$)", command):
                found.append(shlex.join(as_pasted(command.replace(')"', " "))))
    prose = re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    return [*found, *re.findall(r"`(hangtop [^`]+?)`", prose)]


def as_pasted(command: str) -> list[str]:
    """Words up to a comment, a pipe or a redirection."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(itertools.takewhile(lambda word: not set(word) <= set("|&;<>()"), words))


def filled(command: str) -> str:
    """A command with numbers for words that stand for some, without what is optional."""
    return re.sub(r"\b(RANK|FD|PID|N|R)\b", "3", re.sub(r" \[[^]]*\]", "", command))


def test_commands_are_commands() -> None:
    parser = build_parser()
    for page in PAGES:
        for command in commands(page):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                try:
                    parser.parse_args(shlex.split(filled(command))[1:])
                except SystemExit as end:
                    short = ("arguments are required", "expected one argument")
                    fine = not end.code or any(one in said.getvalue() for one in short)
                    assert fine, (page.name, command, said.getvalue())
                except HangtopError as error:
                    pytest.fail(f"{page.name}: {command}: {error}")


def test_commands_are_found() -> None:
    assert "hangtop diagnose --job 4711 --via srun" in commands(ROOT / "docs/recipes.md")
    assert len({one for page in PAGES for one in commands(page)}) > 70
