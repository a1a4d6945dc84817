"""What of a process's environment leaves the node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hangtop_probe.secrets.mask import MASK
from hangtop_probe.table.environment import MAX_VALUE, allowed

SECRET = "s3cretValue99"


def test_only_allowed_variables_leave_the_node() -> None:
    environment = {
        "RANK": "3",
        "MASTER_ADDR": "n1",
        "NCCL_DEBUG": "INFO",
        "TORCHELASTIC_RUN_ID": "none",
        "HF_HOME": "/hf",
        "HF_TOKEN": SECRET,
        "WANDB_API_KEY": SECRET,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "PATH": "/bin",
        "TORCH_PROXY": f"http://me:{SECRET}@proxy",
        "NCCL_NET_GDR_LEVEL": "PHB",
    }
    assert allowed(environment) == {
        "RANK": "3",
        "MASTER_ADDR": "n1",
        "NCCL_DEBUG": "INFO",
        "TORCHELASTIC_RUN_ID": "none",
        "HF_HOME": "/hf",
        "HF_TOKEN": MASK,
        "TORCH_PROXY": f"http://{MASK}@proxy",
        "NCCL_NET_GDR_LEVEL": "PHB",
    }


def test_long_values_are_cut() -> None:
    value = allowed({"NCCL_TOPO": "x" * (MAX_VALUE + 1)})["NCCL_TOPO"]
    assert value == "x" * (MAX_VALUE - 1) + "…"


@given(st.dictionaries(st.text(max_size=80), st.text(max_size=80), max_size=10))
def test_masking_never_fails(variables: dict[str, str]) -> None:
    prefixed = {f"HF_{name}": value for name, value in variables.items()}
    assert list(allowed(prefixed)) == sorted(prefixed)
