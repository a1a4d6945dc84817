"""Whether NVIDIA's driver answers: its version and how many GPUs it shows, by ctypes.

A small part of NVML is enough for that, so that nothing has to be shipped. It is asked in a
process of its own, with a time limit: the calls of a driver that has lost a GPU may never return.
Names and codes are those of nvml.h (CUDA 12).
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict

from . import procfs

if TYPE_CHECKING:
    import threading

    from .tools import Tools

LIBRARY = "libnvidia-ml.so.1"
_SECONDS = 10.0
_ASK = (
    "import ctypes, json, sys\n"
    "def tell(**more):\n"
    "    print(json.dumps(more))\n"
    "    sys.exit()\n"
    "try:\n"
    "    nvml = ctypes.CDLL(sys.argv[1])\n"
    "except OSError as error:\n"
    "    tell(missing=str(error))\n"
    "nvml.nvmlErrorString.restype = ctypes.c_char_p\n"
    "def call(name, *arguments):\n"
    "    code = getattr(nvml, name)(*arguments)\n"
    "    if code:\n"
    "        said = (nvml.nvmlErrorString(code) or b'').decode('utf-8', 'replace')\n"
    "        tell(error='%s: %s (%d)' % (name, said, code))\n"
    "call('nvmlInit_v2')\n"
    "version, count = ctypes.create_string_buffer(96), ctypes.c_uint()\n"
    "call('nvmlSystemGetDriverVersion', version, 96)\n"
    "call('nvmlDeviceGetCount_v2', ctypes.byref(count))\n"
    "nvml.nvmlShutdown()\n"
    "tell(driver=version.value.decode('utf-8', 'replace'), gpus=count.value)\n"
)


def ask(tools: Tools, cancel: threading.Event) -> Dict[str, Any]:
    """Return ``driver`` and ``gpus``, or ``error``, or ``missing`` without the library.

    ``loaded`` says whether the kernel has the driver: an error without it means nothing.
    """
    loaded = os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl")
    told: Dict[str, Any]
    try:
        done = tools.run([sys.executable, "-I", "-S", "-c", _ASK, LIBRARY], _SECONDS, cancel)
        if done.timed_out:
            told = {"error": "NVML gave no answer in %g s" % _SECONDS}
        elif done.code:
            last = procfs.text(done.err).strip().rpartition("\n")[2][:200]
            told = {"error": "NVML ended with %s: %s" % (done.code, last)}
        else:
            told = json.loads(done.out)
    except (OSError, ValueError) as error:
        told = {"error": "NVML could not be asked: %s" % str(error)[:200]}
    return dict(told, loaded=loaded)
