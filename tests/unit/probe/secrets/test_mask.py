"""Secrets are masked in command lines, variables, logs, code and traces; other words stay."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangtop_probe.proc import procfs
from hangtop_probe.secrets.mask import MASK, mask_arguments, mask_path, mask_text
from hangtop_probe.stacks import sources, strace
from support.plants import leaks, plants

if TYPE_CHECKING:
    from pathlib import Path

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
        ["AWS_SESSION_TOKEN=" + SECRET],
        ["--admin-token", SECRET],
        ["--db-pw", SECRET],
        ["user:" + SECRET + "@host:5432"],
        ["--endpoint=user:" + SECRET + "@10.0.0.1"],
        ["https://account.blob/x?sp=r&sig=" + SECRET],
        ["mysql", "-u", "ada", "-p" + SECRET],
        ["bash", "-c", "mysql -u ada -p" + SECRET],
        ["sshpass", "-p", SECRET, "ssh", "n1"],
        ["bash", "-c", "sshpass -p " + SECRET + " ssh n1"],
        ["docker", "login", "-u", "ada", "-p", SECRET],
    ],
)
def test_secrets_in_command_lines_are_masked(arguments: list[str]) -> None:
    masked = mask_arguments(["python", "train.py", *arguments])
    assert SECRET not in " ".join(masked)
    assert MASK in " ".join(masked)
    assert masked[:2] == ("python", "train.py")


@pytest.mark.parametrize(
    "text",
    [
        "api_key=: connect(api_key='%s', retries=3)",
        'secret=> connect(api_key="%s")',
        "password: unlock('%s')",
        "api_key == '%s'",
        "secret::%s",
    ],
)
def test_what_stands_between_a_name_and_its_value_hides_nothing(text: str) -> None:
    assert SECRET not in mask_text(text % SECRET)


@pytest.mark.parametrize(
    "token",
    [
        "hf_abcdefghijklmnopqrstuvwx",
        "sk-proj-abcdefghijklmnop1234",
        *(f"{kind}{'abcd' * 4}" for kind in ("sk-", "sk_", "rk-", "rk_", "pk_")),
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
    "words",
    [
        "curl -H Authorization: Bearer zq9",
        "curl -H 'Authorization: token zq9'",
        "'X-Figma-Token: zq9'",
        "{'password': zq9",
        "--totp-otp zq9",
        "--gh-pat zq9 --revision 1",
    ],
)
def test_a_header_that_a_shell_has_split_is_masked(words: str) -> None:
    assert "zq9" not in " ".join(mask_arguments(words.split()))


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
        ["--revision", "0123456789abcdef0123456789abcdef01234567"],
        ["--git-sha", "0123456789abcdef0123456789abcdef01234567"],
        ["--git_commit=0123456789abcdef0123456789abcdef01234567"],
        ["--eval.max_tokens", "512"],
        ["root@10.0.0.1:/data", "2024-01-01T10:00:00"],
        ["tcp://10.0.0.1:29500"],
    ],
)
def test_what_is_no_secret_stays(arguments: list[str]) -> None:
    assert mask_arguments(arguments) == tuple(arguments)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"SecretAccessKey": "{SECRET}", "SessionToken": "{SECRET}"}}',
        f"argv: ['job.py', '--password', '{SECRET}', ...]",
        f'[("password", "{SECRET}"), ("user", "ada")]',
        f"pass: {SECRET}",
        "pass: hunter",
        "the pass: hunter2x",
        "login failed for user 'ada' with password hunter2x",
        "the API key is hunter2x",
        f"mysql -u ada -p{SECRET} runs",
        "Authorization: Basic hunter2xhunter",
        "+ curl -u ada:hunter2x https://host/x",
        f"+ PGPASSWORD={SECRET} psql -h db",
        f"dbpassword: {SECRET}, authtoken={SECRET}",
        f"access_token -> {SECRET}",
        f"'password' => '{SECRET}'",
        f"password := {SECRET}, password == {SECRET}",
        f"\x1b[36mapi_key\x1b[0m=\x1b[35m{SECRET}\x1b[0m \x1b[36mstep\x1b[0m=3",
        f"\x1b[31mpassword\x1b[0m: {SECRET}",
        "ValueError: bad api_key hunter2x",
        "the signing secret is hunter2x",
        f"https://host/x?key={SECRET}&y=1",
        f"cfg->db->password -> {SECRET}",
        f"x->secret -> {SECRET}, get_secret() -> {SECRET}",
        f"password \u2192 {SECRET}",
        f"password:\n  {SECRET}\nclient_secret: >-\n    {SECRET}",
        f"token=\\\n{SECRET}",
        f"--password \\\n  {SECRET}",
        f'{{\\"password\\": \\"{SECRET}\\", \\\\\\"token\\\\\\": \\\\\\"{SECRET}\\\\\\"}}',
        f"next=https%3A%2F%2Fhost%2Fx%3Ftoken%3D{SECRET}%26y%3D1",
        f"proxy=http%3A%2F%2Fada%3A{SECRET}%40host%3A3128",
        f"postgres://ada:{SECRET}/{SECRET}@db/runs",
        f"password='one {SECRET} two', api_key=b'{SECRET}', token = f'{SECRET}'",
        f"Cookie: theme=dark; sid={SECRET}",
        f"{{'Authorization': 'Token {SECRET}2'}}, (b'authorization', b'Token {SECRET}')",
        f"Authorization: ApiKey {SECRET}2",
        f"curl -uada:{SECRET} https://x",
        f"curl --user=ada:{SECRET} https://x",
        f"redis-cli -h cache -a {SECRET} ping",
        f"set -x SOME_TOKEN {SECRET}",
        f"setenv SOME_TOKEN {SECRET}",
        f"$env:SOME_TOKEN = '{SECRET}'",
        f"os.environ['API_KEY'] = '{SECRET}'",
        f"<db:password>{SECRET}</db:password>",
        f"psk={SECRET}, bindpw {SECRET}2, client-key-data: {SECRET}",
        f"'host=x\\nlogin ada\\npassword={SECRET}\\n'",
        f"auth:\n  user: ada\n  password: {SECRET}",
        f"credentials: {{password: {SECRET}}}, bad credentials: token: {SECRET}",
        f'"password":\n      "{SECRET}",\n"user": "ada"',
        f"password=a,{SECRET} user=ada",
        f"machine h login ada account x password {SECRET}",
        f"*:*:*:ada:{SECRET}",
        f"jdbc:oracle:thin:ada/{SECRET}@//db:1521/x",
        f"API key: {SECRET}2, AWS Secret Access Key [None]: {SECRET}2",
        f"docker login --password-stdin <<< {SECRET}",
        f"++logger.wandb.api_key={SECRET}",
        f"mysql -u ada -p'{SECRET}' runs",
        f"'sh -c \\'curl -b \\'sid={SECRET}\\' https://x\\''",
    ],
)
def test_a_secret_is_known_by_what_stands_before_it(text: str) -> None:
    masked = mask_text(text)
    assert MASK in masked
    assert SECRET not in masked
    assert "hunter" not in masked


@pytest.mark.parametrize(
    "text",
    [
        "first pass: a quick look at all of them",
        "forward pass: 12ms, backward pass: 31.5ms (pass=3/10, pass: 85%)",
        "pass: a",
        "user auth: failed, the token: Hello",
        "Basic configuration loaded; Bearer authentication is used",
        "basic resnet50_v2 model, a Basic Transformer2DModel",
        "loaded checkpoint 0123456789abcdef0123456789abcdef01234567 in 3 s",
        "revision: '0123456789abcdef0123456789abcdef01234567'",
        "signature = inspect.signature(fn)",
        "next_token = sample(logits[:, -1])",
        "token = tokens[self.at]",
        "TokenError: unexpected end; AuthError: no such user",
        "password must contain 8 characters, the password for user ada2",
        "pwd: /home/ada/run PWD=/home/ada",
        "docker run -p 8080:80 image",
        "docker run -u 1000:1000 image",
        "forward pass -> 12ms, token := next(it)",
        "https://host/x?keyword=3",
        "self.styles[token] = (start, end)",
        "def get_secret() -> Secret:",
        "def get_token() -> Optional[str]:",
        "def login(token: str, secret: bytes) -> int:",
        "http://host:8080/a/b@c",
        "commit 0123456789abcdef0123456789abcdef01234567x of main, tree 0123456789abcdef",
        "https://huggingface.co/x/resolve/0123456789abcdef0123456789abcdef01234567/config.json",
        "https://discuss.pytorch.org/t/training-hangs-at-barrier-2/123456",
        "https://github.com/x/y/blob/main/hooks/register_forward_hooks_v2.py#L3",
        "fx graph cache key fqzxw2345abcdefghij, cache_key=0123456789abcdef0123456789abcdef",
        "image digest sha256=0123456789abcdef",
        "train.py:120:main:INFO:starting, fd00:1:2:3:4, 2026-11-23:10:00:00",
        "srun -p gpu python train.py -p 8080 -P x -w n1",
        "psql -p 5432 -U ada, ssh -p 22 n1",
        "if token != last_token:\n    emit.clear(token)\n    return",
        "Enter password:\nstep 12 loss 3.5",
        "missing_pass_names = (\n    one, two2two\n)",
        "key 7 at trainer.py:98, shape=[8, 4], (4096, 11008), lr=1e-4,wd=0.1",
        "auth: {\n  user: ada\n}",
        "connect tcp/10.0.0.1 connect 10.0.0.1/24",
        "default_pg/0//cuda:0 model/step@main, wandb: run k3x9 at https://wandb.ai/a/b/runs/k3x9",
        r"C:\new\run\train.py 'line one\nline two\ttab'",
        "tokens=['Hello', 'world2'], token_ids: [12, 34]",
    ],
)
def test_words_of_sentences_and_of_code_stay(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "MYSVC=%s",
        "run myservice=%s steps=3",
        "myservice: %s",
        'state["svc"] = "%s"',
        "cfg->svc -> %s",
        "'%s'",  # a local variable, as Python writes it
        '"%s"',
        "svc=%s==",
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        "u" + "jOeHwdFcAefAZhnM6Jy8c1r",
        "O" + "OZRdcQ/oXz1B3zy+pt52J9",
        "q9" + "_Zt4LmWx7-Kd2PvB8sRn",
    ],
)
def test_what_is_as_mixed_as_a_key_needs_no_telling_name(text: str, value: str) -> None:
    assert value not in mask_text(text % value)


@pytest.mark.parametrize(
    "text",
    [
        "commit=0123456789abcdef0123456789abcdef, rev: 9fceb02d0ae598e95dc970b74767f19372d61af8x",
        "sha256=47DEQpj8HBSaTImW5JCeuQeRkm5NMpJWZG3hSuFU2dE",
        "run_id=u3jOeHwdFcAefAZhnM6Jy8",
        "uuid: 8f6f2a54-1c1f-4c8e-b5bd-5a3d0f3b6a1e GPU-8f6f2a54-1c1f-4c8e-b5bd-5a3d0f3b6a1e",
        "model=meta-llama/Llama-3-8B-Instruct",
        "cls=DistributedDataParallelGrad2BucketReducerV2",
        "path=/scratch/Run7/models/Qwen2VLForConditionalGeneration",
        "shape=[4096, 11008], offset: 12345678901234567890123",
        "kernel=triton_poi_fused_add_mul_native_layer_norm_17",
        "name: ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "loss=2.3104561234567890123, lr: 1.2345678901234567e-05",
        "file=model-00012-of-00030.safetensors",
        "t=2026-11-23T04:12:07.123456Z",
        "at=0x7f3a2b1c4d5e6f708192",
        "fn=_ZN4c10d16ProcessGroupNCCL9allreduceE",
        "'DistributedDataParallelGrad2Bucket'",
    ],
)
def test_words_that_only_are_long_stay(text: str) -> None:
    assert mask_text(text) == text


def test_long_command_lines_are_cut() -> None:
    masked = mask_arguments(["x" * 1000] * 200)
    assert len(masked) == 129
    assert masked[-1] == "… 72 more"
    assert all(len(argument) <= 512 for argument in masked)


@given(st.lists(st.text(max_size=80), max_size=10))
def test_masking_never_fails(arguments: list[str]) -> None:
    assert len(mask_arguments(arguments)) == len(arguments)


@pytest.mark.parametrize(
    "unit",
    [
        *("?", "?token", "&sig;", "eyJ", "a:", "token", "--token ", "://", "hf_", "/token", "("),
        *("parallel", "attn", "tokens-per"),
    ],
)
def test_masking_takes_no_time_that_a_stranger_chooses(unit: str) -> None:
    began = time.process_time()
    mask_text(unit * (100_000 // len(unit)))
    mask_arguments([unit * (100_000 // len(unit)) + "="])
    mask_arguments(["-" + unit * (100_000 // len(unit)) + "\nx"])
    assert time.process_time() - began < 2.0


def test_paths_and_lines_of_code_are_masked(tmp_path: Path) -> None:
    assert mask_path(f"/out/token={SECRET}/log") == f"/out/token={MASK}"
    token = "gh" + "p_" + "aB3" * 12
    assert mask_path(f"/data/run-{token}/x.pt") == f"/data/run-{MASK}/x.pt"
    assert mask_path("/data/part-0001.parquet") == "/data/part-0001.parquet"
    file = tmp_path / "train.py"
    file.write_text(f'login(api_key="{SECRET}")\n')
    os.utime(file, (0, 0))
    mounts = [procfs.Mount(1, "0:1", "/", "ext4", "x")]
    shown = sources.line(os.getpid(), str(file), 1, mounts)
    assert shown == f'login(api_key="{MASK}")'


def test_lines_of_strace_are_masked() -> None:
    line = b'write(1, "--password %s", 40) = 40' % SECRET.encode()
    assert SECRET not in strace._shown(line)
    assert strace._shown(b'read(5, "abc", 3) = 3') == 'read(5, "abc", 3) = 3'
    name = b'sendto(7, "<UNIX-STREAM:[1,", 9, "3T1tC6s2dQ9wKp0LmNb7", 9, ""]>, 0) = 9'
    assert MASK in strace._shown(name), "a buffer may look like the name of a socket"


def as_strace_prints(text: str) -> str:
    """As `strace -s 64` writes a buffer."""
    escapes = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
    shown = "".join(escapes.get(char, char) for char in text[:64])
    return f'"{shown}"' + ("..." if len(text) > 64 else "")


@pytest.mark.parametrize("begins", [0, 5, 20, 30])
def test_no_secret_is_in_a_traced_call_wherever_a_buffer_begins(begins: int) -> None:
    for one in plants():
        text = one.text[begins:] if len(one.text) > 90 else one.text
        words = ", ".join(map(as_strace_prints, one.arguments))
        for line in (
            f"12:00:00.1 write(1</dev/pts/0>, {as_strace_prints(text)}, 9) = 9 <0.1>",
            f'write(25<UNIX-STREAM:[1->2,"/tmp/a"]>, {as_strace_prints(text)}, 9) = 9 <0.1>',
            f"[pid 7] 12:00:00.1 <... read resumed>{as_strace_prints(text)}, 900) = 9 <0.1>",
            f'12:00:00.1 execve("/usr/bin/curl", ["curl", {words}], 0x7f /* 2 vars */) = 0 <0.1>',
        ):
            assert not leaks(one, strace._shown(line.encode())), (one.kind, line)


@pytest.mark.parametrize("secret", ["hf_" + "aB3x" * 9, "0a1b2c3d" * 5, "ada:sEcretword@"])
def test_no_part_of_a_secret_is_left_where_strace_cut_it(secret: str) -> None:
    """Up to seven characters may be left of it, at the end or the beginning of a buffer."""
    told = f"mysql://{secret}db" if "@" in secret else secret
    for left in range(8, 40):
        for char in (" ", "\n", "="):
            end = as_strace_prints("x" * (63 - left) + char + told + " the rest of the line")
            shown = strace._shown(f"write(1</x>, {end}, 99) = 99".encode())
            assert secret[:8] not in shown, (left, char)
        begin = as_strace_prints(secret[-left:] + " and more")
        assert "@" in secret or secret[-8:] not in strace._shown(
            f"read(5, {begin}, 9) = 9".encode()
        )


@pytest.mark.parametrize(
    "line",
    [
        'read(5, "epoch_12 loss=2.25 Step12: rank0", 30) = 30',
        r'read(5, "\6\0\0\0X\377\0\0\0\0\0\0\0"..., 90) = 90',
        'write(2</x/train.log>, "step 17 loss 0.25 of rank 0\\n", 30) = 30 <0.000010>',
        'openat(AT_FDCWD, "/usr/lib/python3.11/site-packages/torch_1/x.py", O_RDONLY) = 3',
        'sendto(9<UNIX-STREAM:[7->8,"/tmp/hangtop-0/run1-30438.sock"]>, "ok", 2, 0) = 2',
        'sendto(9<TCP:[10.0.0.1:29500->10.0.0.2:41000]>, "\\0\\1\\377", 3, 0, NULL, 0) = 3',
    ],
)
def test_a_traced_call_stays_what_it_is(line: str) -> None:
    assert strace._shown(line.encode()) == line
