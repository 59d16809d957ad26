"""Something that greets like Redis, is tried like Redis, and answers the guards' questions in its own way."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

import hiredis

ANSWERS = {
    b"PING": b"+PONG\r\n",
    b"SCRIPT": b"$1\r\nx\r\n",
    b"SUBSCRIBE": b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
}
TRIED = b"holdfast:tried{once}"
DONE = b"*8\r\n:4\r\n:0\r\n:1\r\n:-1\r\n:0\r\n:1\r\n$-1\r\n$-1\r\n"  # as the script says it
NONSENSE = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"


class Nonsense:
    """Listens on a port of 127.0.0.1 until it is closed; *says* the same to every question."""

    def __init__(self, says: bytes = NONSENSE) -> None:
        self._says = says
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Nonsense:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:  # closed
                    return
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with connection:
            try:
                while data := connection.recv(65_536):
                    reader.feed(data)
                    while (command := reader.gets()) is not False:
                        usual = DONE if TRIED in command else self._says
                        connection.sendall(ANSWERS.get(command[0].upper(), usual))
            except OSError:  # whoever asked has gone
                return
