"""`python -m xpress_exp`."""

from __future__ import annotations

import sys

from xpress_exp.cli import main

if __name__ == "__main__":
    sys.exit(main())
