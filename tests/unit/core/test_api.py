"""What `import hangtop_core` offers: little, documented, typed, and no screen is needed."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import hangtop_core as ht
from hangtop_core import api, errors
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.capture import Facts, Redaction, save
from hangtop_core.errors import (
    BadCaptureError,
    ClosedError,
    HangtopError,
    NoDumpError,
    UsageError,
)
from support.flight import Job, write
from support.record import load as recording

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/api.md").read_text("utf-8")
FUNCTIONS = [name for name in ht.__all__ if inspect.isfunction(getattr(ht, name))]


def block(sign: str) -> str:
    """The example of the page with this in it."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (one for one in blocks if sign in one)
    return str(found)


def test_the_page_names_what_there_is() -> None:
    table = PAGE.partition("| name | is |")[2].partition("\n\n")[0]
    told = set(re.findall(r"`(?:Session\.)?(\w+)(?:\([^`]*\))?`", table))
    assert set(ht.__all__) - {"__version__"} == told - {"snapshot", "hangtop"}
    assert set(api.__all__) == set(ht.__all__) - {"__version__"}
    raised = re.findall(r"^\| `(\w+Error)`", PAGE, re.M)
    assert raised
    for name in raised:
        assert issubclass(getattr(errors, name), HangtopError)


@pytest.mark.parametrize("name", [*FUNCTIONS, "Session.snapshot", "Session.close", "Session.wait"])
def test_all_of_it_is_described_and_typed(name: str) -> None:
    owner, _, method = name.rpartition(".")
    function = getattr(getattr(ht, owner) if owner else ht, method)
    text = inspect.getdoc(function) or ""
    assert text, name
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in list(signature.parameters.values())[1 if owner else 0 :]:
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        assert owner or re.search(rf"\b{parameter.name}\b", text), parameter
    for raised in re.findall(r"^ +(\w+Error): ", text, re.M):
        assert f"`{raised}`" in PAGE


def test_the_name_of_a_package_is_that_of_the_function_whatever_is_loaded_first() -> None:
    code = (
        "import sys, hangtop_core as ht; assert 'msgspec' not in sys.modules\n"
        "from hangtop_core.attach.connect.engine import Event\n"
        "import hangtop_core.attach.ways.local\n"
        "assert callable(ht.attach) and callable(ht.diagnose), ht.attach\n"
        "assert {'textual', 'rich', 'torch', 'hangtop'}.isdisjoint(sys.modules)\n"
    )
    path = [str(ROOT / "core")]
    code = f"import sys; sys.path[:0] = {path!r}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'attached'"):
        _ = ht.attached
    assert dir(ht) == sorted(ht.__all__)


def test_a_snapshot_is_judged_by_the_key_of_a_job() -> None:
    snapshot = recording("skip").snapshot
    (job,) = snapshot.jobs
    found = ht.diagnose(snapshot)
    assert found == ht.diagnose(snapshot, job.key) == diagnose(snapshot, job)
    assert [one.rank for one in found.verdicts[0].culprits] == [2]
    assert "missing-collective" in ht.to_text(found)
    assert b'"hangtop.diagnosis/1"' in ht.to_json(found)
    with pytest.raises(UsageError, match="no job has the key 'x'") as caught:
        ht.diagnose(snapshot, "x")
    assert job.key in caught.value.help


def test_examples_of_files_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadCaptureError):
        ht.open_capture("hang.hangtop")
    with pytest.raises(UsageError):
        ht.read_dumps("dumps/")
    (tmp_path / "dumps").mkdir()
    with pytest.raises(NoDumpError):
        ht.read_dumps("dumps/")
    save(Path("hang.hangtop"), [recording("skip")], Facts("test", "", None, 5.0), Redaction())
    job = Job(4).call("all_reduce").call("all_reduce", [0, 1, 3], done=False)
    write(Path("dumps"), job.dumps())
    exec(block("open_capture"), {})
    assert capsys.readouterr().out.endswith(" 1\nhung\n")
    exec(block("read_dumps"), {})
    assert capsys.readouterr().out.startswith("missing-collective [2] 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"nodes": "a;reboot"}, "no node name"),
        ({"nodes": ["n1", "-oProxyCommand=x"]}, "no node name"),
        ({"user": "me"}, "needs nodes"),
        ({"nodes": "n1", "via": "command"}, "needs the command"),
        ({"hostfile": "/nowhere/hosts"}, "No such file"),
    ],
)
def test_what_cannot_be_used_is_said_at_once(
    arguments: dict[str, typing.Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UsageError, match=said):
        ht.attach(**arguments)


def test_a_closed_session_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    session = ht.attach(pids=[2**22 + 7])
    try:
        snapshot = session.snapshot(observe=0.0)
        assert snapshot.nodes[0].state == "ready"
        assert ht.diagnose(snapshot).state == "unknown"
    finally:
        session.close()
    assert session.closed
    with pytest.raises(ClosedError):
        session.snapshot()
