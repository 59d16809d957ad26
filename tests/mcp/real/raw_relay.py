"""A relay that copies bytes both ways and understands nothing: `raw_relay.py [--record FOLDER] -- COMMAND…`.

It is the yardstick for the proxy, and, put in front of a server, keeps what really went in and out: whoever looks into
the folder finds `to_server` and `from_server`, byte for byte.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

CHUNK = 1 << 16


def main(arguments: list[str]) -> int:
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    folder = Path(options[1]) if options else None
    inner, to_child = os.pipe()
    from_child, outer = os.pipe()
    child = subprocess.Popen(command, stdin=inner, stdout=outer)
    os.close(inner)
    os.close(outer)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=copy, args=(0, to_child, folder and folder / "to_server"), daemon=True).start()
    copy(from_child, 1, folder and folder / "from_server")
    return child.wait()


def copy(source: int, sink: int, kept: Path | None) -> None:
    record = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if kept else None
    try:
        while chunk := os.read(source, CHUNK):
            if record is not None:
                os.write(record, chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(sink, rest) :]
    except BrokenPipeError:
        return  # whoever listened is gone; the other direction ends the relay
    finally:
        os.close(sink)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
