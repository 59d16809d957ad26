"""`python -m tests.web.typecheck`: checks the types of the page with TypeScript, as part of `make lint`.

Node and TypeScript are had as the MCP tests have theirs. Where they cannot be had the check is left out, with a word;
on CI that is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import worlds

HERE = Path(__file__).parent
PACKAGES = HERE / "npm"


def node() -> worlds.Node:
    """Node, with TypeScript and axe."""
    return worlds.node(PACKAGES, "page")


def main() -> int:
    try:
        there = node()
    except worlds.Missing as missing:
        sys.stderr.write(f"the types of the page were not checked: {missing}\n")
        return 1 if os.environ.get("CI") == "true" else 0
    compiler = there.modules / "typescript" / "bin" / "tsc"
    return subprocess.run(
        [str(there.executable), str(compiler), "--project", str(HERE / "tsconfig.json")], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
