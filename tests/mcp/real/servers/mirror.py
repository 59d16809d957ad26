"""A server of no version: it tells every line it hears, letter by letter, and says every line it is asked to say.

Runs on any Python. `{"method": "say", "params": {"line": …}}` makes it say that line as it stands.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    for line in sys.stdin.buffer:
        heard = line.rstrip(b"\n").decode("latin-1")  # every byte has a letter
        _write(json.dumps({"jsonrpc": "2.0", "method": "notifications/heard", "params": {"line": heard}}).encode())
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and message.get("method") == "say":
            _write(message["params"]["line"].encode("latin-1"))


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
