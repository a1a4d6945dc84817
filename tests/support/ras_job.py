"""ras_job.py TOLD: gloo_job.py collective, with the double of ras_server.py in its rank 0.

As with torch for CUDA, NCCL is mapped before torch is.
"""

from __future__ import annotations

import json
import os
import sys

from ras_server import start

if os.environ["RANK"] == "0":
    start(json.loads(sys.argv[1]))
sys.argv[1:] = ["collective"]
__import__("gloo_job").main()
