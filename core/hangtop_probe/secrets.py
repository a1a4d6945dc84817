"""What may leave the node: the environment allow-list and the masking of secrets.

Command lines and environments hold access tokens (`--token hf_…`, WANDB_API_KEY,
https://user:password@host). They are replaced here, before anything is sent; the head never
sees them.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Tuple

from .procfs import words

MASK = "***"
MAX_VALUE = 1024
MAX_ARGUMENT = 512
MAX_ARGUMENTS = 128

_NAMES = frozenset(
    words("""
    RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME
    ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_SIZE CROSS_RANK CROSS_SIZE
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
    CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS PYTHONFAULTHANDLER
    PYTHONUNBUFFERED PYTHONNOUSERSITE OMP_NUM_THREADS MKL_NUM_THREADS TOKENIZERS_PARALLELISM HOME
    XDG_CACHE_HOME TMPDIR VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_PRELOAD KMP_AFFINITY
    PMI_RANK PMI_SIZE PMIX_RANK PMIX_NAMESPACE OMPI_MCA_ess_base_jobid KUBERNETES_SERVICE_HOST
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_JOB_ID SLURM_JOBID SLURM_STEP_ID SLURM_STEPID
    SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST
    SLURM_STEP_NODELIST SLURM_JOB_NAME SLURM_NODENAME SLURMD_NODENAME SLURM_CLUSTER_NAME
    HANGTOP_RUN_DIR
    """)
)
_PREFIXES = (
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "TORCHELASTIC_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "PYTORCH_",
    "ACCELERATE_",
    "DEEPSPEED_",
    "DS_",
    "OMPI_COMM_WORLD_",
    "HF_",
    "UCX_",
    "FI_",
    "TP_SOCKET_",
)

_SENSITIVE = (
    r"(?:pass(?:word|wd|phrase)?|pwd|pw|secret|token|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|auth(?:orization)?|credentials?|cookie|bearer|signature|dsn)"
)
_SECRET_NAME = re.compile(r"(?:^|[-_.])%s(?:$|[-_.])" % _SENSITIVE, re.IGNORECASE)
_KEY_NAME = re.compile(r"(?:^|[-_.])key$|[a-z]key$", re.IGNORECASE)
_HARMLESS = re.compile(
    r"^-*(?:.*(?:tokenizer|parallel"
    r"|(?<![a-z])(?:num|max|min|n|per|pad|eos|bos|unk|special)[-_]tokens?"
    r"|tokens?[-_](?:per|id|ids|len|length|count|budget|type|drop|dispatcher)"
    r"|attn|attention).*)$",
    re.IGNORECASE,
)
_PLAIN_VALUE = re.compile(r"^(?:[0-9][0-9_.eE+-]{0,12}|true|false|yes|no|on|off|none)?$", re.I)
_TOKENS = re.compile(
    r"(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abprs]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|npm_[A-Za-z0-9]{30,}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*|(?<![/\w])[0-9a-f]{40}(?![/\w]))"
)
# Every repetition before the value is bounded: text of a stranger must not cost quadratic time.
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_LOGIN = re.compile(r"((?:^|[\s,;'\"=])[\w.+-]{1,64}:)[^\s/@:]{1,200}(?=@[\w\[])")
_QUERY = re.compile(
    r"([?&;][^=&?;\s]{0,64}?(?:%s|sig)[^=&?;\s]{0,64}=)[^&\s]+" % _SENSITIVE, re.IGNORECASE
)
_INLINE = re.compile(
    r"((?:^|[\s,;{'\"(/])-{0,2}[\w.-]{0,64}%s[\w.-]{0,64}['\"]?\s{0,4}[=:]\s{0,4})(['\"]?)"
    r"[^\s'\",;]+" % _SENSITIVE,
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"((?:^|[\s'\"])(--?[\w.-]{0,64}%s[\w.-]{0,64})\s{1,4})([^\s'\"-][^\s'\"]*)" % _SENSITIVE,
    re.IGNORECASE,
)
_HEADER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret.

    `--max-tokens` and `--tokenizer` do not.
    """
    bare = name.lstrip("-")
    if _HARMLESS.match(bare):
        return False
    return bool(_SECRET_NAME.search(bare) or _KEY_NAME.search(bare))


def mask_text(value: str) -> str:
    """Mask what looks like a secret in any text: known token forms, URL logins, `token=…`."""
    value = _URL_LOGIN.sub(MASK, value)
    value = _LOGIN.sub(r"\1" + MASK, value)
    value = _QUERY.sub(r"\1" + MASK, value)
    value = _HEADER.sub(r"\1 " + MASK, value)
    value = _INLINE.sub(_mask_inline, value)
    value = _OPTION.sub(_mask_option, value)
    return _TOKENS.sub(MASK, value)


def mask_path(path: str) -> str:
    """Mask a path or another link's target, which hardly ever holds anything."""
    return mask_text(path) if "=" in path or "@" in path or "hf_" in path else path


def _mask_inline(match: "re.Match[str]") -> str:
    name = re.split(r"[\s,;{'\"(/]", match.group(1).rstrip(" =:'\""))[-1]
    if not is_secret_name(name) or _PLAIN_VALUE.match(match.group(0)[len(match.group(1)) :]):
        return match.group(0)
    return match.group(1) + match.group(2) + MASK


def _mask_option(match: "re.Match[str]") -> str:
    if not is_secret_name(match.group(2)) or _PLAIN_VALUE.match(match.group(3)):
        return match.group(0)
    return match.group(1) + MASK


def mask_arguments(arguments: Iterable[str]) -> Tuple[str, ...]:
    """Mask a command line: `--token X`, `--token=X`, `KEY=X`, URLs, known token forms.

    Cut to 128 arguments of 512 characters each, which is said by a last argument.
    """
    masked: List[str] = []
    given = list(arguments)
    expecting = False
    for argument in given[:MAX_ARGUMENTS]:
        name, equals, value = argument.partition("=")
        if expecting and not argument.startswith("-"):
            masked.append(argument if _PLAIN_VALUE.match(argument) else MASK)
            expecting = False
            continue
        option = argument.startswith("-")
        expecting = option and not equals and " " not in name and is_secret_name(name)
        if equals and " " not in name and is_secret_name(name) and not _PLAIN_VALUE.match(value):
            masked.append(name + "=" + MASK)
        else:
            masked.append(_cut(mask_text(argument), MAX_ARGUMENT))
    if len(given) > MAX_ARGUMENTS:
        masked.append("… %d more" % (len(given) - MAX_ARGUMENTS))
    return tuple(masked)


def allowed_environment(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that may leave the node, with secrets in their values masked."""
    allowed = {}
    for name, value in sorted(environment.items()):
        if name not in _NAMES and not name.startswith(_PREFIXES):
            continue
        if is_secret_name(name) and not _PLAIN_VALUE.match(value):
            allowed[name] = MASK
        else:
            allowed[name] = _cut(mask_text(value), MAX_VALUE)
    return allowed


def _cut(value: str, room: int) -> str:
    return value if len(value) <= room else value[: room - 1] + "…"
