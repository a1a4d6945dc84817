"""These tests run where HANGTOP_FRAMEWORKS names an environment with the frameworks, else never."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "HANGTOP_FRAMEWORKS" in os.environ else ["test_*.py"]
