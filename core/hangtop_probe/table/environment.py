"""Select the variables of a process that may leave the node: an allow-list, without secrets."""

from __future__ import annotations

from typing import Dict, Mapping

from ..proc.procfs import words
from ..ranks import launchers
from ..secrets.mask import MASK, cut, mask_text
from ..secrets.secretnames import is_secret

MAX_VALUE = 1024

_NAMES = frozenset(
    words("""
    GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE CROSS_SIZE
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
    CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUDA_DEVICE_MAX_CONNECTIONS PYTHONFAULTHANDLER
    PYTHONUNBUFFERED PYTHONNOUSERSITE OMP_NUM_THREADS MKL_NUM_THREADS TOKENIZERS_PARALLELISM HOME
    XDG_CACHE_HOME TMPDIR VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV LD_PRELOAD KMP_AFFINITY
    KUBERNETES_SERVICE_HOST SLURM_JOBID SLURM_STEPID
    SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_JOB_NODELIST
    SLURM_STEP_NODELIST SLURM_JOB_NAME SLURM_NODENAME SLURMD_NODENAME SLURM_CLUSTER_NAME
    HANGTOP_NUMERICS HANGTOP_RANK HANGTOP_RUN_DIR PYTHON_DISABLE_REMOTE_DEBUG
    """)
).union(*(one.variables() for one in launchers.TABLE))
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


def is_allowed(name: str) -> bool:
    """Whether a variable of this name may leave the node."""
    return name in _NAMES or name.startswith(_PREFIXES)


def allowed(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that may leave the node, with secrets in their values masked."""
    return {
        name: MASK if is_secret(name, value) else cut(mask_text(value), MAX_VALUE)
        for name, value in sorted(environment.items())
        if is_allowed(name)
    }
