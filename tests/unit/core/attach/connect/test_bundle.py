"""What is sent to nodes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import typing
from pathlib import Path, PurePath

import pytest

from hangtop_core.attach.connect import bundle
from hangtop_probe.wire import boot
from hangtop_probe.wire.server import Push

LOADS_ALL = """
import importlib
files = {name: text.encode() for name, text in json.load(sys.stdin).items()}
sys.meta_path.insert(0, Memory("hangtop_probe", files))
for name in files:
    importlib.import_module("hangtop_probe." + name[:-3].replace("/", "."))
handlers = sys.modules["hangtop_probe.probe"].Probe().handlers()
print(*(op for op, answer in handlers.items() if "_refuse" not in repr(answer)))
"""


class WithoutTexts(ast.NodeTransformer):
    """Leaves out of a program what does not run."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        typed = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        for one in typed:
            one.annotation = ast.Constant(0)
        node.body = [one for one in node.body if one not in typed]
        self.generic_visit(node)
        node.body = [*typed, *node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return node if node.value is None else ast.Assign([node.target], node.value)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "typing" else node


def without_texts(source: bytes) -> str:
    return ast.dump(WithoutTexts().visit(ast.parse(source)))


@pytest.mark.parametrize("name", sorted(bundle._source(bundle._PACKS[-1])))
def test_what_is_left_out_for_an_argument_does_not_run(name: str) -> None:
    whole, bare = bundle._source()[name], bundle._source(bundle._PACKS[-1])[name]
    assert without_texts(bare) == without_texts(whole)
    assert len(bare) <= len(whole)
    tree = list(ast.walk(ast.parse(bare)))
    read = {one.id for one in tree if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    used = read.intersection(typing.__all__)
    told = [one.names for one in tree if isinstance(one, ast.ImportFrom) and one.module == "typing"]
    assert used <= {name.name for names in told for name in names}


def test_signs_beyond_ascii_and_in_strings_stay() -> None:
    source = 'def f(ö: "List[ö]" = 1) -> int:\n    """Döc."""  # nöt\n\n    return (\n'
    source += '        "# ö",  # gone\n        """ one\n\n  two""",\n    )\n'
    bare = bundle._bare(source.encode()).decode()
    assert bare == 'def f(ö = 1) :\n    return (\n"# ö",\n""" one\n\n  two""",\n)'


def test_lines_after_types_of_several_lines_stay() -> None:
    source = 'if TYPE_CHECKING:\n    Pair = Tuple[int, int]\n    """Two\n\n    numbers."""\n\n'
    bare = bundle._bare(f"{source}FIRST = 1\nSECOND = 2\n".encode()).decode()
    assert bare == "FIRST = 1\nSECOND = 2"


def test_what_needs_a_probe_that_can_be_told_something_is_not_pushed() -> None:
    sent = bundle._source(bundle._PACKS[-1])
    left_out = {PurePath(name).name for name in bundle._source() if name not in sent}
    left_out.discard("__init__.py")
    nettest = {name for name in left_out if name.startswith("nettest")}
    assert left_out == {"strace.py", "ras.py", "boot.py", "relay.py", *nettest}
    assert nettest


@pytest.mark.parametrize("pack", bundle._PACKS, ids=lambda pack: " ".join(sorted(pack)) or "watch")
def test_a_pack_has_all_that_its_modules_import(pack: frozenset[str]) -> None:
    """By a Python that has nothing but the pack; of what it lacks it says that it has it not."""
    source = {name: text.decode() for name, text in bundle._source(pack).items()}
    code = bundle._together(boot.PARTS) + LOADS_ALL
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        input=json.dumps(source),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"watch", "stacks", "clean", *pack} <= set(done.stdout.split())


def test_what_is_imported_from_packages_is_sent_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "__init__.py": "",
        "__main__.py": "def main():\n    from .wire import server",
        "wire/__init__.py": "",
        "wire/server.py": "from ..proc.table import Table\nfrom . import beside",
        "wire/beside.py": "from .. import above",
        "proc/__init__.py": "from .inner import deep",
        "proc/table.py": "from __future__ import annotations\nimport os",
        "proc/inner/__init__.py": "",
        "proc/inner/deep.py": "",
        "above.py": "",
        "other/__init__.py": "",
        "other/unused.py": "",
    }
    for name, text in texts.items():
        (tmp_path / "hangtop_probe" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hangtop_probe" / name).write_text(text)
    monkeypatch.setattr(bundle, "PACKAGE", tmp_path / "hangtop_probe")
    assert bundle._source.__wrapped__().keys() == texts.keys()
    sent = bundle._source.__wrapped__(frozenset())
    assert sent.keys() == texts.keys() - {"other/__init__.py", "other/unused.py"}


def test_what_is_asked_decides_what_is_sent() -> None:
    def pack(*ops: str) -> frozenset[str]:
        asked = {"n1": [{"op": op} for op in ops], "n2": [{"op": "stacks"}, {"id": 1}]}
        return bundle._pack(Push(asked, 1.0, 0, 1000, hello=False))

    assert pack("watch", "stacks", "clean", "nonsense", "strace") == frozenset()
    assert pack("recorder", "stacks") == {"recorder"}
    assert pack("log") == pack("descriptors", "holders") > {"log", "descriptors", "holders"}
    assert pack("log", "recorder") == bundle._PACKS[-1]
