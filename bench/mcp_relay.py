"""The yardstick over HTTP: a relay that copies bytes both ways and understands nothing, `mcp_relay.py PORT TARGET`.

A thread for each direction that does nothing but read and write is the quickest that Python can do. The one for stdio
is `tests/mcp/real/raw_relay.py`, which does the same.
"""

from __future__ import annotations

import socket
import sys
import threading

CHUNK = 1 << 16


def main(port: int, target: int) -> None:
    """Between each connection to *port* and one to *target*."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", target))
            for end, other in ((here, there), (there, here)):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_copy, args=(end, other), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one of them is gone, and the other direction ends by itself


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
