"""A script for torchrun whose first attempt fails, and whose second one only waits."""

from __future__ import annotations

import os
import sys
import time

if __name__ == "__main__":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
        sys.exit(1)
    time.sleep(100000)
