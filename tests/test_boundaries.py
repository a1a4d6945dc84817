"""The house rules that a reader relies on, held by tests: import contracts and sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for top in ("core", "tui") for p in (ROOT / top).rglob("*.py"))
MAX_MODULE = 400
MAX_FUNCTION = 60
MAX_COMPLEXITY = 15
SIMPLE = (
    "core/hangtop_hook",
    "core/hangtop_probe",
    "tui/hangtop",
)
"""Folders, or modules, in which no function may be more complex than that."""


def _loaded_after(code: str) -> set[str]:
    """Names of top-level packages in sys.modules after running `code` in a fresh interpreter."""
    report = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    script = f"{code}\n{report}"
    path = f"import sys; sys.path[:0] = [{str(ROOT / 'core')!r}, {str(ROOT / 'tui')!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", path + script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "hangtop_core.model",
        "hangtop_core.session.session",
        "hangtop_core.analysis.verdict.engine",
        "hangtop_core.dumps.load",
    ],
)
def test_core_runs_without_screen_or_torch(module: str) -> None:
    assert _loaded_after(f"import {module}").isdisjoint({"textual", "rich", "torch", "hangtop"})


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "dump --help",
        "diagnose --help",
        "doctor --help",
        "capture --help",
        "open --help",
        "diagnose /dev/null",
        "nettest --help",
        "flight --help",
        "run --help",
        "flight /dev/null",
        "logs --help",
        "logs /dev/null",
        "core --help",
        "core /dev/null",
        "debug --help",
        "--version",
    ],
)
def test_headless_commands_never_import_textual(command: str) -> None:
    code = f"import sys; sys.argv = ['hangtop', *{command.split()!r}]\n" + (
        "from hangtop.cli.main import main\n"
        "import contextlib, io\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n"
    )
    assert _loaded_after(code).isdisjoint({"textual", "rich", "torch"})


def test_the_app_connects_before_it_loads_what_a_first_sight_does_without() -> None:
    check = "import sys\nassert sys.modules.keys().isdisjoint({})"
    for module, later in (
        ("hangtop.cli.commands.screen", ["hangtop_core.analysis.verdict.rules", "textual"]),
        (
            "hangtop_core.session.session",
            ["hangtop_probe.stacks.stacks", "hangtop_probe.secrets.mask"],
        ),
    ):
        _loaded_after(f"import {module}\n{check.format(later)}")


def test_probe_is_standard_library_and_psutil() -> None:
    loaded = _loaded_after("import hangtop_probe.__main__")
    assert loaded.isdisjoint({"hangtop_core", "hangtop", "msgspec", "textual", "ClusterShell"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= MAX_MODULE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{node.name} has {length} lines"


def _complexity(function: ast.AST) -> int:
    """Return 1 plus the decisions in a function, with those of the functions inside it."""
    branches = ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler
    count = 1
    for node in ast.walk(function):
        if isinstance(node, branches | ast.Assert):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


@pytest.mark.parametrize("folder", SIMPLE)
def test_functions_decide_little(folder: str) -> None:
    place = ROOT / folder
    paths = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert paths, f"no modules in {folder}"
    functions = (
        (path, node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    complex_functions = {
        f"{path.relative_to(ROOT)}:{node.name}": decisions
        for path, node in functions
        if (decisions := _complexity(node)) > MAX_COMPLEXITY
    }
    assert complex_functions == {}


def _locked(path: Path) -> dict[str, set[str]]:
    """Hashes by `name==version` of a requirements file."""
    found: dict[str, set[str]] = {}
    lines = path.read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        words = line.partition("#")[0].split()
        if words:
            hashes = {word for word in words if word.startswith("--hash=sha256:")}
            found[words[0].lower()] = hashes
    return found


def test_every_dependency_is_pinned_with_hashes_and_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [re.split(r"[<>=\[ ;]", one)[0].lower() for one in project["dependencies"]]
    locked = _locked(ROOT / "requirements.lock") | _locked(ROOT / "tests/fuzz/requirements.txt")
    for pin, hashes in locked.items():
        assert re.fullmatch(r"[a-z0-9_.-]+==[^=*]+", pin), pin
        assert hashes, f"{pin} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pin
    assert set(own) <= {pin.partition("==")[0] for pin in locked}
    reasons = (ROOT / "CONTRIBUTING.md").read_text().lower()
    table = reasons[reasons.index("## dependencies") :]
    assert [name for name in own if f"| [{name}]" not in table] == []
    assert len(own) <= 8, "few"
