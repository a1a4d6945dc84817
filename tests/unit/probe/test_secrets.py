from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_probe.secrets import MASK, allowed_environment, mask_arguments, mask_text

SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--token", SECRET],
        ["--hub-token", SECRET],
        ["--hub_token=" + SECRET],
        ["--wandb.api_key=" + SECRET],
        ["-p", "db", "--password", SECRET],
        ["--api-key", SECRET],
        ["--secret-key=" + SECRET],
        ["WANDB_API_KEY=" + SECRET],
        ["AWS_SECRET_ACCESS_KEY=" + SECRET],
        ["s3://user:" + SECRET + "@host/bucket"],
        ["https://host/x?token=" + SECRET + "&y=1"],
        ["bash", "-c", "export HF_TOKEN=" + SECRET + "; python train.py"],
        ["bash", "-c", "python train.py --password " + SECRET],
        ["-H", "Authorization: Bearer " + SECRET],
        ['{"api_key": "' + SECRET + '"}'],
    ],
)
def test_secrets_in_command_lines_are_masked(arguments: list[str]) -> None:
    masked = mask_arguments(["python", "train.py", *arguments])
    assert SECRET not in " ".join(masked)
    assert MASK in " ".join(masked)
    assert masked[:2] == ("python", "train.py")


@pytest.mark.parametrize(
    "token",
    [
        "hf_abcdefghijklmnopqrstuvwx",
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrst1234",
        "AKIAIOSFODNN7EXAMPLE",
        "0123456789abcdef0123456789abcdef01234567",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
    ],
)
def test_known_token_forms_are_masked_wherever_they_stand(token: str) -> None:
    assert token not in mask_text(f"x={token},y")
    assert token not in " ".join(mask_arguments(["run", token]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-tokens", "4096"],
        ["--tokenizer", "meta-llama/Llama-3"],
        ["--tokenizer-path=/data/tok.model"],
        ["--num_tokens=1e9"],
        ["--pad_token", "<pad>"],
        ["--moe-token-dispatcher-type", "alltoall"],
        ["--seed", "1234", "--lr=3e-4"],
        ["/cache/models--x/snapshots/0123456789abcdef0123456789abcdef01234567/config.json"],
        ["--keyboard", "us"],
        ["tcp://10.0.0.1:29500"],
    ],
)
def test_what_is_no_secret_stays(arguments: list[str]) -> None:
    assert mask_arguments(arguments) == tuple(arguments)


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
    assert allowed_environment(environment) == {
        "RANK": "3",
        "MASTER_ADDR": "n1",
        "NCCL_DEBUG": "INFO",
        "TORCHELASTIC_RUN_ID": "none",
        "HF_HOME": "/hf",
        "HF_TOKEN": MASK,
        "TORCH_PROXY": f"http://{MASK}@proxy",
        "NCCL_NET_GDR_LEVEL": "PHB",
    }


def test_long_command_lines_are_cut() -> None:
    masked = mask_arguments(["x" * 1000] * 200)
    assert len(masked) == 129
    assert masked[-1] == "… 72 more"
    assert all(len(argument) <= 512 for argument in masked)


@given(st.lists(st.text(max_size=80), max_size=10))
def test_masking_never_fails(arguments: list[str]) -> None:
    assert len(mask_arguments(arguments)) == len(arguments)
    allowed_environment({a: b for a in arguments for b in arguments})
