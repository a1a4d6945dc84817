"""GPUs of a real job's ranks, by a real probe and the real pynvml; only the driver is a double.

See support/nvml: no GPU is needed, and none was ever compared with it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hangtop_core.analysis.gpus import owners
from hangtop_core.analysis.verdict.engine import diagnose
from hangtop_core.model.node.hardware import Gpu, Nic
from hangtop_core.session.session import Options, Session, Update
from support import nvml
from support.jobs import POOL_VARIABLE, run_hangtop
from support.launch import Started, torchrun
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hangtop_core.diagnosis import Diagnosis, Verdict
    from hangtop_core.model.snapshot import Job

pytestmark = [pytest.mark.real, nvml.needs_compiler]

RANKS = 4


class Seen:
    """A session that watches the job, and the double that it asks."""

    def __init__(self, job: Started, double: nvml.Double, session: Session) -> None:
        self.job, self.double, self.session = job, double, session

    def until(self, what: Callable[[Update], object]) -> Update:
        """Wait for a picture of which this holds."""
        found = self.session.wait(lambda update: bool(what(update)), PATIENCE)
        assert found is not None, self.session.latest
        return found

    def mine(self, update: Update) -> Job | None:
        """The job under test; others may run on this machine."""
        jobs = update.snapshot.jobs
        return next((one for one in jobs if self.job.pid in {p.pid for p in one.launchers}), None)

    def whole(self, update: Update) -> bool:
        """Whether all of its ranks are there."""
        job = self.mine(update)
        return job is not None and len(job.ranks) == RANKS

    def blames(self, update: Update, *ranks: int) -> bool:
        """Whether these ranks are blamed for its hang."""
        first = self.first(update)
        return first is not None and tuple(one.rank for one in first.culprits) == ranks

    def pids(self) -> list[int]:
        """Of its ranks, in their order."""
        job = self.mine(self.until(self.whole))
        assert job is not None
        return [rank.process.pid for rank in job.ranks]

    def diagnosis(self, update: Update) -> Diagnosis:
        """What is concluded about it."""
        job = self.mine(update)
        assert job is not None
        return update.diagnoses[job.key]

    def first(self, update: Update) -> Verdict | None:
        """The best verdict."""
        verdicts = self.diagnosis(update).verdicts if self.mine(update) else ()
        return verdicts[0] if verdicts else None


def gpus(update: Update) -> tuple[Gpu, ...]:
    return update.snapshot.nodes[0].gpus


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Four gloo ranks: 0, 1 and 3 wait in all_reduce, 2 in a recv that nothing answers."""
    folder = tmp_path_factory.mktemp("nvml")
    double = nvml.Double(folder, nvml.build(folder))
    double.say(count=RANKS, util=100, memory_util=0, power=118000)
    env = {POOL_VARIABLE: "gpus", "CUDA_VISIBLE_DEVICES": "3,2,1,0"}
    with pytest.MonkeyPatch.context() as patch, torchrun("unmatched", env=env) as job:
        for name, value in double.environment.items():
            patch.setenv(name, value)
        with Session(Options(hang_after=5.0), diagnose) as session:
            made = Seen(job, double, session)
            made.until(lambda u: made.whole(u) and made.blames(u, 2))
            yield made


def test_gpus_are_read_and_given_to_the_ranks_that_see_them(seen: Seen) -> None:
    update = seen.until(lambda u: len(gpus(u)) == RANKS and seen.blames(u, 2))
    node = update.snapshot.nodes[0]
    assert node.nvml is not None
    assert (node.nvml.driver, node.nvml.gpus, node.nvml.error) == ("575.51.03", RANKS, None)
    one = gpus(update)[1]
    assert (one.util, one.power_w, one.power_limit_w, len(one.links)) == (100, 118, 700, 18)
    # By CUDA_VISIBLE_DEVICES and the local rank, as long as no process is seen on any GPU.
    found = owners(seen.mine(update), update.snapshot.nodes)
    assert {gpu: [r.rank for r in ranks] for (_, gpu), ranks in found.items()} == {
        0: [3], 1: [2], 2: [1], 3: [0],
    }  # fmt: skip
    first = seen.first(update)
    assert first is not None
    assert first.cause != "gpu-lost"


def test_a_process_on_a_gpu_says_whose_it_is(seen: Seen) -> None:
    pids = seen.pids()
    seen.double.say(**{f"g{n}_pids": pid for n, pid in enumerate(pids)})
    update = seen.until(lambda u: all(gpu.processes for gpu in gpus(u)))
    found = owners(seen.mine(update), update.snapshot.nodes)
    assert {gpu: [r.rank for r in ranks] for (_, gpu), ranks in found.items()} == {
        n: [n] for n in range(RANKS)
    }
    (process,) = gpus(update)[2].processes or ()
    assert process.comm is not None
    assert process.comm.startswith("p")


def test_a_lost_gpu_is_the_cause_and_its_rank_the_culprit(seen: Seen) -> None:
    pids = {f"g{n}_pids": pid for n, pid in enumerate(seen.pids())}
    seen.double.say(g2_all=None, xids=None, **pids)
    seen.until(lambda u: all(gpu.processes for gpu in gpus(u)))
    seen.double.say(g2_all="error=15", xids="2:79")
    update = seen.until(lambda u: (one := seen.first(u)) is not None and one.cause == "gpu-lost")
    first = seen.first(update)
    assert first is not None
    assert [(one.rank, one.gpu) for one in first.culprits] == [(2, 2)]
    assert first.victims == (0, 1, 3)
    assert "GPU 2 (0000:1d:00.0)" in first.summary
    update = seen.until(lambda u: gpus(u)[2].xids)
    assert [xid.number for xid in gpus(update)[2].xids] == [79]


def test_the_command_line_tells_of_gpus(seen: Seen) -> None:
    seen.double.say(g2_all=None, g0_ecc_now=3)
    said: list[dict[str, Any]] = json.loads(run_hangtop("doctor", "--json").stdout)["nodes"]
    (rung,) = [one for one in said[0]["rungs"] if one["name"] == "nvml"]
    assert (rung["state"], "driver 575.51.03, 4 GPUs" in rung["text"]) == ("ok", True)
    done = run_hangtop("dump", "--json", "--pid", *map(str, seen.pids()))
    # What it writes can be read again: readings of a real GPU would make a test like this one.
    told = json.loads(done.stdout)["nodes"][0]
    found = msgspec.convert(told["gpus"], tuple[Gpu, ...])
    assert [one.index for one in found] == list(range(RANKS))
    assert (found[0].ecc_now, len(found[0].links)) == (3, 18)
    assert msgspec.convert(told["nics"], tuple[Nic, ...])
