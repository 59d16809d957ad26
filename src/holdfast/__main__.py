"""`python -m holdfast`: the command line, for when the `holdfast` script is not installed."""

from __future__ import annotations

import sys

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
