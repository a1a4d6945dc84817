"""`python -m hangtop`."""

import sys

from hangtop.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
